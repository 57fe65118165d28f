"""What the records of optimizer steps share: shapes, rejected shapes, and PyTorch's steps, which are in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from tests.ops._shared import with_torch
from tests.ops._shared.arrays import Shape
from tests.ops._shared.record import Call, Refusal

FORMS: dict[str, Shape] = {"plain": (2, 3), "vector": (40,), "scalar": (), "deep": (2, 1, 2, 1, 2, 1, 2, 2), "no": (0,)}

Step = Callable[[list[Any]], Any]
TorchInPlace = Callable[[Any, Call], Step | None]
"""Of torch and a call: torch's step, which changes the given tensors; None where torch's differs."""


def of_wrong_shapes(plain: Call, tensors: Iterable[str], numbers: Iterable[str]) -> Iterator[Refusal]:
    """Tensors of another shape than that of the parameter, which is (2, 3), and settings that are not one number."""
    for name in tensors:
        words = (f"'{name}'", "(3, 3)", "expected", "(2, 3)")
        yield Refusal(f"{name}_of_3x3", words, {name: np.zeros((3, 3), np.float32)})
        words = (f"'{name}'", "(3,)", "expected", "(2, 3)")
        yield Refusal(f"{name}_of_3", words, {name: np.zeros(3, np.float32)}, by_rank=True)
    for name in numbers:
        words = (f"'{name}'", "(2,)", "expected", "one number")
        yield Refusal(f"{name}_of_2", words, {name: np.ones(2, plain.dtype(name))})
        words = (f"'{name}'", "(1, 1)", "expected", "one number")
        yield Refusal(f"{name}_of_1x1", words, {name: np.ones((1, 1), plain.dtype(name))}, by_rank=True)


def torch_call(in_place: TorchInPlace) -> Callable[[Any, Call], Callable[[], Any] | None]:
    """torch's step on copies of the tensors."""

    def made(torch: ModuleType, call: Call) -> Callable[[], Any] | None:
        given, step = with_torch.tensors(torch, call), in_place(torch, call)
        return step and (lambda: step(_copies(given)))

    return made


def torch_timed(in_place: TorchInPlace) -> Callable[[Any, Call], Callable[[], Any] | None]:
    """torch's step on copies that are made beforehand: copying takes as long as the step."""

    def made(torch: ModuleType, call: Call) -> Callable[[], Any] | None:
        copies, step = _copies(with_torch.tensors(torch, call)), in_place(torch, call)
        return step and (lambda: step(copies))

    return made


def _copies(tensors: Iterable[Any]) -> list[Any]:
    return [None if tensor is None else tensor.clone() for tensor in tensors]
