"""Prints pip constraints that pin what the package needs to the lower bounds in pyproject.toml: `make test-oldest`.

They can be installed with the oldest Python alone that the package takes: newer ones have no wheels of all of them.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
TOOLS = ("test",)
"""Extras that users do not install; the newest of them serve for old versions too."""


def lowest(requirement: str) -> str:
    """The lower bound as a pin: 'numba>=0.60' becomes 'numba==0.60', which is 0.60.0 too."""
    found = re.match(r"([\w.-]+)>=([\w.]+)", requirement)
    if found is None:
        raise ValueError(f"requirement '{requirement}' does not begin with a lower bound, as in 'numba>=0.60'")
    return "==".join(found.groups())


def pins(project: Mapping[str, Any]) -> list[str]:
    """The pins of a project, of which `[project]` of its pyproject.toml is given."""
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
