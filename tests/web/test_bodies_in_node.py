"""The tests of what ops compute once more, with the portable bodies in onnxruntime-web."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import engines
import pytest
import test_batch_norm_elemt_backward
import test_binary_cross_entropy_with_logits_backward
import test_ctc_loss_backward
import test_hardshrink_backward
import test_kl_div_backward
import test_ops_results
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
"""Tests that also run without graph optimisation and with the body inlined."""

Test = Callable[..., None]

pytestmark = pytest.mark.usefixtures("node")


def _engines(mark: pytest.Mark) -> Any:
    """The engines of a mark that runs a test on several, else nothing."""
    return mark.args[1] if mark.name == "parametrize" and mark.args[0] == "engine" else ()


def _in_node(name: str, test: Test) -> Test:
    """The test with engines in Node in place of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        test(*args, **kwargs)

    here = [WEB, WEB_AS_WRITTEN, WEB_INLINED] if name in ON_ALL else [WEB]
    others = [mark for mark in test.pytestmark if not _engines(mark)]
    run.pytestmark = [pytest.mark.parametrize("engine", here, ids=str).mark, *others]
    return run


def _of_bodies(module: ModuleType) -> dict[str, Test]:
    """The tests of a module that the portable bodies have to pass."""
    return {
        name: test
        for name, test in vars(module).items()
        if any(engines.PORTABLE in _engines(mark) for mark in getattr(test, "pytestmark", ()))
    }


for _module in MODULES:
    for _name, _test in _of_bodies(_module).items():
        globals()[f"{_module.__name__}{_name.removeprefix('test')}"] = _in_node(_name, _test)


def test_every_op_is_here() -> None:
    """By the calls of the records; every module has tests of bodies."""
    assert {call.op for call in test_ops_results.PAIRS} == set(OPS)
    assert all(map(_of_bodies, MODULES))
