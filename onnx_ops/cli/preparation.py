"""The command that prepares a step for trainers in other languages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_ops.cli.steps import StepFile, training_refusals
from onnx_ops.cli.terminal import AsJson, make_console, print_json, print_wrapped


def prepare(
    step: StepFile,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write; it may be STEP.")],
    external: Annotated[bool, typer.Option("--external", help="Write the state into a second file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a training step with further graphs, for the trainer in C and C++.

    With them it updates the state in place, if it has the kernels, and accumulates gradients. Other programs ignore
    them. OUT is written atomically; the state is in a second file also where both exceed 2 GiB.

    JSON: step, prepared (the file); graphs, the names of the graphs that were added.
    """
    from onnx_ops.training.step_files import prepare_step

    with training_refusals(as_json):
        graphs = prepare_step(step, out, external=external)
    if as_json:
        print_json(step=str(step), prepared=str(out), graphs=graphs)
        return
    print_wrapped(make_console(), f"Wrote {out}, with the graphs {', '.join(graphs)}.")
