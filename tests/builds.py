"""What all processes of the tests share and one of them compiles."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "build" / "tests"


def built(name: str, sources: str, build: Callable[[Path], object]) -> Path:
    """A folder in build/tests. The first process that needs it fills it, unless it was made of the same sources.

    Args:
        name: of the folder.
        sources: a hash of what its contents depend on.
        build: writes them into the folder, which is empty.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    folder = FOLDER / name
    stamp = folder / "sources"
    with open(FOLDER / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != sources:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            build(folder)
            stamp.write_text(sources)
    return folder
