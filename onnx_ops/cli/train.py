"""The command `train`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from onnx_ops.cli.inspection import REFUSALS
from onnx_ops.cli.terminal import (
    AsJson,
    compiling_status,
    counted,
    fail,
    make_console,
    print_json,
    print_wrapped,
    progress_bar,
)


def train(
    step: Annotated[Path, typer.Argument(metavar="STEP", help="An .onnx file of a training step.")],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="An .npz file, its arrays named as the step's inputs.")],
    out: Annotated[Path, typer.Option(metavar="CHECKPOINT", help="The safetensors file to write after each epoch.")],
    epochs: Annotated[int, typer.Option(min=1, help="Total number, including those before --resume.")] = 1,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples in a step; by default as fixed by the step, else 32.")
    ] = None,
    batch_dimension: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the batch dimension.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="By default that of the step or CHECKPOINT.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the order of the samples; by default 0.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume from CHECKPOINT if it exists.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="PNG", help="Plot the losses of the epochs.")] = None,
    export: Annotated[Path | None, typer.Option(metavar="MODEL", help="Write the trained model for inference.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train with a training step, without a training framework.

    The first axis of each array is the batch axis; samples are shuffled in each epoch. An array of exactly the shape of
    its input is passed whole to each step. If the first dimensions of the step's inputs have different names,
    --batch-dimension names the batch dimension; arrays of inputs without it are passed whole. If the step fixes the
    batch size, the remainder of each epoch is dropped.

    CHECKPOINT is written after each epoch, and after the current step when the training is interrupted (Ctrl-C,
    SIGTERM). A resumed training gives the same bits as an uninterrupted one. While a training runs, another one that
    would write the same CHECKPOINT is refused.

    JSON: checkpoint; samples; batch_size; left_out, samples dropped in each epoch; losses, a list with the mean loss
    of each epoch; interrupted; plot and export, the files written, null if none.
    """
    from onnx_ops.cli.training import Stopping, can_plot, no_folder, plot_losses, prepare
    from onnx_ops.graph.staging import reserved
    from onnx_ops.training.run import Checkpoint

    if (folder := no_folder((out, plot, export))) is not None:
        fail(f"there is no folder {folder}", as_json)
    if plot is not None and not can_plot():
        fail("--plot needs matplotlib, which is not installed: pip install 'onnx-ops[plot]'", as_json)
    console = make_console()

    def say(text: str) -> None:
        if not as_json:
            print_wrapped(console, text)

    with _training_refusals(as_json), reserved(out):
        if out.exists() and not resume:
            fail(f"{out} exists already: use --resume to continue, or another file to start a new training", as_json)
        checkpoint = Checkpoint.read(out) if out.exists() else None
        if resume and checkpoint is None:
            say(f"There is no {out} to resume from; a new training starts.")
        with compiling_status():
            run = prepare(
                step,
                data,
                checkpoint,
                batch_size=batch_size,
                batch_dimension=batch_dimension,
                learning_rate=learning_rate,
                seed=seed,
            )
        if export is not None and not run.trainer.has_inference_graph:
            fail(f"--export needs an inference graph, and there is none in {step}", as_json)
        samples = run.samples
        rest = f"; {samples.left_out} of each epoch are dropped, too few for a step" if samples.left_out else ""
        before = f"; {counted(run.epoch, 'epoch')} and {counted(run.step, 'step')} are done" if checkpoint else ""
        del checkpoint  # closes the file, which some systems replace only then
        say(f"{counted(samples.count, 'sample')}, {samples.batch_size} in a step{rest}{before}")
        with progress_bar("training") as advance, Stopping() as stopping:
            while run.epoch < epochs and stopping.signal is None:
                loss = run.advance()
                done = run.epoch * samples.steps + run.step
                advance(done, epochs * samples.steps, f"loss {loss:.4g}")
                if run.step == 0:
                    run.save(out)
                    say(f"epoch {run.epoch} of {epochs}: loss {run.losses[-1]:.6g}")
            if run.step or not out.exists():
                run.save(out)
        interrupted = run.epoch < epochs
        if not interrupted and plot is not None:
            plot_losses(plot, run.losses)
        if not interrupted and export is not None:
            run.trainer.export(export)
    if as_json:
        print_json(
            checkpoint=str(out),
            samples=samples.count,
            batch_size=samples.batch_size,
            left_out=samples.left_out,
            losses=run.losses,
            interrupted=interrupted,
            plot=None if plot is None or interrupted else str(plot),
            export=None if export is None or interrupted else str(export),
        )
    elif interrupted:
        say(f"Interrupted; wrote {out}, from which --resume continues.")
    else:
        say(f"Wrote {', '.join(str(path) for path in (out, plot, export) if path is not None)}.")
    if stopping.signal is not None and interrupted:
        raise typer.Exit(128 + stopping.signal)


@contextlib.contextmanager
def _training_refusals(as_json: bool) -> Iterator[None]:
    """As `refusals`, also for errors of files and of steps."""
    try:
        yield
    except REFUSALS as refusal:
        fail(str(refusal), as_json)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), as_json)
    except Exception as error:  # onnxruntime's exceptions have no common base class
        if type(error) is not RuntimeError and type(error).__module__.split(".")[0] != "onnxruntime":
            raise
        fail(str(error), as_json)
