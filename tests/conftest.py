"""Settings that all tests share."""

import sys
from pathlib import Path

import pytest
from hypothesis import settings
from known_failures import expect_known_failures

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `models`, which is no part of the package

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=25, database=None)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    expect_known_failures(items)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make fuzz` sets these."""
    parser.addoption("--fuzz-seconds", type=float, default=0.0, help="how long test_fuzz.py tries; 0: a few cases")
    parser.addoption("--fuzz-seed", type=int, default=0, help="of the cases in test_fuzz.py")
