"""Layers, losses and functions of PyTorch, captured and compared with PyTorch in float64; cases are in layers.py."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from onnx_ops.torch import CaptureError
from tests.capture.layers import NOT_SWEPT, Case, cases
from tests.capture.sweeping import Branch, errors

# PyTorch's warnings about arguments that are tested on purpose.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{text}")
    for text in (
        "enable_nested_tensor is True",
        "Using padding='same' with even kernel",
        "LSTM with projections",
        "reduction. 'mean' divides the total loss",
        "Initializing zero-element tensors",
        "A window was not provided",
        "index_reduce\\(\\) is in beta",
    )
]

# A float32 gradient may be off by twice PyTorch's own error, or by some roundings of its largest entry: sums are taken
# in another order. In float64 the same roundings are far below the bound; a constant rounded to float32 is far above.
BOUNDS = {torch.float32: 2e-6, torch.float64: 1e-10}
GROUP = 12
"""Number of cases that are captured as one step, as a capture of any size takes a second."""
SOME = 28
"""By default, one of this number of cases is tested."""

SWEPT = {name: [case for case in section if not case.refused] for name, section in cases().items()}
REFUSED = [case for section in cases().values() for case in section if case.refused]


def groups(sections: dict[str, list[Case]], dtype: torch.dtype) -> list[list[Case]]:
    kept = [case for section in sections.values() for case in section if dtype is torch.float32 or case.double]
    return [kept[i : i + GROUP] for i in range(0, len(kept), GROUP)]


def some(offset: int) -> dict[str, list[Case]]:
    return {name: section[offset % len(section) :: SOME] for name, section in SWEPT.items()}


def check(group: Sequence[Case], dtype: torch.dtype) -> None:
    wrong = []
    for case, (name, ours, torchs) in zip(group, errors(group, dtype), strict=True):
        bound = max(BOUNDS[dtype], 2 * torchs if dtype is torch.float32 else 0.0)
        if not ours <= bound:
            wrong.append(f"{case.text}: {name} is off by {ours:.2g}, PyTorch by {torchs:.2g}")
    assert not wrong


@pytest.mark.parametrize("group", groups(some(3), torch.float32), ids=lambda group: group[0].text)
def test_float32(group: list[Case]) -> None:
    check(group, torch.float32)


@pytest.mark.parametrize("group", groups(some(8), torch.float64)[::2], ids=lambda group: group[0].text)
def test_float64(group: list[Case]) -> None:
    check(group, torch.float64)


@pytest.mark.full
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("name", SWEPT)
def test_all(name: str, dtype: torch.dtype) -> None:
    for group in groups({name: SWEPT[name]}, dtype):
        check(group, dtype)


def refused(case: Case) -> None:
    with pytest.raises(CaptureError):
        errors([case], torch.float32)


@pytest.mark.parametrize("case", REFUSED[::8], ids=lambda case: case.text)
def test_what_does_not_work_is_refused(case: Case) -> None:
    refused(case)


@pytest.mark.full
@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.text)
def test_all_that_does_not_work_is_refused(case: Case) -> None:
    refused(case)


def test_every_layer_of_pytorch_is_in_the_table() -> None:
    named = {
        name
        for name, value in vars(torch.nn).items()
        if isinstance(value, type) and issubclass(value, torch.nn.Module) and not name.startswith("Lazy")
    }
    built = [Branch(case) for section in cases().values() for case in section if "nn." in case.text]
    swept = {type(module).__name__ for branch in built for module in branch.modules()}
    # Those that a function makes when it is called.
    swept |= {name for name in named for case in SWEPT["Activations"] if f"nn.{name}(" in case.text}
    assert named - swept == set(NOT_SWEPT)


def test_the_page_of_what_works_is_up_to_date() -> None:
    from scripts import capture_docs

    assert capture_docs.main(["--check"]) == 0, "run make docs"
