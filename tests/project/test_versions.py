"""The table of versions in docs/support.md shows what the tests were run with."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from scripts import oldest, versions
from scripts.versions import Run

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _run(command: str, **found: str) -> Run:
    return Run(command=command, platform="Linux x86_64", passed=1, versions=found)


def test_table_has_the_ends_of_all_runs() -> None:
    runs = [_run("a", Python="3.13.0", numpy="2.4.6"), _run("b", Python="3.9.1", numpy="2.10", torch="2.15.0")]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in versions.versions_table(runs).splitlines()]
    assert rows[2:] == [["Python", "3.9.1", "3.13.0"], ["numpy", "2.4.6", "2.10"], ["torch", "2.15.0", "2.15.0"]]


def test_readme_has_the_table_of_the_recorded_runs() -> None:
    text = versions.PAGE.read_text(encoding="utf-8")
    assert text == versions.with_table(text, versions.recorded()), "run python -m scripts.versions"


def test_lower_bounds_were_run() -> None:
    """What `make test-oldest` pins is what it was run with; PyTorch has no part in it."""
    (run,) = (run for run in versions.recorded() if run["command"] == "make test-oldest")
    pins = dict(pin.split("==") for pin in oldest.pins(PROJECT))
    compared = {name: version for name, version in run["versions"].items() if name in pins}
    assert compared
    for name, version in compared.items():
        assert versions.ordered(version)[: len(versions.ordered(pins[name]))] == versions.ordered(pins[name])


@pytest.mark.parametrize("package", ["numba", "torch"])
def test_nothing_newer_than_what_was_run_is_allowed(package: str) -> None:
    """Private parts of these are used: the upper bound is the release after the newest that was run."""
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    found = [re.match(rf"{package}>=[\d.]+,<(.*)", requirement) for group in groups for requirement in group]
    (bound,) = {match.group(1) for match in found if match}
    run = [versions.ordered(run["versions"].get(package, "0")) for run in versions.recorded()]
    major, minor = versions.ordered(bound)[:2]
    assert max(run)[:2] == (major, minor - 1)


def test_recording_replaces_the_run_of_the_same_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "RUNS", tmp_path / "versions.json")
    for passed in (3, 4):
        versions.record("make test-newest", passed)
    versions.record("make test-oldest", 5)
    assert [(run["command"], run["passed"]) for run in versions.recorded()] == [
        ("make test-newest", 4),
        ("make test-oldest", 5),
    ]
    assert versions.recorded()[0]["versions"]["numpy"]
