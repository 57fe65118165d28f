"""The command line application."""

from __future__ import annotations

import sys
from typing import Annotated

import onnxruntime as ort
import typer

from onnx_ops.cli import arrays, ascend, commands, trained
from onnx_ops.cli.library import build_library
from onnx_ops.cli.migration import migrate
from onnx_ops.cli.preparation import prepare
from onnx_ops.cli.terminal import NAME
from onnx_ops.cli.train import train
from onnx_ops.core.version import __version__
from onnx_ops.integrations.severity import FATAL

app = typer.Typer(
    name=NAME,
    help="""Gradient ops for ONNX graphs: documentation, self-test, linking and checks of models, training.

    Exit status: 0 success; 1 failure (a file that cannot be read or written, a model that is refused, an op that is
    unknown or fails its self-test); 2 an invalid command line; 128 plus the number of the signal if a signal has
    interrupted a training.

    With --json a valid command writes one JSON object, and nothing else, to standard output: the one that its help
    describes, or {"error": text} if it fails; numbers that JSON does not have are "NaN", "Infinity" and "-Infinity".
    Without --json, errors go to standard error.""",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line; ends the process."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # names in a model may not be encodable in the stream
    ort.set_default_logger_severity(FATAL)
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
app.command()(build_library)
app.command()(train)
app.command()(trained.evaluate)
app.command()(trained.export)
app.command()(prepare)
app.command()(migrate)
app.command()(arrays.run)
app.command()(arrays.compare)
app.command()(ascend.plugin)
app.command()(ascend.golden)
app.command()(ascend.cases)
