"""The state of a training in onnxruntime's memory: one set of tensors that steps update in place, or two sets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from onnx_ops.core.step_format import NEXT
from onnx_ops.core.types import TensorType
from onnx_ops.graph.stored import Source, copy_into
from onnx_ops.training.binding import Tensor, Tensors
from onnx_ops.training.errors import StateLostError

Sets = tuple[Tensors, Tensors]
"""Two sets of tensors of the state, by name: a step reads one and writes the other. Updated in place, they are one."""


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
    pending: Mapping[str, Source] = MappingProxyType({})


class State:
    """The current values of the state.

    Steps update them in place, until `keep_previous` adds the memory for the next ones.

    Args:
        types: of the state, by name.
        start: an array, or a tensor in a file, for each of them.
        changing: the names that have a next value.

    Attributes:
        sets: both sets of tensors; the tensors of names without a next value are shared.
    """

    def __init__(self, types: Mapping[str, TensorType], start: Mapping[str, Source], changing: Collection[str]) -> None:
        self._types = types
        self._changing = frozenset(changing)
        now = {name: self._tensor(name, start[name]) for name in types}
        self.sets: Sets = (now, now)
        self._version = Version()
        self._lost = ""

    def _tensor(self, name: str, source: Source) -> Tensor:
        element = self._types[name].dtype
        assert element is not None  # by the checks of a step
        return Tensor.holding(source, element)

    @property
    def keeps_previous(self) -> bool:
        """Whether a step leaves the values that it reads unchanged."""
        return self.sets[0] is not self.sets[1]

    def keep_previous(self) -> None:
        """Let steps write to a second set of tensors."""
        now, _ = self.sets
        self.sets = (now, {**now, **{name: self._tensor(name, now[name].array) for name in self._changing}})

    @property
    def version(self) -> Version:
        """The current version, with nothing pending; StateLostError after `lose`."""
        if self._lost:
            raise self.lost
        return self._complete()

    def _complete(self) -> Version:
        """The current version, with what is pending copied into its tensors."""
        version = self._version
        if version.pending:
            for name, array in version.pending.items():
                copy_into(self.sets[version.turn][name].array, array)
            version = version._replace(pending=Version().pending)
            self._version = version
            self._lost = ""
        return version

    @property
    def loaded(self) -> int:
        """`Version.loaded`, also after `lose`."""
        return self._version.loaded

    @property
    def now(self) -> Tensors:
        """The current set of tensors; StateLostError after `lose`."""
        return self.sets[self.version.turn]

    def stepped(self, written: Collection[str]) -> None:
        """Make the set that a step has written the current one.

        Args:
            written: the names that the step changes; others are copied from the set that was the current one.
        """
        version = self.version
        if self.keeps_previous:
            now, then = self.sets[version.turn], self.sets[1 - version.turn]
            for name in self._changing.difference(written):
                then[name].array[...] = now[name].array
        self._version = version._replace(turn=1 - version.turn, steps=version.steps + 1)

    @property
    def lost(self) -> StateLostError:
        """The error of a state that is lost."""
        return StateLostError(self._lost)

    def lose(self, reason: str) -> None:
        """Refuse to read the state until another one is loaded: a step has failed in the middle of its update."""
        self._lost = reason

    def load(self, arrays: Mapping[str, Source], loaded: int) -> None:
        """Replace the whole state. After an interrupt the arrays are read once more, when the state is used next.

        Args:
            arrays: arrays, or tensors in a file, for all names, of the right dtypes and shapes.
            loaded: `Version.loaded` afterwards.
        """
        version = self._version._replace(loaded=loaded, pending=arrays)
        if self.keeps_previous:
            other = self.sets[1 - version.turn]
            for name in self._changing:
                copy_into(other[name].array, arrays[name])
            shared = {name: np.array(array) for name, array in arrays.items() if name not in self._changing}
            version = version._replace(turn=1 - version.turn, pending=shared)
        self._version = version
        self._complete()

    def assign(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace the values of some names."""
        self._version = self.version._replace(pending=arrays)
        self._complete()


class StatePart:
    """The part of a state that a step reads and writes, under the names of the step's inputs.

    Args:
        state: the whole state.
        names: the names in the state, by those of the step.
        changing: the names of the step that have a next value.

    Attributes:
        whole: the whole state.
        names: as given.
        written: the names in the state that the step changes.
    """

    def __init__(self, state: State, names: Mapping[str, str], changing: Collection[str]) -> None:
        self.whole, self.names, self._changing = state, names, changing
        self.written = frozenset(names[name] for name in changing)
        self._known: tuple[Sets, Sets] | None = None

    @property
    def sets(self) -> Sets:
        """Both sets of tensors, as in `State.sets`; the same objects until the state keeps previous values."""
        if self._known is None or self._known[0] is not self.whole.sets:
            first, second = self.whole.sets
            now = {own: first[name] for own, name in self.names.items()}
            then = {own: second[name] for own, name in self.names.items()} if self.keeps_previous else now
            self._known = self.whole.sets, (now, then)
        return self._known[1]

    @property
    def now(self) -> Tensors:
        """The current set of tensors; StateLostError after `State.lose`."""
        return self.sets[self.whole.version.turn]

    @property
    def keeps_previous(self) -> bool:
        """As `State.keeps_previous`."""
        return self.whole.keeps_previous

    def keep_previous(self) -> None:
        """As `State.keep_previous`."""
        self.whole.keep_previous()

    def next_values(self) -> Sets:
        """For each set, the tensors that the step writes, by the names of outputs."""
        first, second = self.sets
        names = [name for name in first if name in self._changing]
        return {NEXT + name: second[name] for name in names}, {NEXT + name: first[name] for name in names}

    def assign(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace the values of some names."""
        self.whole.assign({self.names[name]: array for name, array in arrays.items()})
