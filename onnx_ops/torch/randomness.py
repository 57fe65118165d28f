"""The random numbers of a captured step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.operators import TABLE
from onnx_ops.torch.operators.random_numbers import Generator


class Random(TorchDispatchMode):
    """While it is entered, all operators that draw random numbers draw from one seed, different ones for each.

    Attributes:
        closed: whether drawing is over. What draws within a gradient would get other numbers than the loss had.
    """

    def __init__(self, seed: Tensor) -> None:
        """`seed` is a scalar of int64; each step has another."""
        super().__init__()
        self._generator = Generator(seed)
        self.closed = False

    @property
    def used(self) -> int:
        """The number of draws."""
        return self._generator.used

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
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
                f"{func} draws random numbers within the gradient, where they would be others than in the loss;"
                " leave out activation checkpointing around what draws"
            )
        return TABLE.draws[func](self._generator, *args, **kwargs)


def _draws(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of an operator draws random numbers."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
    # Attention without dropout, and what draws in training alone.
    return given.get("dropout_p", 1.0) != 0 and given.get("training", True) is not False


def _known() -> list[str]:
    """The operators that can draw from a seed, dropout apart."""
    names = {operator._schema.name.removeprefix("aten::").rstrip("_") for operator in TABLE.draws}
    return sorted(names - {"native_dropout"})
