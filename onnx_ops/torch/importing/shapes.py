"""Imported operators that rearrange, select and make tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.importing.nodes import Node, Value, array, axes_of, sizes, tensor


def reshape(node: Node, x: Value, shape: Value) -> Tensor:
    own, wanted = tensor(x), sizes(shape)
    if not node.get("allowzero", 0):
        wanted = [own.shape[axis] if isinstance(size, int) and size == 0 else size for axis, size in enumerate(wanted)]
    return own.reshape(wanted)


def flatten(node: Node, x: Value) -> Tensor:
    own, axis = tensor(x), node.get("axis", 1)
    axis += own.ndim if axis < 0 else 0
    if axis == 0:
        return own.reshape(1, -1)
    return own.flatten(0, axis - 1).flatten(1) if axis < own.ndim else own.reshape(-1, 1)


def squeeze(node: Node, x: Value, given: Value = None) -> Tensor:
    axes = axes_of(node, given)
    return tensor(x).squeeze() if axes is None else tensor(x).squeeze(axes)


def unsqueeze(node: Node, x: Value, given: Value) -> Tensor:
    own, axes = tensor(x), sizes(given)
    rank = own.ndim + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        own = own.unsqueeze(axis)
    return own


def split_up(node: Node, x: Value, given: Value = None) -> list[Tensor]:
    own, axis = tensor(x), node.get("axis", 0)
    if given is not None:
        return list(own.split(sizes(given), axis))
    count = node.get("num_outputs", len(node.outputs))
    return list(own.split(-(-own.shape[axis] // count), axis))


def slices_of(rank: int, starts: Value, ends: Value, axes: Value, steps: Value) -> list[Any]:
    """Slices of all axes, of the inputs of Slice."""
    begin, end = sizes(starts), sizes(ends)
    which = range(len(begin)) if axes is None else sizes(axes)
    strides = [1] * len(begin) if steps is None else sizes(steps)
    found = [slice(None)] * rank
    for axis, first, last, stride in zip(which, begin, end, strides, strict=True):
        limit = None if isinstance(last, int) and abs(last) >= 2**31 - 1 else last
        found[axis % rank] = slice(first, limit, stride)
    return found


def sliced(node: Node, x: Value, starts: Value, ends: Value, axes: Value = None, steps: Value = None) -> Tensor:
    own = tensor(x)
    where = slices_of(own.ndim, starts, ends, axes, steps)
    for axis, one in enumerate(where):
        if one.step is not None and one.step < 0:
            if (one.start, one.stop, one.step) != (-1, None, -1):
                raise CaptureError("Slice with a negative step is supported for whole axes only")
            own, where[axis] = own.flip(axis), slice(None)
    return own[tuple(where)]


def gather(node: Node, x: Value, indices: Value) -> Tensor:
    own, axis = tensor(x), node.get("axis", 0)
    if isinstance(indices, np.ndarray) and indices.ndim == 0:
        return own.select(axis, sizes(indices)[0])
    where = tensor(indices)
    if axis == 0 and own.ndim == 2 and own.is_floating_point():
        return F.embedding(where.to(torch.int64), own)
    flat = own.index_select(axis, where.reshape(-1))
    axis += own.ndim if axis < 0 else 0
    return flat.reshape(*own.shape[:axis], *where.shape, *own.shape[axis + 1 :])


def expand(node: Node, x: Value, shape: Value) -> Tensor:
    own = tensor(x)
    return own.expand(torch.broadcast_shapes(own.shape, tuple(sizes(shape))))


def pad(node: Node, x: Value, pads: Value, value: Value = None, axes: Value = None) -> Tensor:
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


def arange(node: Node, *limits: Value) -> Tensor:
    kind = array(limits[0]).dtype
    numbers = [sizes(limit)[0] if kind.kind != "f" else array(limit).item() for limit in limits]
    dtype = torch.int64 if kind.kind == "O" else torch.from_numpy(np.zeros(0, kind)).dtype
    return torch.arange(*numbers, dtype=dtype)


def filled(node: Node, shape: Value) -> Tensor:
    value = node.get("value", np.zeros(1, np.float32)).reshape(-1)[0]
    return torch.full(sizes(shape), value.item(), dtype=torch.from_numpy(np.zeros(0, value.dtype)).dtype)


def trilu(node: Node, x: Value, k: Value = None) -> Tensor:
    diagonal = 0 if k is None else sizes(k)[0]
    return (torch.triu if node.get("upper", 1) else torch.tril)(tensor(x), diagonal)


def cumsum(node: Node, x: Value, axis: Value) -> Tensor:
    if node.get("exclusive", 0) or node.get("reverse", 0):
        raise CaptureError("CumSum with exclusive or reverse is not supported")
    return tensor(x).cumsum(sizes(axis)[0])


def shape_of(shape: Sequence[Any], node: Node) -> np.ndarray:
    wanted = list(shape)[node.get("start", 0) : node.get("end")]
    return np.array(wanted, np.int64 if all(type(size) is int for size in wanted) else object)
