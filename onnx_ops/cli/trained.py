"""The commands about what has been trained: `evaluate` and `export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from onnx_ops.cli.choices import EvaluationMode
from onnx_ops.cli.steps import FORMATS, BatchDimension, BatchSize, Cast, StepFile, described, training_refusals
from onnx_ops.cli.terminal import (
    AsJson,
    compiling_status,
    counted,
    fail,
    make_console,
    print_fields,
    print_json,
    print_wrapped,
)
from onnx_ops.core.step_format import INFERENCE
from onnx_ops.training.arrays import tensor_text


def evaluate(
    step: StepFile,
    data: Annotated[list[Path], typer.Argument(metavar="DATA", help=f"{FORMATS} Each is evaluated by itself.")],
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="CHECKPOINT", help="With the state; by default the step's start values.")
    ] = None,
    batch_size: BatchSize = None,
    batch_dimension: BatchDimension = None,
    cast: Cast = False,
    mode: Annotated[
        EvaluationMode, typer.Option(help="The loss in evaluation mode, or as the step computes it.")
    ] = EvaluationMode.EVAL,
    as_json: AsJson = False,
) -> None:
    """Compute the loss and the other metrics of data.

    Metrics are the single floating numbers that the step reports, as means over the samples, as `train` computes those
    of the validation data. DATA is as for `train`. If the step fixes the batch size, the remainder is left out.

    JSON: checkpoint, null if none; mode; results, a list of data, samples, batch_size, left_out and metrics, an object
    of numbers by name.
    """
    from onnx_ops.fitting.data import open_data
    from onnx_ops.fitting.evaluation import check_evaluation, metrics_of
    from onnx_ops.fitting.progress import progress_bar
    from onnx_ops.training.trainer import Trainer, step_of

    console, results = make_console(), []
    with training_refusals(as_json):
        with compiling_status():
            trainer = Trainer(step, batch_dimension=batch_dimension)
        only = step_of(trainer)
        check_evaluation(only, mode.value, "mode")
        if checkpoint is not None:
            trainer.load(checkpoint)
        sizes: dict[str, Any] = {"batch_size": batch_size, "batch_dimension": batch_dimension, "cast": cast}
        opened = [open_data(path, "the data", only, **sizes) for path in data]
        if checkpoint is None and not as_json:
            print_wrapped(console, f"Without --checkpoint the state is the start values of {step}.")
        for path, samples in zip(data, opened, strict=True):
            with progress_bar() as advance:
                metrics = metrics_of(only, samples, mode.value, advance=advance)
            used = (samples.count or 0) - samples.left_out
            rest = f" ({samples.left_out} left out, too few for a batch)" if samples.left_out else ""
            if not as_json:
                shown = ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())
                print_wrapped(console, f"{path}: {counted(used, 'sample')}{rest}: {shown}")
            results.append(
                {
                    "data": str(path),
                    "samples": used,
                    "batch_size": samples.batch_size,
                    "left_out": samples.left_out,
                    "metrics": metrics,
                }
            )
    if as_json:
        print_json(checkpoint=None if checkpoint is None else str(checkpoint), mode=mode.value, results=results)


def export(
    step: StepFile,
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A safetensors file that `train` wrote.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The .onnx file to write.")],
    averaged: Annotated[
        bool, typer.Option("--averaged", help="With the averages of weights that the step updates, in their place.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the trained model for inference, as any onnxruntime session can run it.

    An existing OUT is replaced. Above 2 GiB the parameters are external data, in a file with ".data" appended to the
    name of OUT.

    JSON: step, checkpoint, export; inputs and outputs, lists of name, dtype and shape.
    """
    from onnx_ops.training.inference import carried_types
    from onnx_ops.training.trainer import Trainer, step_of

    with training_refusals(as_json):
        if out.resolve() in (step.resolve(), checkpoint.resolve()):
            fail(f"{out} is to be written, but it is also read: name another file", as_json)
        with compiling_status():
            trainer = Trainer(step)
        inputs, outputs = carried_types(step_of(trainer).model, INFERENCE)
        trainer.load(checkpoint)
        trainer.export(out, averaged=averaged)
    if as_json:
        print_json(
            step=str(step),
            checkpoint=str(checkpoint),
            export=str(out),
            inputs=[described(name, tensor) for name, tensor in inputs.items()],
            outputs=[described(name, tensor) for name, tensor in outputs.items()],
        )
        return
    console = make_console()
    print_wrapped(console, f"Wrote {out}.")
    for title, tensors in (("inputs", inputs), ("outputs", outputs)):
        console.print(title, style="bold")
        print_fields(console, ((name, tensor_text(tensor)) for name, tensor in tensors.items()))
