"""Which tests of captures `make test` and CI leave out: those that run few branches of the package for their time.

`make select` runs all of them with coverage, and this program writes the arguments of pytest that leave some out.
`make test-full` runs them. A test that the file does not name, such as a new one, is never left out.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "build" / "coverage"
"""The data of coverage.py, whose contexts are tests, and beside it, as XML, the report of pytest with their times."""
LEFT_OUT = ROOT / "tests" / "capture" / "covered.txt"
SHORT = 0.3
"""Seconds: tests that take less, with coverage, are kept."""
FEWEST = 6
"""Branches that a test must add to those of others, for each second with coverage."""

Branch = tuple[int, int, int]


def branches_of_tests(data: Path) -> dict[str, set[Branch]]:
    """The branches that each test runs, its fixtures included: a number of a file, and two lines of it."""
    found: dict[str, set[Branch]] = defaultdict(set)
    with sqlite3.connect(data) as database:
        query = "SELECT context, file_id, fromno, tono FROM arc JOIN context ON context.id = arc.context_id"
        for context, *branch in database.execute(query):
            test = context.rpartition("|")[0]  # behind it is the phase
            if test:
                found[test].add(tuple(branch))
    return dict(found)


def seconds_of_tests(report: Path) -> dict[str, float]:
    """What each test takes, by its node id, from a report of pytest in JUnit's format."""
    cases = ElementTree.parse(report).iter("testcase")
    return {
        f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}": float(case.get("time", 0))
        for case in cases
    }


def kept(branches: Mapping[str, set[Branch]], seconds: Mapping[str, float], fewest: float = FEWEST) -> set[str]:
    """The short tests, and then those that add most branches per second, until they add fewer than `fewest`.

    Of these, the longest first, those are dropped that add nothing to the others in the end.
    """
    short = {test for test in branches if seconds.get(test, 0.0) < SHORT}
    left = all_of(branches).difference(*(branches[test] for test in short))

    def gain(test: str) -> float:
        return len(branches[test] & left) / seconds[test]

    gains = {test: gain(test) for test in branches.keys() - short}
    added: list[str] = []
    while left and gains:
        best = max(gains, key=gains.__getitem__)
        gains[best] = gain(best)  # gains only get smaller
        most = max(gains.values())
        if most < fewest:
            break
        if gains[best] >= most:
            added.append(best)
            left -= branches[best]
            del gains[best]
    runs = Counter(branch for test in short.union(added) for branch in branches[test])
    for test in sorted(added, key=seconds.__getitem__, reverse=True):
        if all(runs[branch] > 1 for branch in branches[test]):
            added.remove(test)
            runs.subtract(branches[test])
    return short.union(added)


def all_of(branches: Mapping[str, set[Branch]]) -> set[Branch]:
    return set[Branch]().union(*branches.values())


def begins_another(test: str, root: Path = ROOT) -> bool:
    """Whether `--deselect` would leave out other tests too, as it takes ids that begin with its argument."""
    file, _, name = test.partition("::")
    return len(re.findall(rf"^def {re.escape(name)}", (root / file).read_text(encoding="utf-8"), re.MULTILINE)) > 1


def main() -> int:
    seconds = seconds_of_tests(MEASURED.with_suffix(".xml"))
    branches = branches_of_tests(MEASURED)
    run = kept(branches, seconds)
    tests = sorted(test for test in branches.keys() - run if not begins_another(test))
    LEFT_OUT.write_text("".join(f"--deselect={test}\n" for test in tests), encoding="utf-8")
    saved = sum(seconds[test] for test in tests)
    share = len(all_of({test: branches[test] for test in run})) / len(all_of(branches))
    print(
        f"{len(tests)} of {len(branches)} tests are left out, with {saved / sum(seconds.values()):.0%} of the time; "
        f"the others run {share:.1%} of the branches"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
