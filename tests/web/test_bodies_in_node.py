"""The tests of what ops compute once more, with the function bodies in onnxruntime-web."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import backends
import pytest
import test_batch_norm_elemt_backward
import test_binary_cross_entropy_with_logits_backward
import test_ctc_loss_backward
import test_hardshrink_backward
import test_kl_div_backward
import test_ops_results
from cases import narrow_and_wide
from onnxruntime_web import WEB, WEB_AS_WRITTEN, WEB_INLINED

from onnx_ops import OPS

MODULES = (
    test_ops_results,
    test_batch_norm_elemt_backward,
    test_binary_cross_entropy_with_logits_backward,
    test_ctc_loss_backward,
    test_hardshrink_backward,
    test_kl_div_backward,
)
ON_ALL = ("test_worked", "test_by_hand")
"""Tests that also run without graph optimisation and with the body inlined: of many, by `make test-full`."""
LEFT_OUT = ("test_pairs", "test_calls", "test_inputs_are_not_written_to", "test_memory_layout_does_not_matter")
"""Tests of products, and of NumPy's memory, of which Node gets a copy."""

Test = Callable[..., None]

pytestmark = pytest.mark.usefixtures("node")


def _on_portable(mark: pytest.Mark) -> bool:
    """Whether a mark runs a test on several backends, the function bodies among them."""
    everywhere = mark.name == "parametrize" and mark.args[0] == "backend" and backends.PORTABLE in mark.args[1]
    return everywhere or mark.name == "in_turns"


def _without_backends(mark: pytest.Mark) -> Iterator[pytest.Mark]:
    """The parametrization of a mark without its backends; of ops with all dtypes `make test` runs two of each."""
    if mark.name == "in_turns":
        names, rows, _ = mark.args
        ids = [*map(backends.row_id, rows)]
        if names == ("record", "dtype"):
            rows = narrow_and_wide(test_ops_results.PRESENT)
        yield pytest.mark.parametrize(names, rows, ids=ids).mark


def _in_node(name: str, test: Test) -> Test:
    """The test with backends in Node in place of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        test(*args, **kwargs)

    marks: list[pytest.Mark] = []
    for mark in test.pytestmark:
        marks.extend(_without_backends(mark) if _on_portable(mark) else [mark])
    ways: list[Any] = [WEB]
    if name in ON_ALL:
        full = pytest.mark.full if name == "test_worked" else ()
        ways += [pytest.param(way, marks=full) for way in (WEB_AS_WRITTEN, WEB_INLINED)]
    run.pytestmark = [pytest.mark.parametrize("backend", ways, ids=str).mark, *marks]
    return run


def _of_bodies(module: ModuleType) -> dict[str, Test]:
    """The tests of a module that the function bodies have to pass."""
    return {
        name: test
        for name, test in vars(module).items()
        if name not in LEFT_OUT and any(_on_portable(mark) for mark in getattr(test, "pytestmark", ()))
    }


for _module in MODULES:
    for _name, _test in _of_bodies(_module).items():
        globals()[f"{_module.__name__}{_name.removeprefix('test')}"] = _in_node(_name, _test)


def test_every_op_is_here() -> None:
    """By the calls of the records; every module has tests of bodies."""
    assert {call.op for call in test_ops_results.PAIRS} == set(OPS)
    assert all(map(_of_bodies, MODULES))
