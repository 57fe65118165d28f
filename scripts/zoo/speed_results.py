"""The measured speed and memory of a step, as JSON files, and their table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts import markdown


@dataclass
class Speed:
    """The speed of a model on a number of threads.

    Attributes:
        model, threads: what was measured.
        step, eager: median seconds of a step, captured and in PyTorch.
        over_eager, over_compile: medians over the rounds of the ratios of the captured step to PyTorch; None where
            it was not measured, or torch.compile fails.
        memory, eager_memory: peak bytes during steps above those of the process before the model exists.
        products: share of matrix products, convolutions and attention in the captured step.
        foreign_load: cores kept busy by other processes.
        error: why there are no figures.
    """

    model: str
    threads: int
    step: float | None = None
    eager: float | None = None
    over_eager: float | None = None
    over_compile: float | None = None
    memory: int | None = None
    eager_memory: int | None = None
    products: float | None = None
    foreign_load: float | None = None
    error: str = ""

    @staticmethod
    def path(folder: Path, key: str, threads: int) -> Path:
        return folder / f"{key}.{threads}.json"

    @classmethod
    def read(cls, path: Path) -> Speed | None:
        """The result in a file; None if it does not exist."""
        return cls(**json.loads(path.read_text())) if path.exists() else None

    @classmethod
    def read_all(cls, folder: Path) -> list[Speed]:
        """All results in a folder, by model and threads."""
        found = [cls(**json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]
        return sorted(found, key=lambda speed: (speed.model.lower(), speed.threads))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def speed_table(measured: Sequence[Speed]) -> str:
    """Markdown: a table, and the medians of its ratios."""
    header = [
        "model",
        "threads",
        "step",
        "eager",
        "step / eager",
        "step / compile",
        "products",
        "memory",
        "eager",
        "ratio",
    ]
    rows = [
        [
            speed.model,
            str(speed.threads),
            *("-" if seconds is None else f"{seconds * 1e3:.1f} ms" for seconds in (speed.step, speed.eager)),
            *("-" if ratio is None else f"{ratio:.2f}" for ratio in (speed.over_eager, speed.over_compile)),
            "-" if speed.products is None else f"{speed.products:.0%}",
            *("-" if size is None else f"{size / 1e6:.0f} MB" for size in (speed.memory, speed.eager_memory)),
            f"{speed.memory / speed.eager_memory:.2f}" if speed.memory and speed.eager_memory else "-",
        ]
        for speed in measured
    ]
    lines = [markdown.table(header, rows, right=range(1, len(header))), ""]
    for threads in sorted({speed.threads for speed in measured}):
        for name, attribute in (("eager", "over_eager"), ("torch.compile", "over_compile")):
            ratios = [
                ratio
                for speed in measured
                if speed.threads == threads and (ratio := getattr(speed, attribute)) is not None
            ]
            if ratios:
                lines.append(
                    f"- {threads} {'thread' if threads == 1 else 'threads'}, step / {name}: median"
                    f" {statistics.median(ratios):.2f}, largest {max(ratios):.2f}, of {len(ratios)} models"
                )
    lines += [f"- {speed.model}, {speed.threads} threads: `{speed.error}`" for speed in measured if speed.error]
    return "\n".join(lines) + "\n"
