"""Translates graphs of PyTorch's operators to ONNX, and checks that each operator has a translation."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import onnx
import onnx_ir as ir
import torch
from onnx_ir.schemas import OpSignature
from onnxscript import version_converter
from onnxscript.values import TracedOnnxFunction
from torch._ops import OpOverload
from torch.fx import GraphModule
from torch.onnx._internal.exporter import _constants, _core, _decomp, _ir_passes
from torch.onnx._internal.exporter._constants import TORCHLIB_OPSET
from torch.onnx._internal.exporter._registration import ONNXRegistry

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.lowering.dynamic_numbers import TRANSLATIONS
from onnx_ops.torch.lowering.lower import decompositions_of
from onnx_ops.torch.operators import TABLE
from onnx_ops.torch.tracing.explanations import Locations, untranslated


def translation_table() -> dict[OpOverload, Callable[..., Any]]:
    """Translations for `torch.onnx.export(..., dynamo=True, custom_translation_table=translation_table())`.

    Returns:
        A new dictionary from operators to translations: of the operators that `whole_ops` calls, and of those of
        backward passes that torch.onnx lacks or translates incorrectly.
    """
    return dict(TABLE.translations)


@functools.cache
def registry(opset_version: int) -> ONNXRegistry:
    """All translations.

    torch.onnx parses the sources of its hundreds of functions, which takes most of the time, for their domains alone.
    """
    domain = property(lambda function: SimpleNamespace(domain=function.opset.domain))
    with mock.patch.object(TracedOnnxFunction, "function_ir", domain):
        found = ONNXRegistry.from_torchlib(opset_version=max(opset_version, TORCHLIB_OPSET))
    for operator, translate in (TABLE.translations | TRANSLATIONS).items():
        found.register_op(operator, translate, is_complex=False)
    return found


def check_translations(graph: GraphModule, registry: ONNXRegistry, where: Locations) -> None:
    """Check the operators of a traced graph.

    Those that write to their arguments or return views of them are not checked, as lowering may replace them.

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
    return frozenset({*_decomp.get_onnx_implemented_overloads(registry), *decompositions_of(registry)})


def _no_metadata(fx_node: torch.fx.Node, ir_node: ir.Node) -> None:
    """In place of texts about the traced node."""


@contextlib.contextmanager
def _few_texts() -> Iterator[None]:
    """A context in which the schema of a standard operator is parsed once, and nodes get no metadata in the exporter.

    It does either for each node, and the metadata is text that would be removed in the end.
    """
    parsed = OpSignature.from_op_schema

    @functools.cache
    def standard(name: str, version: int) -> OpSignature:
        return parsed(onnx.defs.get_schema(name, version))

    def signature(schema: onnx.defs.OpSchema) -> OpSignature:
        return parsed(schema) if schema.domain else standard(schema.name, schema.since_version)

    with (
        mock.patch.object(OpSignature, "from_op_schema", signature),
        mock.patch.object(_core, "_set_node_metadata", _no_metadata),
    ):
        yield


def translated(graph: GraphModule, registry: ONNXRegistry, opset_version: int) -> ir.Model:
    """A graph whose operators have translations as a model; its constants are initializers without copies.

    Args:
        graph: the lowered graph; its subgraphs become functions.
        registry: the translations.
        opset_version: of the standard operators.
    """
    model = ir.Model(ir.Graph((), (), nodes=(), name="main_graph"), ir_version=_constants.ONNX_IR_VERSION)
    owned: dict[str, dict[str, ir.Function]] = {}
    for path, module in reversed(list(graph.named_modules(remove_duplicate=False))):
        if not isinstance(module, GraphModule):
            continue
        target: ir.Graph | ir.Function = model.graph
        if path:
            body = ir.Graph((), (), nodes=())
            name = path.replace(".", "__")
            target = ir.Function(_constants.LOCAL_FUNCTION_DOMAIN, name, graph=body, attributes=())
            parent, _, own = path.rpartition(".")
            owned.setdefault(parent, {})[own] = model.functions[target.identifier()] = target
        with _few_texts():
            _core._translate_fx_graph(
                module.graph,
                model,
                graph_like=target,
                owned_graphs=owned.get(path, {}),
                lower="at_conversion",
                registry=registry,
            )
    _ir_passes.add_opset_imports(model)
    version_converter.convert_version(model, opset_version, fallback=True)
    return model
