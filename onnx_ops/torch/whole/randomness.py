"""The random numbers of a captured step: functions of a seed, which is an input of the graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from onnx_ops.torch.errors import CaptureError
from onnx_ops.torch.whole.dropout import dropout

aten = torch.ops.aten
Shape = Sequence[Any]

BITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}
"""Digits of the numbers below 1 in each dtype."""


class Random(TorchDispatchMode):
    """While it is entered, all operators that draw random numbers draw from one seed, each of them others.

    Attributes:
        seed: a scalar of int64; each step has another.
        used: how many operators have drawn.
        closed: whether drawing is over. What draws within a gradient would get other numbers than the loss had.
    """

    def __init__(self, seed: Tensor) -> None:
        super().__init__()
        self.seed = seed
        self.used = 0
        self.closed = False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not _draws(func, args, kwargs):
            return func(*args, **kwargs)
        if func not in DRAWS:
            raise CaptureError(
                f"{func} draws random numbers, which a graph can do only for {', '.join(sorted(_KNOWN))} and dropout;"
                " draw them before the step and pass them in"
            )
        if self.closed:
            raise CaptureError(
                f"{func} draws random numbers within the gradient, where they would be others than in the loss;"
                " leave out activation checkpointing around what draws"
            )
        return DRAWS[func](self, *args, **kwargs)

    def kept(self, shape: Shape, dropped: float) -> Tensor:
        """Truth values that are False with a probability."""
        return dropout(torch.ones(shape), self.seed, dropped, self._place())[1]

    def dropped(self, input: Tensor, p: float) -> tuple[Tensor, Tensor]:
        """The input after dropout, and its mask."""
        if input.dtype is torch.float64:  # the node scales by a float
            mask = self.kept(input.shape, p)
            return input * mask * torch.tensor(1 / (1 - p), dtype=input.dtype), mask
        return dropout(input, self.seed, p, self._place())

    def uniform(self, shape: Shape, dtype: torch.dtype) -> Tensor:
        """Numbers from 0 to 1, 1 excluded: each binary digit is a draw of its own."""
        digits = BITS[dtype]
        wide = torch.promote_types(dtype, torch.float32)
        values = torch.tensor([0.5 ** (i + 1) for i in range(digits)], dtype=wide)
        # No product of matrices: onnxruntime merges one with a factor after it, rounded to float.
        return (self.kept((*shape, digits), 0.5).to(wide) * values).sum(-1).to(dtype)

    def normal(self, shape: Shape, dtype: torch.dtype) -> Tensor:
        """Numbers of the standard normal distribution (Box and Muller, 1958)."""
        wide = torch.promote_types(dtype, torch.float32)
        first, second = (self.uniform(shape, wide) for _ in range(2))
        turn = torch.tensor([2 * math.pi], dtype=wide)
        return (torch.sqrt(-2 * torch.log(1 - first)) * torch.cos(turn * second)).to(dtype)

    def _place(self) -> int:
        """A number that tells an operator's random numbers from those of all others of the run."""
        self.used += 1
        return self.used - 1


