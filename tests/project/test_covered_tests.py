"""`make select`, which finds the tests of captures that `make test` leaves out."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from scripts import covered_tests

A, B, C = (1, 1, 2), (1, 2, 3), (1, 2, 4)


def test_each_branch_is_run() -> None:
    branches = {"t::long": {A, B, C}, "t::two": {A, B}, "t::others": {A, C}, "t::last": {A, B}}
    seconds = {"t::long": 9.0, "t::two": 1.0, "t::others": 1.0, "t::last": 2.0}
    assert covered_tests.left_out(branches, seconds) == ["t::last", "t::long"]
    # First B by itself, in little time; then C, with a test that has B too.
    branches = {"t::one": {B}, "t::both": {B, C}, "t::all": {A, B, C}}
    assert covered_tests.left_out(branches, {"t::one": 0.5, "t::both": 2.0, "t::all": 8.0}) == ["t::both", "t::one"]


def test_short_tests_and_beginnings_of_the_ids_of_others_are_kept() -> None:
    branches = {name: {A} for name in ("t::first", "t::second", "t::third", "t::third_too", "t::fourth")}
    seconds = {"t::first": 0.1, "t::second": 0.1, "t::third": 9.0, "t::third_too": 9.0, "t::fourth": 0.2}
    assert covered_tests.left_out(branches, seconds) == ["t::third_too"]


def test_measurements_are_read(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "coverage") as database:
        database.execute("CREATE TABLE context (id INTEGER, context TEXT)")
        database.execute("CREATE TABLE arc (file_id INTEGER, context_id INTEGER, fromno INTEGER, tono INTEGER)")
        database.executemany(
            "INSERT INTO context VALUES (?, ?)", [(1, ""), (2, "t::a[x|y]|setup"), (3, "t::a[x|y]|run")]
        )
        database.executemany("INSERT INTO arc VALUES (?, ?, ?, ?)", [(1, 1, 7, 8), (1, 2, 1, 2), (1, 3, 2, 3)])
    assert covered_tests.branches_of_tests(tmp_path / "coverage") == {"t::a[x|y]": {A, B}}
    report = tmp_path / "coverage.xml"
    report.write_text(
        '<testsuites><testcase classname="tests.capture.test_a" name="test_b[c]" time="1.5"/></testsuites>'
    )
    assert covered_tests.seconds_of_tests(report) == {"tests/capture/test_a.py::test_b[c]": 1.5}


def test_what_is_left_out_are_tests_of_captures() -> None:
    for argument in covered_tests.LEFT_OUT.read_text(encoding="utf-8").splitlines():
        file, _, test = argument.removeprefix("--deselect=").partition("::")
        assert (covered_tests.ROOT / file).is_relative_to(covered_tests.LEFT_OUT.parent)
        assert test.partition("[")[0] in (covered_tests.ROOT / file).read_text(encoding="utf-8")
