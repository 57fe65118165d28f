"""The command line: what the ops are, whether they run here, models linked, checked and trained."""

from __future__ import annotations

import sys
from typing import Annotated

import onnxruntime as ort
import typer

from onnx_ops.cli import commands
from onnx_ops.cli.terminal import NAME, SILENT
from onnx_ops.cli.train import train
from onnx_ops.core.version import __version__

app = typer.Typer(
    name=NAME,
    help="""Gradient ops for ONNX graphs: what they are, whether they run here, models linked, checked and trained.

    Exit status: 0 all is well; 1 what was asked about is not (a file that cannot be read or written, a model that is
    refused, an op that is unknown or fails its self-test); 2 a command line that is not understood; 128 and the number
    of the signal for a training that a signal has interrupted.

    With --json a command that is understood writes one JSON object, and nothing else, to standard output: what its help
    says, or {"error": text} where there is no answer; numbers that JSON does not have are "NaN", "Infinity" and
    "-Infinity". Without, errors go to standard error.""",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line; ends the process."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a name in a model may have letters that the stream has not
    ort.set_default_logger_severity(SILENT)  # what it logs in colours, its exceptions say too
    app(prog_name=NAME)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(NAME, __version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, help="Print the version.")] = False,
) -> None:
    pass


app.command("list")(commands.list_ops)
app.command()(commands.show)
app.command()(commands.link)
app.command()(commands.check)
app.command()(commands.doctor)
app.command("compile")(commands.compile_kernels)
app.command()(train)
