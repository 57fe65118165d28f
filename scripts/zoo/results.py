"""What is known of a model, as a JSON file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

EAGER = "eager"
"""The check that PyTorch itself trains the model; without it the model is not listed."""
OK, OK_IN_FLOAT64 = "ok", "ok in float64"
"""What is found by checks that pass, the second one by those that do so with a capture of the model in float64 only."""
CHECKS = ("static", "dynamic", "second_state", "ten_steps", "portable", "export")
"""The checks of a capture; those after "dynamic" are of that capture."""


@dataclass
class Result:
    """What is known of a model.

    Attributes:
        key, package, name, version: of the entry and its package.
        checks: by name, OK, OK_IN_FLOAT64 or the error; a check that another one prevents is missing.
        errors: of results, relative to the largest element of a tensor, and the allowed ones, by check.
        parameters: their number.
        specialized: whether the model is captured with specialize=True only.
        capture_seconds: of the capture with dynamic sizes and its verification, and the processor time.
        nodes, file_bytes: of its graph and its file.
        seconds: of the whole process.
    """

    key: str
    package: str
    name: str
    version: str = ""
    checks: dict[str, str] = field(default_factory=dict)
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)
    parameters: int = 0
    specialized: bool = False
    capture_seconds: tuple[float, float] | None = None
    nodes: int = 0
    file_bytes: int = 0
    seconds: float = 0.0

    def passed(self, check: str) -> bool:
        return self.checks.get(check) in (OK, OK_IN_FLOAT64)

    def failures(self) -> dict[str, str]:
        """The errors by check."""
        return {check: found for check, found in self.checks.items() if not self.passed(check)}

    @classmethod
    def read(cls, path: Path) -> Result | None:
        """The result in a file; None if it does not exist."""
        return cls(**json.loads(path.read_text())) if path.exists() else None

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")
