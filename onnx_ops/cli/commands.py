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
from onnx_ops.cli.inspection import Linked, describe, inspect
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
    """The ops with inputs ([optional]), attributes and dtypes.

    JSON: domain, version, and ops, a list of objects with name; minimum_opset, of the portable body; inputs and
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


def _completed_op(incomplete: str) -> list[str]:
    """The ops whose names begin with what is typed."""
    return [name for name in OPS if name.startswith(incomplete)]


def show(
    op: Annotated[
        str,
        typer.Argument(
            metavar="OP", help="Name of the op; upper and lower case are the same.", autocompletion=_completed_op
        ),
    ],
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
        print_json(**dataclasses.asdict(describe(record)), doc=doc_text(record), example=example, **text)
        return
    console = make_console()
    print_documentation(console, record)
    if body:
        console.print()
        console.print(f"Portable body of the example, opset {record.body_opset}", style="bold")
        console.print()
        print_lines(console, textwrap.indent(to_text(example_body(record)).strip(), INDENT))


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

    with refusals(as_json):
        model = read_model(source)
        result = onnx_ops.inline(model) if inline else onnx_ops.link(model)
        copied = write_model(result, target, source)
    restore(model)
    found = Counter(site.node.op_type for site in sites(model))
    counts = {name: found[name] for name in OPS if name in found}
    minimum = max((OPS[name].body_opset for name in counts), default=None)
    opset = opset_of(model)
    if as_json:
        print_json(
            input=str(source),
            output=str(target),
            inlined=inline,
            nodes=counts,
            opset=opset,
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
        print_wrapped(console, f"Wrote {target}: opset {opset}, {minimum} or newer would do.")
    else:
        print_wrapped(console, f"Wrote {target}; there was nothing to link, for no node is of domain {DOMAIN}.")
    if copied:
        print_wrapped(console, f"Copied external data: {', '.join(copied)}.")


def check(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An .onnx file, or another format that onnx loads.")],
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
    function, else null), kernel (the name of the one that the node calls once it is linked, null for a refused one),
    problems, runs_on ("kernel", "portable body" or null for a refused one) and
    uses, one for each time that the node is run: inputs (by name, null if left out), attributes, and output, tensors
    being objects of dtype and shape, null where they are not known.
    """
    from onnx_ops.cli.diagnosis import kernels
    from onnx_ops.graph.files import ModelFileError, external_files, read_model

    with refusals(as_json):
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
    with compiling_status():
        here = kernels()
    if as_json:
        answer = dataclasses.asdict(inspection)
        for node in answer["nodes"]:
            node["runs_on"] = None if node["problems"] else "kernel" if here.registered else "portable body"
        print_json(model=str(model), ok=inspection.ok, kernels=dataclasses.asdict(here), **answer)
    else:
        print_inspection(make_console(), model, inspection, here.reason)
    if not inspection.ok:
        raise typer.Exit(FAILED)


def doctor(as_json: AsJson = False) -> None:
    """Whether the ops run on this machine, and on what.

    Where the kernels cannot be registered they run on the portable bodies; that is no failure. A package in a version
    that is not supported is one, whatever the self-test says.

    JSON: ok; platform; versions, by package, null if not installed; unsupported, a list of package, version and
    supported (such as ">=1.23"); kernels, an object of registered and reason; cache, an object of path, writable and
    problem (null, or why kernels cannot be loaded from there or kept); outcomes, a list of op, way ("kernel", "portable
    body", "inlined"), status ("passed", "failed", "unavailable") and detail.
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
    """Compile all kernels now, so that no session has to later.

    The code goes to the directory that `doctor` names; the variable ONNX_OPS_CACHE_DIR names another. It serves the
    same versions of the packages on the same kind of processor, also where the directory can only be read: in the image
    of a container, say. A directory that is made is for this user alone; one that is there, made with mode 755, serves
    all users, if nobody but this user or root can write it.

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
    files = sum(path.is_file() for path in folder.iterdir())
    if as_json:
        print_json(cache=str(folder), files=files, readers=readers(folder))
    else:
        text = f"All kernels are compiled; {folder} holds {counted(files, 'file')}, for {readers(folder)}."
        print_wrapped(make_console(), text)


def _op_named(op_type: str, as_json: bool) -> Op:
    """The op of that name, in whatever case."""
    names = {name.lower(): name for name in OPS}
    wanted = op_type.lower()
    if wanted in names:
        return OPS[names[wanted]]
    close = [names[name] for name in difflib.get_close_matches(wanted, names)]
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(names.values())}"
    fail(f"no op '{op_type}' in domain {DOMAIN}; {hint}", as_json)
