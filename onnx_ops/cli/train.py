"""The command `train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_ops.cli.choices import Better, EvaluationMode, ScheduleName
from onnx_ops.cli.steps import FORMATS, BatchDimension, BatchSize, Cast, StepFile, training_refusals
from onnx_ops.cli.terminal import AsJson, compiling_status, counted, fail, make_console, print_json, print_wrapped

ValidationMode = Annotated[
    EvaluationMode, typer.Option(help="The loss in evaluation mode, or as the step computes it.")
]


def train(
    context: typer.Context,
    step: StepFile,
    data: Annotated[Path | None, typer.Argument(metavar="DATA", help=FORMATS, show_default=False)] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="CHECKPOINT", help="The file to write after each epoch.  [required]")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Total number, including those before --resume; by default 1.")
    ] = None,
    validation: Annotated[Path | None, typer.Option(metavar="DATA", help="Data to evaluate after each epoch.")] = None,
    batch_size: BatchSize = None,
    batch_dimension: BatchDimension = None,
    accumulate: Annotated[int | None, typer.Option(min=1, help="Batches in a step; by default 1.")] = None,
    cast: Cast = False,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", "--lr", help="By default that of the step or CHECKPOINT.")
    ] = None,
    schedule: Annotated[ScheduleName | None, typer.Option(help="Of the learning rate, over all epochs.")] = None,
    warm_up: Annotated[int, typer.Option(min=0, help="Steps in which the learning rate rises linearly.")] = 0,
    factor: Annotated[
        float | None, typer.Option(help="Of the schedules linear (at its end, default 0) and plateau (default 0.1).")
    ] = None,
    schedule_patience: Annotated[int | None, typer.Option(min=0, help="Of the schedule plateau; default 10.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the order of the samples; by default 0.")] = None,
    shuffle: Annotated[bool | None, typer.Option("--shuffle/--no-shuffle", help="By default --shuffle.")] = None,
    validation_mode: ValidationMode = EvaluationMode.EVAL,
    monitor: Annotated[
        str | None, typer.Option(metavar="METRIC", help="Decides on the best epoch; by default the (validation) loss.")
    ] = None,
    mode: Annotated[Better | None, typer.Option(help="Which METRIC is best; by default min.")] = None,
    patience: Annotated[
        int | None, typer.Option(min=1, help="Stop after that many epochs without a better one.")
    ] = None,
    min_delta: Annotated[
        float | None, typer.Option(min=0, help="How much better an epoch must be for --patience; by default 0.")
    ] = None,
    best: Annotated[Path | None, typer.Option(metavar="CHECKPOINT", help="Written after each best epoch.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the CHECKPOINT of --out if it exists.")] = False,
    log: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Write metrics to a file .csv or .jsonl; repeatable.")
    ] = None,
    tensorboard: Annotated[Path | None, typer.Option(metavar="FOLDER", help="The same for TensorBoard.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="PNG", help="Plot the losses of the epochs.")] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="Write the trained model for inference, with --best its best.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what STEP expects and the training needs; train nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train with a training step, without a training framework.

    DATA has an array for each input of the step. The first axis of each array is the batch axis;
    samples are shuffled in each epoch. An array of exactly the shape of its input is passed whole to each step. If the
    first dimensions of the step's inputs have different names, --batch-dimension names the batch dimension; arrays of
    inputs without it are passed whole. If the step fixes the batch size, the remainder of each epoch is dropped. All
    but .npz files may be larger than memory.

    Metrics are the single floating numbers that the step reports, as means over the samples; those of the validation
    data are named "validation.<name>". The schedules are those of torch.optim.lr_scheduler: linear LinearLR, cosine
    CosineAnnealingLR, one-cycle OneCycleLR, plateau ReduceLROnPlateau.

    CHECKPOINT is a safetensors file, which is written after each epoch, and after the current step when the training is
    interrupted (Ctrl-C, SIGTERM). A resumed training gives the same bits as an uninterrupted one; options that are left
    out are those of CHECKPOINT. While a training runs, another one that would write the same CHECKPOINT is refused.

    --dry-run compares DATA with what STEP expects, with the errors of the training, and measures the memory that it
    needs: it makes two steps, evaluates a batch, and writes nothing. Pages of memory-mapped data are counted as far as
    they have been read; the system drops them where memory is short. Without DATA it shows what STEP expects.

    JSON: checkpoint; samples; batch_size; left_out, samples dropped in each epoch; losses, a list with the mean loss
    of each epoch; history, a list with the metrics of each epoch; best_epoch, counted from 1; interrupted; stopped,
    whether --patience has ended the training; best, plot and export, the files written, null if none.

    JSON with --dry-run: step; parameters; trained_parameters; state_bytes; inputs, a list of name, dtype, shape; data
    and validation, null or objects of samples, batch_size, left_out, and arrays, a list of name, dtype, shape and
    batch_axis (null if the array is passed whole); steps, of an epoch; memory_bytes, null where unknown.
    """
    from onnx_ops.cli import dry_run as dry
    from onnx_ops.cli.training import Stopping, can_plot, plot_losses, schedule_named
    from onnx_ops.fitting import fit
    from onnx_ops.fitting.data import Data
    from onnx_ops.fitting.logs import row_of
    from onnx_ops.fitting.progress import progress_bar
    from onnx_ops.fitting.run import Run
    from onnx_ops.training.trainer import Trainer, step_of

    if not dry_run and (data is None or out is None):
        context.fail("Missing argument 'DATA'." if data is None else "Missing option '--out'.")
    if plot is not None and not can_plot():
        fail("--plot needs matplotlib, which is not installed: pip install 'onnx-ops[plot]'", as_json)
    console = make_console()

    def say(text: str) -> None:
        if not as_json:
            print_wrapped(console, text)

    with training_refusals(as_json):
        files = fit.Files.of(out, best, log or (), tensorboard, others=(plot, export), read=(step, data, validation))
        options = fit.Options(
            epochs=epochs,
            batch_size=batch_size,
            accumulate=accumulate,
            seed=seed,
            shuffle=shuffle,
            cast=cast,
            learning_rate=learning_rate,
            schedule=schedule_named(schedule, warm_up, factor, schedule_patience, learning_rate, mode or Better.MIN),
            validation_mode=validation_mode.value,
            monitor=monitor,
            mode=None if mode is None else mode.value,
            patience=patience,
            min_delta=min_delta,
        )
        with files.reserved():
            checkpoint = files.resumed(resume)
            if resume and checkpoint is None:
                say(f"There is no {out} to resume from; a new training starts.")
            with compiling_status():
                trainer = Trainer(step, batch_dimension=batch_dimension)

            def prepare() -> Run[Data]:
                if export is not None and not trainer.has_inference_graph:
                    fail(f"--export needs an inference graph, and there is none in {step}", as_json)
                return fit.prepared(trainer, data, validation, options, checkpoint)

            if dry_run:
                plots = plot is not None
                dry.show(step, step_of(trainer), None if data is None else prepare, plots, as_json)
                return
            run = prepare()
            samples = run.samples
            rest = f"; {samples.left_out} of each epoch are dropped, too few for a step" if samples.left_out else ""
            if run.validation is not None and run.validation.left_out:
                rest += f"; {run.validation.left_out} of the validation data are left out"
            before = f"; {counted(run.epoch, 'epoch')} and {counted(run.step, 'step')} are done" if checkpoint else ""
            checkpoint = None  # closes the file, which some systems replace only then
            size = "all" if (samples.batch_size or 0) > (samples.count or 0) else samples.batch_size
            say(f"{counted(samples.count or 0, 'sample')}, {size} in a batch{rest}{before}")
            with progress_bar() as advance, Stopping() as stopping:
                fit.complete(
                    run,
                    files,
                    interrupted=lambda: stopping.signal is not None,
                    advance=advance,
                    after=lambda run: say(fit.epoch_text(run)),
                )
            interrupted = not run.ended
            if not interrupted and plot is not None:
                plot_losses(plot, run, step.name)
            if not interrupted and export is not None:
                if best is not None and best.exists():
                    trainer.load(best)
                trainer.export(export)
    written = [path for path in (out, best, *files.logs, tensorboard) if path is not None and path.exists()]
    if as_json:
        print_json(
            checkpoint=str(out),
            samples=samples.count,
            batch_size=samples.batch_size,
            left_out=samples.left_out,
            losses=run.losses,
            history=[row_of(number, epoch) for number, epoch in enumerate(run.history, 1)],
            best_epoch=None if run.best is None else run.best + 1,
            interrupted=interrupted,
            stopped=run.stopped,
            best=None if best is None or not best.exists() else str(best),
            plot=None if plot is None or interrupted else str(plot),
            export=None if export is None or interrupted else str(export),
        )
    elif interrupted:
        say(f"Interrupted; wrote {out}, from which --resume continues.")
    else:
        if run.stopped:
            say(f"Stopped after {counted(run.ending.patience or 0, 'epoch')} without a better {run.monitor.metric}.")
        if best is not None and run.best is not None:
            order = "lowest" if run.monitor.mode == "min" else "highest"
            say(f"Epoch {run.best + 1} has the {order} {run.monitor.metric}, {run.monitored[run.best]:.6g}.")
        say(f"Wrote {', '.join(str(path) for path in (*written, plot, export) if path is not None)}.")
    if stopping.signal is not None and interrupted:
        raise typer.Exit(128 + stopping.signal)
