"""What the transforms of torch.func need for dynamic sizes: PyTorch's own code makes numbers of them."""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor, _vmap_internals
from torch._C._functorch import _add_batch_dim, _unwrap_batched
from torch._functorch import eager_transforms
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch._ops import OpOverload
from torch.autograd import functional
from torch.library import _scoped_library
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from onnx_ops.torch.base.sizes import Size
from onnx_ops.torch.operators.dynamic_convolutions import convolved, gradient_of_weight
from onnx_ops.torch.operators.embedding import counts

aten = torch.ops.aten

BATCHED = "FuncTorchBatched"
"""The dispatch key of the rules of vmap."""


@contextlib.contextmanager
def symbolic_batches() -> Iterator[None]:
    """A context in which vmap, jacrev and jacfwd keep the dynamic sizes of what they batch.

    So do the functions of torch.autograd, which have a vmap of their own.
    """
    with contextlib.ExitStack() as stack:
        for module, basis in ((eager_transforms, _standard_basis), (functional, _flat_standard_basis)):
            stack.enter_context(mock.patch.object(module, "_construct_standard_basis_for", basis))
        for module in (_vmap_internals, functional):
            stack.enter_context(mock.patch.object(module, "_vmap", _vmap))
        library = stack.enter_context(_scoped_library("aten", "IMPL"))
        with warnings.catch_warnings(action="ignore"):  # of kernels that are overridden
            for name, rule in RULES.items():
                library.impl(name, _kernel(rule), BATCHED)
            for name in DECOMPOSED:
                library.impl(name, _decomposition(getattr(aten, name).default), BATCHED)
            for name, differentiated in DIFFERENTIATED.items():
                library.impl(name, differentiated, "Autograd")
            library.impl("_convolution_double_backward", _convolution_double_backward, "CompositeImplicitAutograd")
        yield


def _standard_basis(tensors: Sequence[Tensor], tensor_numels: Sequence[int]) -> tuple[Tensor, ...]:
    """For each tensor of n elements its columns of the unit matrix, (sum of all n, *shape of the tensor)."""
    rows = torch.arange(sum(tensor_numels)).unsqueeze(1)
    starts = itertools.accumulate(tensor_numels, initial=0)
    return tuple(
        (rows == torch.arange(start, start + numel)).to(tensor.dtype).reshape(-1, *tensor.shape)
        for tensor, start, numel in zip(tensors, starts, tensor_numels, strict=False)
    )


def _flat_standard_basis(tensors: Sequence[Tensor], tensor_numels: Sequence[int]) -> tuple[Tensor, ...]:
    """As `_standard_basis`, (sum of all n, n)."""
    return _standard_basis([tensor.reshape(-1) for tensor in tensors], tensor_numels)


def _vmap(
    function: Callable[..., Any],
    in_dims: int | tuple[int, ...] = 0,
    out_dims: int | tuple[int, ...] = 0,
    allow_none_pass_through: bool = False,
) -> Callable[..., Any]:
    """As that of torch.autograd, by torch.vmap, which has no results that are None."""

    def mapped(*args: Any) -> Any:
        structure: list[Any] = []

        def without_none(*given: Any) -> list[Tensor]:
            leaves, spec = tree_flatten(function(*given))
            structure[:] = [leaf is None for leaf in leaves], spec
            return [leaf for leaf in leaves if leaf is not None]

        found = iter(torch.vmap(without_none, in_dims, out_dims)(*args))
        missing, spec = structure
        return tree_unflatten([None if is_none else next(found) for is_none in missing], spec)

    return mapped


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


def _decomposition(operator: OpOverload) -> Callable[..., Any]:
    """An operator in others, which have rules."""
    if operator in torch._decomp.decomposition_table:
        return torch._decomp.decomposition_table[operator]
    return functools.partial(operator._op_dk, torch._C.DispatchKey.CompositeImplicitAutograd)


def _sgn(self: Tensor) -> Tensor:
    """z / abs(z), 0 for 0."""
    if not self.is_complex():
        return self.sign()
    size = self.abs()
    return self / torch.where(size == 0, 1.0, size)


DIFFERENTIATED = {"sgn": _sgn, "glu_backward": torch._decomp.decomposition_table[aten.glu_backward.default]}
"""Operators in others whose derivatives make no numbers of sizes: they are second derivatives of `abs` and `glu`."""


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
        if axis is not None and len(args) > axis and args[axis] >= 0:
            given[axis] = args[axis] + 1
        result = operator(*given, **kwargs)
        return result.squeeze(-1) if scalar else result

    return rule


