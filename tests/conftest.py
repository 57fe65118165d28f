"""Settings that all tests share."""

import functools
import gc
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest
import typer.testing
from hypothesis import settings
from known_failures import expect_known_failures

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `models` and `scripts`, which are no part of the package

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=25, database=None)
settings.load_profile("repeatable")

# Python's default of 700 collects garbage over and over among the million objects of the tests and of PyTorch.
gc.set_threshold(100_000, 20, 100)

# Threads that spin while they wait for work take processor time from the other test processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before PyTorch and OpenBLAS are imported, here and in child processes
SPINNING = ("session.intra_op.allow_spinning", "session.inter_op.allow_spinning")
options_of_onnxruntime = ort.SessionOptions.__init__


def _without_spinning(options: ort.SessionOptions, *args: Any) -> None:
    options_of_onnxruntime(options, *args)
    for entry in SPINNING:
        options.add_session_config_entry(entry, "0")


ort.SessionOptions.__init__ = _without_spinning


# typer makes the commands of the application anew for each command line, which takes longer than most of them.
typer.testing._get_command = functools.cache(typer.testing._get_command)


@pytest.fixture
def spinning_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Session options as onnxruntime makes them, whose threads spin."""
    monkeypatch.setattr(ort.SessionOptions, "__init__", options_of_onnxruntime)


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    """What is logged during a test; pytest's own plugin is switched off in pyproject.toml."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    yield records
    logging.getLogger().removeHandler(handler)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.get_closest_marker("in_turns"):
        from backends import generate_turns

        generate_turns(metafunc)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    expect_known_failures(items)
    if not config.getoption("--full"):
        kept: list[pytest.Item] = []
        left_out: list[pytest.Item] = []
        for item in items:
            (left_out if item.get_closest_marker("full") else kept).append(item)
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept
    # First those that share a server and a browser: at the end another process would take over some of them.
    items.sort(key=lambda item: item.path.parent.name != "web")


def pytest_collection_finish() -> None:
    """What the tests are and what they import stays until the end, and is not looked through for garbage again."""
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make test-full` and `make fuzz` set these."""
    parser.addoption("--full", action="store_true", help="run the tests marked `full` too")
    parser.addoption("--fuzz-seconds", type=float, default=0.0, help="how long test_fuzz.py tries; 0: a few cases")
    parser.addoption("--fuzz-seed", type=int, default=0, help="of the cases in test_fuzz.py")
    parser.addoption("--record", default="", help="the command that docs/versions.json names, if no test fails")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    gc.freeze()  # pytest, ten times, and Python look through all objects at the end
    command = session.config.getoption("--record")
    if command and exitstatus == 0 and not hasattr(session.config, "workerinput"):
        from scripts import versions

        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        assert reporter is not None
        versions.record(command, passed=len(reporter.stats["passed"]))
