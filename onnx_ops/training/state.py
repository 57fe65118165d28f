"""The state of a training in onnxruntime's memory, which changes whole or not at all."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from onnx_ops.core.types import TensorType
from onnx_ops.training.step import StepError
from onnx_ops.training.values import Tensor

Tensors = Mapping[str, Tensor]
Arrays = Mapping[str, np.ndarray]


class Version(NamedTuple):
    """Which state holds; one assignment takes a training from one to the next, so that no interrupt leaves a mixture.

    Attributes:
        turn: the set of tensors that has it.
        steps: how many steps were made.
        loads: a mark of what was loaded.
        pending: values that are still to be copied into that set; copying them twice does no harm.
    """

    turn: int = 0
    steps: int = 0
    loads: int = 0
    pending: Arrays = MappingProxyType({})


class State:
    """Two sets of tensors: a step reads one and writes the other.

    Args:
        types: of the state, by name.
        start: an array for each of them.
        changing: the names that have a next value. What has none is in both sets.

    Attributes:
        sets: both of them.
    """

    def __init__(self, types: Mapping[str, TensorType], start: Arrays, changing: Collection[str]) -> None:
        def tensor(name: str) -> Tensor:
            element = types[name].dtype
            assert element is not None  # by the checks of a step
            return Tensor.holding(start[name], element)

        now = {name: tensor(name) for name in types}
        self.sets: tuple[Tensors, Tensors] = (now, now | {name: tensor(name) for name in types if name in changing})
        self._changing = frozenset(changing)
        self._version = Version()

    @property
    def version(self) -> Version:
        """The version that holds, with nothing pending."""
        version = self._version
        if version.pending:
            for name, array in version.pending.items():
                self.sets[version.turn][name].array[...] = array
            version = version._replace(pending=Version().pending)
            self._version = version
        return version

    @property
    def now(self) -> Tensors:
        """The set that has the state."""
        return self.sets[self.version.turn]

    def stepped(self) -> None:
        """Let the other set, which a step has written, be the state."""
        version = self.version
        self._version = version._replace(turn=1 - version.turn, steps=version.steps + 1)

    def load(self, arrays: Arrays, loads: int) -> None:
        """Take over a whole state.

        Args:
            arrays: of the right dtypes and shapes, for all names.
            loads: the mark of what is then loaded.
        """
        version = self.version
        other = self.sets[1 - version.turn]
        for name in self._changing:
            other[name].array[...] = arrays[name]
        pending = {name: array.copy() for name, array in arrays.items() if name not in self._changing}
        self._version = version._replace(turn=1 - version.turn, loads=loads, pending=pending)
        _ = self.version

    def assign(self, arrays: Arrays) -> None:
        """Take over values of some names."""
        self._version = self.version._replace(pending=arrays)
        _ = self.version


def rates_of_groups(rate: Any, groups: int) -> Sequence[Any]:
    """The learning rate of each group: a sequence as it is, a single one for all; StepError for another length."""
    given = rate.tolist() if isinstance(rate, np.ndarray) else rate
    if isinstance(given, str) or not isinstance(given, Sequence):
        return [given] * groups
    if len(given) != groups:
        raise StepError(f"{len(given)} learning rates are given, expected {groups}, one for each group")
    return given


def cast_rate(rate: Any, dtype: np.dtype) -> np.ndarray:
    """A learning rate as a setting; StepError unless it is a finite number of at least 0 in that dtype."""
    expected = "expected a finite number of at least 0"
    try:
        finite = math.isfinite(rate)
    except (TypeError, OverflowError) as error:  # what is no number; an int that no float can hold
        raise StepError(f"a learning rate is {rate!r}, {expected}") from error
    with np.errstate(over="ignore"):
        cast = np.asarray(float(rate)).astype(dtype)
    if not math.isfinite(cast) or cast < 0:
        came = f"{rate}, which is {cast} in {dtype}" if finite and not math.isfinite(cast) else f"{rate}"
        raise StepError(f"a learning rate is {came}, {expected}")
    return cast


def check_rates(names: Collection[str], state: Arrays) -> None:
    """Refuse, with a StepError, a state whose learning rates no training can have."""
    for name in names:
        try:
            cast_rate(float(state[name]), state[name].dtype)
        except StepError as error:
            raise StepError(f"'{name}': {error}") from None
