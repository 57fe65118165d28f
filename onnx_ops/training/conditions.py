"""Conditions of a step: what the numbers of a batch and the state must fulfil for the step to be what PyTorch computes.

A capture follows one way through code that branches on data. The step has two outputs: which of the conditions for that
way hold, and the numbers that they depend on. A step that violates one of them is refused before the state changes.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from onnx_ops.core.step_format import CONDITION_NUMBERS, CONDITIONS
from onnx_ops.training.errors import StepError

KINDS = {"bool": lambda x: str(bool(x)), "int": lambda x: str(int(x)), "float": lambda x: str(float(x))}
"""The kinds of numbers, and their texts."""

CONDITION_NODE = "condition"
"""What the name of a node of a graph in evaluation mode begins with that fails where a condition does not hold."""


@dataclass(frozen=True)
class Number:
    """A number that a condition depends on.

    Attributes:
        place: its index in the output with the numbers.
        kind: bool, int or float.
        captured: its value in the example, as text.
    """

    place: int
    kind: str
    captured: str


@dataclass(frozen=True)
class Condition:
    """A condition of a step.

    Attributes:
        line: the line of code that branches, such as "model.py, line 12".
        code: the text of that line, if it is known.
        numbers: what the condition depends on.
        expected: the condition, where it is not clear from the numbers.
    """

    line: str
    code: str
    numbers: tuple[Number, ...]
    expected: str = ""

    def problem(self, numbers: np.ndarray) -> str:
        """The error message for the numbers of a step that violates the condition."""
        came = ", ".join(_text(number.kind, numbers[number.place]) for number in self.numbers)
        captured = ", ".join(filter(None, (number.captured for number in self.numbers)))
        code = f" ({self.code})" if self.code else ""
        read = f", and read {captured} in the example of the capture" if captured else ""
        return (
            f"{self.line}{code} reads {came} from tensors{read}. The step is valid only for"
            f" {self.expected or captured}, and the state is as before"
        )

    def entry(self) -> dict[str, object]:
        """The condition as a JSON object."""
        return asdict(self)

    @classmethod
    def of_entry(cls, entry: object) -> Condition:
        """The condition of a JSON object; ValueError for an invalid one."""
        if not isinstance(entry, dict) or set(entry) != {"line", "code", "numbers", "expected"}:
            raise ValueError(f"a condition is {entry!r}, expected an object with line, code, numbers and expected")
        numbers = entry["numbers"]
        texts = (entry["line"], entry["code"], entry["expected"])
        if not isinstance(numbers, list) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"a condition is {entry!r}, expected texts and a list of numbers")
        return cls(entry["line"], entry["code"], tuple(map(_number, numbers)), entry["expected"])


def _number(entry: object) -> Number:
    if isinstance(entry, dict) and set(entry) == {"place", "kind", "captured"}:
        place, kind, captured = entry["place"], entry["kind"], entry["captured"]
        if type(place) is int and place >= 0 and kind in KINDS and isinstance(captured, str):
            return Number(place, kind, captured)
    raise ValueError(f"a condition has the number {entry!r}, expected an object with place, kind and captured")


def _text(kind: str, number: float) -> str:
    return KINDS[kind](number) if np.isfinite(number) else str(float(number))


def check_conditions(conditions: Sequence[Condition], found: MutableMapping[str, np.ndarray]) -> None:
    """Raise StepError if the outputs of a step violate a condition; remove the outputs that say so."""
    holds, numbers = found.pop(CONDITIONS, None), found.pop(CONDITION_NUMBERS, None)
    if holds is None or numbers is None:
        return
    for condition, fulfilled in zip(conditions, holds, strict=True):
        if not fulfilled:
            raise StepError(condition.problem(numbers))
