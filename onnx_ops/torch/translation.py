"""Translations of PyTorch's operators to ONNX nodes, and the check that a graph has no other operators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.onnx._internal.exporter import _decomp
from torch.onnx._internal.exporter._constants import TORCHLIB_OPSET
from torch.onnx._internal.exporter._registration import ONNXRegistry

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.explanations import Locations, untranslated
from onnx_ops.torch.operators import TABLE


def translation_table() -> dict[OpOverload, Callable[..., Any]]:
    """Translations for `torch.onnx.export(..., dynamo=True, custom_translation_table=translation_table())`.

    Returns:
        A new dictionary from operators to translations: of the operators that `whole_ops` calls, and of those of
        backward passes that torch.onnx lacks or translates incorrectly.
    """
    return dict(TABLE.translations)


@functools.cache
def registry(opset_version: int) -> ONNXRegistry:
    """All translations, cached, as torch.onnx parses the sources of its thousand functions for each new registry."""
    found = ONNXRegistry.from_torchlib(opset_version=max(opset_version, TORCHLIB_OPSET))
    for operator, translate in TABLE.translations.items():
        found.register_op(operator, translate, is_complex=False)
    return found


def check_translations(graph: torch.fx.GraphModule, registry: ONNXRegistry, where: Locations) -> None:
    """Check the operators of a graph before torch.export runs.

    Those that write to their arguments or return views of them are not checked, as torch.export replaces them.

    Raises:
        CaptureError: an operator has neither a translation nor a decomposition.
    """
    exportable = _exportable(registry)
    for node in graph.graph.nodes:
        operator = node.target
        if not isinstance(operator, OpOverload) or operator in exportable or not node.users:
            continue
        aliased = any(argument.alias_info is not None for argument in operator._schema.arguments)
        composite = torch._C.DispatchKey.CompositeImplicitAutograd in operator.py_kernels or (
            torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd")
        )
        if not aliased and not composite:
            raise CaptureError(untranslated(str(operator).rpartition(".")[0], where))


@functools.cache
def _exportable(registry: ONNXRegistry) -> frozenset[OpOverload]:
    """The operators that have a translation or a decomposition."""
    translated = set(_decomp.get_onnx_implemented_overloads(registry))
    return frozenset(translated | set(_decomp.create_onnx_friendly_decomposition_table(translated)))
