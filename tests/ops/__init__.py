"""One record for each op, written from the definition alone: nothing here imports the package under test."""

from __future__ import annotations

import importlib
import pkgutil

from tests.ops._shared.record import Record


class _Records(dict[str, Record]):
    def __missing__(self, op: str) -> Record:
        raise KeyError(f"tests/ops has no record of {op}: CONTRIBUTING.md shows what it holds")


def _found() -> dict[str, Record]:
    modules = [m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")]
    records = [importlib.import_module(f"{__name__}.{name}").RECORD for name in modules]
    return _Records((record.op, record) for record in records)


RECORDS = _found()
"""All records by op_type: every module here whose name has no leading underscore defines one, RECORD."""
