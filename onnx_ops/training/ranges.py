"""Ranges of indices among a step's inputs, such as class labels, tokens and positions in a tensor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Cut = tuple[int, ...]
"""A part of an array: (axis, start, stop, step), or (axis, index), which removes the axis."""


@dataclass(frozen=True)
class IndexRange:
    """The indices that PyTorch accepts in an input, low <= index < high.

    Attributes:
        input: name of the batch's input.
        low, high: least index, and greatest index plus 1.
        ignored: a further value that is accepted, such as `ignore_index` of a loss.
        cuts: the part of the input with these indices; each cut applies to the result of the one before.
    """

    input: str
    low: int
    high: int
    ignored: int | None = None
    cuts: tuple[Cut, ...] = ()

    def problem(self, array: np.ndarray) -> str | None:
        """A message about the first element that is out of range; None if all are in range."""
        part = self._part(array)
        if not part.size or (self.low <= int(part.min()) and int(part.max()) < self.high):
            return None
        wrong = (part < self.low) | (part >= self.high)
        if self.ignored is not None:
            wrong &= part != self.ignored
        if not wrong.any():
            return None
        places = self._part(np.arange(array.size).reshape(array.shape))[wrong]
        place = np.unravel_index(places[0], array.shape)
        at = f"[{', '.join(str(int(axis)) for axis in place)}]" if place else ""
        besides = "" if self.ignored is None else f", or {self.ignored}, which is ignored"
        return f"'{self.input}'{at} is {array[place]}, expected an index of {self.low} to {self.high - 1}{besides}"

    def fits(self, rank: int) -> bool:
        """Whether arrays of a rank can be cut."""
        for axis, *cut in self.cuts:
            if not 0 <= axis < rank or (len(cut) == 3 and cut[2] == 0):
                return False
            rank -= len(cut) == 1
        return True

    def _part(self, array: np.ndarray) -> np.ndarray:
        for axis, *cut in self.cuts:
            chosen: int | slice = cut[0] if len(cut) == 1 else slice(*cut)
            if len(cut) == 1 and not -array.shape[axis] <= chosen < array.shape[axis]:
                return array.reshape(-1)[:0]
            array = array[(slice(None),) * axis + (chosen,)]
        return np.asarray(array)

    def entry(self) -> dict[str, object]:
        """The range as a JSON object."""
        found: dict[str, object] = {"input": self.input, "low": self.low, "high": self.high}
        if self.ignored is not None:
            found["ignored"] = self.ignored
        if self.cuts:
            found["cuts"] = [list(cut) for cut in self.cuts]
        return found

    @classmethod
    def of_entry(cls, entry: object) -> IndexRange:
        """The range of a JSON object; ValueError for an invalid one."""
        fields = {"input", "low", "high"}
        if not isinstance(entry, dict) or not fields <= set(entry) <= fields | {"ignored", "cuts"}:
            raise ValueError(f"a range is {entry!r}, expected an object with input, low and high")
        cuts = entry.get("cuts", [])
        if not isinstance(cuts, list) or not all(isinstance(cut, list) and len(cut) in (2, 4) for cut in cuts):
            raise ValueError(f"a range has the cuts {cuts!r}, expected lists of 2 or 4 numbers")
        numbers = [entry["low"], entry["high"], entry.get("ignored", 0), *(number for cut in cuts for number in cut)]
        if not isinstance(entry["input"], str) or not all(type(number) is int for number in numbers):
            raise ValueError(f"a range is {entry!r}, expected the name of an input, and whole numbers")
        return cls(entry["input"], entry["low"], entry["high"], entry.get("ignored"), tuple(map(tuple, cuts)))
