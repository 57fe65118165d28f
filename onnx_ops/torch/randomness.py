"""Draws the random numbers of a captured step from its seed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.operators import TABLE
from onnx_ops.torch.operators.random_numbers import Generator


class Random(TorchDispatchMode):
    """A mode in which random operators draw from one seed, each at another offset.

    Args:
        seed: () int64, another number for each step.

    Attributes:
        closed: whether random operators are refused, as in the backward pass.
    """

    def __init__(self, seed: Tensor) -> None:
        super().__init__()
        self._generator = Generator(seed)
        self.closed = False

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
        seed, used, closed = self._generator.seed, self._generator.used, self.closed
        self._generator.seed, self._generator.used = seed if zero is None else seed + zero, first
        self.closed = False
        try:
            yield
        finally:
            self._generator.seed, self._generator.used, self.closed = seed, used, closed

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not _draws(func, args, kwargs):
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
        return TABLE.draws[func](self._generator, *args, **kwargs)


def _draws(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of an operator draws random numbers."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
    # Attention without dropout draws none, nor do operators that draw only in training.
    return given.get("dropout_p", 1.0) != 0 and given.get("training", True) is not False


def _known() -> list[str]:
    """The names of the operators that can draw from a seed, except for dropout."""
    names = {operator._schema.name.removeprefix("aten::").rstrip("_") for operator in TABLE.draws}
    return sorted(names - {"native_dropout"})
