"""The commands about porting from Ascend."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from onnx_ops.cli.arrays import refusals
from onnx_ops.cli.commands import completed_op, op_named
from onnx_ops.cli.terminal import (
    FAILED,
    INDENT,
    AsJson,
    compiling_status,
    counted,
    make_console,
    print_json,
    print_wrapped,
)
from onnx_ops.ops import OPS


def plugin(
    ops: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OP]...", help="Names of ops; by default all.", autocompletion=completed_op),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the C++ source of parser plugins, by which ATC converts nodes of this domain.

    Each op becomes the operator of CANN that corresponds to it. The source has been compiled against stub headers, and
    has not been run on an NPU.

    JSON: ops, a list of their names; source (null with --out); file (null without it).
    """
    from onnx_ops.ascend.plugins import has_plugin, plugin_source

    records = [op_named(op, as_json) for op in ops or []] or [op for op in OPS.values() if has_plugin(op)]
    with refusals(as_json):
        source = plugin_source(records)
        if out is not None:
            out.write_text(source, encoding="utf-8")
    if as_json:
        file = None if out is None else str(out)
        print_json(ops=[op.name for op in records], source=source if out is None else None, file=file)
    elif out is None:
        print(source, end="")
    else:
        print_wrapped(make_console(), f"Wrote {out}: {', '.join(op.name for op in records)}.")


def golden(
    op: Annotated[
        str,
        typer.Argument(
            metavar="OP",
            help="Name of the op, or of an operator of CANN: KlDivBackward, KlDivLossGrad, kl_div_loss_grad.",
            autocompletion=completed_op,
        ),
    ],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a golden function in NumPy, in the format of CANN's repositories of operators (tests/assets/golden.py).

    It takes the inputs of CANN's operator in order, and its attributes by keyword. The file needs NumPy and ml_dtypes
    alone.

    JSON: op; kernels, a list of names; source (null with --out); file (null without it).
    """
    from onnx_ops.ascend.golden import golden_source, kernel_name, kernels, operators

    record = kernels().get(kernel_name(op)) or op_named(op, as_json)
    with refusals(as_json):
        source = golden_source(record)
        if out is not None:
            out.write_text(source, encoding="utf-8")
    if as_json:
        file = None if out is None else str(out)
        names = list(operators(record))
        print_json(op=record.name, kernels=names, source=source if out is None else None, file=file)
    elif out is None:
        print(source, end="")
    else:
        print_wrapped(make_console(), f"Wrote {out}: {', '.join(operators(record))}.")


def cases(
    tables: Annotated[list[Path], typer.Argument(metavar="TABLE.csv...", help="Tables of cases of CANN's operators.")],
    golden_file: Annotated[
        Path | None,
        typer.Option("--golden", metavar="FILE", help="A golden.py of the operator; by default that of this package."),
    ] = None,
    max_elements: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Skip rows with more elements in their inputs and outputs.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the rows of CANN's tables of cases (ttk_kernel_*.csv) with the kernels of this package.

    Inputs are random numbers in the ranges of a row, the same each time. The results are compared with those of golden
    functions by the tolerances of the row: a number of elements may differ by more. Rows that are not run are listed,
    with the reason, and so are columns and attributes that are not known. Exit status 1 for rows beyond the tolerances,
    of another shape or dtype than in the table, or which the op refuses.

    JSON: ok; tables, a list of table, unknown_columns and rows: a list of name, kernel, status (pass, fail, refused,
    skipped), reason, unknown (attributes), outputs (as of `onnx-ops compare`).
    """
    from onnx_ops.ascend.cases import run_cases, unknown_columns

    console = make_console()
    reports = []
    bad = 0
    for table in tables:
        with refusals(as_json):
            columns = unknown_columns(table)
            with compiling_status():
                rows = list(run_cases(table, golden=golden_file, most_elements=max_elements))
        counts = Counter(row.status for row in rows)
        bad += counts["fail"] + counts["refused"]
        own = [dataclasses.asdict(row) for row in rows]
        reports.append({"table": str(table), "unknown_columns": columns, "rows": own})
        if as_json:
            continue
        for row in rows:
            if row.status in ("fail", "refused"):
                print_wrapped(console, f"{row.name}: {row.status}: {row.reason}", INDENT, style="red")
        for reason, count in Counter(row.reason for row in rows if row.status == "skipped").items():
            print_wrapped(console, f"{counted(count, 'row')} skipped: {reason}", INDENT)
        for what, names in (
            ("columns", columns),
            ("attributes", sorted({name for row in rows for name in row.unknown})),
        ):
            if names:
                print_wrapped(console, f"{what} without effect: {', '.join(names)}", INDENT)
        summary = ", ".join(f"{count} {STATUSES[status]}" for status, count in counts.items())
        print_wrapped(console, f"{table}: {counted(len(rows), 'row')}{f', {summary}' if summary else ''}.")
    if as_json:
        print_json(ok=not bad, tables=reports)
    if bad:
        raise typer.Exit(FAILED)


STATUSES = {"pass": "passed", "fail": "failed", "refused": "refused", "skipped": "skipped"}
