"""The command `migrate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

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
    reason,
)


def migrate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An .onnx file of a forward graph.")],
    loss: Annotated[
        Literal["cross_entropy", "mse", "bce_with_logits", "l1"],
        typer.Option(help="Mean over the batch, as in PyTorch."),
    ],
    out: Annotated[Path, typer.Option(metavar="STEP", help="The .onnx file of the training step to write.")],
    output: Annotated[
        str | None, typer.Option(metavar="NAME", help="Output that the loss takes; by default the first.")
    ] = None,
    optimizer: Annotated[str, typer.Option(metavar="CLASS", help="Of torch.optim.")] = "AdamW",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="An argument of CLASS: lr=0.001, betas=0.9,0.95."),
    ] = None,
    trainable: Annotated[
        list[str] | None,
        typer.Option("--train", metavar="PATTERN", help="Train the initializers of these names only; repeatable."),
    ] = None,
    clip_grad_norm: Annotated[float | None, typer.Option(min=0, help="Maximal total norm of the gradients.")] = None,
    external: Annotated[bool, typer.Option("--external", help="Write the weights into a second file.")] = False,
    check: Annotated[bool, typer.Option(help="Compare two steps with PyTorch.")] = True,
    as_json: AsJson = False,
) -> None:
    """Make a training step of a forward ONNX model and a loss, for `onnx-ops train` and onnx_ops.Trainer.

    Needs PyTorch, the extra onnx-ops[torch]. The floating initializers are the parameters, under their names; the step
    has the inputs of the model and `labels`. Named dimensions stay dynamic. BatchNormalization normalizes by the batch
    while training, so export the model before its weights are folded: torch.onnx.export(..., dynamo=True,
    optimize=False). Operators that are not supported are listed.

    JSON: step (the file); parameters and state, lists of names; inputs, of name, dtype and shape.
    """
    try:
        from onnx_ops.torch.migration import migrate as migrated
        from onnx_ops.torch.migration import optimizer_named
    except ImportError as problem:
        fail(str(problem), as_json)
    from onnx_ops.core.types import dtype_name, shape_text
    from onnx_ops.training.trainer import Trainer

    try:
        make = optimizer_named(optimizer, dict(map(_setting, settings or [])))
        with compiling_status():
            capture = migrated(
                model,
                loss,
                make,
                output=output,
                trainable=trainable,
                clip_grad_norm=clip_grad_norm,
                check=check,
            )
        capture.save(out, external=external)
        trainer = Trainer(out)
    except OSError as error:
        fail(reason(error), as_json)
    except (*REFUSALS, TypeError) as refusal:
        fail(str(refusal), as_json)
    parameters, names = list(trainer.weights()), list(trainer.state_dict())
    inputs = [(name, dtype_name(kind.dtype or 0), kind.shape or ()) for name, kind in trainer.batch_inputs.items()]
    if as_json:
        listed = [{"name": name, "dtype": dtype, "shape": shape} for name, dtype, shape in inputs]
        print_json(step=str(out), parameters=parameters, state=names, inputs=listed)
        return
    console = make_console()
    print_wrapped(console, f"Wrote {out}: {counted(len(parameters), 'tensor')} of weights: {', '.join(parameters)}.")
    for name, dtype, shape in inputs:
        print_wrapped(console, f"{name}: {dtype} {shape_text(shape)}")


def _setting(text: str) -> tuple[str, Any]:
    """An argument and its value, of a text such as "lr=0.001", "nesterov=true" or "betas=0.9,0.95"."""
    name, equals, value = text.partition("=")
    try:
        values = json.loads(f"[{value}]")
    except ValueError as problem:
        raise ValueError(f"--set {text}, expected NAME=VALUE with numbers, true or false") from problem
    if not equals or not values:
        raise ValueError(f"--set {text} has no value, expected NAME=VALUE")
    return name, values[0] if len(values) == 1 else tuple(values)
