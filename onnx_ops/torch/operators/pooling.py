"""Max pools, average pools and adaptive pools.

Max pools over planes and volumes, and their gradients, are ops of this domain: PyTorch counts the indices of maxima
within each plane or volume, ONNX through the whole tensor. torch.onnx runs a second pool to convert them, and
onnxruntime's pool takes many times as long where it also returns indices.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import is_symbolic, statically_known_true

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.base.nodes import Extent, Value, aclnn, double, integers, op, replace_node, taps
from onnx_ops.torch.base.sizes import Setting, Size, of_each_axis
from onnx_ops.torch.base.table import computes_float64, decomposes, replaces, rewrites, translates
from onnx_ops.torch.operators.along_axis import WIDTH, along_axis, matrix_of, resampled
from onnx_ops.torch.operators.reshaping import repeated

aten = torch.ops.aten
AVERAGE_POOLS = (aten.avg_pool1d, aten.avg_pool2d, aten.avg_pool3d)
MAX_POOLS: tuple[Callable[..., Any], ...] = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)


def _steps(stride: Setting | None, kernel: list[int]) -> list[int]:
    """The strides of windows, which are their sizes unless given."""
    return kernel if stride is None or stride in ((), []) else of_each_axis(stride, len(kernel))


def _covered(
    x: Tensor, rank: int, kernel_size: Setting, stride: Setting | None, padding: Setting, dilation: Setting = 1
) -> list[int] | None:
    """The axes of which one window is the whole, if no other axis is pooled and the size of a window is dynamic.

    As in `avg_pool2d(x, x.shape[2:])`: an operator's attribute cannot be a dynamic size.
    """
    kernel = of_each_axis(kernel_size, rank)
    if not any(map(is_symbolic, kernel)):
        return None
    steps = _steps(stride, kernel)
    axes = []
    settings = kernel, steps, of_each_axis(padding, rank), of_each_axis(dilation, rank), range(-rank, 0)
    for size, step, pad, gap, axis in zip(*settings, strict=True):
        if pad != 0:
            return None
        if gap == 1 and statically_known_true(size == x.shape[axis]):
            axes.append(axis)
        elif not (statically_known_true(size == 1) and statically_known_true(step == 1)):
            return None
    return axes


def _of_rank(rank: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The translations of a max pool over `rank` axes and of its gradient."""

    def attributes(
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
    ) -> dict[str, Any]:
        kernel, *others = (
            list(values) * (rank // len(values)) for values in (kernel_size, stride or kernel_size, padding, dilation)
        )
        names = ("stride", "padding", "dilation")
        return {"kernel_size": kernel, **dict(zip(names, others, strict=True)), "ceil_mode": int(ceil_mode)}

    def max_pool(
        self: Value,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> Sequence[Value]:
        return aclnn.MaxPool2dWithIndices(self, **attributes(kernel_size, stride, padding, dilation, ceil_mode))

    def max_pool_backward(
        grad: Value,
        self: Value,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
        indices: Value,
    ) -> Value:
        given = attributes(kernel_size, stride, padding, dilation, ceil_mode)
        return aclnn.MaxPool2dWithIndicesBackward(grad, self, indices, **given)

    return max_pool, max_pool_backward


for _rank in (2, 3):
    _max_pool, _max_pool_backward = _of_rank(_rank)
    translates(getattr(aten, f"max_pool{_rank}d_with_indices").default)(_max_pool)
    translates(getattr(aten, f"max_pool{_rank}d_with_indices_backward").default)(_max_pool_backward)


@rewrites("MaxPool2dWithIndices")
def _without_indices(node: ir.Node) -> None:
    """A pool whose indices are not used, as in an inference graph, becomes ONNX's, which is faster."""
    indices = node.outputs[1]
    given = {name: attribute.as_ints() for name, attribute in node.attributes.items() if name != "ceil_mode"}
    (pooling,) = node.inputs
    assert pooling is not None
    batched = pooling.shape is not None and len(pooling.shape) == len(given["kernel_size"]) + 2
    # Where a last window may reach beyond the end, runtimes differ from each other.
    if indices.uses() or indices.is_graph_output() or node.attributes["ceil_mode"].as_int() or not batched:
        return
    attributes = {
        "kernel_shape": given["kernel_size"],
        "strides": given["stride"],
        "pads": [*given["padding"], *given["padding"]],
        "dilations": given["dilation"],
    }
    replace_node(node, ir.node("MaxPool", node.inputs, attributes))


@computes_float64("AveragePool")
def _average_pool_node(
    x: Value,
    kernel_shape: Sequence[int],
    strides: Sequence[int] = (),
    pads: Sequence[int] = (),
    dilations: Sequence[int] = (),
    count_include_pad: int = 0,
    ceil_mode: int = 0,
    auto_pad: bytes = b"NOTSET",
) -> Value:
    """The mean over the taps of a window."""
    rank = len(kernel_shape)
    if ceil_mode or auto_pad != b"NOTSET":
        raise CaptureError("an AveragePool with ceil_mode or auto_pad has no form in float64")
    strides, dilations, pads = strides or [1] * rank, dilations or [1] * rank, pads or [0] * 2 * rank
    before, after = integers([0, 0, *pads[:rank]]), integers([0, 0, *pads[rank:]])
    axes = list(range(2, 2 + rank))
    padding = op.Concat(before, after, axis=0)

    def total(padded: Value) -> Value:
        windows = Extent(integers([]))  # as many as fit
        terms = list(taps(padded, axes, kernel_shape, strides, dilations, windows))
        return functools.reduce(op.Add, terms)

    ones = op.Expand(double(1.0), op.Shape(x))
    counted = op.Pad(ones, padding, double(1.0 if count_include_pad else 0.0))
    return op.Div(total(op.Pad(x, padding, double(0.0))), total(counted))


def _maximum(
    rank: int,
    input: Tensor,
    kernel_size: Setting,
    stride: Setting | None = None,
    padding: Setting = 0,
    dilation: Setting = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """A max pool of one window, along one axis after the other, which finds the first of equal elements."""
    axes = _covered(input, rank, kernel_size, stride, padding, dilation)
    if axes is None or return_indices:
        return NotImplemented
    return functools.reduce(lambda values, axis: values.max(axis, keepdim=True).values, reversed(axes), input)


replaces(torch.max_pool2d, functional.max_pool2d)(functools.partial(_maximum, 2))
replaces(torch.max_pool3d, functional.max_pool3d)(functools.partial(_maximum, 3))


@replaces(torch.max_pool1d, functional.max_pool1d)
def _max_pool_of_lines(
    input: Tensor,
    kernel_size: Setting,
    stride: Setting | None = None,
    padding: Setting = 0,
    dilation: Setting = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """As a pool over planes; PyTorch's own specializes dynamic sizes."""
    whole = _maximum(1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    if whole is not NotImplemented:
        return whole
    kernel, pads, gaps = (of_each_axis(value, 1)[0] for value in (kernel_size, padding, dilation))
    (step,) = _steps(stride, [kernel])
    window = [1, kernel], [1, step], [0, pads], [1, gaps]
    values, indices = aten.max_pool2d_with_indices(input.unsqueeze(-2), *window, ceil_mode)
    return (values.squeeze(-2), indices.squeeze(-2)) if return_indices else values.squeeze(-2)


replaces(torch.max_pool1d_with_indices)(functools.partial(_max_pool_of_lines, return_indices=True))


def _averaging(
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Callable[[Tensor, int], Tensor]:
    """An average pool along one axis, for `resampled`; a sum where there is a divisor_override."""
    divisor = None if divisor_override is None else 1

    def along(image: Tensor, axis: int) -> Tensor:
        window = [kernel_size[axis], 1], [stride[axis], 1], [padding[axis], 0]
        return aten.avg_pool2d(image, *window, ceil_mode, count_include_pad, divisor)

    return along


def _shares(first: Tensor, end: Tensor, size: Size, shared: Tensor | int) -> Tensor:
    """The matrix (windows, size) that divides the sum over first <= i < end of each window by `shared`."""
    places = torch.arange(size)
    seen = (places >= first.unsqueeze(1)) & (places < end.unsqueeze(1))
    return seen.to(torch.float64) / shared


def _averages(
    kernel: int, stride: int, padding: int, after: Size, size: Size, count_include_pad: bool, divided: bool
) -> Tensor:
    """The matrix (after, size) of an average pool along an axis of dynamic size."""
    whole = torch.arange(size)[-1:] + 1  # the size, as a number of the graph
    first = torch.arange(after) * stride - padding
    end = torch.minimum(first + kernel, whole + padding)
    inside = torch.minimum(end, whole)
    counted = end - first if count_include_pad else inside - first.clamp(min=0)
    return _shares(first, inside, size, counted.unsqueeze(1) if divided else 1)


def _adaptive_windows(after: Size, size: Size) -> tuple[Tensor, Tensor]:
    """The first element of each window of an adaptive pool along an axis, and the end."""
    order = torch.arange(after)
    whole, count = torch.arange(size)[-1:] + 1, order[-1:] + 1
    first = torch.div(order * whole, count, rounding_mode="floor")
    return first, torch.div((order + 1) * whole + count - 1, count, rounding_mode="floor")


def _widest(after: Size, size: Size) -> Size:
    """The number of elements of the largest window of an adaptive pool; of dynamic sizes a bound on it."""
    if is_symbolic(after) or is_symbolic(size):
        return size // torch.sym_max(after, 1) + 2
    return max(-(-(i + 1) * size // after) - i * size // after for i in range(after))


def _adaptive_averages(after: Size, size: Size) -> Tensor:
    first, end = _adaptive_windows(after, size)
    return _shares(first, end, size, (end - first).unsqueeze(1))


def _average_pool(
    rank: int,
    operator: Callable[..., Tensor],
    input: Tensor,
    kernel_size: Setting,
    stride: Setting | None = None,
    padding: Setting = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """onnxruntime averages no float64, and divides a last window that is cut off by another count than PyTorch."""
    whole = _covered(input, rank, kernel_size, stride, padding)
    if whole is not None and divisor_override is None:
        return input.mean(whole, keepdim=True)
    if input.dtype is not torch.float64 and not ceil_mode and divisor_override is None:
        return operator(input, kernel_size, stride or kernel_size, padding, ceil_mode, count_include_pad)
    kernel = of_each_axis(kernel_size, rank)
    steps = _steps(stride, kernel)
    along = _averaging(kernel, steps, of_each_axis(padding, rank), ceil_mode, count_include_pad, divisor_override)

    def dynamic(size: Size, axis: int) -> Tensor:
        k, s, p = kernel[axis], steps[axis], of_each_axis(padding, rank)[axis]
        after = (size + 2 * p - k + (s - 1 if ceil_mode else 0)) // s + 1
        if ceil_mode:  # a window begins within the image, or the rim before it
            after = torch.sym_min(after, (size + p - 1) // s + 1)
        return _averages(k, s, p, after, size, count_include_pad, divisor_override is None)

    result = resampled(input, along, rank, dynamic)
    return result if divisor_override is None else result / divisor_override


@decomposes(aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default)
def _average_pool_backward(
    grad: Tensor,
    self: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    rank = len(kernel_size) if len(kernel_size) > 1 else self.dim() - 2
    kernel, pads = of_each_axis(kernel_size, rank), of_each_axis(padding, rank)
    steps = of_each_axis(stride, rank) if stride else kernel
    space = self.shape[-rank:]
    whole = all(not is_symbolic(size) and size % k == 0 for size, k in zip(space, kernel, strict=True))
    if kernel == steps and not any(pads) and whole:
        for axis, times in zip(range(-rank, 0), kernel, strict=True):
            grad = repeated(grad, times, axis)
        return grad / (divisor_override or math.prod(kernel))
    along = _averaging(kernel, steps, pads, ceil_mode, count_include_pad, divisor_override)
    for axis, size in enumerate(space):
        if is_symbolic(size):
            setting = kernel[axis], steps[axis], pads[axis], grad.shape[axis - rank], size
            matrix, changes = _averages(*setting, count_include_pad, divisor_override is None).to(grad.dtype), True
        else:
            matrix, changes = matrix_of(along, size, axis, grad.dtype)
        if changes:
            grad = along_axis(grad, matrix.T.contiguous(), axis - rank)
    return grad if divisor_override is None else grad / divisor_override


def _sizes_after(x: Tensor, output_size: Size | Sequence[Size | None], rank: int) -> list[Size]:
    wanted = zip(of_each_axis(output_size, rank), x.shape[-rank:], strict=True)
    return [size if n is None else n if is_symbolic(n) else int(n) for n, size in wanted]


def _apart(x: Tensor, after: Sequence[Size]) -> list[int] | None:
    """The kernel size if all windows are known to have one size and not to overlap."""
    before = x.shape[-len(after) :]
    if any(map(is_symbolic, (*before, *after))) or any(size % n for size, n in zip(before, after, strict=True)):
        return None
    return [size // n for size, n in zip(before, after, strict=True)]


def _adaptive_average_pool(rank: int, input: Tensor, output_size: Size | Sequence[Size | None]) -> Tensor:
    after = _sizes_after(input, output_size, rank)
    if all(not is_symbolic(n) and n == 1 for n in after):
        return input.mean(tuple(range(-rank, 0)), keepdim=True)
    kernel = _apart(input, after)
    if kernel is not None:
        return _average_pool(rank, AVERAGE_POOLS[rank - 1], input, kernel, kernel)

    to_one = [axis - rank for axis, n in enumerate(after) if not is_symbolic(n) and n == 1]
    if to_one:
        input = input.mean(to_one, keepdim=True)

    def along(image: Tensor, axis: int) -> Tensor:
        return aten._adaptive_avg_pool2d(image, [after[axis], WIDTH])

    def dynamic(size: Size, axis: int) -> Tensor | None:
        return None if statically_known_true(after[axis] == size) else _adaptive_averages(after[axis], size)

    return resampled(input, along, rank, dynamic, after)


def _adaptive_max_pool(
    rank: int, input: Tensor, output_size: Size | Sequence[Size | None], return_indices: bool = False
) -> Any:
    """The maximum along one axis after the other, which finds the first of equal elements, as PyTorch does."""
    after = _sizes_after(input, output_size, rank)
    if all(not is_symbolic(n) and n == 1 for n in after):
        shape = [*input.shape[:-rank], *after]
        found = input.flatten(-rank).max(-1)
        return (
            (found.values.reshape(shape), found.indices.reshape(shape))
            if return_indices
            else found.values.reshape(shape)
        )
    kernel = _apart(input, after)
    if kernel is not None:
        return MAX_POOLS[rank - 1](input, kernel, kernel, return_indices=return_indices)

    def numbers(of_rows: Tensor, axis: int) -> Tensor:
        return of_rows.reshape([-1] + [1] * (rank - 1 - axis))

    before = input.shape[-rank:]
    values, indices = input, None
    for axis in reversed(range(rank)):
        size, count, along = before[axis], after[axis], axis - rank
        if statically_known_true(count == size):
            here = numbers(torch.arange(size, device=input.device), axis).expand_as(values)
            seen = indices
        else:
            values, here = _largest_of_windows(rank, values, along, count)
            seen = None if indices is None else indices.gather(along, here)
        here = here * math.prod(before[axis + 1 :])
        indices = here if seen is None else here + seen
    assert indices is not None
    return (values, indices) if return_indices else values


def _largest_of_windows(rank: int, x: Tensor, along: int, count: Size) -> tuple[Tensor, Tensor]:
    """An adaptive max pool along one axis of space, and the places of the maxima on it.

    Args:
        rank: the number of axes of space.
        x: the images.
        along: the axis, which is negative.
        count: the number of windows.
    """
    size = x.shape[along]
    if statically_known_true(count == 1):
        return x.max(along, keepdim=True)
    first, end = _adaptive_windows(count, size)
    width = _widest(count, size)
    # A shorter window repeats its last element.
    places = torch.minimum(first.unsqueeze(1) + torch.arange(width), end.unsqueeze(1) - 1)
    is_dynamic = is_symbolic(size) or is_symbolic(count)
    windows = x.index_select(along, places.flatten()) if is_dynamic or size % count else x
    if is_dynamic:
        values, chosen = windows.unflatten(along, (count, width)).max(along)
        return values, first.reshape([-1] + [1] * (-1 - along)) + chosen
    kernel = [width if axis == along else 1 for axis in range(-rank, 0)]
    values, chosen = MAX_POOLS[rank - 1](windows, kernel, kernel, return_indices=True)
    trailing = math.prod(windows.shape[along:][1:])
    return values, places.flatten()[chosen // trailing % (count * width)]


for _rank, _average, _adaptive_average, _adaptive_max in (
    (1, torch.avg_pool1d, torch.adaptive_avg_pool1d, functional.adaptive_max_pool1d),
    (2, torch._C._nn.avg_pool2d, torch._C._nn.adaptive_avg_pool2d, functional.adaptive_max_pool2d),
    (3, torch._C._nn.avg_pool3d, torch._C._nn.adaptive_avg_pool3d, functional.adaptive_max_pool3d),
):
    replaces(_average)(functools.partial(_average_pool, _rank, AVERAGE_POOLS[_rank - 1]))
    replaces(_adaptive_average)(functools.partial(_adaptive_average_pool, _rank))
    replaces(_adaptive_max)(functools.partial(_adaptive_max_pool, _rank))
    _with_indices = getattr(functional, f"adaptive_max_pool{_rank}d_with_indices")
    replaces(_with_indices)(functools.partial(_adaptive_max_pool, _rank, return_indices=True))