def _merged(operator: Callable[..., Any], dims: int) -> Rule:
    """The rule of an operator on samples (N, C, *space), or on one sample: the samples of the batch are further ones.

    Args:
        operator: whose tensors have the samples as their first dimension.
        dims: the number of dimensions of tensors with samples.
    """

    def rule(unwrapped: Unwrap, *args: Any, **kwargs: Any) -> Any:
        places = [i for i, arg in enumerate(args) if isinstance(arg, Tensor)]
        whole = _expanded(unwrapped, [args[i] for i in places])
        if whole[0].dim() <= dims:
            given = list(args)
            for i, tensor in zip(places, whole, strict=True):
                given[i] = tensor
            return operator(*given, **kwargs)
        given, sizes = list(args), whole[0].shape[:2]
        for i, tensor in zip(places, whole, strict=True):
            given[i] = tensor.flatten(0, 1)
        return tree_map_only(Tensor, lambda one: one.unflatten(0, sizes), operator(*given, **kwargs))

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


def _diagonal_backward(
    unwrapped: Unwrap, grad_output: Tensor, input_sizes: Sequence[int], offset: int, dim1: int, dim2: int
) -> Tensor:
    grad = unwrapped(grad_output)
    if grad is not None:
        grad_output, input_sizes = grad, [grad.shape[0], *input_sizes]
        dim1, dim2 = (dim + 1 if dim >= 0 else dim for dim in (dim1, dim2))
    result: Tensor = aten.diagonal_backward(grad_output, input_sizes, offset, dim1, dim2)
    return result


def _new_empty_strided(
    unwrapped: Unwrap, self: Tensor, size: Sequence[int], stride: Sequence[int], **options: Any
) -> Tensor:
    """In the order of its dimensions, which no operator of a graph depends on."""
    whole = unwrapped(self)
    return self.new_empty(size, **options) if whole is None else whole.new_empty([whole.shape[0], *size], **options)


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


