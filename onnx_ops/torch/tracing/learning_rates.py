"""Learning rates that a loss reads: the graph has the ones of the capture, while those of a Trainer change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.optim.lr_scheduler import LRScheduler

from onnx_ops.torch.tracing.frames import Line, line_now, warn

RATE = "lr"


class _Group(dict[str, Any]):
    """A group of parameters that records where its learning rate is read."""

    def __init__(self, group: dict[str, Any], lines: list[Line]) -> None:
        super().__init__(group)
        self._lines = lines

    def __getitem__(self, key: str) -> Any:
        self._record(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._record(key)
        return super().get(key, default)

    def _record(self, key: str) -> None:
        if key == RATE:
            _record(self._lines)


def _record(lines: list[Line]) -> None:
    if (line := line_now()) is not None:
        lines.append(line)


@contextlib.contextmanager
def constant_rates(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[None]:
    """A context for steps of a loss, after which there is a warning if they have read a learning rate.

    optimizers: others than PyTorch's, which are refused later, are left as they are.
    """
    lines: list[Line] = []
    known = [optimizer for optimizer in optimizers if isinstance(optimizer, torch.optim.Optimizer)]
    groups = [(optimizer.param_groups, list(optimizer.param_groups)) for optimizer in known]
    for given, own in groups:
        given[:] = [_Group(group, lines) for group in own]
    last_rates = LRScheduler.get_last_lr

    def recorded(scheduler: LRScheduler) -> Any:
        if scheduler.optimizer in known:
            _record(lines)
        return last_rates(scheduler)

    try:
        with mock.patch.object(LRScheduler, "get_last_lr", recorded):
            yield
    finally:
        for given, own in groups:
            for group, watched in zip(own, given, strict=True):
                group.update(watched)  # what the loss has written
            given[:] = own
    if lines:
        warn(
            f"the loss reads the learning rate of the optimizer at {lines[0]}. In the graph it is the number of the"
            " example, whatever learning rate a step is given: pass it as an argument of the loss if it matters"
        )
