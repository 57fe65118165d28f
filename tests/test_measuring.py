"""What the tables of speed and accuracy are made of: rows for every op, and turns whose time is bounded."""

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


def test_what_is_many_times_slower_sits_out_once_it_has_had_the_budget() -> None:
    turns = timing.take_turns({"fast": lambda: None, "slow": lambda: time.sleep(0.11)}, budget=0.2)
    assert len(turns["slow"]) == timing.LEAST_ROUNDS_OF_SLOW
    assert len(turns["fast"]) >= timing.LEAST_ROUNDS
    assert timing.median_of(lambda slow, fast: slow / fast, turns["slow"], turns["fast"]) > timing.MANY_TIMES


def test_as_slow_as_each_other_take_all_turns() -> None:
    turns = timing.take_turns({name: lambda: time.sleep(0.02) for name in ("one", "other")}, budget=0.05)
    assert [len(seconds) for seconds in turns.values()] == [timing.LEAST_ROUNDS] * 2
