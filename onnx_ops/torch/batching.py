"""What the transforms of torch.func need for dynamic sizes: PyTorch's own code makes numbers of them."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._C._functorch import _add_batch_dim, _unwrap_batched
from torch._functorch import eager_transforms
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch.library import _scoped_library
from torch.utils._pytree import tree_map_only

from onnx_ops.torch.operators.dynamic_groups import convolved

aten = torch.ops.aten

BATCHED = "FuncTorchBatched"
"""The dispatch key of the rules of vmap."""


@contextlib.contextmanager
def symbolic_batches() -> Iterator[None]:
    """A context in which vmap, jacrev and jacfwd keep the dynamic sizes of what they batch."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(eager_transforms, "_construct_standard_basis_for", _standard_basis))
        library = stack.enter_context(_scoped_library("aten", "IMPL"))
        with warnings.catch_warnings(action="ignore"):  # of kernels that are overridden
            for name, rule in RULES.items():
                library.impl(name, _kernel(rule), BATCHED)
        yield


def _standard_basis(tensors: Sequence[Tensor], tensor_numels: Sequence[int]) -> tuple[Tensor, ...]:
    """For each tensor of n elements its columns of the unit matrix, (sum of all n, *shape of the tensor)."""
    rows = torch.arange(sum(tensor_numels)).unsqueeze(1)
    starts = itertools.accumulate(tensor_numels, initial=0)
    return tuple(
        (rows == torch.arange(start, start + numel)).to(tensor.dtype).reshape(-1, *tensor.shape)
        for tensor, start, numel in zip(tensors, starts, tensor_numels, strict=False)
    )


Rule = Callable[..., Any]
"""An operator on the tensors of a batch: of the function that unwraps a tensor, and the operator's arguments."""

Unwrap = Callable[[Tensor], Tensor | None]


def _kernel(rule: Rule) -> Callable[..., Any]:
    """The kernel of a rule, whose results have the batch as their first dimension if a tensor has one."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        level = retrieve_current_functorch_interpreter().level()
        batched = False

        def unwrapped(tensor: Tensor) -> Tensor | None:
            """A tensor with the batch as its first dimension; None for one that is the same for the whole batch."""
            nonlocal batched
            value, place = _unwrap_batched(tensor, level)
            if place is None:
                return None
            batched = True
            return value.movedim(place, 0)

        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchBatched)):
            result = rule(unwrapped, *args, **kwargs)
        return tree_map_only(Tensor, lambda one: _add_batch_dim(one, 0, level), result) if batched else result

    return kernel


def _expanded(unwrapped: Unwrap, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of the whole batch; those that are the same in all of it are expanded."""
    found = [unwrapped(tensor) for tensor in tensors]
    size = next((tensor.shape[0] for tensor in found if tensor is not None), None)
    if size is None:
        return list(tensors)
    pairs = zip(tensors, found, strict=True)
    return [tensor.expand(size, *tensor.shape) if batch is None else batch for tensor, batch in pairs]


def _shifted(operator: Callable[..., Any], axis: int | None = None) -> Rule:
    """The rule of an operator that treats further first dimensions, if all of its tensors have them, as a batch.

    Args:
        operator: with a tensor as its first argument.
        axis: the position of its argument that is an axis, which counts from the end if it is negative.
    """

    def rule(unwrapped: Unwrap, *args: Any, **kwargs: Any) -> Any:
        places = [i for i, arg in enumerate(args) if isinstance(arg, Tensor)]
        whole = _expanded(unwrapped, [args[i] for i in places])
        if whole[0].dim() == args[places[0]].dim():  # no tensor has a batch
            return operator(*args, **kwargs)
        scalar = axis is not None and args[0].dim() == 0
        given = list(args)
        for i, tensor in zip(places, whole, strict=True):
            given[i] = tensor.unsqueeze(-1) if scalar and tensor.dim() == 1 else tensor
        if axis is not None and args[axis] >= 0:
            given[axis] = args[axis] + 1
        result = operator(*given, **kwargs)
        return result.squeeze(-1) if scalar else result

    return rule


