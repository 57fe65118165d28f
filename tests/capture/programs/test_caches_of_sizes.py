"""Functions of sizes that keep their results, which captures call with symbolic ones."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from captures import compared_at, gradients
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim

from onnx_ops.torch import CaptureError
from onnx_ops.torch.tracing.caches import without_traced_values

Loss = Callable[[nn.Module, Tensor], Tensor]


@functools.lru_cache(maxsize=1)
def positions(count: int, scale: float = 0.5) -> Tensor:
    return torch.arange(count)[:, None] * scale


class Cached(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.held = functools.cache(lambda count: torch.ones(count, 1))

    @functools.cache  # noqa: B019
    def shifts(self, count: int) -> Tensor:
        return torch.arange(count)[:, None] ** 2.0

    def forward(self, x: Tensor) -> Tensor:
        count = x.shape[1]
        return super().forward(x) + positions(count) * self.shifts(count) + self.held(count) + positions(3).sum()


def test_cached_functions_of_sizes() -> None:
    positions.cache_clear()
    cached = positions, Cached.shifts
    compared_at(Cached(), lambda m, x: m(x).sin().sum(), [(3, 5, 4), (2, 7, 4)], Dim("N"), Dim("T"))
    assert (positions, Cached.shifts) == cached
    assert type(positions(3)) is torch.Tensor


class Kept(nn.Linear):
    """Positions by their number in dictionaries."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.kept: dict[int, Tensor] = {}
        self.others: dict[tuple[int, str], Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        rows, count = x.shape[:2]
        if count not in self.kept:
            self.kept[count] = torch.arange(count)[:, None] ** 2.0
        other = self.others.get((rows, "rows"))
        if other is None:
            other = self.others.setdefault((rows, "rows"), torch.ones(rows, 1, 1))
        return super().forward(x) + self.kept[count] + other


def test_dictionaries_of_sizes() -> None:
    model = Kept()
    compared_at(model, lambda m, x: m(x).sin().sum(), [(3, 5, 4), (2, 7, 4)], Dim("N"), Dim("T"))
    assert list(model.kept) == [5, 7]
    assert all(type(value) is Tensor for value in (*model.kept.values(), *model.others.values()))


def test_tables_of_sizes_are_refused() -> None:
    """A dictionary with entries before the capture: a graph cannot look them up."""
    model = nn.Linear(4, 4)
    model.factors = {3: 2.0}
    with pytest.raises(CaptureError, match=r"as a key, .* by functools\.cache"):
        gradients(
            model,
            lambda m, x: m(x).sum() * m.factors.get(len(x), 1.0),
            (torch.randn(4, 4),),
            dynamic_shapes=({0: Dim("N")},),
            check=False,
        )


class Evaluated(nn.Linear):
    def __init__(self, shift: Callable[[int], Tensor]) -> None:
        super().__init__(4, 4)
        self.shift = shift

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + (0 if self.training else self.shift(4))


def test_caches_keep_no_tensor_of_a_trace() -> None:
    def check(cached: Any) -> None:
        gradients(Evaluated(cached), lambda m, x: m(x).square().sum(), (torch.randn(4, 4),), inference=True)
        assert type(cached(4)) is torch.Tensor

    positions.cache_clear()
    check(positions)
    check(functools.cache(lambda count: torch.ones(count)))  # made after a capture
    check(functools.cache(torch.ones))
    check(functools.cache(torch.signal.windows.hann))


def test_caches_with_values_of_a_trace_in_containers_are_cleared() -> None:
    @functools.cache
    def held(key: Any) -> Any:
        return {"pair": (1, [key])}

    @functools.cache
    def cyclic(number: int) -> list[Any]:
        values: list[Any] = [number]
        values.append(values)
        return values

    with FakeTensorMode(), without_traced_values():
        held(torch.ones(2))
        cyclic(1)
    assert held.cache_info().currsize == 0
    assert cyclic.cache_info().currsize == 1


def test_objects_are_looked_through_for_new_caches_alone() -> None:
    cached = [functools.cache(lambda: 0)]

    def looks() -> bool:
        with mock.patch.object(gc, "get_referrers", wraps=gc.get_referrers) as looked, without_traced_values():
            pass
        return looked.called

    assert looks()
    cached.clear()
    assert not looks()
    cached.append(functools.cache(lambda: 0))
    assert looks()


def test_an_error_beside_a_cache_of_sizes_is_reported() -> None:
    """Not that of the cache, behind which the trace is made again."""

    @functools.lru_cache(maxsize=1)
    def places(rows: int) -> Tensor:
        return torch.arange(rows)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x) + places(x.shape[0])[:, None]
        return y.sum() if y.sum() > 0 else -y.sum()

    with pytest.raises(CaptureError, match=r"the loss decides by the numbers in a tensor .*specialize=True"):
        gradients(nn.Linear(3, 3), loss, (torch.ones(4, 3),), dynamic_shapes=({0: Dim("N")},))
