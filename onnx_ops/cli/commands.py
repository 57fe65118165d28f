"""The commands about ops, models and machines."""

from __future__ import annotations

import dataclasses
import difflib
import textwrap
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

import onnx_ops
from onnx_ops.cli.inspection import FUNCTION_BODY, Linked, describe, inspect
from onnx_ops.cli.terminal import (
    FAILED,
    INDENT,
    AsJson,
    compiling_status,
    counted,
    fail,
    make_console,
    print_json,
    print_lines,
    print_wrapped,
    refusals,
)
from onnx_ops.cli.text import doc_text, print_diagnosis, print_documentation, print_inspection, print_op
from onnx_ops.core.domain import DOMAIN, OPSET_VERSION
from onnx_ops.core.op import Op
from onnx_ops.linking.attached import restore
from onnx_ops.linking.sites import opset_of, sites
from onnx_ops.ops import OPS
from onnx_ops.runtime.cache import cache_directory, readers


def list_ops(as_json: AsJson = False) -> None:
    """List the ops with inputs ([optional]), attributes and dtypes.

    JSON: domain, version, and ops, a list of objects with name; minimum_opset, of the function body; inputs and
    outputs, lists of name, optional, dtypes, description; attributes, a list of name, type, default, description.
    """
    descriptions = [describe(op) for op in OPS.values()]
    if as_json:
        print_json(domain=DOMAIN, version=OPSET_VERSION, ops=[dataclasses.asdict(d) for d in descriptions])
        return
    console = make_console()
    for number, description in enumerate(descriptions):
        if number:
            console.print()
        print_op(console, description)


def completed_op(incomplete: str) -> list[str]:
    """The ops whose names begin with an incomplete argument."""
    return [name for name in OPS if name.startswith(incomplete)]


