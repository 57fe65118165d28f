"""Operators of PyTorch, one file per operator or family: replacements, decompositions and translations.

Importing the package imports all files, whose decorators fill `TABLE`.
"""

from __future__ import annotations

import importlib
import pkgutil

from onnx_ops.torch.base.table import TABLE
from onnx_ops.torch.operators.scalar_tensors import for_scalars
from onnx_ops.torch.operators.symbolic_numbers import with_symbols

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)

TABLE.decompositions.update(for_scalars(TABLE.decompositions))
TABLE.replacements.update(with_symbols(TABLE.replacements))

__all__ = ["TABLE"]
