"""ONNX graphs as modules of PyTorch, whose parameters are the graph's initializers."""

from __future__ import annotations

import fnmatch
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import helper, inliner, numpy_helper
from torch import Tensor

from onnx_ops.torch.base.errors import CaptureError

LOWEST_OPSET = 13
"""The first in which axes of Squeeze, Unsqueeze and ReduceSum are inputs, and Softmax has one axis."""

Value: TypeAlias = Tensor | np.ndarray | None
"""A tensor; an array, of what is known when a graph is captured, with torch.SymInt for sizes; None if omitted."""


@dataclass(frozen=True)
class Node:
    """A node. attributes: as Python values, tensors as arrays."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]

    @classmethod
    def of(cls, node: onnx.NodeProto) -> Node:
        attributes = {}
        for attribute in node.attribute:
            value = helper.get_attribute_value(attribute)
            if isinstance(value, onnx.TensorProto):
                value = numpy_helper.to_array(value)
            attributes[attribute.name] = value.decode() if isinstance(value, bytes) else value
        return cls(node.op_type, tuple(node.input), tuple(node.output), attributes)

    def get(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)


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
        for name, array in initializers.items():
            if patterns is None:
                chosen = name in weights or array.size > 1
            else:
                chosen = any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
            if array.dtype.kind == "f" and name in running:
                self._register(name, torch.tensor(array), is_parameter=False)
            elif array.dtype.kind == "f" and chosen and np.isfinite(array).all():
                self._register(name, torch.tensor(array), is_parameter=True)
            else:
                self.constants[name] = array
        missing = [
            pattern
            for pattern in patterns or ()
            if not fnmatch.filter([name for name, _ in self.named_parameters()], pattern)
        ]
        if missing:
            known = ", ".join(name for name, array in initializers.items() if array.dtype.kind == "f")
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
            result = _known(ON_ARRAYS[node.kind](node, *given))
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


def tensor(value: Value) -> Tensor:
    """A value as a tensor."""
    if isinstance(value, Tensor):
        return value
    assert value is not None
    if value.dtype.kind == "O":
        return torch.stack([torch.full((), size, dtype=torch.int64) for size in value.flat]).reshape(value.shape)
    return torch.tensor(value.tolist(), dtype=torch.from_numpy(np.zeros(0, value.dtype)).dtype)


def array(value: Value) -> np.ndarray:
    """A value that has to be known."""
    if not isinstance(value, np.ndarray):
        raise CaptureError("a shape, axis or limit of the graph depends on data, expected sizes and constants")
    return value


def sizes(value: Value) -> list[Any]:
    """A vector of whole numbers, or of sizes."""
    return [size if isinstance(size, torch.SymInt) else int(size) for size in array(value).reshape(-1)]


def _axes(node: Node, value: Value) -> list[int] | None:
    """Axes of an input or of an attribute; None for no axes."""
    given = node.get("axes") if value is None else sizes(value)
    return None if given is None or not len(given) else list(given)


# --- on tensors ------------------------------------------------------------------------------------------------------


def _unary(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda node, x: function(tensor(x))


def _binary(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda node, x, y: function(tensor(x), tensor(y))


def _folded(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def fold(node: Node, first: Value, *others: Value) -> Tensor:
        result = tensor(first)
        for other in others:
            result = function(result, tensor(other))
        return result

    return fold


def _reduction(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def reduce(node: Node, x: Value, given: Value = None) -> Tensor:
        own, axes = tensor(x), _axes(node, given)
        if axes is None and node.get("noop_with_empty_axes", 0):
            return own
        return function(own, list(range(own.ndim)) if axes is None else axes, bool(node.get("keepdims", 1)))

    return reduce


def _divided(x: Tensor, y: Tensor) -> Tensor:
    return x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


def _gemm(node: Node, a: Value, b: Value, c: Value = None) -> Tensor:
    left = tensor(a).T if node.get("transA", 0) else tensor(a)
    right = tensor(b).T if node.get("transB", 0) else tensor(b)
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    if c is not None and alpha == beta == 1:
        return torch.addmm(tensor(c), left, right)
    product = left @ right * alpha
    return product if c is None else product + beta * tensor(c)


def _padding(node: Node, spatial: int, kernel: Sequence[int], x: Tensor) -> list[int]:
    """Padding before all axes, then after them."""
    mode = node.get("auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        return list(node.get("pads", [0] * 2 * spatial))
    if mode == "VALID":
        return [0] * 2 * spatial
    strides, dilations = node.get("strides", [1] * spatial), node.get("dilations", [1] * spatial)
    totals = [
        max((-(-size // stride) - 1) * stride + (k - 1) * dilation + 1 - size, 0)
        for size, k, stride, dilation in zip(x.shape[2:], kernel, strides, dilations, strict=True)
    ]
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return [*small, *large] if mode == "SAME_UPPER" else [*large, *small]


def _padded(x: Tensor, pads: Sequence[int], value: float) -> tuple[Tensor, list[int]]:
    """The tensor padded where the two ends of an axis differ, and the padding that remains for each axis."""
    spatial = len(pads) // 2
    begin, end = list(pads[:spatial]), list(pads[spatial:])
    if begin == end:
        return x, begin
    pairs = [amount for axis in reversed(range(spatial)) for amount in (begin[axis], end[axis])]
    return F.pad(x, pairs, value=value), [0] * spatial


CONVOLUTIONS: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED: dict[int, Any] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
MAXIMA: dict[int, Any] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
MEANS: dict[int, Any] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def _conv(node: Node, x: Value, weight: Value, bias: Value = None) -> Tensor:
    own, w = tensor(x), tensor(weight)
    spatial = own.ndim - 2
    own, padding = _padded(own, _padding(node, spatial, w.shape[2:], own), 0)
    return CONVOLUTIONS[spatial](
        own,
        w,
        None if bias is None else tensor(bias),
        stride=node.get("strides", [1] * spatial),
        padding=padding,
        dilation=node.get("dilations", [1] * spatial),
        groups=node.get("group", 1),
    )


def _conv_transpose(node: Node, x: Value, weight: Value, bias: Value = None) -> Tensor:
    own = tensor(x)
    spatial = own.ndim - 2
    pads = list(node.get("pads", [0] * 2 * spatial))
    if pads[:spatial] != pads[spatial:] or "output_shape" in node.attributes or "auto_pad" in node.attributes:
        raise CaptureError("ConvTranspose with auto_pad, output_shape or different pads at both ends is not supported")
    return TRANSPOSED[spatial](
        own,
        tensor(weight),
        None if bias is None else tensor(bias),
        stride=node.get("strides", [1] * spatial),
        padding=pads[:spatial],
        output_padding=node.get("output_padding", [0] * spatial),
        groups=node.get("group", 1),
        dilation=node.get("dilations", [1] * spatial),
    )


def _max_pool(node: Node, x: Value) -> Tensor:
    own, kernel = tensor(x), node.get("kernel_shape")
    own, padding = _padded(own, _padding(node, len(kernel), kernel, own), -torch.inf)
    return MAXIMA[len(kernel)](
        own,
        kernel,
        stride=node.get("strides", [1] * len(kernel)),
        padding=padding,
        dilation=node.get("dilations", [1] * len(kernel)),
        ceil_mode=bool(node.get("ceil_mode", 0)),
    )


def _average_pool(node: Node, x: Value) -> Tensor:
    own, kernel = tensor(x), node.get("kernel_shape")
    pads, counted = _padding(node, len(kernel), kernel, own), bool(node.get("count_include_pad", 0))
    different = pads[: len(kernel)] != pads[len(kernel) :]
    if (different and not counted) or any(dilation != 1 for dilation in node.get("dilations", ())):
        raise CaptureError("AveragePool with dilations, or with different pads that are not counted, is not supported")
    own, padding = _padded(own, pads, 0)
    return MEANS[len(kernel)](
        own,
        kernel,
        stride=node.get("strides", [1] * len(kernel)),
        padding=padding,
        ceil_mode=bool(node.get("ceil_mode", 0)),
        count_include_pad=counted,
    )


def _spatial(x: Tensor) -> list[int]:
    return list(range(2, x.ndim))


def _layer_norm(node: Node, x: Value, weight: Value, bias: Value = None) -> Tensor:
    own, w = tensor(x), tensor(weight)
    shape = own.shape[node.get("axis", -1) :]
    b = None if bias is None else tensor(bias).expand(shape)
    return F.layer_norm(own, shape, w.expand(shape), b, node.get("epsilon", 1e-5))


def _group_norm(node: Node, x: Value, weight: Value, bias: Value) -> Tensor:
    own, groups = tensor(x), node.get("num_groups")
    w, b = tensor(weight), tensor(bias)
    if w.shape[0] != own.shape[1]:  # before opset 21, one number per group
        w, b = (parameter.repeat_interleave(own.shape[1] // groups) for parameter in (w, b))
    return F.group_norm(own, groups, w, b, node.get("epsilon", 1e-5))


def _reshape(node: Node, x: Value, shape: Value) -> Tensor:
    own, wanted = tensor(x), sizes(shape)
    if not node.get("allowzero", 0):
        wanted = [own.shape[axis] if isinstance(size, int) and size == 0 else size for axis, size in enumerate(wanted)]
    return own.reshape(wanted)


def _flatten(node: Node, x: Value) -> Tensor:
    own, axis = tensor(x), node.get("axis", 1)
    axis += own.ndim if axis < 0 else 0
    if axis == 0:
        return own.reshape(1, -1)
    return own.flatten(0, axis - 1).flatten(1) if axis < own.ndim else own.reshape(-1, 1)


def _squeeze(node: Node, x: Value, given: Value = None) -> Tensor:
    axes = _axes(node, given)
    return tensor(x).squeeze() if axes is None else tensor(x).squeeze(axes)


def _unsqueeze(node: Node, x: Value, given: Value) -> Tensor:
    own, axes = tensor(x), sizes(given)
    rank = own.ndim + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        own = own.unsqueeze(axis)
    return own


def _split(node: Node, x: Value, given: Value = None) -> list[Tensor]:
    own, axis = tensor(x), node.get("axis", 0)
    if given is not None:
        return list(own.split(sizes(given), axis))
    count = node.get("num_outputs", len(node.outputs))
    return list(own.split(-(-own.shape[axis] // count), axis))


def _slices(rank: int, starts: Value, ends: Value, axes: Value, steps: Value) -> list[Any]:
    """Slices of all axes, of the inputs of Slice."""
    begin, end = sizes(starts), sizes(ends)
    which = range(len(begin)) if axes is None else sizes(axes)
    strides = [1] * len(begin) if steps is None else sizes(steps)
    found = [slice(None)] * rank
    for axis, first, last, stride in zip(which, begin, end, strides, strict=True):
        limit = None if isinstance(last, int) and abs(last) >= 2**31 - 1 else last
        found[axis % rank] = slice(first, limit, stride)
    return found


def _slice(node: Node, x: Value, starts: Value, ends: Value, axes: Value = None, steps: Value = None) -> Tensor:
    own = tensor(x)
    where = _slices(own.ndim, starts, ends, axes, steps)
    for axis, one in enumerate(where):
        if one.step is not None and one.step < 0:
            if (one.start, one.stop, one.step) != (-1, None, -1):
                raise CaptureError("Slice with a negative step is supported for whole axes only")
            own, where[axis] = own.flip(axis), slice(None)
    return own[tuple(where)]


def _gather(node: Node, x: Value, indices: Value) -> Tensor:
    own, axis = tensor(x), node.get("axis", 0)
    if isinstance(indices, np.ndarray) and indices.ndim == 0:
        return own.select(axis, sizes(indices)[0])
    where = tensor(indices)
    if axis == 0 and own.ndim == 2 and own.is_floating_point():
        return F.embedding(where.to(torch.int64), own)
    flat = own.index_select(axis, where.reshape(-1))
    axis += own.ndim if axis < 0 else 0
    return flat.reshape(*own.shape[:axis], *where.shape, *own.shape[axis + 1 :])


def _expand(node: Node, x: Value, shape: Value) -> Tensor:
    own = tensor(x)
    return own.expand(torch.broadcast_shapes(own.shape, tuple(sizes(shape))))


def _pad(node: Node, x: Value, pads: Value, value: Value = None, axes: Value = None) -> Tensor:
    own, amounts = tensor(x), sizes(pads)
    which = [axis % own.ndim for axis in (range(own.ndim) if axes is None else sizes(axes))]
    begin = dict(zip(which, amounts[: len(which)], strict=True))
    end = dict(zip(which, amounts[len(which) :], strict=True))
    pairs = [side.get(axis, 0) for axis in reversed(range(own.ndim)) for side in (begin, end)]
    while len(pairs) > 2 and pairs[-2:] == [0, 0]:
        del pairs[-2:]
    mode = {"edge": "replicate", "wrap": "circular"}.get(node.get("mode", "constant"), node.get("mode", "constant"))
    if mode != "constant":
        return F.pad(own, pairs, mode=mode)
    return F.pad(own, pairs, value=0 if value is None else array(value).item())


def _clip(node: Node, x: Value, low: Value = None, high: Value = None) -> Tensor:
    own = tensor(x)
    own = own if low is None else torch.maximum(own, tensor(low))
    return own if high is None else torch.minimum(own, tensor(high))


def torch_dtype(element: int) -> torch.dtype:
    """The dtype of a TensorProto.DataType."""
    if element == onnx.TensorProto.BFLOAT16:
        return torch.bfloat16
    return torch.from_numpy(np.zeros(0, helper.tensor_dtype_to_np_dtype(element))).dtype


def _range(node: Node, *limits: Value) -> Tensor:
    kind = array(limits[0]).dtype
    numbers = [sizes(limit)[0] if kind.kind != "f" else array(limit).item() for limit in limits]
    dtype = torch.int64 if kind.kind == "O" else torch.from_numpy(np.zeros(0, kind)).dtype
    return torch.arange(*numbers, dtype=dtype)


def _filled(node: Node, shape: Value) -> Tensor:
    value = node.get("value", np.zeros(1, np.float32)).reshape(-1)[0]
    return torch.full(sizes(shape), value.item(), dtype=torch.from_numpy(np.zeros(0, value.dtype)).dtype)


def _trilu(node: Node, x: Value, k: Value = None) -> Tensor:
    diagonal = 0 if k is None else sizes(k)[0]
    return (torch.triu if node.get("upper", 1) else torch.tril)(tensor(x), diagonal)


def _cumsum(node: Node, x: Value, axis: Value) -> Tensor:
    if node.get("exclusive", 0) or node.get("reverse", 0):
        raise CaptureError("CumSum with exclusive or reverse is not supported")
    return tensor(x).cumsum(sizes(axis)[0])


def _argument(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda node, x: function(tensor(x), node.get("axis", 0), bool(node.get("keepdims", 1)))


ON_TENSORS: dict[str, Callable[..., Any]] = {
    **{
        name: _unary(function)
        for name, function in {
            **{"Relu": torch.relu, "Sigmoid": torch.sigmoid, "Tanh": torch.tanh, "Exp": torch.exp, "Log": torch.log},
            **{"Sqrt": torch.sqrt, "Neg": torch.neg, "Abs": torch.abs, "Erf": torch.erf, "Floor": torch.floor},
            **{"Ceil": torch.ceil, "Round": torch.round, "Sign": torch.sign, "Sin": torch.sin, "Cos": torch.cos},
            **{"Reciprocal": torch.reciprocal, "Not": torch.logical_not, "Softplus": F.softplus},
            **{"Softsign": F.softsign, "HardSwish": F.hardswish, "Mish": F.mish, "Identity": lambda x: x},
            **{"IsNaN": torch.isnan, "Selu": F.selu},
        }.items()
    },
    **{
        name: _binary(function)
        for name, function in {
            **{"Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Div": _divided, "Pow": torch.pow},
            **{"Equal": torch.eq, "Less": torch.lt, "Greater": torch.gt, "LessOrEqual": torch.le},
            **{"GreaterOrEqual": torch.ge, "And": torch.logical_and, "Or": torch.logical_or, "Xor": torch.logical_xor},
            **{"MatMul": torch.matmul, "PRelu": lambda x, slope: torch.where(x < 0, slope * x, x)},
        }.items()
    },
    "Min": _folded(torch.minimum),
    "Max": _folded(torch.maximum),
    "Sum": _folded(torch.add),
    "ReduceMean": _reduction(torch.mean),
    "ReduceSum": _reduction(torch.sum),
    "ReduceMax": _reduction(torch.amax),
    "ReduceMin": _reduction(torch.amin),
    "ReduceL2": _reduction(lambda x, axes, kept: torch.linalg.vector_norm(x, 2, axes, kept)),
    "ReduceL1": _reduction(lambda x, axes, kept: x.abs().sum(axes, kept)),
    "ReduceSumSquare": _reduction(lambda x, axes, kept: (x * x).sum(axes, kept)),
    "ReduceLogSumExp": _reduction(torch.logsumexp),
    "ArgMax": _argument(torch.argmax),
    "ArgMin": _argument(torch.argmin),
    "Where": lambda node, condition, x, y: torch.where(tensor(condition), tensor(x), tensor(y)),
    "Elu": lambda node, x: F.elu(tensor(x), node.get("alpha", 1.0)),
    "Celu": lambda node, x: F.celu(tensor(x), node.get("alpha", 1.0)),
    "LeakyRelu": lambda node, x: F.leaky_relu(tensor(x), node.get("alpha", 0.01)),
    "HardSigmoid": lambda node, x: (tensor(x) * node.get("alpha", 0.2) + node.get("beta", 0.5)).clamp(0, 1),
    "Gelu": lambda node, x: F.gelu(tensor(x), approximate=node.get("approximate", "none")),
    "Softmax": lambda node, x: tensor(x).softmax(node.get("axis", -1)),
    "LogSoftmax": lambda node, x: tensor(x).log_softmax(node.get("axis", -1)),
    "Clip": _clip,
    "Gemm": _gemm,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": lambda node, x: tensor(x).mean(_spatial(tensor(x)), keepdim=True),
    "GlobalMaxPool": lambda node, x: tensor(x).amax(_spatial(tensor(x)), keepdim=True),
    "LayerNormalization": _layer_norm,
    "RMSNormalization": lambda node, x, weight: F.rms_norm(
        tensor(x), tensor(x).shape[node.get("axis", -1) :], tensor(weight), node.get("epsilon", 1e-5)
    ),
    "GroupNormalization": _group_norm,
    "InstanceNormalization": lambda node, x, weight, bias: F.instance_norm(
        tensor(x), weight=tensor(weight), bias=tensor(bias), eps=node.get("epsilon", 1e-5)
    ),
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": lambda node, x: tensor(x).permute(node.get("perm", list(reversed(range(tensor(x).ndim))))),
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": lambda node, *parts: torch.cat([tensor(part) for part in parts], node.get("axis")),
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": lambda node, x, indices: tensor(x).gather(node.get("axis", 0), tensor(indices)),
    "Expand": _expand,
    "Tile": lambda node, x, repeats: tensor(x).tile(sizes(repeats)),
    "Pad": _pad,
    "Cast": lambda node, x: tensor(x).to(torch_dtype(node.get("to"))),
    "CastLike": lambda node, x, like: tensor(x).to(tensor(like).dtype),
    "Einsum": lambda node, *parts: torch.einsum(node.get("equation"), *(tensor(part) for part in parts)),
    "Trilu": _trilu,
    "CumSum": _cumsum,
    "Range": _range,
    "ConstantOfShape": _filled,
    "Shape": lambda node, x: _shape(tensor(x).shape, node),
    "Size": lambda node, x: np.array(tensor(x).numel()),
}

# --- on arrays -------------------------------------------------------------------------------------------------------


def _shape(shape: Sequence[Any], node: Node) -> np.ndarray:
    wanted = list(shape)[node.get("start", 0) : node.get("end")]
    return np.array(wanted, np.int64 if all(type(size) is int for size in wanted) else object)


def _known(result: Any) -> Value:
    """A result of NumPy, which makes numbers of arrays of rank 0."""
    if isinstance(result, Tensor | np.ndarray):
        return result
    number = np.empty((), object if isinstance(result, torch.SymInt) else np.asarray(result).dtype)
    number[()] = result
    return number


def _constant(node: Node) -> np.ndarray:
    ((name, value),) = node.attributes.items()
    kinds = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}
    if name not in ("value", *kinds):
        raise CaptureError(f"Constant with the attribute {name} is not supported")
    return np.asarray(value, kinds.get(name))


def _quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x / y if "f" in x.dtype.kind + y.dtype.kind else x // y


def _cast(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if x.dtype.kind != "O":
        return x.astype(dtype)
    if dtype.kind in "iu":
        return x
    raise CaptureError(f"a dynamic size is cast to {dtype}, expected whole numbers")


def _array_slice(
    node: Node, x: np.ndarray, starts: Value, ends: Value, axes: Value = None, steps: Value = None
) -> np.ndarray:
    return x[tuple(_slices(x.ndim, starts, ends, axes, steps))]


def _array_expand(node: Node, x: np.ndarray, shape: np.ndarray) -> Value:
    """An array, or a tensor of a dynamic size."""
    if shape.dtype.kind == "O":
        return _expand(node, x, shape)
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(sizes(shape))))


def _known_filled(node: Node, shape: np.ndarray) -> Value:
    """An array if it is a vector of shape operations, else a tensor."""
    if shape.size == 1 and shape.dtype.kind != "O":
        value = node.get("value", np.zeros(1, np.float32)).reshape(-1)[0]
        return np.full(sizes(shape), value)
    return _filled(node, shape)


ON_ARRAYS: dict[str, Callable[..., Any]] = {
    "Constant": lambda node: _constant(node),
    "Identity": lambda node, x: x,
    "Add": lambda node, x, y: x + y,
    "Sub": lambda node, x, y: x - y,
    "Mul": lambda node, x, y: x * y,
    "Div": lambda node, x, y: _quotient(x, y),
    "Mod": lambda node, x, y: x % y,
    "Equal": lambda node, x, y: x == y,
    "Where": lambda node, condition, x, y: np.where(condition.astype(bool), x, y),
    "Sqrt": lambda node, x: np.sqrt(x),
    "Gather": lambda node, x, indices: np.take(x, indices.astype(np.int64), axis=node.get("axis", 0)),
    "Slice": _array_slice,
    "Concat": lambda node, *parts: np.concatenate(parts, axis=node.get("axis")),
    "Squeeze": lambda node, x, given=None: np.squeeze(
        x, tuple(_axes(node, given) or np.flatnonzero(np.equal(x.shape, 1)))
    ),
    "Unsqueeze": lambda node, x, given: np.expand_dims(x, tuple(sizes(given))),
    "Reshape": lambda node, x, shape: x.reshape(sizes(shape)),
    "Expand": _array_expand,
    "Cast": lambda node, x: _cast(x, helper.tensor_dtype_to_np_dtype(node.get("to"))),
    "CastLike": lambda node, x, like: _cast(x, like.dtype),
    "ReduceProd": lambda node, x, given=None: np.prod(x, keepdims=bool(node.get("keepdims", 1))),
    "ConstantOfShape": _known_filled,
    "Shape": lambda node, x: _shape(x.shape, node),
}
