"""The commands about porting from Ascend."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_ops.cli.arrays import refusals
from onnx_ops.cli.commands import completed_op, op_named
from onnx_ops.cli.terminal import AsJson, make_console, print_json, print_wrapped
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
