"""Translations of PyTorch's operators to ONNX nodes, and whether a graph has others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.onnx._internal.exporter import _decomp
from torch.onnx._internal.exporter._constants import TORCHLIB_OPSET
from torch.onnx._internal.exporter._registration import ONNXRegistry

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.explanations import Whereabouts, untranslated
from onnx_ops.torch.operators import TABLE


def translation_table() -> dict[Any, Callable[..., Any]]:
    """Translations for `torch.onnx.export(..., dynamo=True, custom_translation_table=translation_table())`.

    They cover the operators that `whole_ops` puts in place, and those of backward passes that torch.onnx lacks or
    translates to wrong numbers. The dictionary is the caller's to change.
    """
    return dict(TABLE.translations)


@functools.cache
def registry(opset_version: int) -> ONNXRegistry:
    """All translations. torch.onnx.export would read the sources of its own, a thousand functions, for each capture."""
    found = ONNXRegistry.from_torchlib(opset_version=max(opset_version, TORCHLIB_OPSET))
    for operator, translate in TABLE.translations.items():
        found.register_op(operator, translate, is_complex=False)
    return found


def check_translations(graph: torch.fx.GraphModule, registry: ONNXRegistry, where: Whereabouts) -> None:
    """CaptureError for an operator that has neither a translation nor a decomposition, before torch.export runs.

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
