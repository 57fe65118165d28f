"""Learning rate schedules, with the names and formulas of torch.optim.lr_scheduler.

A schedule is a function of the number of steps that the training has made, or of the values of a metric so far, so that
an interrupted training resumes it without further state. Its parameters are those of the class of PyTorch that has its
name; a length of None is that of the whole training.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from onnx_ops.training.errors import StepError

Rates = Sequence[float]
"""A learning rate for each parameter group."""


@dataclass(frozen=True)
class Schedule:
    """Base class of the schedules; those of your own may derive from it.

    Attributes:
        LENGTH: of the class: the parameter that is the number of steps, and None for those of the whole training.
    """

    LENGTH: ClassVar[str | None] = None

    @property
    def needs_length(self) -> bool:
        """Whether the schedule spans the whole training, whose number of steps must be known."""
        return self.LENGTH is not None and getattr(self, self.LENGTH) is None

    def over(self, steps: int) -> Self:
        """The schedule of a training of that many steps."""
        changes: dict[str, Any] = {self.LENGTH: steps} if self.LENGTH is not None and self.needs_length else {}
        return dataclasses.replace(self, **changes)

    def rates(self, base: Rates, step: int, monitored: Sequence[float]) -> Rates:
        """The learning rates of a step.

        Args:
            base: the learning rates that the training starts from.
            step: number of steps made before.
            monitored: the value of the monitored metric after each finished epoch.
        """
        raise NotImplementedError

    def entry(self) -> dict[str, Any]:
        """The schedule as JSON values: the name of its class, and its parameters."""
        return {"name": type(self).__name__, **{f.name: getattr(self, f.name) for f in dataclasses.fields(self)}}


@dataclass(frozen=True)
class ConstantLR(Schedule):
    """`factor` times the learning rate for `total_iters` steps, then the learning rate."""

    factor: float = 1 / 3
    total_iters: int = 5

    def __post_init__(self) -> None:
        _require(0 <= self.factor <= 1, "factor", self.factor, "a number from 0 to 1")

    def rates(self, base: Rates, step: int, monitored: Sequence[float]) -> Rates:
        return [rate * (self.factor if step < self.total_iters else 1) for rate in base]


@dataclass(frozen=True)
class LinearLR(Schedule):
    """From `start_factor` to `end_factor` times the learning rate in `total_iters` steps; the former is the warm-up."""

    LENGTH: ClassVar[str] = "total_iters"
    start_factor: float = 1 / 3
    end_factor: float = 1.0
    total_iters: int | None = 5

    def __post_init__(self) -> None:
        _require(0 < self.start_factor <= 1, "start_factor", self.start_factor, "a number above 0 and up to 1")
        _require(0 <= self.end_factor <= 1, "end_factor", self.end_factor, "a number from 0 to 1")
        _check_length("total_iters", self.total_iters)

    def rates(self, base: Rates, step: int, monitored: Sequence[float]) -> Rates:
        assert self.total_iters is not None
        done = min(step, self.total_iters) / self.total_iters
        return [rate * (self.start_factor + (self.end_factor - self.start_factor) * done) for rate in base]


@dataclass(frozen=True)
class CosineAnnealingLR(Schedule):
    """eta_min + (rate - eta_min) * (1 + cos(pi * step / T_max)) / 2."""

    LENGTH: ClassVar[str] = "T_max"
    T_max: int | None = None
    eta_min: float = 0.0

    def __post_init__(self) -> None:
        _check_length("T_max", self.T_max)

    def rates(self, base: Rates, step: int, monitored: Sequence[float]) -> Rates:
        assert self.T_max is not None
        height = (1 + math.cos(math.pi * step / self.T_max)) / 2
        return [self.eta_min + (rate - self.eta_min) * height for rate in base]


@dataclass(frozen=True)
class OneCycleLR(Schedule):
    """From max_lr / div_factor to max_lr, then to max_lr / div_factor / final_div_factor (Smith and Topin, 2017).

    As with `cycle_momentum=False` in PyTorch: the momentum does not change.
    """

    LENGTH: ClassVar[str] = "total_steps"
    max_lr: float | tuple[float, ...]
    total_steps: int | None = None
    pct_start: float = 0.3
    anneal_strategy: Literal["cos", "linear"] = "cos"
    div_factor: float = 25.0
    final_div_factor: float = 1e4
    three_phase: bool = False

    def __post_init__(self) -> None:
        _check_length("total_steps", self.total_steps)
        _require(0 <= self.pct_start <= 1, "pct_start", self.pct_start, "a number from 0 to 1")
        known = ("cos", "linear")
        _require(self.anneal_strategy in known, "anneal_strategy", self.anneal_strategy, "'cos' or 'linear'")

    def rates(self, base: Rates, step: int, monitored: Sequence[float]) -> Rates:
        assert self.total_steps is not None
        if step > self.total_steps:
            raise StepError(f"step {step + 1} has no learning rate: OneCycleLR has total_steps={self.total_steps}")
        highest = self.max_lr if isinstance(self.max_lr, Sequence) else [self.max_lr] * len(base)
        if len(highest) != len(base):
            raise StepError(
                f"max_lr of OneCycleLR has {len(highest)} numbers, expected {len(base)}, one for each group"
            )
        return [self._rate(rate, step, self.total_steps) for rate in highest]

    def _rate(self, highest: float, step: int, total: int) -> float:
        """Piecewise from one of three rates to the next one, at steps that need not be whole numbers."""
        first = highest / self.div_factor
        last = first / self.final_div_factor
        top = self.pct_start * total - 1
        middle = [(2 * top, first)] if self.three_phase else []
        points = [(0.0, first), (top, highest), *middle, (total - 1, last)]
        phases = list(itertools.pairwise(points))
        (start, from_rate), (end, to_rate) = next((phase for phase in phases if step <= phase[1][0]), phases[-1])
        done = (step - start) / (end - start) if end > start else 1.0
        if self.anneal_strategy == "linear":
            return from_rate + (to_rate - from_rate) * done
        return to_rate + (from_rate - to_rate) / 2 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True)
class ReduceLROnPlateau(Schedule):
    """`factor` times the learning rate after each `patience` epochs in which the monitored metric has not improved."""

    mode: Literal["min", "max"] = "min"
    factor: float = 0.1
    patience: int = 10
    threshold: float = 1e-4
    threshold_mode: Literal["rel", "abs"] = "rel"
    cooldown: int = 0
    min_lr: float | tuple[float, ...] = 0.0
    eps: float = 1e-8

    def __post_init__(self) -> None:
        _require(self.mode in ("min", "max"), "mode", self.mode, "'min' or 'max'")
        _require(0 < self.factor < 1, "factor", self.factor, "a number between 0 and 1")
        _require(self.threshold_mode in ("rel", "abs"), "threshold_mode", self.threshold_mode, "'rel' or 'abs'")

    def rates(self, base: Rates, step: int, monitored: Sequence[float]) -> Rates:
        lowest = self.min_lr if isinstance(self.min_lr, Sequence) else [self.min_lr] * len(base)
        if len(lowest) != len(base):
            raise StepError(
                f"min_lr of ReduceLROnPlateau has {len(lowest)} numbers, expected {len(base)}, one for each group"
            )
        rates, best, bad, cooling = list(base), math.inf if self.mode == "min" else -math.inf, 0, 0
        for value in monitored:
            if self._is_better(value, best):
                best, bad = value, 0
            else:
                bad += 1
            if cooling:
                cooling, bad = cooling - 1, 0
            if bad > self.patience:
                reduced = [max(rate * self.factor, least) for rate, least in zip(rates, lowest, strict=True)]
                rates = [new if old - new > self.eps else old for old, new in zip(rates, reduced, strict=True)]
                cooling, bad = self.cooldown, 0
        return rates

    def _is_better(self, value: float, best: float) -> bool:
        sign = 1 if self.mode == "max" else -1
        if self.threshold_mode == "rel":
            return sign * value > sign * best * (1 + sign * self.threshold)
        return sign * value > sign * best + self.threshold


@dataclass(frozen=True)
class SequentialLR(Schedule):
    """Schedules one after the other: each from the step on that the milestone before it names."""

    schedules: tuple[Schedule, ...]
    milestones: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedules", tuple(self.schedules))
        object.__setattr__(self, "milestones", tuple(self.milestones))
        count, expected = len(self.milestones), len(self.schedules) - 1
        _require(bool(self.schedules), "schedules", "empty", "at least one")
        _require(count == expected, "milestones", self.milestones, f"{expected}, one less than there are schedules")
        ascending = all(a < b for a, b in itertools.pairwise((0, *self.milestones)))
        _require(ascending, "milestones", self.milestones, "ascending numbers above 0")
        if any(isinstance(schedule, ReduceLROnPlateau) for schedule in self.schedules):
            raise StepError("ReduceLROnPlateau cannot be one of several schedules: it depends on epochs, not on steps")

    @property
    def needs_length(self) -> bool:
        return any(schedule.needs_length for schedule in self.schedules)

    def over(self, steps: int) -> Self:
        starts, ends = (0, *self.milestones), (*self.milestones, steps)
        parts = zip(self.schedules, starts, ends, strict=True)
        return dataclasses.replace(self, schedules=tuple(s.over(max(end - start, 1)) for s, start, end in parts))

    def rates(self, base: Rates, step: int, monitored: Sequence[float]) -> Rates:
        number = sum(step >= milestone for milestone in self.milestones)
        return self.schedules[number].rates(base, step - (0, *self.milestones)[number], monitored)

    def entry(self) -> dict[str, Any]:
        schedules = [schedule.entry() for schedule in self.schedules]
        return {"name": type(self).__name__, "schedules": schedules, "milestones": list(self.milestones)}


KINDS: dict[str, Callable[..., Schedule]] = {
    kind.__name__: kind
    for kind in (ConstantLR, LinearLR, CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau, SequentialLR)
}


def schedule_of(entry: Mapping[str, Any]) -> Schedule:
    """The schedule of an entry.

    Raises:
        StepError: a class that is not among those of this module.
        TypeError: what is no entry.
    """
    parameters = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    name = parameters.pop("name")
    if name not in KINDS:
        raise StepError(f"the training that is resumed has the schedule {name}, which must be passed again")
    if name == SequentialLR.__name__:
        parameters["schedules"] = tuple(map(schedule_of, parameters["schedules"]))
    return KINDS[name](**parameters)


def _require(holds: bool, parameter: str, came: object, expected: str) -> None:
    if not holds:
        raise StepError(f"the schedule's {parameter} is {came!r}, expected {expected}")


def _check_length(parameter: str, length: int | None) -> None:
    _require(length is None or length > 0, parameter, length, "a positive number of steps")
