"""Functions whose arguments are numbers that depend on data or on dynamic sizes, as `F.leaky_relu(x, slope.item())`.

PyTorch's code branches on such arguments, as on a factor of 1, or takes a Python number. With one that a trace has no
value for, they are computed by operators that take a tensor or a factor in its place.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onnx_ops.torch.base.sizes import Number, Size
from onnx_ops.torch.base.table import TABLE

Formula = Callable[..., Any]

SYMBOLS = torch.SymInt, torch.SymFloat

FORMULAS: dict[Any, Formula] = {}
"""Functions of PyTorch, and functions with the same parameters that take symbols for numbers.

One may return NotImplemented for arguments that PyTorch's function takes.
"""


def with_symbols(replacements: Mapping[Any, Formula]) -> dict[Any, Formula]:
    """Replacements of functions that call their formula where an argument is a symbol.

    Args:
        replacements: of calls without symbols.
    """
    return {function: _chosen(formula, replacements.get(function)) for function, formula in FORMULAS.items()}


def _chosen(formula: Formula, replacement: Formula | None) -> Formula:
    @functools.wraps(formula)
    def chosen(*args: Any, **options: Any) -> Any:
        if any(isinstance(arg, SYMBOLS) for arg in (*args, *options.values())):
            found = formula(*args, **options)
            if found is not NotImplemented:
                return found
        return NotImplemented if replacement is None else replacement(*args, **options)

    return chosen


def _of(*functions: Any) -> Callable[[Formula], Formula]:
    def enter(formula: Formula) -> Formula:
        FORMULAS.update(dict.fromkeys(functions, formula))
        return formula

    return enter


def _in_place(formula: Formula) -> Formula:
    """Of a copy, as autograd may keep the argument."""

    def changed(self: Tensor, *args: Any, **options: Any) -> Any:
        found = formula(self.clone(), *args, **options)
        return found if found is NotImplemented else self.copy_(found)

    return changed


def _of_tensors(*names: str) -> Callable[[Formula], Formula]:
    """A function of torch, a method of tensors, and one that works in place, of those of the names that there are."""

    def enter(formula: Formula) -> Formula:
        for name in names:
            for place in (torch, Tensor):
                if hasattr(place, name):
                    _of(getattr(place, name))(formula)
                if hasattr(place, f"{name}_"):
                    _of(getattr(place, f"{name}_"))(_in_place(formula))
        return formula

    return enter


def _activation(name: str) -> Callable[[Formula], Formula]:
    """A function of torch.nn.functional, whose last parameter may be `inplace`."""

    def enter(formula: Formula) -> Formula:
        function = getattr(F, name)

        def activation(input: Tensor, *args: Any, inplace: bool = False, **options: Any) -> Tensor:
            return (_in_place(formula) if inplace else formula)(input, *args, **options)

        _of(function)(activation)
        if hasattr(F, f"{name}_"):
            _of(getattr(F, f"{name}_"))(functools.partial(activation, inplace=True))
        return formula

    return enter


def _tensor(number: Tensor | Number, like: Tensor) -> Tensor:
    return number if isinstance(number, Tensor) else torch.full((), number, dtype=like.dtype)


# --- sums and products ------------------------------------------------------------------------------------------------


@_of_tensors("add")
def _add(input: Tensor | Number, other: Tensor | Number, *, alpha: Number = 1) -> Any:
    return input + other * alpha if isinstance(alpha, SYMBOLS) else NotImplemented


@_of_tensors("sub", "subtract")
def _sub(input: Tensor | Number, other: Tensor | Number, *, alpha: Number = 1) -> Any:
    return input - other * alpha if isinstance(alpha, SYMBOLS) else NotImplemented


@_of(torch.rsub)
def _rsub(input: Tensor | Number, other: Tensor | Number, *, alpha: Number = 1) -> Any:
    return other - input * alpha if isinstance(alpha, SYMBOLS) else NotImplemented


@_of_tensors("addcmul")
def _addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    return input + tensor1 * tensor2 * value


@_of_tensors("addcdiv")
def _addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    return input + tensor1 / tensor2 * value


@_of_tensors("lerp")
def _lerp(input: Tensor, end: Tensor, weight: Tensor | Number) -> Tensor:
    return torch.lerp(input, end, _tensor(weight, input).expand_as(end))


def _plus(product: Callable[..., Tensor]) -> Formula:
    def formula(input: Tensor, first: Tensor, second: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
        return input * beta + product(first, second) * alpha

    return formula


_of_tensors("addmm", "addmv", "baddbmm")(_plus(torch.matmul))
_of_tensors("addbmm")(_plus(lambda first, second: torch.matmul(first, second).sum(0)))
_of_tensors("addr")(_plus(torch.outer))


@_of_tensors("index_add")
def _index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Number = 1) -> Tensor:
    return input.index_add(dim, index, source * alpha)


@_of_tensors("pow")
def _pow(input: Tensor | Number, exponent: Tensor | Number) -> Any:
    tensor = next(given for given in (input, exponent) if isinstance(given, Tensor))
    if not tensor.is_floating_point() and any(isinstance(given, torch.SymInt) for given in (input, exponent)):
        return NotImplemented
    like = tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())
    return torch.pow(*(like if given is tensor else _tensor(given, like) for given in (input, exponent)))


@_of_tensors("float_power")
def _float_power(input: Tensor | Number, exponent: Tensor | Number) -> Tensor:
    return _pow(*(arg.double() if isinstance(arg, Tensor) else arg for arg in (input, exponent)))


_of(Tensor.__pow__)(_pow)
_of(Tensor.__ipow__)(_in_place(_pow))
_of(Tensor.__rpow__)(lambda self, other: _pow(other, self))


@_of_tensors("xlogy")
def _xlogy(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    like = input if isinstance(input, Tensor) else other
    return torch.xlogy(_tensor(input, like), _tensor(other, like))


@_of_tensors("copysign")
def _copysign(input: Tensor, other: Tensor | Number) -> Tensor:
    return torch.where(_tensor(other, input) < 0, -input.abs(), input.abs())


# --- activations ------------------------------------------------------------------------------------------------------


@_activation("leaky_relu")
def _leaky_relu(input: Tensor, negative_slope: Number = 0.01) -> Tensor:
    return torch.where(input > 0, input, input * negative_slope)


@_activation("elu")
def _elu(input: Tensor, alpha: Number = 1.0) -> Tensor:
    return torch.where(input > 0, input, torch.expm1(input.clamp(max=0)) * alpha)


@_activation("celu")
def _celu(input: Tensor, alpha: Number = 1.0) -> Tensor:
    return torch.where(input > 0, input, torch.expm1(input.clamp(max=0) / alpha) * alpha)


@_activation("softplus")
def _softplus(input: Tensor, beta: Number = 1.0, threshold: Number = 20.0) -> Tensor:
    scaled = input * beta
    linear = scaled > threshold
    return torch.where(linear, input, torch.where(linear, 0.0, scaled).exp().log1p() / beta)


@_activation("hardtanh")
def _hardtanh(input: Tensor, min_val: Number = -1.0, max_val: Number = 1.0) -> Tensor:
    return torch.where(input <= min_val, min_val, torch.where(input >= max_val, max_val, input))


@_activation("threshold")
def _threshold(input: Tensor, threshold: Number, value: Number) -> Tensor:
    return torch.where(input > threshold, input, value)


@_of_tensors("hardshrink")
@_activation("hardshrink")
def _hardshrink(input: Tensor, lambd: Number = 0.5) -> Tensor:
    return torch.where((input >= -lambd) & (input <= lambd), 0.0, input)


@_activation("dropout")
def _dropout(input: Tensor, p: Number = 0.5, training: bool = True) -> Tensor:
    if not training:
        return input
    kept = torch.rand(input.shape, dtype=input.dtype) >= p
    return torch.where(kept, input / (1 - p), 0.0)


# --- losses -----------------------------------------------------------------------------------------------------------


def _reduced(loss: Tensor, reduction: str) -> Tensor:
    return loss if reduction == "none" else loss.sum() if reduction == "sum" else loss.mean()


@_of(F.cross_entropy)
def _cross_entropy(*args: Any, label_smoothing: Number = 0.0, **options: Any) -> Any:
    """Which is linear in `label_smoothing`."""
    if not isinstance(label_smoothing, SYMBOLS):
        return NotImplemented
    function: Formula = TABLE.replacements.get(F.cross_entropy, F.cross_entropy)
    none, all_of_it = (function(*args, label_smoothing=smoothing, **options) for smoothing in (0.0, 1.0))
    return none * (1 - label_smoothing) + all_of_it * label_smoothing


@_of(F.huber_loss)
def _huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: Number = 1.0, weight: Tensor | None = None
) -> Tensor:
    error = (input - target).abs()
    loss = torch.where(error <= delta, error * error * 0.5, (error - 0.5 * delta) * delta)
    return _reduced(loss if weight is None else loss * weight, reduction)


@_of(F.smooth_l1_loss)
def _smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: Number = 1.0,
) -> Tensor:
    error = (input - target).abs()
    return _reduced(torch.where(error < beta, error * error * 0.5 / beta, error - 0.5 * beta), reduction)


@_of(F.margin_ranking_loss)
def _margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: Number = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    return _reduced((margin - target * (input1 - input2)).clamp(min=0), reduction)


@_of(F.hinge_embedding_loss)
def _hinge_embedding_loss(
    input: Tensor,
    target: Tensor,
    margin: Number = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    far = torch.where(target == -1, (margin - input).clamp(min=0), 0.0)
    return _reduced(far + torch.where(target == 1, input, 0.0), reduction)


@_of(F.cosine_embedding_loss)
def _cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: Number = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    cosine = F.cosine_similarity(input1, input2, dim=-1)
    far = torch.where(target == -1, (cosine - margin).clamp(min=0), 0.0)
    return _reduced(far + torch.where(target == 1, 1 - cosine, 0.0), reduction)


@_of(F.triplet_margin_loss)
def _triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: Number = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    near, far = (F.pairwise_distance(anchor, other, p, eps) for other in (positive, negative))
    if swap:
        far = torch.minimum(far, F.pairwise_distance(positive, negative, p, eps))
    return _reduced((near - far + margin).clamp(min=0), reduction)


# --- elements and bounds ----------------------------------------------------------------------------------------------


@_of_tensors("logit")
def _logit(input: Tensor, eps: Number) -> Tensor:
    return torch.logit(input.clamp(eps, 1 - eps))


@_of_tensors("nan_to_num")
def _nan_to_num(
    input: Tensor, nan: Number | None = 0.0, posinf: Number | None = None, neginf: Number | None = None
) -> Tensor:
    limits = torch.finfo(input.dtype)
    most, least = (limits.max if posinf is None else posinf), (limits.min if neginf is None else neginf)
    found = torch.where(input.isnan(), 0.0 if nan is None else nan, input)
    return torch.where(found == math.inf, most, torch.where(found == -math.inf, least, found))


@_of_tensors("scatter")
def _scatter(input: Tensor, dim: int, index: Tensor, value: Tensor | Number, **options: Any) -> Tensor:
    return input.scatter(dim, index, _tensor(value, input).expand_as(index), **options)


@_of(F.pad)
def _pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: Number | None = None) -> Tensor:
    inside = F.pad(torch.ones_like(input, dtype=torch.bool), pad, mode, False)
    return torch.where(inside, F.pad(input, pad, mode, 0.0), value)


@_of_tensors("isclose")
def _isclose(input: Tensor, other: Tensor, rtol: Number = 1e-5, atol: Number = 1e-8, equal_nan: bool = False) -> Tensor:
    near = (input - other).abs() <= other.abs() * rtol + atol
    found = (input == other) | (near & other.isfinite())
    return found | (input.isnan() & other.isnan()) if equal_nan else found


def _of_tensor_q(function: Callable[..., Tensor]) -> Formula:
    return lambda input, q, *args, **options: TABLE.replacements[function](input, _tensor(q, input), *args, **options)


_of_tensors("quantile")(_of_tensor_q(torch.quantile))
_of_tensors("nanquantile")(_of_tensor_q(torch.nanquantile))


ATTENTION = F.scaled_dot_product_attention


@_of(ATTENTION)
def _attention(query: Tensor, *args: Any, scale: Number | None = None, **options: Any) -> Any:
    if not isinstance(scale, SYMBOLS):
        return NotImplemented
    return TABLE.replacements[ATTENTION](query * scale, *args, scale=1.0, **options)


# --- random numbers ---------------------------------------------------------------------------------------------------


@_of(torch.normal)
def _normal(
    mean: Tensor | Number, std: Tensor | Number = 1.0, size: Sequence[Size] | None = None, **options: Any
) -> Tensor:
    given = [number for number in (mean, std) if isinstance(number, Tensor)]
    drawn = torch.randn_like(given[0]) if given else torch.randn(size, **options)
    return mean + std * drawn


@_of(Tensor.normal_)
def _normal_(
    self: Tensor, mean: Number = 0.0, std: Number = 1.0, *, generator: torch.Generator | None = None
) -> Tensor:
    return self.copy_(mean + std * torch.randn_like(self))


@_of(Tensor.uniform_)
def _uniform_(
    self: Tensor, start: Number = 0.0, to: Number = 1.0, *, generator: torch.Generator | None = None
) -> Tensor:
    return self.copy_(start + (to - start) * torch.rand_like(self))


@_of(Tensor.exponential_)
def _exponential_(self: Tensor, lambd: Number = 1.0, *, generator: torch.Generator | None = None) -> Tensor:
    return self.copy_(torch.empty_like(self).exponential_() / lambd)
