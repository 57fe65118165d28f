"""Prints pip constraints that pin all dependencies to the lower bounds in pyproject.toml: `make test-oldest`.

They can be installed with the lowest supported version of Python only: not all of them have wheels for newer ones.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
TOOLS = ("release", "select", "site", "test", "zoo")
"""Extras for development, which are not pinned."""


def lowest(requirement: str) -> str:
    """The lower bound of a requirement as a pin: 'numba>=0.60' becomes 'numba==0.60', which 0.60.0 satisfies."""
    found = re.match(r"([\w.-]+)>=([\w.]+)", requirement)
    if found is None:
        raise ValueError(f"requirement '{requirement}' does not begin with a lower bound, as in 'numba>=0.60'")
    return "==".join(found.groups())


def pins(project: Mapping[str, Any]) -> list[str]:
    """The pins of all dependencies.

    Args:
        project: the table `[project]` of pyproject.toml.
    """
    extras = project.get("optional-dependencies", {})
    groups = [project["dependencies"], *(extras[name] for name in extras if name not in TOOLS)]
    own_extra = f"{project['name']}["
    return [lowest(r) for group in groups for r in group if not r.startswith(own_extra)]


def main() -> int:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    python = project["requires-python"].removeprefix(">=")
    if python != f"{sys.version_info.major}.{sys.version_info.minor}":
        print(f"the lower bounds go with Python {python}; name it: make PYTHON=python{python} ...", file=sys.stderr)
        return 1
    print("\n".join(pins(project)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
