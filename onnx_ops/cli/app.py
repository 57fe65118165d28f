"""The command line: what the ops are, whether they run here, models linked, checked and trained."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import itertools
import json
import math
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

import onnx_ops
from onnx_ops.cli.inspection import (
    REFUSALS,
    Attribute,
    Inspection,
    Linked,
    Node,
    OpDescription,
    Parameter,
    Tensor,
    describe,
    inspect,
)
from onnx_ops.core.domain import DOMAIN, OPSET_VERSION, kernel_name
from onnx_ops.core.op import Op
from onnx_ops.core.types import shape_text
from onnx_ops.core.version import __version__
from onnx_ops.linking.attached import restore
from onnx_ops.linking.sites import opset_of, sites

if TYPE_CHECKING:
    from rich.console import Console

    from onnx_ops.cli.diagnosis import Diagnosis

NAME = "onnx-ops"
FAILED = 1
UNWRAPPED = 1_000_000
"""The width of what is no terminal: lines there are for programs, which look for them whole."""

app = typer.Typer(
    name=NAME,
    help="""Gradient ops for ONNX graphs: what they are, whether they run here, models linked, checked and trained.

    Exit status: 0 all is well; 1 what was asked about is not (a file that cannot be read or written, a model that is
    refused, an op that is unknown or fails its self-test); 2 a command line that is not understood; 128 and the number
    of the signal for a training that a signal has interrupted.

    With --json a command that is understood writes one JSON object, and nothing else, to standard output: what its help
    says, or {"error": text} where there is no answer; numbers that JSON does not have are "NaN", "Infinity" and
    "-Infinity". Without, errors go to standard error.""",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON.")]
ModelPath = Annotated[Path, typer.Argument(metavar="MODEL", help="An .onnx file, or another format that onnx loads.")]


def main() -> None:
    """Run the command line; ends the process."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a name in a model may have letters that the stream has not
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


# --- commands --------------------------------------------------------------------------------------------------------


@app.command("list")
def list_ops(as_json: AsJson = False) -> None:
    """The ops with inputs ([optional]), attributes and dtypes.

    JSON: domain, version, and ops, a list of objects with name; minimum_opset, of the portable body; inputs and
    outputs, lists of name, optional, dtypes, description; attributes, a list of name, type, default, description.
    """
    descriptions = [describe(op) for op in onnx_ops.OPS.values()]
    if as_json:
        _print_json(domain=DOMAIN, version=OPSET_VERSION, ops=[dataclasses.asdict(d) for d in descriptions])
        return
    console = _console()
    for number, description in enumerate(descriptions):
        if number:
            console.print()
        _print_op(console, description)


@app.command()
def show(
    op: Annotated[str, typer.Argument(metavar="OP", help="Name of the op; upper and lower case are the same.")],
    body: Annotated[bool, typer.Option("--body", help="The portable body too, as the example gets it.")] = False,
    as_json: AsJson = False,
) -> None:
    """The documentation of an op, with an example worked out.

    JSON: the object that `list` gives for the op, and doc; example, an object of inputs, attributes and output; with
    --body also body, in ONNX's text syntax.
    """
    from onnx.printer import to_text

    from onnx_ops.integrations.examples import example_body

    record = _op_named(op, as_json)
    if as_json:
        text = {"body": to_text(example_body(record))} if body else {}
        example = dataclasses.asdict(record.example)
        _print_json(**dataclasses.asdict(describe(record)), doc=_doc(record), example=example, **text)
        return
    console = _console()
    _print_documentation(console, record)
    if body:
        console.print(f"\nPortable body of the example, opset {record.body_opset}\n", style="bold")
        console.print(textwrap.indent(to_text(example_body(record)).strip(), INDENT), soft_wrap=True)


