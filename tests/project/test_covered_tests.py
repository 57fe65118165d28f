"""`make select`, which finds the tests of captures that `make test` leaves out."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

from scripts import covered_tests

A, B, C = (1, 1, 2), (1, 2, 3), (1, 2, 4)


def test_each_branch_is_run() -> None:
    branches = {"long": {A, B, C}, "two": {A, B}, "others": {A, C}, "last": {A, B}}
    seconds = {"long": 9.0, "two": 1.0, "others": 1.0, "last": 2.0}
    assert covered_tests.kept(branches, seconds, 0) == {"two", "others"}
    # First B by itself, in little time; then the others, with a test that has B too.
    branches = {"one": {B}, "both": {B, C}, "all": {A, B, C}}
    assert covered_tests.kept(branches, {"one": 0.5, "both": 2.0, "all": 8.0}, 0) == {"all"}


def test_tests_that_add_few_branches_for_their_time_are_left_out() -> None:
    many = {(1, line, line + 1) for line in range(100)}
    branches = {"many": many, "few": {*many, A, B}, "some": {C}}
    assert covered_tests.kept(branches, {"many": 10.0, "few": 1.0, "some": 0.2}) == {"few", "some"}
    assert covered_tests.kept(branches, {"many": 1.0, "few": 10.0, "some": 0.5}) == {"many"}


def test_short_tests_are_kept() -> None:
    branches = {name: {A} for name in ("first", "second", "third", "fourth")}
    assert covered_tests.kept(branches, {"first": 0.1, "second": 0.2, "third": 9.0}) == {"first", "second", "fourth"}


def test_beginnings_of_the_names_of_other_tests(tmp_path: Path) -> None:
    (tmp_path / "test_file.py").write_text("def test_one():\ndef test_one_more():\ndef test_two():\n")
    found = {name: covered_tests.begins_another(f"test_file.py::{name}", tmp_path) for name in ("test_one", "test_two")}
    assert found == {"test_one": True, "test_two": False}


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
    """And no others: `--deselect` takes all ids that begin with its argument."""
    for argument in covered_tests.LEFT_OUT.read_text(encoding="utf-8").splitlines():
        file, _, test = argument.removeprefix("--deselect=").partition("::")
        name, parameters, _ = test.partition("[")
        assert (covered_tests.ROOT / file).is_relative_to(covered_tests.LEFT_OUT.parent)
        names = re.findall(r"^def (test_\w+)", (covered_tests.ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
        assert [other for other in names if other.startswith(name) and not (parameters and other != name)] == [name]
