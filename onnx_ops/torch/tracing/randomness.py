"""Draws the random numbers of a captured step from its seed."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.types import py_sym_types
from torch.utils._mode_utils import no_dispatch
from torch.utils._sympy.value_ranges import ValueRanges
from torch.utils.weak import WeakTensorKeyDictionary

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.base.sizes import Number
from onnx_ops.torch.operators import TABLE
from onnx_ops.torch.operators.random_numbers import Generator
from onnx_ops.torch.tracing.effects import written
from onnx_ops.torch.tracing.frames import line_now
from onnx_ops.torch.tracing.modes import OperatorMode, leaves_of


@dataclass(frozen=True)
class Draw:
    """A draw from a generator of the model, or from PyTorch's own after the model has seeded that.

    Attributes:
        operator: of the draw.
        state: a digest of the state of the generator; equal states give the same random bits, from which operators
            compute different numbers.
        generator: None for PyTorch's.
    """

    operator: OpOverload = field(compare=False)
    state: bytes
    generator: torch.Generator | None = field(compare=False)


class Random(OperatorMode):
    """A mode in which random operators draw from one seed, each at another offset.

    Numbers of torch.rand, and of uniform_ from 0 to 1, are less than 1 and not less than 0 where code compares them
    with these, as with a probability of 0; a single one, by which code decides what to do, is above 0. Generators draw
    nothing, but a draw changes their states, until the exit.

    Args:
        seed: () int64, another number for each step.

    Attributes:
        closed: whether random operators are refused, as in the backward pass.
        seeded: draws that PyTorch makes from other states than that of its generator before the step.
    """

    def __init__(self, seed: Tensor) -> None:
        super().__init__()
        self._generator = Generator(seed)
        self._uniform = WeakTensorKeyDictionary()
        self._before: dict[torch.Generator, Tensor] = {}
        self._unseeded: set[bytes] = set()
        """The states that PyTorch's generator comes to by draws alone."""
        self._drawn: set[Draw] = set()  # since the entry
        self._repeats = False
        self.closed = False
        self.seeded: list[Draw] = []

    def __enter__(self) -> Random:
        self._before = {torch.default_generator: torch.default_generator.get_state()}
        self._unseeded = {_digest(torch.default_generator)}
        self._drawn = set()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for generator, state in self._before.items():
            generator.set_state(state)

    @property
    def used(self) -> int:
        """The number of draws."""
        return self._generator.used

    @contextlib.contextmanager
    def repeated(self, first: int, zero: Tensor | None) -> Iterator[None]:
        """A context that repeats draws.

        Args:
            first: `used` before the first draw to repeat.
            zero: () int64, a zero that is added to the seed, to be available before it draws; None for no zero.
        """
        seed, used, closed, repeats = self._generator.seed, self._generator.used, self.closed, self._repeats
        self._generator.seed, self._generator.used = seed if zero is None else seed + zero, first
        self.closed, self._repeats = False, True
        try:
            yield
        finally:
            self._generator.seed, self._generator.used, self.closed, self._repeats = seed, used, closed, repeats

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not _draws(func, args, kwargs):
            if func in CERTAIN and args[0] in self._uniform and not isinstance(args[1], py_sym_types):
                holds = CERTAIN[func](args[1])
                if holds is None and args[1] == 0 and args[0].numel() == 1:
                    holds = func is aten.gt.Scalar
                if holds is not None:
                    return torch.full(args[0].shape, holds)
            if func is aten._local_scalar_dense.default and args[0] in self._uniform:
                return _within_0_and_1(func(*args, **kwargs))
            if self._uniform:
                for tensor in leaves_of(list(written(func, args, kwargs))):
                    if isinstance(tensor, Tensor):  # others are optional
                        self._uniform.pop(tensor, None)
            return func(*args, **kwargs)
        if func not in TABLE.draws:
            raise CaptureError(
                f"{func} draws random numbers, which a graph can do only for {', '.join(_known())} and dropout;"
                " draw them before the step and pass them in"
            )
        if self.closed:
            raise CaptureError(
                f"{func} draws random numbers within the gradient, where they would be others than in the loss"
            )
        if not self._repeats:
            self._record(func, kwargs.get("generator") or torch.default_generator)
        drawn = TABLE.draws[func](self._generator, *args, **kwargs)
        if func in UNIFORM or (func is aten.uniform_.default and _is_below_1(*args, **kwargs)):
            self._uniform[drawn] = True
        return drawn

    def _record(self, func: OpOverload, generator: torch.Generator) -> None:
        """Record a draw, and change the state of the generator as a draw does."""
        own = generator is torch.default_generator
        draw = Draw(func, _digest(generator), None if own else generator)
        if draw in self._drawn:
            line = line_now()
            raise CaptureError(
                f"{func} draws the random numbers of an earlier draw again{'' if line is None else f' at {line}'}, by a"
                " generator in the same state, and a graph draws others: draw them once, and use these"
            )
        self._drawn.add(draw)
        self._before.setdefault(generator, generator.get_state())
        unseeded = own and draw.state in self._unseeded
        if not unseeded:
            self.seeded.append(draw)
        generator.manual_seed(int.from_bytes(draw.state[:7]))
        if unseeded:
            self._unseeded.add(_digest(generator))


aten = torch.ops.aten

LEAST = 2.0**-53
"""A number below those of torch.rand that are not 0, as far below 1 as they are."""
UNIFORM = {aten.rand.default, aten.rand.generator, aten.rand_like.default, aten.rand_like.generator}
"""The operators that draw from [0, 1), as uniform_ may do."""


def _is_below_1(_: Tensor, low: float = 0.0, high: float = 1.0, **rest: Any) -> bool:
    """Whether uniform_ draws from [0, 1)."""
    return low == 0 and high == 1


CERTAIN: dict[OpOverload, Callable[[float], bool | None]] = {
    aten.lt.Scalar: lambda bound: False if bound <= 0 else True if bound >= 1 else None,
    aten.ge.Scalar: lambda bound: True if bound <= 0 else False if bound >= 1 else None,
    aten.le.Scalar: lambda bound: False if bound < 0 else True if bound >= 1 else None,
    aten.gt.Scalar: lambda bound: True if bound < 0 else False if bound >= 1 else None,
}
"""The result of a comparison that is the same for all numbers in [0, 1); None for another one."""


def _within_0_and_1(number: Number) -> Number:
    """A number that is drawn, with its range if it is one of a trace."""
    if isinstance(number, torch.SymFloat) and isinstance(number.node.expr, sympy.Symbol):
        number.node.shape_env.var_to_range[number.node.expr] = ValueRanges(LEAST, 1 - LEAST)
    return number


def _digest(generator: torch.Generator) -> bytes:
    """Of the state of a generator."""
    with no_dispatch():  # under a FakeTensorMode the array would be of memory that is not the state's
        return hashlib.blake2b(generator.get_state().numpy()).digest()


def _draws(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of an operator draws random numbers."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    arguments = func._schema.arguments
    given = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    given |= dict(zip((argument.name for argument in arguments), args, strict=False)) | kwargs
    # Attention without dropout draws none, nor do operators that draw only in training.
    return given.get("dropout_p", 1.0) != 0 and given.get("training", True) is not False


def _known() -> list[str]:
    """The names of the operators that can draw from a seed, except for dropout."""
    names = {operator._schema.name.removeprefix("aten::").rstrip("_") for operator in TABLE.draws}
    return sorted(names - {"native_dropout"})
