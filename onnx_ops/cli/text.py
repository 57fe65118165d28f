"""Ops, models and diagnoses as text."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_ops.cli.inspection import (
    FUNCTION_BODY,
    Attribute,
    Inspection,
    Linked,
    Node,
    OpDescription,
    Tensor,
    describe,
)
from onnx_ops.cli.terminal import INDENT, NAME, UNWRAPPED, counted, print_fields, print_lines, print_wrapped
from onnx_ops.core.domain import DOMAIN, OPSET_VERSION
from onnx_ops.core.op import Op
from onnx_ops.core.schema import Parameter
from onnx_ops.core.types import shape_text
from onnx_ops.core.version import __version__

if TYPE_CHECKING:
    from rich.console import Console

    from onnx_ops.cli.diagnosis import Diagnosis


def print_op(console: Console, op: OpDescription) -> None:
    console.print(op.name, style="bold")
    attributes = ", ".join(a.name if a.default is None else f"{a.name}={a.default}" for a in op.attributes)
    inputs = ", ".join(f"[{p.name}]" if p.optional else p.name for p in op.inputs)
    print_fields(
        console,
        [
            ("inputs", inputs),
            ("attributes", attributes or "none"),
            *zip(itertools.chain(["dtypes"], itertools.repeat("")), _dtypes(op), strict=False),
            ("opset", f"{op.minimum_opset} or newer for the function body"),
        ],
    )


def _dtypes(op: OpDescription) -> Iterator[str]:
    """The dtypes of the inputs, with names only if they differ."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for parameter in op.inputs:
        groups.setdefault(parameter.dtypes, []).append(parameter.name)
    for dtypes, names in groups.items():
        yield (f"{', '.join(names)}: " if len(groups) > 1 else "") + ", ".join(dtypes)


def doc_text(op: Op) -> str:
    return str(op.schema.doc).strip()


def print_documentation(console: Console, op: Op) -> None:
    description = describe(op)
    console.print(op.name, style="bold")
    console.print(f"{DOMAIN}, version {OPSET_VERSION}; function body from opset {op.body_opset} on")
    console.print()
    for paragraph in doc_text(op).split("\n\n"):
        if console.width == UNWRAPPED or paragraph.startswith(" "):
            print_lines(console, paragraph)
        else:
            print_wrapped(console, paragraph)
        console.print()
    for title, parameters in (("Inputs", description.inputs), ("Outputs", description.outputs)):
        console.print(title, style="bold")
        print_fields(console, ((p.name, _parameter_text(p)) for p in parameters))
    if description.attributes:
        console.print("Attributes", style="bold")
        print_fields(console, ((a.name, _attribute_text(a)) for a in description.attributes))
    console.print("Example", style="bold")
    print_fields(
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
    Linked.STALE: f"yes{{}}, but not as this version links it; `{NAME} link` links it again",
    Linked.BROKEN: f"no longer: nodes of kernels have lost their functions; `{NAME} link` restores them",
    Linked.ABSENT: f"no; onnx_ops.InferenceSession links it, other sessions need `{NAME} link`",
    Linked.UNNEEDED: "not needed",
}


def print_inspection(console: Console, path: Path, inspection: Inspection, no_kernels: str | None) -> None:
    count = len(inspection.nodes)
    console.print(str(path), style="bold", soft_wrap=True)
    linked_by = f", by version {inspection.linked_by}" if inspection.linked_by else ""
    need = f", {inspection.minimum_opset} or newer is needed" if inspection.minimum_opset else ""
    kernels = (
        f"not registered: {no_kernels}"
        if no_kernels
        else "registered by onnx_ops.InferenceSession and onnx_ops.register_kernels; other sessions run function bodies"
    )
    print_fields(
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
        print_wrapped(console, problem, INDENT, "red")
    console.print(counted(problems, "problem") if problems else "no problems", style="red" if problems else "green")


def _print_node(console: Console, node: Node, no_kernels: str | None) -> None:
    console.print()
    name = f" '{node.name}'" if node.name else ""
    console.print(f"{node.op}{name} -> {', '.join(node.outputs)}", style="bold", soft_wrap=True)
    fields = [("in", node.place)]
    if node.bare_kernel:
        fields.append(("as", f"{node.bare_kernel}, which only sessions with the kernels can load"))
    if not node.problems:
        body = "function body, as the kernels are not registered"
        fields.append(("runs on", body if no_kernels else f"kernel {node.kernel}"))
    for use in node.uses:
        inputs = "; ".join(f"{name} {_tensor_text(tensor)}" for name, tensor in use.inputs.items())
        fields.append(("inputs", inputs))
        if use.outputs:
            outputs = (f"{name} {_tensor_text(tensor)}" for name, tensor in use.outputs.items() if tensor)
            fields.append(("outputs", "; ".join(outputs)))
    if not node.uses and not node.problems:
        fields.append(("inputs", "unknown"))
    print_fields(console, fields)
    for problem in node.problems:
        print_wrapped(console, INDENT + problem, INDENT * 2, "red")


def _tensor_text(tensor: Tensor | None) -> str:
    if tensor is None:
        return "omitted"
    if tensor.dtype is None and tensor.shape is None:
        return "unknown"
    shape = "of unknown shape" if tensor.shape is None else shape_text(tensor.shape)
    return f"{tensor.dtype or 'unknown dtype'} {shape}"


STYLES = {"passed": "green", "failed": "red", "unavailable": "yellow"}


def _way_text(way: str) -> str:
    return "function body" if way == FUNCTION_BODY else way


def print_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    from rich.table import Table
    from rich.text import Text

    from onnx_ops.cli.diagnosis import COMPILED

    cache = diagnosis.cache
    here = diagnosis.kernels
    source = f"of {here.library}, for {here.level}" if here.library else "compiled here"
    kernels = f"registered, {source}" if here.registered else f"not registered: {here.reason}"
    problem = f"; kernels that cannot be loaded or saved there are compiled in each process: {cache.problem}"
    print_fields(
        console,
        [
            ("platform", diagnosis.platform),
            *((name, version or "not installed") for name, version in diagnosis.versions.items()),
            ("kernels", kernels),
            ("cache", f"{cache.path or 'none'}{problem if cache.problem else ''}"),
        ],
    )
    ways = list(dict.fromkeys(outcome.way for outcome in diagnosis.outcomes))
    table = Table("self-test", *map(_way_text, ways), box=None, padding=(0, 2, 0, 0), header_style="bold")
    for op in dict.fromkeys(outcome.op for outcome in diagnosis.outcomes):
        cells = [o.status.value for o in diagnosis.outcomes if o.op == op]
        table.add_row(op, *(Text(cell, STYLES[cell]) for cell in cells))
    console.print()
    console.print(table)
    console.print()
    for package in diagnosis.unsupported:
        text = f"{package.package} {package.version} is not supported, {package.package}{package.supported} is"
        print_wrapped(console, text, INDENT, "red")
    failures = [o for o in diagnosis.outcomes if o.detail and o.status.value == "failed"]
    for failure in failures:
        print_wrapped(console, f"{failure.op}, {_way_text(failure.way)}: {failure.detail}", INDENT, "red")
    if failures:
        console.print(counted(len(failures), "failure"), style="red")
    elif diagnosis.kernels.registered:
        both = " of the library, as kernels compiled here" if COMPILED in ways else ""
        console.print(f"all ops run here, as kernels{both} and as function bodies", style="green")
    else:
        console.print("all ops run here, as function bodies; there are no kernels", style="yellow")
