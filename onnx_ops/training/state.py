"""The state of a training in onnxruntime's memory, double-buffered so that it changes as a whole or not at all."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from onnx_ops.core.types import TensorType
from onnx_ops.training.binding import Tensor, Tensors

Sets = tuple[Tensors, Tensors]
"""Two sets of tensors of the state, by name: a step reads one and writes the other."""


class Version(NamedTuple):
    """Identifies the current state. A training changes it by one assignment, so that an interrupt leaves no mixture.

    Attributes:
        turn: the current set of tensors, 0 or 1.
        steps: number of steps made.
        loaded: checksum of the states that were loaded, which workers compare.
        pending: values that are still to be copied into the current set; copying them twice does no harm.
    """

    turn: int = 0
    steps: int = 0
    loaded: int = 0
    pending: Mapping[str, np.ndarray] = MappingProxyType({})


class State:
    """The current values of the state, and the memory for the next ones.

    Args:
        types: of the state, by name.
        start: an array for each of them.
        changing: the names that have a next value. The tensors of all others are shared by both sets.

    Attributes:
        sets: both sets of tensors.
    """

    def __init__(
        self, types: Mapping[str, TensorType], start: Mapping[str, np.ndarray], changing: Collection[str]
    ) -> None:
        def tensor(name: str) -> Tensor:
            element = types[name].dtype
            assert element is not None  # by the checks of a step
            return Tensor.holding(start[name], element)

        now = {name: tensor(name) for name in types}
        self.sets: Sets = (now, now | {name: tensor(name) for name in types if name in changing})
        self._changing = frozenset(changing)
        self._version = Version()

    @property
    def version(self) -> Version:
        """The current version, with nothing pending."""
        version = self._version
        if version.pending:
            for name, array in version.pending.items():
                self.sets[version.turn][name].array[...] = array
            version = version._replace(pending=Version().pending)
            self._version = version
        return version

    @property
    def now(self) -> Tensors:
        """The current set of tensors."""
        return self.sets[self.version.turn]

    def stepped(self) -> None:
        """Make the other set, which a step has written, the current one."""
        version = self.version
        self._version = version._replace(turn=1 - version.turn, steps=version.steps + 1)

    def load(self, arrays: Mapping[str, np.ndarray], loaded: int) -> None:
        """Replace the whole state.

        Args:
            arrays: for all names, of the right dtypes and shapes.
            loaded: `Version.loaded` afterwards.
        """
        version = self.version
        other = self.sets[1 - version.turn]
        for name in self._changing:
            other[name].array[...] = arrays[name]
        pending = {name: array.copy() for name, array in arrays.items() if name not in self._changing}
        self._version = version._replace(turn=1 - version.turn, loaded=loaded, pending=pending)
        _ = self.version

    def assign(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace the values of some names."""
        self._version = self.version._replace(pending=arrays)
        _ = self.version
