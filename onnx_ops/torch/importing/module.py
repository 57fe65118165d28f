"""ONNX graphs as modules of PyTorch, whose parameters are the graph's initializers."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import inliner, numpy_helper
from torch import Tensor

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.importing.arrays import ON_ARRAYS, known
from onnx_ops.torch.importing.nodes import Node, Value, array, tensor
from onnx_ops.torch.importing.tensors import ON_TENSORS

LOWEST_OPSET = 13
"""The first in which axes of Squeeze, Unsqueeze and ReduceSum are inputs, and Softmax has one axis."""


class ImportedModel(torch.nn.Module):
    """The graph of an ONNX model.

    Floating initializers are parameters, those of running statistics of BatchNormalization buffers, under their names.
    An initializer of one element is a constant unless it is a weight of a layer. In training mode
    BatchNormalization normalizes with the statistics of the batch and updates the running ones, as PyTorch does, and
    Dropout drops; in evaluation mode neither does.

    Args:
        model: with opset 13 or newer; a model of standard operators.
        trainable: patterns of names, as of fnmatch, of the initializers that are parameters; None for those above.

    Raises:
        CaptureError: operators that are not supported, all of them in one message; names that a module cannot have.
    """

    def __init__(self, model: onnx.ModelProto, trainable: Iterable[str] | None = None) -> None:
        super().__init__()
        model = inliner.inline_local_functions(model)
        graph = model.graph
        opset = {entry.domain: entry.version for entry in model.opset_import}.get("", 0)
        if opset < LOWEST_OPSET:
            raise CaptureError(
                f"the model has opset {opset}, expected {LOWEST_OPSET} or newer: convert it by onnx.version_converter"
            )
        _check_operators(graph)
        self.nodes = [Node.of(node) for node in graph.node]
        initializers = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        self.input_names = [value.name for value in graph.input if value.name not in initializers]
        self.output_names = [value.name for value in graph.output]
        running = {name for node in self.nodes if node.kind == "BatchNormalization" for name in node.inputs[3:5]}
        weights = {name for node in self.nodes if node.kind in LAYERS for name in node.inputs[1:]} - running
        patterns = None if trainable is None else list(trainable)
        self.constants: dict[str, np.ndarray] = {}
        for name, initial in initializers.items():
            if patterns is None:
                chosen = name in weights or initial.size > 1
            else:
                chosen = any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
            if initial.dtype.kind == "f" and name in running:
                self._register(name, torch.tensor(initial), is_parameter=False)
            elif initial.dtype.kind == "f" and chosen and np.isfinite(initial).all():
                self._register(name, torch.tensor(initial), is_parameter=True)
            else:
                self.constants[name] = initial
        missing = [
            pattern
            for pattern in patterns or ()
            if not fnmatch.filter([name for name, _ in self.named_parameters()], pattern)
        ]
        if missing:
            known = ", ".join(name for name, initial in initializers.items() if initial.dtype.kind == "f")
            raise CaptureError(f"no floating initializer matches {', '.join(missing)}, there are {known or 'none'}")

    def _register(self, name: str, tensor: Tensor, *, is_parameter: bool) -> None:
        """Register a tensor under a name whose parts are names of modules."""
        *path, last = name.split(".")
        module: torch.nn.Module = self
        try:
            for part in path:
                if part not in module._modules:
                    module.add_module(part, torch.nn.Module())
                module = module.get_submodule(part)
            if is_parameter:
                module.register_parameter(last, torch.nn.Parameter(tensor))
            else:
                module.register_buffer(last, tensor)
        except (KeyError, AttributeError) as problem:
            raise CaptureError(
                f"initializer '{name}' cannot be a parameter of a module of that name ({problem}): rename it"
            ) from problem

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        """The outputs of the graph by name, of its inputs in order."""
        values: dict[str, Value] = {**self.constants, **dict(zip(self.input_names, inputs, strict=True))}
        values.update(self.named_parameters())
        values.update(self.named_buffers())
        values[""] = None
        for node in self.nodes:
            given = [values[name] for name in node.inputs]
            results = self._run(node, given)
            for name, result in zip(node.outputs, results, strict=False):
                values[name] = result
        return {name: tensor(values[name]) for name in self.output_names}

    def _run(self, node: Node, given: list[Value]) -> Sequence[Value]:
        if node.kind == "BatchNormalization":
            return [self._batch_norm(node, [tensor(value) for value in given])]
        if node.kind == "Dropout":
            ratio = node.get("ratio", 0.5) if len(given) < 2 or given[1] is None else float(array(given[1]))
            return [F.dropout(tensor(given[0]), ratio, self.training)]
        if node.kind in ON_ARRAYS and all(value is None or isinstance(value, np.ndarray) for value in given):
            result = known(ON_ARRAYS[node.kind](node, *given))
        elif node.kind not in ON_TENSORS:
            raise CaptureError(f"{node.kind}, which makes {', '.join(node.outputs)}, is supported for shapes only")
        else:
            result = ON_TENSORS[node.kind](node, *given)
        return result if isinstance(result, tuple | list) else [result]

    def _batch_norm(self, node: Node, given: Sequence[Tensor]) -> Tensor:
        x, weight, bias, mean, variance = given
        momentum, epsilon = 1 - node.get("momentum", 0.9), node.get("epsilon", 1e-5)
        return F.batch_norm(x, mean, variance, weight, bias, self.training, momentum, epsilon)


def _check_operators(graph: onnx.GraphProto) -> None:
    known = {*ON_TENSORS, *ON_ARRAYS, "BatchNormalization", "Dropout"}
    unknown: dict[str, list[str]] = {}
    for node in graph.node:
        kind = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        most = SEVERAL_OUTPUTS.get(kind, 1)
        if kind not in known:
            unknown.setdefault(kind, []).append(node.name)
        elif most is not None and any(node.output[most:]):
            unknown.setdefault(f"{kind} with {len(node.output)} outputs", []).append(node.name)
    if unknown:
        listed = ", ".join(f"{kind} ({len(names)}, such as '{names[0]}')" for kind, names in sorted(unknown.items()))
        raise CaptureError(f"operators that cannot be imported for training: {listed}")


LAYERS = {
    "Conv",
    "ConvTranspose",
    "Gemm",
    "PRelu",
    "BatchNormalization",
    "LayerNormalization",
    "GroupNormalization",
} | {
    "InstanceNormalization",
    "RMSNormalization",
}
"""Operators whose inputs after the first are weights."""

SEVERAL_OUTPUTS: dict[str, int | None] = {"Split": None}
"""Outputs that an operator may have, None for any number."""