@app.command()
def link(
    source: Annotated[Path, typer.Argument(metavar="IN", help="The model to link.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write; IN may be replaced.")],
    inline: Annotated[bool, typer.Option("--inline", help="Standard operators alone, no functions.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a copy of a model that any onnxruntime session can run.

    OUT appears as a whole or not at all. External data stays external; if OUT is in another folder than IN, the files
    are copied there, and nothing is written over files with other contents.

    JSON: input, output, inlined; nodes, an object with the number of nodes by op; opset, that the model imports;
    minimum_opset, the oldest that would do (null if there are no nodes); copied, a list of the files copied.
    """
    from onnx_ops.graph.files import read_model, write_model

    with _refusals(as_json):
        model = read_model(source)
        result = onnx_ops.inline(model) if inline else onnx_ops.link(model)
        copied = write_model(result, target, source)
    restore(model)
    found = Counter(site.node.op_type for site in sites(model))
    counts = {name: found[name] for name in onnx_ops.OPS if name in found}
    minimum = max((onnx_ops.OPS[name].body_opset for name in counts), default=None)
    opset = opset_of(model)
    if as_json:
        _print_json(
            input=str(source),
            output=str(target),
            inlined=inline,
            nodes=counts,
            opset=opset,
            minimum_opset=minimum,
            copied=copied,
        )
        return
    console = _console()
    done = "Inlined" if inline else "Linked"
    if counts:
        ops = ", ".join(f"{name} ({count})" for name, count in counts.items())
        _print_wrapped(
            console, f"{done} {_number(sum(counts.values()), 'node')} of {_number(len(counts), 'op')}: {ops}."
        )
        _print_wrapped(console, f"Wrote {target}: opset {opset}, {minimum} or newer would do.")
    else:
        _print_wrapped(console, f"Wrote {target}; there was nothing to link, for no node is of domain {DOMAIN}.")
    if copied:
        _print_wrapped(console, f"Copied external data: {', '.join(copied)}.")


@app.command()
def check(
    model: ModelPath,
    linked: Annotated[bool, typer.Option("--linked", help="Require that this version has linked the model.")] = False,
    as_json: AsJson = False,
) -> None:
    """What the nodes of a model run on here, and every problem.

    Problems are those for which `link` refuses the model, and external data that is not there.

    JSON: model; ok; opset, that it imports; minimum_opset, the oldest that would do (null if there are no nodes);
    linked: "current", "stale" (something else is attached than this version attaches), "broken" (nodes of kernels stand
    in it without their functions, so that no session without the kernels can load it), "absent" or "unneeded";
    linked_by, the version of onnx_ops that has linked it, null if the model does not tell;
    kernels, an object of registered and reason; problems, a list of texts, those of single nodes not among them; nodes,
    a list of op, name, outputs, place, bare_kernel (the name of a kernel that stands in the op's place without its
    function, else null), problems, runs_on ("kernel", "portable body" or null for a refused one) and
    uses, one for each time that the node is run: inputs (by name, null if left out), attributes, and output, tensors
    being objects of dtype and shape, null where they are not known.
    """
    from onnx_ops.cli.diagnosis import kernels
    from onnx_ops.graph.files import ModelFileError, external_files, read_model

    with _refusals(as_json):
        proto = read_model(model)
    inspection = inspect(proto)
    problems = [*inspection.problems]
    try:
        external_files(proto, model)
    except ModelFileError as error:
        problems.append(str(error))
    if linked and inspection.linked in (Linked.STALE, Linked.BROKEN, Linked.ABSENT):
        problems.append(f"{model} is not linked by this version")
    inspection = dataclasses.replace(inspection, problems=tuple(problems))
    with _compiling():
        here = kernels()
    if as_json:
        answer = dataclasses.asdict(inspection)
        for node in answer["nodes"]:
            node["runs_on"] = None if node["problems"] else "kernel" if here.registered else "portable body"
        _print_json(model=str(model), ok=inspection.ok, kernels=dataclasses.asdict(here), **answer)
    else:
        _print_inspection(_console(), model, inspection, here.reason)
    if not inspection.ok:
        raise typer.Exit(FAILED)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Whether the ops run on this machine, and on what.

    Where the kernels cannot be registered they run on the portable bodies; that is no failure. A package in a version
    that is not supported is one, whatever the self-test says.

    JSON: ok; platform; versions, by package, null if not installed; unsupported, a list of package, version and
    supported (such as ">=1.23"); kernels, an object of registered and reason; cache, an object of path and writable;
    outcomes, a list of op, way ("kernel", "portable body", "inlined"), status ("passed", "failed", "unavailable") and
    detail.
    """
    from onnx_ops.cli.diagnosis import diagnose

    with _compiling():
        diagnosis = diagnose()
    if as_json:
        _print_json(ok=diagnosis.ok, **dataclasses.asdict(diagnosis))
    else:
        _print_diagnosis(_console(), diagnosis)
    if not diagnosis.ok:
        raise typer.Exit(FAILED)


@app.command("compile")
def compile_kernels(as_json: AsJson = False) -> None:
    """Compile all kernels now, so that no session has to later.

    The code goes to the directory that `doctor` names; the variable ONNX_OPS_CACHE_DIR names another. It serves the
    same versions of the packages on the same kind of processor, also where the directory can only be read: in the image
    of a container, say.

    JSON: cache, the directory; files, the number of files in it.
    """
    from onnx_ops.integrations.precompile import cache_to_fill, precompile

    try:
        folder = cache_to_fill()
        with _progress("compiling") as advance:
            for done, total, op in precompile():
                advance(done, total, op)
    except (OSError, onnx_ops.KernelsUnavailable) as error:
        _fail(f"kernels cannot be compiled: {error}", as_json)
    files = sum(path.is_file() for path in folder.iterdir())
    if as_json:
        _print_json(cache=str(folder), files=files)
    else:
        _print_wrapped(_console(), f"All kernels are compiled; {folder} holds {_number(files, 'file')}.")


@app.command()
def train(
    step: Annotated[Path, typer.Argument(metavar="STEP", help="An .onnx file of a training step.")],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="An .npz file, its arrays named as the step's inputs.")],
    out: Annotated[Path, typer.Option(metavar="CHECKPOINT", help="The safetensors file to write after each epoch.")],
    epochs: Annotated[int, typer.Option(min=1, help="In all, with those done before.")] = 1,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples in a step; if not given, as many as the step says, else 32.")
    ] = None,
    batch_dimension: Annotated[
        str | None, typer.Option(metavar="NAME", help="The dimension along which the samples lie.")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="If not given, as the step or CHECKPOINT says.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the order of the samples; if not given, 0.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from CHECKPOINT, if it is there.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="PNG", help="Draw the losses of the epochs.")] = None,
    export: Annotated[Path | None, typer.Option(metavar="MODEL", help="Write the trained model for inference.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train with a training step, without a training framework.

    Samples lie along the first axis of each array, in a new order in each epoch. An array of exactly the shape that the
    step wants is given whole to each step. Where the first dimensions of the step's inputs have different names,
    --batch-dimension says which one is the batch; inputs without it are given whole. If the step takes a fixed number
    of samples, the rest of each epoch is left out.

    CHECKPOINT is written after each epoch, and after the present step when the training is interrupted (Ctrl-C,
    SIGTERM). A training that is gone on with by --resume gives the same bits as one that was not interrupted.

    JSON: checkpoint; samples; batch_size; left_out, samples left out of each epoch; losses, a list with the mean loss
    of each epoch; interrupted; plot and export, the files written, null if none.
    """
    from onnx_ops.cli.training import Stopping, can_plot, no_folder, plot_losses, prepare
    from onnx_ops.training.run import Checkpoint

    if out.exists() and not resume:
        _fail(f"{out} is there already: --resume goes on from it; to start anew, name another file", as_json)
    if (folder := no_folder((out, plot, export))) is not None:
        _fail(f"there is no folder {folder}", as_json)
    if plot is not None and not can_plot():
        _fail("--plot needs matplotlib, which is not installed: pip install 'onnx-ops[plot]'", as_json)
    console = _console()

    def say(text: str) -> None:
        if not as_json:
            _print_wrapped(console, text)

    with _training_refusals(as_json):
        checkpoint = Checkpoint.read(out) if out.exists() else None
        with _compiling():
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
            _fail(f"--export needs an inference graph, and there is none in {step}", as_json)
        samples = run.samples
        rest = f"; {samples.left_out} of each epoch are left out, too few for a step" if samples.left_out else ""
        before = f"; {_number(run.epoch, 'epoch')} and {_number(run.step, 'step')} are done" if checkpoint else ""
        say(f"{_number(samples.count, 'sample')}, {samples.batch_size} in a step{rest}{before}")
        with _progress("training") as advance, Stopping() as stopping:
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
        _print_json(
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
        say(f"Interrupted; {out} is written, and --resume goes on from it.")
    else:
        say(f"Wrote {', '.join(str(path) for path in (out, plot, export) if path is not None)}.")
    if stopping.signal is not None and interrupted:
        raise typer.Exit(128 + stopping.signal)


# --- answers ---------------------------------------------------------------------------------------------------------


def _console(stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else UNWRAPPED
    return Console(stderr=stderr, width=width, markup=False, highlight=False, emoji=False)


def _print_json(**answer: Any) -> None:
    print(json.dumps(_finite(answer), indent=2, allow_nan=False))


def _compiling() -> contextlib.AbstractContextManager[Any]:
    """A sign of life for whoever sits before the first run, which takes seconds."""
    if not sys.stderr.isatty():
        return contextlib.nullcontext()
    return _console(stderr=True).status("compiling the kernels that are not in the cache")


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar for whoever watches: advance(done, total, what)."""
    if not sys.stderr.isatty():  # a disabled bar writes an empty line before rich 15
        yield lambda done, total, what: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = _console(stderr=True)
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total, what: progress.update(task, completed=done, total=total, description=what)


def _finite(value: Any) -> Any:
    """The value with floats that JSON does not have as the strings that protobuf's JSON has for them."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


@contextlib.contextmanager
def _refusals(as_json: bool) -> Iterator[None]:
    try:
        yield
    except REFUSALS as refusal:
        _fail(str(refusal), as_json)


@contextlib.contextmanager
def _training_refusals(as_json: bool) -> Iterator[None]:
    """As `_refusals`, with those of files and of a step that is run."""
    try:
        yield
    except REFUSALS as refusal:
        _fail(str(refusal), as_json)
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), as_json)
    except Exception as error:  # what onnxruntime raises has no class in common
        if type(error) is not RuntimeError and type(error).__module__.split(".")[0] != "onnxruntime":
            raise
        _fail(str(error), as_json)


def _fail(problem: str, as_json: bool) -> NoReturn:
    if as_json:
        _print_json(error=problem)
    else:
        _print_wrapped(_console(stderr=True), f"{NAME}: {problem}", style="red")
    raise typer.Exit(FAILED)


def _op_named(op_type: str, as_json: bool) -> Op:
    """The op of that name, in whatever case."""
    names = {name.lower(): name for name in onnx_ops.OPS}
    wanted = op_type.lower()
    if wanted in names:
        return onnx_ops.OPS[names[wanted]]
    close = [names[name] for name in difflib.get_close_matches(wanted, names)]
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(names.values())}"
    _fail(f"no op '{op_type}' in domain {DOMAIN}; {hint}", as_json)


# --- text ------------------------------------------------------------------------------------------------------------

INDENT = "  "


def _print_wrapped(console: Console, text: str, indent: str = "", style: str | None = None) -> None:
    """Lines broken between words only, and indented from the second on."""
    lines = textwrap.wrap(text, console.width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    console.print("\n".join(lines), style=style, soft_wrap=True)


def _print_fields(console: Console, fields: Iterable[tuple[str, str]]) -> None:
    """Names in a column of their own, as narrow as can be."""
    fields = list(fields)
    column = max((len(name) for name, _ in fields), default=0) + 2
    for name, text in fields:
        _print_wrapped(console, f"{INDENT}{name:{column}}{text}", " " * (len(INDENT) + column))


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _print_op(console: Console, op: OpDescription) -> None:
    console.print(op.name, style="bold")
    attributes = ", ".join(a.name if a.default is None else f"{a.name}={a.default}" for a in op.attributes)
    inputs = ", ".join(f"[{p.name}]" if p.optional else p.name for p in op.inputs)
    _print_fields(
        console,
        [
            ("inputs", inputs),
            ("attributes", attributes or "none"),
            *zip(itertools.chain(["dtypes"], itertools.repeat("")), _dtypes(op), strict=False),
            ("opset", f"{op.minimum_opset} or newer for the portable body"),
        ],
    )


def _dtypes(op: OpDescription) -> Iterator[str]:
    """What the inputs can be; their names only where they differ."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for parameter in op.inputs:
        groups.setdefault(parameter.dtypes, []).append(parameter.name)
    for dtypes, names in groups.items():
        yield (f"{', '.join(names)}: " if len(groups) > 1 else "") + ", ".join(dtypes)


def _doc(op: Op) -> str:
    return str(op.schema.doc).strip()


def _print_documentation(console: Console, op: Op) -> None:
    description = describe(op)
    console.print(op.name, style="bold")
    console.print(f"{DOMAIN}, version {OPSET_VERSION}; portable body from opset {op.body_opset} on\n")
    for paragraph in _doc(op).split("\n\n"):
        if console.width == UNWRAPPED or paragraph.startswith(" "):
            console.print(f"{paragraph}\n", soft_wrap=True)
        else:
            _print_wrapped(console, paragraph)
            console.print()
    for title, parameters in (("Inputs", description.inputs), ("Outputs", description.outputs)):
        console.print(title, style="bold")
        _print_fields(console, ((p.name, _parameter_text(p)) for p in parameters))
    if description.attributes:
        console.print("Attributes", style="bold")
        _print_fields(console, ((a.name, _attribute_text(a)) for a in description.attributes))
    console.print("Example", style="bold")
    _print_fields(
        console,
        [
            *((name, json.dumps(value)) for name, value in op.example.inputs.items()),
            *((name, f"= {value}") for name, value in op.example.attributes.items()),
            *((name, f"-> {json.dumps(value)}") for name, value in op.example.outputs.items()),
        ],
    )


def _parameter_text(parameter: Parameter) -> str:
    return f"{'Optional. ' if parameter.optional else ''}{parameter.description} {', '.join(parameter.dtypes)}."


def _attribute_text(attribute: Attribute) -> str:
    default = ", required" if attribute.default is None else f" = {attribute.default}"
    return f"{attribute.type}{default}. {attribute.description}"


LINKED = {
    Linked.CURRENT: f"yes, by this version, {__version__}",
    Linked.STALE: f"yes{{}}, but not as this version links it; `{NAME} link` does it anew",
    Linked.BROKEN: f"no longer: nodes of kernels have lost their functions; `{NAME} link` gives them back",
    Linked.ABSENT: f"no; onnx_ops.InferenceSession links by itself, for other sessions `{NAME} link` does it",
    Linked.UNNEEDED: "not needed",
}


def _print_inspection(console: Console, path: Path, inspection: Inspection, no_kernels: str | None) -> None:
    count = len(inspection.nodes)
    console.print(str(path), style="bold", soft_wrap=True)
    linked_by = f", by version {inspection.linked_by}" if inspection.linked_by else ""
    need = f", {inspection.minimum_opset} or newer is needed" if inspection.minimum_opset else ""
    kernels = (
        f"not registered: {no_kernels}"
        if no_kernels
        else "registered by onnx_ops.InferenceSession and onnx_ops.session_options; elsewhere portable bodies run"
    )
    _print_fields(
        console,
        [
            ("nodes", f"{count or 'none'} of domain {DOMAIN}"),
            ("opset", f"{inspection.opset}{need}"),
            ("linked", LINKED[inspection.linked].format(linked_by)),
            ("kernels", kernels),
        ],
    )
    for node in inspection.nodes:
        _print_node(console, node, no_kernels)
    problems = len(inspection.problems) + sum(len(node.problems) for node in inspection.nodes)
    console.print()
    for problem in inspection.problems:
        _print_wrapped(console, problem, INDENT, "red")
    console.print(_number(problems, "problem") if problems else "no problems", style="red" if problems else "green")


def _print_node(console: Console, node: Node, no_kernels: str | None) -> None:
    console.print()
    name = f" '{node.name}'" if node.name else ""
    console.print(f"{node.op}{name} -> {', '.join(node.outputs)}", style="bold", soft_wrap=True)
    fields = [("in", node.place)]
    if node.bare_kernel:
        fields.append(("as", f"{node.bare_kernel}, which only sessions with the kernels can load"))
    if not node.problems:
        portable = "portable body, for the kernels are not registered"
        fields.append(("runs on", portable if no_kernels else f"kernel {kernel_name(node.op)}"))
    for use in node.uses:
        inputs = "; ".join(f"{name} {_tensor_text(tensor)}" for name, tensor in use.inputs.items())
        fields.append(("inputs", inputs))
        if use.outputs:
            outputs = (f"{name} {_tensor_text(tensor)}" for name, tensor in use.outputs.items() if tensor)
            fields.append(("outputs", "; ".join(outputs)))
    if not node.uses and not node.problems:
        fields.append(("inputs", "unknown"))
    _print_fields(console, fields)
    for problem in node.problems:
        _print_wrapped(console, INDENT + problem, INDENT * 2, "red")


def _tensor_text(tensor: Tensor | None) -> str:
    if tensor is None:
        return "left out"
    if tensor.dtype is None and tensor.shape is None:
        return "unknown"
    shape = "of unknown shape" if tensor.shape is None else shape_text(tensor.shape)
    return f"{tensor.dtype or 'unknown dtype'} {shape}"


STYLES = {"passed": "green", "failed": "red", "unavailable": "yellow"}


def _print_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    from rich.table import Table
    from rich.text import Text

    cache = diagnosis.cache
    kernels = "registered" if diagnosis.kernels.registered else f"not registered: {diagnosis.kernels.reason}"
    kept = "" if cache.writable else "; cannot be written, so that kernels are compiled anew in each process"
    _print_fields(
        console,
        [
            ("platform", diagnosis.platform),
            *((name, version or "not installed") for name, version in diagnosis.versions.items()),
            ("kernels", kernels),
            ("cache", f"{cache.path or 'none'}{kept}"),
        ],
    )
    ways = list(dict.fromkeys(outcome.way for outcome in diagnosis.outcomes))
    table = Table("self-test", *ways, box=None, padding=(0, 2, 0, 0), header_style="bold")
    for op in dict.fromkeys(outcome.op for outcome in diagnosis.outcomes):
        cells = [o.status.value for o in diagnosis.outcomes if o.op == op]
        table.add_row(op, *(Text(cell, STYLES[cell]) for cell in cells))
    console.print()
    console.print(table)
    console.print()
    for package in diagnosis.unsupported:
        text = f"{package.package} {package.version} is not supported, {package.package}{package.supported} is"
        _print_wrapped(console, text, INDENT, "red")
    failures = [o for o in diagnosis.outcomes if o.detail and o.status.value == "failed"]
    for failure in failures:
        _print_wrapped(console, f"{failure.op}, {failure.way}: {failure.detail}", INDENT, "red")
    if failures:
        console.print(_number(len(failures), "failure"), style="red")
    elif diagnosis.kernels.registered:
        console.print("all ops run here, on kernels and on portable bodies", style="green")
    else:
        console.print("all ops run here, on portable bodies; there are no kernels", style="yellow")
