"""The benchmarks of speed and accuracy: rows for every op, and interleaved measurements within a time budget."""

from __future__ import annotations

import time

import pytest

from scripts import timing
from tests.ops import RECORDS
from tests.ops._shared.arrays import FLOAT32
from tests.ops._shared.record import Record


@pytest.mark.parametrize("record", RECORDS.values(), ids=str)
def test_every_op_has_rows_of_both_tables(record: Record) -> None:
    assert record.benchmarks
    assert record.accuracies
    for benchmark in record.benchmarks:
        smallest = next(iter(benchmark.sizes.values()))
        call = benchmark.make(smallest, FLOAT32)
        assert call.op == record.op
        assert set(record.wanted(call)) <= set(record.outputs)


def test_a_slow_candidate_is_timed_in_few_rounds() -> None:
    seconds = timing.interleaved({"fast": lambda: None, "slow": lambda: time.sleep(0.11)}, budget=0.2)
    assert len(seconds["slow"]) == timing.MIN_ROUNDS_OF_SLOW
    assert len(seconds["fast"]) >= timing.MIN_ROUNDS
    assert timing.median_of(lambda slow, fast: slow / fast, seconds["slow"], seconds["fast"]) > timing.SLOW_RATIO


def test_equally_slow_candidates_are_timed_in_all_rounds() -> None:
    seconds = timing.interleaved({name: lambda: time.sleep(0.02) for name in ("one", "other")}, budget=0.05)
    assert [len(rounds) for rounds in seconds.values()] == [timing.MIN_ROUNDS] * 2
