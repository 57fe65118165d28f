"""Settings that all tests share."""

import sys
from pathlib import Path

import pytest
from hypothesis import settings
from known_failures import expect_known_failures

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `models`, which is no part of the package

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=25, database=None)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    expect_known_failures(items)
    if not config.getoption("--full"):
        left_out = [item for item in items if item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make test-full` and `make fuzz` set these."""
    parser.addoption("--full", action="store_true", help="run the tests marked `full` too")
    parser.addoption("--fuzz-seconds", type=float, default=0.0, help="how long test_fuzz.py tries; 0: a few cases")
    parser.addoption("--fuzz-seed", type=int, default=0, help="of the cases in test_fuzz.py")
