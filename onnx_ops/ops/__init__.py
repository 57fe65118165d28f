"""The ops of the domain, one file each: schema, checks, NumPy reference, kernel and portable body together."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType

from onnx_ops.domain import DOMAIN
from onnx_ops.errors import OpError
from onnx_ops.op import Op


def _found() -> dict[str, Op]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    ops = [importlib.import_module(f"{__name__}.{name}").OP for name in names]
    return {op.name: op for op in ops}


OPS: Mapping[str, Op] = MappingProxyType(_found())
"""All ops by op_type: every module of this package whose name has no leading underscore defines one, OP."""


def op_named(op_type: str) -> Op:
    """An op by its op_type; OpError if there is none of that name."""
    if op_type not in OPS:
        raise OpError(op_type, f"no such op in domain {DOMAIN}, expected one of {', '.join(OPS)}")
    return OPS[op_type]
