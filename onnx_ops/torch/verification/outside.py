"""What a step does outside of tensors, which a graph cannot: it draws random numbers, and changes attributes."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from onnx_ops.torch.base.arrays import as_array
from onnx_ops.torch.base.errors import CaptureError, DifferenceError
from onnx_ops.torch.tracing.frames import warn
from onnx_ops.torch.tracing.program import Tensors
from onnx_ops.torch.tracing.randomness import Draw
from onnx_ops.torch.tracing.variables import lengths, numbers
from onnx_ops.torch.verification.tolerances import compare


class Outside:
    """Compares two successive runs of a step from the same state, with the same random numbers of PyTorch.

    Args:
        model, loss: whose attributes and variables the runs may change. The second run finds what the first has left.
    """

    def __init__(self, model: torch.nn.Module, loss: Callable[..., Any]) -> None:
        self._model, self._loss = model, loss
        self._states, self._numbers = _states(), numbers(model, loss, inherited=True)
        self._changed: list[str] = []
        self._lengths: dict[str, int] = {}
        self._grown: list[str] = []
        self._difference: Exception | None = None
        self._apart = False

    def first_run_ended(self) -> None:
        """Find the attributes and variables that the first run has changed."""
        now = numbers(self._model, self._loss)
        self._changed = [
            f"'{name}' ({before!r}, then {now[name]!r})"
            for name, before in self._numbers.items()
            if name in now and now[name] != before
        ]
        self._lengths = lengths(self._model, self._loss)

    def second_run_ended(self) -> None:
        """Find the containers that the second run has added numbers to; the first run alone adds to caches."""
        now = lengths(self._model, self._loss)
        self._grown = [
            f"'len({name})' ({before}, then {now[name]})"
            for name, before in self._lengths.items()
            if now.get(name, 0) > before
        ]

    def compare(self, first: Tensors, second: Tensors) -> bool:
        """Compare the real results of two runs, by name; `check` raises the error if they differ.

        Returns:
            Whether they agree.
        """
        self._difference = None
        results, again = (
            {name: as_array(tensor) for name, tensor in run.items() if not tensor.is_complex()}
            for run in (first, second)
        )
        self._apart |= not _are_equal(again, results)
        try:
            compare("results", again, results)
        except CaptureError as error:
            self._difference = error
        return self._difference is None

    def may_be_of_numbers(self) -> bool:
        """Whether the runs differ by less than a wrong graph may, and attributes have changed."""
        return self._difference is None and self._apart and bool(self._changed or self._grown)

    def compare_restored(self, first: Tensors, restored: Tensors) -> None:
        """Compare the first run with one whose attributes are restored: equal ones differ by no rounding."""
        results, again = ({name: as_array(tensor) for name, tensor in run.items()} for run in (first, restored))
        if _are_equal(again, results):
            self._difference = DifferenceError("the attributes alone make the difference")

    def failed(self, error: Exception) -> None:
        """The second run has raised an error."""
        self._difference = error

    def may_be_a_cache(self) -> bool:
        """Whether the runs differ though no attribute that is a number has changed.

        Then modules may keep tensors that they compute from parameters, such as LeViT in evaluation mode, which a graph
        computes in each step.
        """
        return self._difference is not None and not self._changed

    def check(self) -> str:
        """Raise a CaptureError if the results of the runs differ; warn of what has changed nothing in them.

        That is random numbers that were drawn since the start, and attributes and variables that change.

        Returns:
            What the loss does of these, with a remedy; empty if nothing.
        """
        drawn = [name for name, state in _states().items() if state != self._states[name]]
        by = f"draws random numbers by {' and '.join(drawn)}"
        changed = ", ".join(self._changed + self._grown)
        attributes = f"changes {changed}, which is neither a parameter nor a buffer of the model"
        if self._difference is not None:
            cause, remedy = OTHER_CAUSE, f"{DRAW}. {REGISTER}"
            if drawn:
                cause, remedy = by, DRAW
            elif changed:
                cause, remedy = attributes, REGISTER
            raise CaptureError(
                f"two runs of the loss with the same parameters and batch differ: it {cause}, which a graph cannot do."
                f" {remedy}"
            ) from self._difference
        same = "Two runs have the same results, and the step is that of the example;"
        if drawn:
            warn(f"the loss {by}. {same} draw them by PyTorch if they matter")
        if changed:
            warn(f"the loss {attributes}. {same} if it matters to a later one: {REGISTER}")
        return f"{by}. {DRAW}" if drawn else f"{attributes}. {REGISTER}" if changed else ""


OTHER_CAUSE = "draws random numbers outside of PyTorch, or changes what is neither a parameter nor a buffer"
DRAW = "Draw random numbers by PyTorch, such as torch.rand, or before the step and pass them in"
REGISTER = (
    "Keep what changes from step to step in a tensor, register it by register_buffer, and compute with tensors; if the"
    " first call initializes the model, call it once before the capture"
)


@contextlib.contextmanager
def outside_explained(does: str) -> Iterator[None]:
    """Say in a DifferenceError what the loss does, as `Outside.check` returns it: two runs may agree by chance."""
    try:
        yield
    except DifferenceError as error:
        if not does:
            raise
        raise DifferenceError(f"{error}. The loss {does}") from error


@contextlib.contextmanager
def advanced(generators: Iterable[torch.Generator | None]) -> Iterator[None]:
    """A context in which generators have other states, as if numbers had been drawn from them."""
    states = {generator: generator.get_state() for generator in generators if generator is not None}
    try:
        for generator in states:
            torch.rand((), generator=generator)
        yield
    finally:
        for generator, state in states.items():
            generator.set_state(state)


def refuse_seeds(first: Sequence[Draw], second: Sequence[Draw]) -> None:
    """Raise a CaptureError if two runs draw from equal states of generators, which the loss itself has made then."""
    for draw, other in zip(first, second, strict=False):
        if draw == other:
            raise CaptureError(
                f"the loss seeds a generator with the same number in each step, by manual_seed or a state that it sets,"
                f" before {draw.operator} draws from it: PyTorch draws the same numbers each time, a graph would draw"
                " others. Draw them once, before the capture, and register them by register_buffer"
            )


def _are_equal(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> bool:
    """Whether the results of two runs, by name, have the same bits; NaN are equal."""
    return all(np.array_equal(array, second[name], equal_nan=True) for name, array in first.items() if name in second)


def _states() -> dict[str, Any]:
    """The states of the global generators of Python and NumPy."""
    return {"random": random.getstate(), "numpy.random": repr(_plain(np.random.get_state(legacy=False)))}  # noqa: NPY002


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.tobytes() if isinstance(value, np.ndarray) else value
