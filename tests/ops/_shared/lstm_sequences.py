"""What the records of the steps of an LSTM and their gradient share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.ops._shared.arrays import Shape, rng
from tests.ops._shared.lstm import GATES
from tests.ops._shared.numbers import Array
from tests.ops._shared.record import TRUTH, Attribute, Refusal

DIRECTION = Attribute(0, (0, 1), (-1, 2), ("0 (UNIDIRECTIONAL)", "1 (REDIRECTIONAL)"))


@dataclass(frozen=True)
class Form:
    """T steps, N samples and H units; `mask`: the shape of the mask."""

    steps: int
    samples: int
    units: int
    mask: Shape

    @property
    def gates(self) -> Shape:
        return self.steps, self.samples, GATES * self.units

    @property
    def states(self) -> Shape:
        return self.steps, self.samples, self.units

    @property
    def state(self) -> Shape:
        return self.samples, self.units

    @property
    def weight(self) -> Shape:
        return GATES * self.units, self.units

    def masks(self) -> Array:
        """Two of three steps."""
        return np.asarray(rng("steps", self.mask).random(self.mask) < 2 / 3)


PLAIN = Form(3, 2, 3, (3, 2))
FORMS = {
    "plain": PLAIN,
    "lengths": Form(4, 3, 2, (4, 3)),
    "one": Form(1, 1, 1, ()),
    "sample": Form(3, 1, 19, (3, 1)),
    "tiles": Form(2, 11, 9, (1, 11)),
    "vectors": Form(2, 3, 21, (2, 1)),
    "no_steps": Form(0, 2, 3, (0, 2)),
    "no_samples": Form(2, 0, 3, (2, 1)),
}
SIZES = {"64x4x64": Form(64, 4, 64, ()), "32x16x256": Form(32, 16, 256, ()), "16x64x512": Form(16, 64, 512, ())}


def scale(form: Form) -> float:
    """Of weights, as layers are initialized."""
    return float(max(form.units, 1) ** -0.5)


def present(mask: Any, steps: int, samples: int) -> Array:
    """(T, N, 1)."""
    return np.broadcast_to(np.True_ if mask is None else np.asarray(mask), (steps, samples))[..., None]


def order(steps: int, direction: int) -> list[int]:
    return list(range(steps - 1, -1, -1) if direction else range(steps))


def wrong_masks() -> Iterator[Refusal]:
    """For the form PLAIN."""
    for shape in ((2, 2), (3,), (3, 2, 1), (3, 3)):
        text = "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
        label = f"mask_of_{'x'.join(map(str, shape))}"
        yield Refusal(label, ("'mask'", text, "(3, 2)"), {"mask": np.ones(shape, TRUTH)}, by_rank=len(shape) > 2)
