"""Captures the models of scripts/zoo/models and writes docs/models.md: `make zoo`.

Each model is checked in a process of its own, with a time limit. Results are kept, one JSON file per model, so that an
interrupted run can be resumed; the report has all that there are.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tqdm import tqdm

from scripts.zoo import report
from scripts.zoo.entries import Entry
from scripts.zoo.models import ENTRIES
from scripts.zoo.results import Result

ROOT = Path(__file__).parents[2]
SPEED = ROOT / "build" / "zoo_speed"
REPORT = ROOT / "docs" / "models.md"


def main() -> int:
    """Check the chosen models and write the report; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.zoo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[""], metavar="PREFIX", help="of keys, such as transformers.bert")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once; default: %(default)s")
    parser.add_argument("--resume", action="store_true", help="skip models that have a result")
    parser.add_argument("--limit", type=float, default=600, metavar="SECONDS", help="per model; default: %(default)s")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "zoo", metavar="FOLDER")
    parser.add_argument("--report", action="store_true", help="write the report of the results that there are")
    options = parser.parse_args()

    results: Path = options.results
    results.mkdir(parents=True, exist_ok=True)
    if options.report:
        REPORT.write_text(report.text(results, SPEED))
        return 0
    chosen = [
        entry
        for key, entry in ENTRIES.items()
        if key.startswith(tuple(options.only)) and not (options.resume and (results / f"{key}.json").exists())
    ]
    with ThreadPoolExecutor(options.jobs) as pool, tqdm(total=len(chosen), unit="model") as progress:

        def check(entry: Entry) -> None:
            failed = [f"{name}: {found}" for name, found in checked(entry, results, options.limit).failures().items()]
            progress.update()
            progress.write(f"{entry.key}: {', '.join(failed) or 'ok'}")

        list(pool.map(check, chosen))
    REPORT.write_text(report.text(results, SPEED))
    return 0


def checked(entry: Entry, results: Path, limit: float) -> Result:
    """Run the checks of an entry in a new process."""
    path, log = results / f"{entry.key}.json", results / f"{entry.key}.log"
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "scripts.zoo.checking", entry.key, str(path)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    ended = ""
    with log.open("w") as output:
        try:
            status = subprocess.run(command, cwd=ROOT, env=environment, stdout=output, stderr=output, timeout=limit)
            if status.returncode:
                ended = f"the process ended with status {status.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"not done after {limit:g} s"
    result = Result.read(path) or Result(entry.key, entry.package, entry.name)
    if ended:
        result.checks["process"] = ended
        result.write(path)
    return result


if __name__ == "__main__":
    sys.exit(main())