def _cat(unwrapped: Unwrap, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    whole = _expanded(unwrapped, tensors)
    return torch.cat(whole, dim + (whole[0].dim() - tensors[0].dim()) if dim >= 0 else dim)


def _slice_backward(unwrapped: Unwrap, grad_output: Tensor, input_sizes: Sequence[int], dim: int, *part: int) -> Tensor:
    grad = unwrapped(grad_output)
    if grad is not None:
        grad_output, input_sizes, dim = grad, [grad.shape[0], *input_sizes], dim + 1 if dim >= 0 else dim
    result: Tensor = aten.slice_backward(grad_output, input_sizes, dim, *part)
    return result


def _of_each_row(index: Tensor, like: Tensor, dim: int) -> Tensor:
    """An index (B, K) of an axis for all elements of a tensor whose axis has K elements."""
    shape = [1] * like.dim()
    shape[0], shape[dim] = index.shape
    return index.reshape(shape).expand(like.shape)


def _repeated(whole: Tensor, axis: int, count: int) -> Tensor:
    """The first elements along an axis, `count` times."""
    return whole.narrow(axis, 0, 1).expand([count if i == axis % whole.dim() else -1 for i in range(whole.dim())])


def _index_select(unwrapped: Unwrap, self: Tensor, dim: int, index: Tensor) -> Tensor:
    if unwrapped(index) is None:
        return _shifted(lambda whole, axis: torch.index_select(whole, axis, index), 1)(unwrapped, self, dim)

    def select(whole: Tensor, axis: int, places: Tensor) -> Tensor:
        return whole.gather(axis, _of_each_row(places, _repeated(whole, axis, places.shape[1]), axis))

    return _shifted(select, 1)(unwrapped, self, dim, index)


def _index_add(unwrapped: Unwrap, self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    if unwrapped(index) is None:

        def add(whole: Tensor, axis: int, rows: Tensor) -> Tensor:
            return torch.index_add(whole, axis, index, rows, alpha=alpha)

        return _shifted(add, 1)(unwrapped, self, dim, source)

    def scatter(whole: Tensor, axis: int, places: Tensor, rows: Tensor) -> Tensor:
        return whole.scatter_add(axis, _of_each_row(places, rows, axis), rows * alpha)

    return _shifted(scatter, 1)(unwrapped, self, dim, index, source)


def _index_fill(unwrapped: Unwrap, self: Tensor, dim: int, index: Tensor, value: float) -> Tensor:
    if unwrapped(index) is None:
        return _shifted(lambda whole, axis: torch.index_fill(whole, axis, index, value), 1)(unwrapped, self, dim)

    def fill(whole: Tensor, axis: int, places: Tensor) -> Tensor:
        rows = places.reshape(places.shape[0], -1)
        return whole.scatter(axis, _of_each_row(rows, _repeated(whole, axis, rows.shape[1]), axis), value)

    return _shifted(fill, 1)(unwrapped, self, dim, index)


def _cross(unwrapped: Unwrap, self: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    axis = dim if dim < 0 else dim - self.dim()
    result: Tensor = _shifted(torch.linalg.cross)(unwrapped, self, other, dim=axis)
    return result


def _convolution(unwrapped: Unwrap, input: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any) -> Tensor:
    """With one weight for the whole batch, its tensors are further samples; else each has groups of its own."""
    stride, padding, dilation, transposed, output_padding, groups = settings
    filters, biases = unwrapped(weight), None if bias is None else unwrapped(bias)
    whole = unwrapped(input) if filters is None else _expanded(unwrapped, [input, weight])[0]
    result: Tensor
    if whole is None:
        result = aten.convolution(input, weight, None, *settings)
    elif filters is None:
        result = aten.convolution(whole.flatten(0, 1), weight, None, *settings).unflatten(0, whole.shape[:2])
    else:
        size = filters.shape[0]
        together, of_all = whole.movedim(0, 1).flatten(1, 2), filters.flatten(0, 1)
        result = convolved(together, of_all, stride, padding, dilation, transposed, output_padding, size * groups)
        result = result.unflatten(1, (size, -1)).movedim(1, 0)
    if bias is None:
        return result
    added = bias if biases is None else biases.unsqueeze(1)
    return result + added.reshape([*added.shape, *[1] * (input.dim() - 2)])


RULES: dict[str, Rule] = {
    "cat": _cat,
    "slice_backward": _slice_backward,
    "gather": _shifted(torch.gather, 1),
    "scatter.src": _shifted(torch.scatter, 1),
    "scatter.value": _shifted(torch.scatter, 1),
    "scatter_add": _shifted(torch.scatter_add, 1),
    "index_select": _index_select,
    "index_add": _index_add,
    "index_fill.int_Scalar": _index_fill,
    "linalg_cross": _cross,
    "_linalg_solve_ex": _shifted(aten._linalg_solve_ex),
    "convolution": _convolution,
    "gelu_backward": _shifted(aten.gelu_backward),
}
