"""PyTorch's results for the five ops, stored so that machines without torch compare with them too.

`golden.npz` is written by `make_golden.py`. It holds one entry `index`, UTF-8 JSON as uint8: a list of cases

    {"id": "hardshrink_backward-float32-boundary",  unique
     "op": "hardshrink_backward",                   snake_case name of the op
     "inputs": ["grad_output", "self"],             all input names in the order of the op
     "missing": [],                                 those of them that are optional and not given
     "bfloat16": [],                                names (inputs or "expected") stored as uint16 views of bfloat16
     "attributes": {"lambd": 0.5},                  every attribute of the op that torch's result depends on
     "computed_in": "float32",                      dtype torch computed in; rounded once to expected's dtype
     "rtol": 0.0, "atol": 0.0}                      tolerance, see below

and the arrays `<id>/<input name>` and `<id>/expected`.

A result agrees if its shape and dtype are expected's and |result - expected| <= atol + rtol * |expected| in float64,
NaN matching NaN. atol is relative to the largest |expected| of the case: sums of terms that cancel are only accurate
on the scale of the terms. Half types are computed by torch in float64 from the exact half inputs, since torch's own
half kernels round between steps; float32 and float64 are torch's own kernels. Outputs of CTC that torch leaves
uninitialised (log_alpha past the lengths) are stored as -inf.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

PATH = Path(__file__).with_name("golden.npz")


@dataclass(frozen=True)
class Golden:
    """One case: `inputs` maps every input name, in order, to its array or to None if it is missing."""

    id: str
    op: str
    inputs: dict[str, np.ndarray | None]
    attributes: dict[str, Any]
    expected: np.ndarray
    computed_in: str
    rtol: float
    atol: float

    def __str__(self) -> str:
        return self.id


def load_golden(path: Path = PATH) -> list[Golden]:
    """All cases of the file, in the order they were made."""
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    cases = []
    for case in json.loads(arrays["index"].tobytes().decode()):

        def stored(name: str, case: dict[str, Any] = case) -> np.ndarray:
            array = arrays[f"{case['id']}/{name}"]
            return array.view(ml_dtypes.bfloat16) if name in case["bfloat16"] else array

        inputs = {name: None if name in case["missing"] else stored(name) for name in case["inputs"]}
        kept = {key: case[key] for key in ("id", "op", "attributes", "computed_in", "rtol", "atol")}
        cases.append(Golden(inputs=inputs, expected=stored("expected"), **kept))
    return cases