def show(
    op: Annotated[
        str,
        typer.Argument(metavar="OP", help="Name of the op; case does not matter.", autocompletion=completed_op),
    ],
    body: Annotated[bool, typer.Option("--body", help="Show the function body too, for the example.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the documentation of an op, with an example.

    JSON: the object of the op as in `list`, and doc; example, an object of inputs, attributes and output; with
    --body also body, in ONNX's text syntax.
    """
    from onnx.printer import to_text

    from onnx_ops.integrations.examples import example_body

    record = op_named(op, as_json)
    if as_json:
        text = {"body": to_text(example_body(record))} if body else {}
        example = dataclasses.asdict(record.example)
        print_json(**dataclasses.asdict(describe(record)), doc=doc_text(record), example=example, **text)
        return
    console = make_console()
    print_documentation(console, record)
    if body:
        console.print()
        console.print(f"Function body for the example, opset {record.body_opset}", style="bold")
        console.print()
        print_lines(console, textwrap.indent(to_text(example_body(record)).strip(), INDENT))


def link(
    source: Annotated[Path, typer.Argument(metavar="IN", help="The model to link.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write; it may be IN.")],
    inline: Annotated[bool, typer.Option("--inline", help="Write standard operators only, no functions.")] = False,
    opset: Annotated[
        int | None, typer.Option(min=1, help="Convert the model to this opset first, such as 18 for Ascend's ATC.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a copy of a model that any onnxruntime session can run.

    OUT is written atomically. External data stays external; if OUT is in another folder than IN, the files are copied
    there, and existing files with other contents are not overwritten.

    --opset uses onnx's converter, which refuses models with functions or external data, and some operators.

    JSON: input, output, inlined; nodes, an object with the number of nodes by op; opset, that the model imports;
    minimum_opset, the oldest that its ops support (null if there are no nodes); copied, a list of the files copied.
    """
    from onnx_ops.graph.files import read_model, write_model
    from onnx_ops.graph.opsets import with_opset
    from onnx_ops.training.weights import check_files

    with refusals(as_json):
        model = read_model(source)
        check_files(model, source)
        if opset is not None:
            restore(model)
            model = with_opset(model, opset)
        result = onnx_ops.inline(model) if inline else onnx_ops.link(model)
        copied = write_model(result, target, source)
    restore(model)
    found = Counter(site.node.op_type for site in sites(model))
    counts = {name: found[name] for name in OPS if name in found}
    minimum = max((OPS[name].body_opset for name in counts), default=None)
    written = opset_of(model)
    if as_json:
        print_json(
            input=str(source),
            output=str(target),
            inlined=inline,
            nodes=counts,
            opset=written,
            minimum_opset=minimum,
            copied=copied,
        )
        return
    console = make_console()
    done = "Inlined" if inline else "Linked"
    if counts:
        ops = ", ".join(f"{name} ({count})" for name, count in counts.items())
        print_wrapped(
            console, f"{done} {counted(sum(counts.values()), 'node')} of {counted(len(counts), 'op')}: {ops}."
        )
        print_wrapped(console, f"Wrote {target}: opset {written}; its ops need {minimum} or newer.")
    else:
        print_wrapped(console, f"Wrote {target}; there was nothing to link: no node is of domain {DOMAIN}.")
    if copied:
        print_wrapped(console, f"Copied external data: {', '.join(copied)}.")


def check(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An .onnx file, or another format that onnx loads.")],
    linked: Annotated[bool, typer.Option("--linked", help="Fail unless this version has linked the model.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check a model, and show what its nodes run on here.

    Problems are the reasons for which `link` refuses the model, and external data that is missing or not its own.

    JSON: model; ok; opset, that it imports; minimum_opset, the oldest that its ops support (null if there are no
    nodes); linked: "current", "stale" (its functions differ from those that this version adds), "broken" (it has nodes
    of kernels without their functions, and sessions without the kernels cannot load it), "absent" or "unneeded";
    linked_by, the version of onnx_ops that has linked it, null if unknown; kernels, an object of registered, reason,
    library and level (null if they are compiled here); problems, a list of texts, without those of single nodes;
    nodes, a list of op, name, outputs, place, bare_kernel (name of the kernel if the node is one without its function,
    else null), kernel (name of the kernel that the linked node calls, null if the node is refused), problems, runs_on
    ("kernel", "portable body" for the function body, or null if the node is refused) and uses, a list with one item for
    each call of the node: inputs (by name, null if omitted), attributes, and outputs; tensors are objects of dtype and
    shape, null where unknown.
    """
    from onnx_ops.cli.diagnosis import kernels
    from onnx_ops.graph.files import ModelFileError, read_light_model
    from onnx_ops.training.errors import StepError
    from onnx_ops.training.weights import check_files

    with refusals(as_json):
        proto = read_light_model(model)
    inspection = inspect(proto)
    problems = [*inspection.problems]
    try:
        check_files(proto, model)
    except (ModelFileError, StepError) as error:
        problems.append(str(error))
    if linked and inspection.linked in (Linked.STALE, Linked.BROKEN, Linked.ABSENT):
        problems.append(f"{model} is not linked by this version")
    inspection = dataclasses.replace(inspection, problems=tuple(problems))
    with compiling_status():
        here = kernels()
    if as_json:
        answer = dataclasses.asdict(inspection)
        for node in answer["nodes"]:
            node["runs_on"] = None if node["problems"] else "kernel" if here.registered else FUNCTION_BODY
        print_json(model=str(model), ok=inspection.ok, kernels=dataclasses.asdict(here), **answer)
    else:
        print_inspection(make_console(), model, inspection, here.reason)
    if not inspection.ok:
        raise typer.Exit(FAILED)


def doctor(as_json: AsJson = False) -> None:
    """Test the ops on this machine.

    If the kernels cannot be registered, the ops run as function bodies; that is no failure. A package in a version that
    is not supported is a failure, even if the self-test passes.

    JSON: ok; platform; versions, by package, null if not installed; unsupported, a list of package, version and
    supported (such as ">=1.23"); kernels, an object of registered, reason, library and level (null if they are compiled
    here); cache, an object of path, writable and problem (null, or why kernels cannot be loaded or saved there);
    outcomes, a list of op, way ("kernel", "portable body" for the function body, "inlined"; "compiled here" where there
    is a library of the kernels and Numba too), status ("passed", "failed", "unavailable") and detail.
    """
    from onnx_ops.cli.diagnosis import diagnose

    with compiling_status():
        diagnosis = diagnose()
    if as_json:
        print_json(ok=diagnosis.ok, **dataclasses.asdict(diagnosis))
    else:
        print_diagnosis(make_console(), diagnosis)
    if not diagnosis.ok:
        raise typer.Exit(FAILED)


def compile_kernels(as_json: AsJson = False) -> None:
    """Compile all kernels ahead of time, so that no session has to compile any.

    The code is written to the cache directory, which `doctor` shows and the variable ONNX_OPS_CACHE_DIR can set. It is
    valid for the same versions of the packages on the same kind of processor; processes need only read the directory,
    for example in a container image. A new directory is readable by this user only; an existing one, made with mode
    755, can serve all users if only this user or root can write to it.

    JSON: cache, the directory; files, the number of files in it; readers, who can read them: "all users", "its group"
    or "this user".
    """
    from onnx_ops.integrations.precompile import precompile

    try:
        folder = cache_directory()
        with compiling_status():
            precompile()
    except (OSError, onnx_ops.KernelsUnavailableError) as error:
        fail(f"kernels cannot be compiled: {error}", as_json)
    files = len(list(folder.glob("*.kernel")))
    if as_json:
        print_json(cache=str(folder), files=files, readers=readers(folder))
    else:
        text = f"All kernels are compiled; {folder} has {counted(files, 'file')}, readable by {readers(folder)}."
        print_wrapped(make_console(), text)


def op_named(op_type: str, as_json: bool) -> Op:
    """The op with a name, case-insensitive."""
    names = {name.lower(): name for name in OPS}
    wanted = op_type.lower()
    if wanted in names:
        return OPS[names[wanted]]
    close = [names[name] for name in difflib.get_close_matches(wanted, names)]
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(names.values())}"
    fail(f"no op '{op_type}' in domain {DOMAIN}; {hint}", as_json)
