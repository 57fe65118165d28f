"""The ops of the domain by family, one file each: signature, checks, NumPy reference, kernel and function body."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType

from onnx_ops.core.domain import DOMAIN, OPSET_VERSION
from onnx_ops.core.errors import OpError
from onnx_ops.core.op import Op


def _found() -> tuple[Op, ...]:
    modules = [
        f"{family.name}.{module.name}"
        for family in pkgutil.iter_modules(__path__)
        if family.ispkg
        for module in pkgutil.iter_modules([f"{__path__[0]}/{family.name}"])
        if not module.name.startswith("_")
    ]
    ops = [importlib.import_module(f"{__name__}.{name}").OP for name in modules]
    return tuple(sorted(ops, key=lambda op: (op.name, op.version)))


ALL_VERSIONS = _found()
"""All versions of all ops: the OP of every module of a family whose name has no leading underscore."""

OPS: Mapping[str, Op] = MappingProxyType({op.name: op for op in ALL_VERSIONS})
"""The newest version of all ops, by op_type."""


def op_named(op_type: str, version: int = OPSET_VERSION) -> Op:
    """The op with this op_type in a version of the domain; raises OpError if there is none."""
    if op_type not in OPS:
        raise OpError(op_type, f"no such op in domain {DOMAIN}, expected one of {', '.join(OPS)}")
    versions = [op for op in ALL_VERSIONS if op.name == op_type]
    found = [op for op in versions if op.version <= version]
    if not found:
        problem = f"no such op in version {version} of domain {DOMAIN}, expected an import of version"
        raise OpError(op_type, f"{problem} {versions[0].version} or newer")
    return found[-1]
