"""The ops of the domain by family, one file each: signature, checks, NumPy reference, kernel and function body."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType

from onnx_ops.core.domain import DOMAIN
from onnx_ops.core.errors import OpError
from onnx_ops.core.op import Op


def _found() -> dict[str, Op]:
    modules = [
        f"{family.name}.{module.name}"
        for family in pkgutil.iter_modules(__path__)
        if family.ispkg
        for module in pkgutil.iter_modules([f"{__path__[0]}/{family.name}"])
        if not module.name.startswith("_")
    ]
    ops = [importlib.import_module(f"{__name__}.{name}").OP for name in modules]
    return {op.name: op for op in sorted(ops, key=lambda op: op.name)}


OPS: Mapping[str, Op] = MappingProxyType(_found())
"""All ops by op_type: the OP of every module of a family whose name has no leading underscore."""


def op_named(op_type: str) -> Op:
    """The op with this op_type; raises OpError if there is none."""
    if op_type not in OPS:
        raise OpError(op_type, f"no such op in domain {DOMAIN}, expected one of {', '.join(OPS)}")
    return OPS[op_type]
