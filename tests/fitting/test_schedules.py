"""Learning rate schedules: those of PyTorch where it is installed, and formulas by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from onnx_ops import StepError
from onnx_ops.fitting.schedules import (
    ConstantLR,
    CosineAnnealingLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    Schedule,
    SequentialLR,
    schedule_of,
)

BASE = (0.1, 0.03)
STEPS = 41
EACH = pytest.mark.parametrize(
    "schedule",
    [
        ConstantLR(),
        ConstantLR(0.25, 7),
        LinearLR(),
        LinearLR(0.125, 0.75, 20),
        LinearLR(1.0, 0.0, 40),
        CosineAnnealingLR(40),
        CosineAnnealingLR(13, 1e-3),
        OneCycleLR(0.5, 41),
        OneCycleLR((0.5, 0.2), 50, 0.2, "linear", 10.0, 100.0),
        OneCycleLR(0.5, 45, 0.37, three_phase=True),
        OneCycleLR(0.5, 41, 0.4, "linear", three_phase=True),
        OneCycleLR(0.5, 41, 0.0),
        SequentialLR((LinearLR(0.1, 1.0, 10), CosineAnnealingLR(31)), (10,)),
        SequentialLR((ConstantLR(0.5, 3), LinearLR(0.5, 0.1, 8), ConstantLR(0.1, 9)), (5, 16)),
    ],
    ids=lambda schedule: repr(schedule)[:60],
)


def of_torch(torch: ModuleType, optimizer: Any, schedule: Schedule) -> Any:
    """The scheduler of PyTorch with the same name and parameters."""
    parameters = {name: value for name, value in schedule.entry().items() if name != "name"}
    if isinstance(schedule, OneCycleLR):
        highest = schedule.max_lr
        parameters |= {"cycle_momentum": False, "max_lr": list(highest) if isinstance(highest, tuple) else highest}
    if isinstance(schedule, SequentialLR):
        parts = [of_torch(torch, optimizer, part) for part in schedule.schedules]
        parameters = {"schedulers": parts, "milestones": list(schedule.milestones)}
    return getattr(torch.optim.lr_scheduler, type(schedule).__name__)(optimizer, **parameters)


def optimizer_of(torch: ModuleType) -> Any:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in BASE]
    return torch.optim.SGD(groups, momentum=0.9)


@EACH
def test_rates_are_those_of_pytorch(schedule: Schedule) -> None:
    torch = pytest.importorskip("torch")
    optimizer = optimizer_of(torch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SequentialLR calls what it warns of
        scheduler = of_torch(torch, optimizer, schedule)
        expected = []
        for _ in range(STEPS):
            expected.append([group["lr"] for group in optimizer.param_groups])
            optimizer.step()
            scheduler.step()
    # PyTorch multiplies the last rate from step to step: a rounding error each.
    got = [schedule.rates(BASE, step, []) for step in range(STEPS)]
    np.testing.assert_allclose(got, expected, rtol=STEPS * 2**-51, atol=1e-17)


@pytest.mark.parametrize(
    "schedule",
    [
        ReduceLROnPlateau(patience=2),
        ReduceLROnPlateau("max", 0.5, 0, 0.1, "abs", 2, 0.004),
        ReduceLROnPlateau("max", 0.5, 1, 0.05, "rel", 0, (0.03, 0.01)),
        ReduceLROnPlateau("min", 0.5, 0, 0.05, "abs", eps=0.02),
    ],
    ids=repr,
)
def test_plateaus_are_those_of_pytorch(schedule: ReduceLROnPlateau) -> None:
    torch = pytest.importorskip("torch")
    values = [*np.random.default_rng(3).normal(2, 0.2, 25), float("nan"), float("inf"), -1.0, -1.0, -1.0, 0.0, -2.0]
    optimizer = optimizer_of(torch)
    parameters = {name: value for name, value in schedule.entry().items() if name != "name"}
    if isinstance(schedule.min_lr, tuple):
        parameters["min_lr"] = list(schedule.min_lr)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **parameters)
    reduced = set()
    for epoch in range(len(values)):
        expected = [group["lr"] for group in optimizer.param_groups]
        np.testing.assert_array_equal(schedule.rates(BASE, 7 * epoch, values[:epoch]), expected)
        scheduler.step(values[epoch])
        reduced.add(tuple(expected))
    assert len(reduced) > 1


def test_rates_by_hand() -> None:
    assert ConstantLR(0.5, 2).rates([0.5], 1, []) == [0.25]
    assert ConstantLR(0.5, 2).rates([0.5], 2, []) == [0.5]
    assert LinearLR(0.5, 1.0, 4).rates([1.0], 1, []) == [0.625]
    np.testing.assert_allclose(CosineAnnealingLR(4).rates([1.0], 2, []), [0.5], rtol=1e-15)
    # Up in 0.5 * 10 - 1 steps, and down in the other 5.
    cycle = OneCycleLR(1.0, 10, 0.5, "linear", 4.0, 5.0)
    rates = [cycle.rates([9.0], step, [])[0] for step in range(10)]
    np.testing.assert_allclose(rates[:5], [0.25, 0.4375, 0.625, 0.8125, 1.0], rtol=1e-15)
    np.testing.assert_allclose(rates[5:], [0.81, 0.62, 0.43, 0.24, 0.05], rtol=1e-14)
    plateau = ReduceLROnPlateau(patience=1, factor=0.5)
    assert [plateau.rates([1.0], 0, [3, 2, 2, 2, 2, 2][:count])[0] for count in range(7)] == [
        1,
        1,
        1,
        1,
        0.5,
        0.5,
        0.25,
    ]


@pytest.mark.parametrize("schedule", [LinearLR(total_iters=None), CosineAnnealingLR(), OneCycleLR(0.5)], ids=repr)
def test_lengths_of_the_whole_training(schedule: Schedule) -> None:
    assert schedule.needs_length
    whole = schedule.over(10)
    assert not whole.needs_length
    assert whole.over(20) == whole
    warm = SequentialLR((LinearLR(0.1, 1.0, 4), schedule), (4,))
    assert warm.needs_length
    assert warm.over(14).rates(BASE, 9, []) == whole.rates(BASE, 5, [])


@EACH
def test_entry_gives_the_schedule(schedule: Schedule) -> None:
    assert schedule_of(schedule.entry()) == schedule


def test_schedule_of_ones_own_must_be_passed_again() -> None:
    class Halving(Schedule):
        pass

    with pytest.raises(StepError, match="has the schedule Halving, which must be passed again"):
        schedule_of(Halving().entry())


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: ConstantLR(2.0), "factor is 2.0, expected a number from 0 to 1"),
        (lambda: LinearLR(0.0), "start_factor is 0.0, expected a number above 0"),
        (lambda: LinearLR(total_iters=0), "total_iters is 0, expected a positive number of steps"),
        (lambda: CosineAnnealingLR(-1), "T_max is -1, expected a positive number"),
        (lambda: OneCycleLR(0.1, 10, 1.5), "pct_start is 1.5, expected a number from 0 to 1"),
        (lambda: OneCycleLR(0.1, anneal_strategy="cosine"), "anneal_strategy is 'cosine', expected 'cos' or 'linear'"),
        (lambda: ReduceLROnPlateau("low"), "mode is 'low', expected 'min' or 'max'"),
        (lambda: ReduceLROnPlateau(factor=1.0), "factor is 1.0, expected a number between 0 and 1"),
        (lambda: SequentialLR((ConstantLR(),), (3,)), r"milestones is \(3,\), expected 0, one less"),
        (lambda: SequentialLR((ConstantLR(),) * 3, (3, 3)), "expected ascending numbers"),
        (lambda: SequentialLR((ConstantLR(), ReduceLROnPlateau()), (3,)), "it depends on epochs"),
        (lambda: OneCycleLR((0.1, 0.2, 0.3), 9).rates(BASE, 0, []), "has 3 numbers, expected 2, one for each group"),
        (lambda: OneCycleLR(0.1, 9).rates(BASE, 10, []), "step 11 has no learning rate: OneCycleLR has total_steps=9"),
        (lambda: ReduceLROnPlateau(min_lr=(0.1,)).rates(BASE, 0, []), "has 1 numbers, expected 2, one for each group"),
    ],
)
def test_what_is_refused(make: Callable[[], object], problem: str) -> None:
    with pytest.raises(StepError, match=problem):
        make()
