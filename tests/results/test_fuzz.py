"""Random calls, bad calls and graphs: all backends agree. `make fuzz` runs it for minutes, with other seeds.

A failure prints seed, number and a smaller call that still fails. From the folder `tests`, with the one above it on
PYTHONPATH, `fuzzing.problems(fuzzing.call(seed, number))` or the printed `fuzzing.problems(Fuzzed(...))` make it again;
of a record's call, `fuzzing.problems_of_call(random_calls.call(seed, number))`; of extreme attributes,
`extreme_attributes.problems(seed, number, number + 1)`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace

import backends
import extreme_attributes
import fuzzing
import ml_dtypes
import numpy as np
import pytest
import random_calls
from backends import Array, Backend

CALLS, RECORDED, BAD_CALLS, GRAPHS, EXTREMES = 500, 108, 60, 25, 66
"""Numbers of cases in `make test`."""


@pytest.fixture
def numbers(request: pytest.FixtureRequest) -> Iterator[int]:
    """The numbers of the cases to try: a few, or those for which there is time."""
    seconds = request.config.getoption("--fuzz-seconds")
    count, share = request.param
    if not seconds:
        return iter(range(count))
    end = time.monotonic() + seconds * share
    return itertools.takewhile(lambda number: time.monotonic() < end, itertools.count())


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--fuzz-seed"))


def report(seed: int, number: int, case: object, found: object) -> str:
    return f"seed {seed}, number {number}:\n{found}\n{case}"


@pytest.mark.parametrize("numbers", [(CALLS, 0.25)], indirect=True, ids=["calls"])
def test_backends_agree_on_calls(numbers: Iterator[int], seed: int) -> None:
    failures = []
    for number in numbers:
        case = fuzzing.call(seed, number)
        if found := fuzzing.problems(case):
            chosen = [e for e in (*backends.CAREFUL, *fuzzing.PORTABLE) if any(f.startswith(f"{e}:") for f in found)]
            failures.append(report(seed, number, fuzzing.smallest(case, chosen), "\n".join(found)))
    assert not failures, f"{len(failures)} calls:\n" + "\n\n".join(failures[:10])


@pytest.mark.parametrize("numbers", [(RECORDED, 0.25)], indirect=True, ids=["recorded"])
def test_backends_agree_on_calls_of_records(numbers: Iterator[int], seed: int) -> None:
    failures = []
    for number in numbers:
        call = random_calls.call(seed, number)
        if found := fuzzing.problems_of_call(call):
            failures.append(report(seed, number, call, "\n".join(found)))
    assert not failures, f"{len(failures)} calls:\n" + "\n\n".join(failures[:10])


@pytest.mark.parametrize("numbers", [(BAD_CALLS, 0.1)], indirect=True, ids=["bad_calls"])
def test_bad_calls_are_refused_and_sessions_go_on(numbers: Iterator[int], seed: int) -> None:
    for number in numbers:
        good, bad = fuzzing.bad_call(seed, number)
        before = backends.KERNEL(good.op, good.inputs, good.attributes)
        for backend in (*backends.WITH_KERNELS, backends.EVALUATOR):
            refusal = fuzzing.refusal(backend, bad)
            assert refusal, report(seed, number, bad, f"{backend} computes it")
            assert good.op in refusal, report(seed, number, bad, f"{backend}: {refusal}")
        backends.assert_same_bits(backends.KERNEL(good.op, good.inputs, good.attributes), before)


@pytest.mark.parametrize("numbers", [(GRAPHS, 0.2)], indirect=True, ids=["graphs"])
def test_backends_agree_on_graphs(numbers: Iterator[int], seed: int) -> None:
    for number in numbers:
        model, feeds = fuzzing.graph(seed, number)
        results = fuzzing.graph_results(model, feeds)
        for name, result in results.items():
            message = report(seed, number, model, f"{name} and kernel")
            # a few roundings of float32, of terms that may cancel
            np.testing.assert_allclose(result, results["kernel"], rtol=1e-4, atol=1e-5, err_msg=message)


@pytest.mark.parametrize("numbers", [(EXTREMES, 0.2)], indirect=True, ids=["extremes"])
def test_attributes_at_the_ends_of_their_types(numbers: Iterator[int], seed: int) -> None:
    failures: list[str] = []
    while together := list(itertools.islice(numbers, EXTREMES)):
        failures += extreme_attributes.problems(seed, together[0], together[-1] + 1)
    assert not failures, f"seed {seed}, {len(failures)} problems:\n" + "\n".join(failures[:10])


def wrong_in_one_element(call: backends.Call) -> dict[str, Array]:
    """By half of the largest number, in the first output."""
    name, *_ = outputs = backends.EVALUATOR.run(call)
    result = outputs[name].copy()
    sizes = np.abs(result.astype(np.float64))
    if result.size:
        place = np.where(np.isfinite(sizes), sizes, 0).argmax()
        result.flat[place] *= np.array(1.5 if sizes.flat[place] < 1 else 0.5, result.dtype)
    return outputs | {name: result}


def can_be_wrong(call: backends.Call) -> bool:
    """Whether half of the largest number is more than any tolerance allows."""
    sizes = np.abs(next(iter(backends.EVALUATOR.run(call).values())).astype(np.float64))
    return bool(sizes.max(initial=0, where=np.isfinite(sizes)) > 1e-6)


PLANTED = Backend("planted", wrong_in_one_element)


@pytest.mark.parametrize("op", random_calls.OP_NAMES)
def test_a_wrong_backend_is_found_by_calls_of_records(op: str) -> None:
    numbers = range(random_calls.CALLS_PER_SIGNATURE * len(random_calls.OP_NAMES) * 2)
    calls = [call for number in numbers if (call := random_calls.call(0, number)).op == op]
    wrong = [call for call in calls if can_be_wrong(call)]
    assert len(wrong) > len(calls) / 3
    assert all(fuzzing.problems_of_call(call, [PLANTED]) for call in wrong)


@pytest.mark.parametrize("op", fuzzing.OP_NAMES)
def test_a_wrong_backend_is_found(op: str) -> None:
    cases = [case for number in range(fuzzing.CASES_PER_SIGNATURE * 5) if (case := fuzzing.call(0, number)).op == op]
    found = [case for case in cases if fuzzing.problems(case, [PLANTED])]
    wrong = [case for case in cases if can_be_wrong(backends.call_of(case.op, case.inputs, case.attributes))]
    assert len(wrong) > len(cases) / 3
    assert {id(case) for case in wrong} <= {id(case) for case in found}
    assert fuzzing.problems(fuzzing.smallest(found[0], [PLANTED]), [PLANTED])
    text = str(found[0])
    again = eval(text, {"np": np, "ml_dtypes": ml_dtypes, "Fuzzed": fuzzing.Fuzzed})
    for array, copy in zip(found[0].inputs, again.inputs, strict=True):
        assert (array is None) == (copy is None)
        if array is not None:
            backends.assert_same_bits(copy, array)
    assert replace(again, inputs=()) == replace(found[0], inputs=())
