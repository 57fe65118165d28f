"""Whether the operators of a graph can become ONNX, before torch.export spends its time on them."""

from __future__ import annotations

import functools

import torch
from torch.onnx._internal.exporter import _decomp
from torch.onnx._internal.exporter._registration import ONNXRegistry

from onnx_ops.torch.errors import CaptureError
from onnx_ops.torch.explanations import Whereabouts, untranslated


def check_translations(graph: torch.fx.GraphModule, registry: ONNXRegistry, where: Whereabouts) -> None:
    """CaptureError for an operator that has neither a translation nor a decomposition.

    One that writes to its arguments or returns views of them is left to torch.export, which replaces it.
    """
    possible = _possible(registry)
    for node in graph.graph.nodes:
        operator = node.target
        if not isinstance(operator, torch._ops.OpOverload) or operator in possible or not node.users:
            continue
        aliased = any(argument.alias_info is not None for argument in operator._schema.arguments)
        composite = torch._C.DispatchKey.CompositeImplicitAutograd in operator.py_kernels or (
            torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd")
        )
        if not aliased and not composite:
            raise CaptureError(untranslated(str(operator).rpartition(".")[0], where))


@functools.cache
def _possible(registry: ONNXRegistry) -> frozenset[object]:
    translated = set(_decomp.get_onnx_implemented_overloads(registry))
    return frozenset(translated | set(_decomp.create_onnx_friendly_decomposition_table(translated)))
