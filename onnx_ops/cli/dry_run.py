"""`train --dry-run`: what a step expects, what data have, and what the training needs."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_ops.cli.steps import described
from onnx_ops.cli.terminal import make_console, print_fields, print_json
from onnx_ops.core.types import shape_text
from onnx_ops.fitting.memory import peak_memory
from onnx_ops.fitting.samples import Samples
from onnx_ops.training.arrays import tensor_text
from onnx_ops.training.step import bytes_text, parameter_count, state_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from onnx_ops.fitting.data import Data
    from onnx_ops.fitting.run import Run
    from onnx_ops.training.trainer_step import TrainerStep


def show(path: Path, step: TrainerStep, prepare: Callable[[], Run[Data]] | None, plots: bool, as_json: bool) -> None:
    """Print a step, then data and needs of a training.

    Args:
        path: of the step.
        step: the step.
        prepare: returns the training; None to print the step alone.
        plots: whether the training plots its losses.
        as_json: whether to print one JSON object.

    Raises:
        OSError, StepError: as `prepare`, and as a step.
    """
    answer, console = _step_entry(path, step), make_console()
    if not as_json:
        _print_step(console, path, step)
    needs: dict[str, object] = {"data": None, "validation": None, "steps": None, "memory_bytes": None}
    if prepare is not None:
        run = prepare()
        both = {"data": run.samples, "validation": run.validation}
        data = {name: given for name, given in both.items() if isinstance(given, Samples)}
        needs |= {name: _data_entry(given) for name, given in data.items()} | {"steps": run.steps}
        if not as_json:
            for name, given in data.items():
                _print_data(console, name, given)
        run.rehearse()
        if plots:
            from onnx_ops.cli.training import plot_curves

            plot_curves(io.BytesIO(), "", "loss", {"training": [0.0], "validation": [0.0]})
        needs["memory_bytes"] = memory = peak_memory()
        if not as_json:
            _print_needs(console, run, memory)
    if as_json:
        print_json(**answer, **needs)


def _step_entry(path: Path, step: TrainerStep) -> dict[str, object]:
    return {
        "step": str(path),
        "parameters": parameter_count(step.model),
        "trained_parameters": parameter_count(step.model, frozen=False),
        "state_bytes": state_bytes(step.model),
        "inputs": [described(name, tensor) for name, tensor in step.batch_inputs.items()],
    }


def _print_step(console: Console, path: Path, step: TrainerStep) -> None:
    parameters, trained = parameter_count(step.model), parameter_count(step.model, frozen=False)
    part = f", of which {trained:,} are trained" if trained < parameters else ""
    state = bytes_text(state_bytes(step.model))
    console.print(f"{path} has", style="bold")
    print_fields(console, [("parameters", f"{parameters:,}{part}"), ("state", f"{state}, with that of the optimizer")])
    console.print("It expects of the data", style="bold")
    print_fields(console, ((name, tensor_text(tensor)) for name, tensor in step.batch_inputs.items()))


def _data_entry(data: Samples) -> dict[str, object]:
    arrays = [
        {"name": name, "dtype": str(column.dtype), "shape": list(column.shape), "batch_axis": data.axes.get(name)}
        for name, column in data.arrays.items()
    ]
    return {"samples": data.count, "batch_size": data.batch_size, "left_out": data.left_out, "arrays": arrays}


def _print_data(console: Console, title: str, data: Samples) -> None:
    uses = {name: f", samples along axis {axis}" if axis else "" for name, axis in data.axes.items()}
    rest = f", of which {data.left_out} are dropped, too few for a batch" if data.left_out else ""
    console.print(f"The {'validation data have' if title == 'validation' else 'data have'}", style="bold")
    print_fields(
        console,
        [
            *(
                (name, f"{column.dtype} {shape_text(column.shape)}{uses.get(name, ', passed whole to each step')}")
                for name, column in data.arrays.items()
            ),
            ("samples", f"{data.count}{rest}"),
        ],
    )


def _print_needs(console: Console, run: Run[Data], memory: int | None) -> None:
    made = "two steps" if run.validation is None else "two steps, and evaluations of a batch"
    measured = "not known on this platform"
    if memory is not None:
        measured = f"{bytes_text(memory)}, measured: the most that this process has needed for {made}"
    size, steps = run.samples.batch_size, run.steps or 0
    console.print("The training needs", style="bold")
    print_fields(
        console,
        [
            ("steps", f"{steps} in an epoch, with batches of {size}; {run.ending.epochs * steps} in all"),
            ("memory", measured),
        ],
    )
    console.print("It was a dry run: nothing is kept of it.")