def _convolution_backward(
    unwrapped: Unwrap,
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    *settings: Any,
) -> tuple[Tensor | None, ...]:
    stride, padding, dilation, transposed, _, groups, (of_input, of_weight, of_bias) = settings
    rank = input.dim() - 2
    filters = unwrapped(weight)
    if filters is None and unwrapped(input) is None and unwrapped(grad_output) is None:
        return tuple(aten.convolution_backward(grad_output, input, weight, bias_sizes, *settings))
    tensors = [grad_output, input] if filters is None else [grad_output, input, weight]
    grads, x = _expanded(unwrapped, tensors)[:2]
    size = grads.shape[0]
    gradients: list[Tensor | None] = [None, None, None]
    if of_input and filters is None:
        wanted = [True, False, False]
        merged = grads.flatten(0, 1), x.flatten(0, 1)
        found = aten.convolution_backward(*merged, weight, bias_sizes, *settings[:-1], wanted)[0]
        gradients[0] = found.unflatten(0, x.shape[:2])
    elif of_input:
        assert filters is not None
        # A convolution of the other kind with the same weight; what a stride leaves over is room for more places.
        steps, pads, gaps = (list(given) * (rank // len(given)) for given in (stride, padding, dilation))
        room = [0] * rank
        if not transposed:
            sizes = zip(x.shape[3:], grads.shape[3:], weight.shape[2:], steps, pads, gaps, strict=True)
            room = [before - ((after - 1) * s - 2 * p + d * (k - 1) + 1) for before, after, k, s, p, d in sizes]
        together, of_all = grads.movedim(0, 1).flatten(1, 2), filters.flatten(0, 1)
        found = convolved(together, of_all, steps, pads, gaps, not transposed, room, size * groups)
        gradients[0] = found.unflatten(1, (size, -1)).movedim(1, 0)
    if of_weight:
        pixels = [tensor.movedim(0, 1).flatten(1, 2) for tensor in ((grads, x) if transposed else (x, grads))]
        found = gradient_of_weight(pixels[0], pixels[1], weight.shape[2:], stride, padding, dilation, size * groups)
        gradients[1] = found.unflatten(0, (size, -1))
    if of_bias:
        gradients[2] = grads.sum([1, *range(3, grads.dim())])
    return tuple(gradients)


def _convolution_double_backward(
    of_grad_input: Tensor | None,
    of_grad_weight: Tensor | None,
    of_grad_bias: Tensor | None,
    grad_output: Tensor,
    weight: Tensor,
    self: Tensor,
    *settings_and_wanted: Any,
) -> tuple[Tensor | None, ...]:
    """The gradients of `convolution_backward`, whose results are linear in `grad_output`, and in one other tensor each.

    Args:
        of_grad_input, of_grad_weight, of_grad_bias: the gradients with respect to its results.
        grad_output, weight, self: its tensors.
        settings_and_wanted: those of the convolution, and which gradients are wanted: with respect to grad_output,
            self and weight.
    """
    *settings, (wanted_grad, wanted_input, wanted_weight) = settings_and_wanted
    terms: list[Tensor] = []
    of_input = of_weight = None
    if of_grad_input is not None:
        terms.append(aten.convolution(of_grad_input, weight, None, *settings))
        if wanted_weight:
            found = aten.convolution_backward(grad_output, of_grad_input, weight, None, *settings, [False, True, False])
            of_weight = found[1]
    if of_grad_weight is not None:
        terms.append(aten.convolution(self, of_grad_weight, None, *settings))
        if wanted_input:
            found = aten.convolution_backward(grad_output, self, of_grad_weight, None, *settings, [True, False, False])
            of_input = found[0]
    if of_grad_bias is not None:
        terms.append(of_grad_bias.reshape([-1] + [1] * (self.dim() - 2)).expand_as(grad_output))
    return (sum(terms[1:], terms[0]) if wanted_grad and terms else None), of_input, of_weight


def _of_batch(self: Tensor, size: Size) -> Tensor:
    """Numbers of rows of a table, (B, ...), as those of B tables of `size` rows one after the other."""
    starts = torch.arange(self.shape[0]).mul(size)
    return self + starts.reshape([-1] + [1] * (self.dim() - 1))


def _embedding(
    unwrapped: Unwrap,
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    by_count: bool = False,
    sparse: bool = False,
) -> Tensor:
    tables = unwrapped(weight)
    if tables is None:
        given = unwrapped(indices)
        return aten.embedding(weight, indices if given is None else given, padding_idx, by_count, sparse)
    _, places = _expanded(unwrapped, [weight, indices])
    chosen = _of_batch(places, tables.shape[1])
    rows = tables.flatten(0, 1).index_select(0, chosen.flatten()).unflatten(0, chosen.shape)
    if by_count:
        times = counts(chosen.flatten(), tables.shape[0] * tables.shape[1], rows.dtype).reshape(chosen.shape)
        rows = rows.detach() + (rows - rows.detach()) / times.unsqueeze(-1)
    # The row of padding has no gradient.
    return rows if padding_idx < 0 else torch.where((places == padding_idx).unsqueeze(-1), rows.detach(), rows)


def _embedding_backward(
    unwrapped: Unwrap, grad_output: Tensor, indices: Tensor, num_weights: Size, padding_idx: int, by_count: bool
) -> Tensor:
    result: Tensor
    grads, places = _expanded(unwrapped, [grad_output, indices])
    if grads.dim() == grad_output.dim():
        result = aten.embedding_dense_backward(grad_output, indices, num_weights, padding_idx, by_count)
        return result
    size, rows = grads.shape[0], _of_batch(places, num_weights).flatten()
    if padding_idx >= 0:
        grads = torch.where((places == padding_idx).unsqueeze(-1), 0.0, grads)
    grads = grads.reshape(-1, grads.shape[-1])
    if by_count:
        grads = grads / counts(rows, size * num_weights, grads.dtype).unsqueeze(-1)
    result = grads.new_zeros(size * num_weights, grads.shape[-1]).index_add(0, rows, grads)
    return result.unflatten(0, (size, num_weights))


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
    "convolution_backward": _convolution_backward,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "diagonal_backward": _diagonal_backward,
    "new_empty_strided": _new_empty_strided,
    "pixel_shuffle": _shifted(aten.pixel_shuffle),
    "pixel_unshuffle": _shifted(aten.pixel_unshuffle),
    "im2col": _merged(aten.im2col, 4),
    "col2im": _merged(aten.col2im, 3),
    **{
        f"{name}{ending}": _merged(getattr(aten, f"{name}{ending}"), rank + 2)
        for rank in (1, 2, 3)
        for name in (
            f"reflection_pad{rank}d",
            f"replication_pad{rank}d",
            *((f"avg_pool{rank}d", f"max_pool{rank}d_with_indices") if rank > 1 else ()),
        )
        for ending in ("", "_backward")
    },
    "gelu_backward": _shifted(aten.gelu_backward),
}

DECOMPOSED = (
    "addr",
    "affine_grid_generator",
    "bilinear",
    "binary_cross_entropy",
    "binary_cross_entropy_backward",
    "column_stack",
    "diagflat",
    "isclose",
    "kl_div",
    "margin_ranking_loss",
    "pdist",
    "renorm",
    "soft_margin_loss",
    "soft_margin_loss_backward",
    "take",
    "triplet_margin_loss",
)
"""Operators that PyTorch has no rule for, or one that makes numbers of sizes: it loops over the batch."""