def _draws(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of an operator draws random numbers."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
    # Attention without dropout, and what draws in training alone.
    return given.get("dropout_p", 1.0) != 0 and given.get("training", True) is not False


DRAWS: dict[Any, Callable[..., Any]] = {}
"""The operators that can draw from a seed, as functions of a Random and the operator's arguments."""


def _draw(*operators: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def entered(function: Callable[..., Any]) -> Callable[..., Any]:
        DRAWS.update(dict.fromkeys(operators, function))
        return function

    return entered


def _default(dtype: torch.dtype | None) -> torch.dtype:
    return torch.get_default_dtype() if dtype is None else dtype


@_draw(aten.native_dropout.default)
def _native_dropout(random: Random, input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if p == 1:  # PyTorch draws nothing then
        return torch.zeros_like(input), torch.zeros_like(input, dtype=torch.bool)
    return random.dropped(input, p)


@_draw(aten.bernoulli.p)
def _bernoulli_p(random: Random, input: Tensor, p: float = 0.5, **rest: Any) -> Tensor:
    return random.kept(input.shape, 1 - p).to(input.dtype)


@_draw(aten.bernoulli_.float)
def _bernoulli_p_(random: Random, input: Tensor, p: float = 0.5, **rest: Any) -> Tensor:
    return input.copy_(random.kept(input.shape, 1 - p))


@_draw(aten.bernoulli.default)
def _bernoulli(random: Random, input: Tensor, **rest: Any) -> Tensor:
    return (random.uniform(input.shape, input.dtype) < input).to(input.dtype)


@_draw(aten.bernoulli_.Tensor)
def _bernoulli_(random: Random, input: Tensor, p: Tensor, **rest: Any) -> Tensor:
    return input.copy_(random.uniform(input.shape, p.dtype) < p)


@_draw(aten.rand.default, aten.rand.generator)
def _rand(random: Random, size: Shape, *, dtype: torch.dtype | None = None, **rest: Any) -> Tensor:
    return random.uniform(size, _default(dtype))


@_draw(aten.rand_like.default, aten.rand_like.generator)
def _rand_like(random: Random, input: Tensor, *, dtype: torch.dtype | None = None, **rest: Any) -> Tensor:
    return random.uniform(input.shape, input.dtype if dtype is None else dtype)


@_draw(aten.uniform_.default)
def _uniform_(random: Random, input: Tensor, low: float = 0.0, high: float = 1.0, **rest: Any) -> Tensor:
    low, high = rest.get("from", low), rest.get("to", high)
    return input.copy_(low + (high - low) * random.uniform(input.shape, input.dtype))


@_draw(aten.randn.default, aten.randn.generator)
def _randn(random: Random, size: Shape, *, dtype: torch.dtype | None = None, **rest: Any) -> Tensor:
    return random.normal(size, _default(dtype))


@_draw(aten.randn_like.default, aten.randn_like.generator)
def _randn_like(random: Random, input: Tensor, *, dtype: torch.dtype | None = None, **rest: Any) -> Tensor:
    return random.normal(input.shape, input.dtype if dtype is None else dtype)


@_draw(aten.normal_.default)
def _normal_(random: Random, input: Tensor, mean: float = 0.0, std: float = 1.0, **rest: Any) -> Tensor:
    return input.copy_(mean + std * random.normal(input.shape, input.dtype))


@_draw(aten.normal.float_float)
def _normal(
    random: Random, mean: float, std: float, size: Shape, *, dtype: torch.dtype | None = None, **rest: Any
) -> Tensor:
    return mean + std * random.normal(size, _default(dtype))


@_draw(aten.normal.Tensor_float, aten.normal.float_Tensor, aten.normal.Tensor_Tensor)
def _normal_of_tensors(random: Random, mean: Any, std: Any = 1.0, **rest: Any) -> Tensor:
    given = [value for value in (mean, std) if isinstance(value, Tensor)]
    return mean + std * random.normal(torch.broadcast_shapes(*(value.shape for value in given)), given[0].dtype)


@_draw(aten.exponential_.default)
def _exponential_(random: Random, input: Tensor, lambd: float = 1.0, **rest: Any) -> Tensor:
    return input.copy_(-torch.log(1 - random.uniform(input.shape, input.dtype)) / lambd)


@_draw(aten.randint.low, aten.randint.low_generator)
def _randint(
    random: Random, low: int, high: int, size: Shape, *, dtype: torch.dtype | None = torch.int64, **rest: Any
) -> Tensor:
    numbers = low + torch.floor(random.uniform(size, torch.float64) * (high - low))
    return numbers.to(torch.int64 if dtype is None else dtype)


@_draw(aten.randint.default, aten.randint.generator)
def _randint_from_0(random: Random, high: int, size: Shape, **rest: Any) -> Tensor:
    return _randint(random, 0, high, size, **rest)


@_draw(aten.randint_like.low_dtype)
def _randint_like(
    random: Random, input: Tensor, low: int, high: int, *, dtype: torch.dtype | None = None, **rest: Any
) -> Tensor:
    return _randint(random, low, high, input.shape, dtype=input.dtype if dtype is None else dtype)


@_draw(aten.randint_like.default)
def _randint_like_from_0(random: Random, input: Tensor, high: int, **rest: Any) -> Tensor:
    return _randint_like(random, input, 0, high, **rest)


@_draw(aten.randperm.default, aten.randperm.generator)
def _randperm(random: Random, n: int, *, dtype: torch.dtype | None = torch.int64, **rest: Any) -> Tensor:
    order = torch.argsort(random.uniform((n,), torch.float64))
    return order if dtype is None else order.to(dtype)


_KNOWN = {func._schema.name.removeprefix("aten::").rstrip("_") for func in DRAWS} - {"native_dropout"}
