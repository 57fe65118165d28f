"""The random numbers of a captured step: a seed that is an input of the graph, and a place in it for each use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import torch


class Random:
    """What the random operators of one run draw from.

    Attributes:
        seed: a scalar of int64; each step has another.
        used: how many operators have drawn.
    """

    def __init__(self, seed: torch.Tensor) -> None:
        self.seed = seed
        self.used = 0

    def place(self) -> int:
        """A number that tells an operator's random numbers from those of all others of the run."""
        self.used += 1
        return self.used - 1


_current: ContextVar[Random | None] = ContextVar("onnx_ops.torch random numbers", default=None)


@contextlib.contextmanager
def drawing_from(random: Random) -> Iterator[None]:
    """Random operators draw from `random`."""
    token = _current.set(random)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Random | None:
    """What random operators are to draw from, while a step is captured."""
    return _current.get()
