"""The versions that the tests were run with, which docs/support.md shows as a table.

With RECORD=1, `make unit`, `make test-full`, `make test-oldest` and `make test-newest` add a run without a failure to
docs/versions.json.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

from scripts.markdown import table

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "docs" / "versions.json"
PAGE = ROOT / "docs" / "support.md"
PACKAGES = (
    "onnxruntime",
    "onnx",
    "onnxruntime-extensions",
    "numba",
    "numpy",
    "ml-dtypes",
    "safetensors",
    "torch",
    "onnxscript",
    "onnx-ir",
)
START, END = "<!-- versions: python -m scripts.versions -->\n", "<!-- end of versions -->\n"


class Run(TypedDict):
    """A run of the tests without a failure.

    Attributes:
        command: what was run.
        platform: operating system and processor.
        passed: how many tests passed.
        versions: of Python and of the packages that were installed.
    """

    command: str
    platform: str
    passed: int
    versions: dict[str, str]


def here() -> dict[str, str]:
    """The versions of this environment, without local labels such as +cpu."""
    found = {"Python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def record(command: str, passed: int) -> None:
    """Add a run in this environment, in the place of an earlier one of the same command and Python."""
    now = Run(command=command, platform=f"{platform.system()} {platform.machine()}", passed=passed, versions=here())
    runs = {_key(run): run for run in (*recorded(), now)}
    RUNS.write_text(json.dumps([runs[key] for key in sorted(runs)], indent=2) + "\n", encoding="utf-8")


def _key(run: Run) -> tuple[str, str]:
    return run["command"], release(run["versions"]["Python"], 2)


def recorded() -> list[Run]:
    runs: list[Run] = json.loads(RUNS.read_text(encoding="utf-8")) if RUNS.exists() else []
    return runs


def ordered(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def release(version: str, parts: int) -> str:
    return ".".join(version.split(".")[:parts])


def versions_table(runs: Iterable[Run]) -> str:
    """The oldest and the newest version of each package among the runs, in Markdown."""
    all_versions = [run["versions"] for run in runs]
    rows = []
    for name in ("Python", *PACKAGES):
        found = sorted((versions[name] for versions in all_versions if name in versions), key=ordered)
        if found:
            rows.append([name, release(found[0], 3), release(found[-1], 3)])
    return table(["", "oldest", "newest"], rows)


def with_table(text: str, runs: Iterable[Run]) -> str:
    """The page with the table of the runs."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{versions_table(runs)}\n\n{END}{after}"


def main() -> int:
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), recorded()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
