"""Operators of PyTorch, one file per operator or family: replacements, decompositions and translations.

Importing the package imports all files, whose decorators fill `TABLE`.
"""

from __future__ import annotations

import importlib
import pkgutil

from onnx_ops.torch.base.table import TABLE

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)

__all__ = ["TABLE"]
