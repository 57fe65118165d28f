"""Writes docs/ops: a page for each op and an index, from the ops' schemas, examples and function bodies.

Run it from the root of the repository: `python -m scripts.docs`; `--check` only lists stale pages.

The text of a page is the schema's documentation. Indented paragraphs become code blocks, a paragraph that begins like
"Edge rules: " becomes a section, and text in backticks becomes code.
"""

import argparse
import enum
import importlib
import inspect
import itertools
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.defs import OpSchema

import onnx_ops
from onnx_ops.ascend.correspondence import correspondence
from onnx_ops.ascend.golden import operators
from onnx_ops.cli.inspection import OpDescription, describe
from onnx_ops.core.op import Op
from onnx_ops.core.schema import Parameter
from onnx_ops.core.types import FLOATS
from onnx_ops.graph.walk import subgraphs
from onnx_ops.integrations.examples import example_body, example_model
from onnx_ops.ops import OPS
from scripts.markdown import table

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "ops"
TO_ROOT = "../.."
INDEX = "README.md"
WIDTH = 120
CODE_WIDTH = 96  # lines up to this width need no scroll bar on GitHub

DIGITS = 6
"""Significant digits of an example's numbers, within TOLERANCE."""
TOLERANCE = "rtol=1e-5, atol=1e-6"

# Flowcharts, in characters: the maximal expression of a box with several operators, the maximal line of a box, and the
# maximal length of a constant that is shown by value.
BOX_LENGTH = 44
LINE_LENGTH = 24
LITERAL_LENGTH = 6
FLOWCHART_SETTINGS = (
    '%%{init: {"flowchart": {"nodeSpacing": 12, "rankSpacing": 25, "padding": 6, "wrappingWidth": 300}}}%%'
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or check them; returns the exit status."""
    parser = argparse.ArgumentParser(description="Write docs/ops from the ops' schemas.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is stale")
    stale = stale_pages(expected := pages())
    if parser.parse_args(arguments).check:
        for name in stale:
            print(f"{(PAGES / name).relative_to(ROOT)} is stale: run `make docs`")
        return 1 if stale else 0
    PAGES.mkdir(parents=True, exist_ok=True)
    for name in stale:
        if name in expected:
            (PAGES / name).write_text(expected[name], encoding="utf-8")
        else:
            (PAGES / name).unlink()
    print(f"{PAGES.relative_to(ROOT)}: {len(expected)} pages, {len(stale)} of them new, changed or removed")
    return 0


def pages() -> dict[str, str]:
    """The pages, by file name."""
    return {INDEX: index(), **{page_name(op): page(op) for op in OPS.values()}}


def stale_pages(expected: Mapping[str, str]) -> list[str]:
    """Names of the pages that are missing, differ or belong to no op."""
    found = {path.name: path.read_text(encoding="utf-8") for path in PAGES.glob("*.md")}
    return sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))


def page_name(op: Op) -> str:
    return f"{op.name}.md"


# --- pages ---------------------------------------------------------------------------------------------------------


def index() -> str:
    """The page that lists the ops, by family."""
    blocks: list[str] = []
    for package, ops in itertools.groupby(sorted(OPS.values(), key=_family), key=_family):
        title = (inspect.getdoc(importlib.import_module(package)) or package).splitlines()[0].rstrip(".")
        rows = [
            [
                f"[{op.name}]({page_name(op)})",
                inline(headline(op)),
                str(op.body_opset),
                str(count_nodes(example_body(op))),
            ]
            for op in ops
        ]
        blocks += [f"## {title}", table(["op", "what it computes", "minimum opset", "nodes"], rows, right=(2, 3))]
    return document(
        "# Ops",
        generated(f"the schemas in [onnx_ops/ops]({TO_ROOT}/onnx_ops/ops)"),
        filled(
            f"All are in version {onnx_ops.OPSET_VERSION} of the domain `{onnx_ops.DOMAIN}`. The minimum opset is the "
            "version of the default domain that the function body needs. Nodes are those of the function body for the "
            "example of the op's page, including subgraphs."
        ),
        *blocks,
    )


def _family(op: Op) -> str:
    """The package of an op."""
    return op.reference.__module__.rpartition(".")[0]


def page(op: Op) -> str:
    """The page of an op."""
    source = f"{op.reference.__module__.replace('.', '/')}.py"
    summary, definition, sections = documentation(op)
    described = describe(op)
    optional = any(parameter.optional for parameter in (*described.inputs, *described.outputs))
    return document(
        f"# {op.name}",
        generated(f"the schema in [{source}]({TO_ROOT}/{source})"),
        summary,
        *(["## Formula", *definition] if definition else []),
        "## Signature",
        fenced("text", signature(op)),
        *(
            ['To omit an optional input or output, write `""` in its place, or nothing at the end of the list.']
            if optional
            else []
        ),
        "### Inputs",
        parameters(op, "input", described.inputs, op.schema.inputs),
        "### Outputs",
        parameters(op, "output", described.outputs, op.schema.outputs),
        *attributes(op, described),
        *(text for title, paragraphs in sections.items() for text in (f"## {title}", *paragraphs)),
        *correspondence_with_aclnn(op),
        "## Example",
        fenced("python", example(op)),
        *function_body(op),
    )


def document(*blocks: str) -> str:
    return "\n\n".join(blocks) + "\n"


def generated(source: str) -> str:
    return filled(f"*Generated by `make docs` from {source}; edits here are lost.*")


def documentation(op: Op) -> tuple[str, list[str], dict[str, list[str]]]:
    """The schema's documentation as Markdown.

    Returns:
        The summary, the paragraphs of the definition, and those of each section by title.
    """
    summary, *paragraphs = re.split(r"\n\s*\n", (op.schema.doc or "").strip("\n"))
    definition: list[str] = []
    sections: dict[str, list[str]] = {}
    current = definition
    for paragraph in paragraphs:
        text = paragraph
        if title := re.match(r"([A-Z]\w*(?: \w+){0,2}):\s+", paragraph):
            current, text = sections.setdefault(title[1], []), paragraph[title.end() :]
        if all(line.startswith("    ") for line in text.splitlines()):
            current.append(fenced("text", textwrap.dedent(text)))
        else:
            current.append(prose(sentence(text) if title else text))
    return prose(summary), definition, sections


def sentence(text: str) -> str:
    """Capitalize the first letter, unless the text starts with a name such as grad_output."""
    return text if "_" in text.split()[0] else text[:1].upper() + text[1:]


def headline(op: Op) -> str:
    """The first sentence of the documentation, without the name of the CANN API in parentheses."""
    text = re.sub(rf"\s*\({onnx_ops.DOMAIN}\w*\b[^()]*\)", "", " ".join((op.schema.doc or "").split()))
    return re.split(r"[.:](?:\s|$)", text, maxsplit=1)[0]


def signature(op: Op) -> str:
    """A node with all inputs, outputs and attributes with their defaults, in ONNX's text syntax."""
    attributes = {**op.attribute_defaults, **op.required_attributes}
    text = text_of(onnx_ops.make_node(op.name, op.input_names, op.output_names, **attributes))
    for name in op.required_attributes:
        text = re.sub(rf"\b({name}: \w+) = (\[.*?\]|[^,>]+)", r"\1", text)
    return wrapped(text)


def attributes(op: Op, described: OpDescription) -> list[str]:
    if not described.attributes:
        return []
    rows = [
        [f"`{a.name}`", a.type, "required" if a.default is None else literal(a.default), inline(a.description)]
        for a in described.attributes
    ]
    return ["### Attributes", table(["attribute", "type", "default", "description"], rows)]


def parameters(op: Op, kind: str, described: Sequence[Parameter], formal: Sequence[OpSchema.FormalParameter]) -> str:
    """The table of inputs or outputs.

    Args:
        op: the op.
        kind: "input" or "output".
        described: name, dtypes and description of each.
        formal: the parameters of the schema.
    """
    rows = [
        [f"`{p.name}`", "yes" if p.optional else "no", f.type_str, ", ".join(p.dtypes), inline(p.description)]
        for p, f in zip(described, formal, strict=True)
    ]
    return table([kind, "optional", "type", "dtypes", "description"], rows)


# --- the example ---------------------------------------------------------------------------------------------------


def example(op: Op) -> str:
    """A program that runs the op's example and compares the results."""
    model = example_model(op)
    head = re.sub(r"\s+", " ", text_of(model).split(">\n")[0]).replace("< ", "<").strip()
    graph = "\n".join(wrapped(line, CODE_WIDTH - 4) for line in text_of(model.graph).splitlines())
    feeds = "\n".join(
        wrapped(f'    "{name}": np.array({literal(array.tolist())}, np.{dtype_name(array.dtype)}),')
        for name, array in op.example.arrays().items()
    )
    return "\n".join(
        [
            "import numpy as np",
            "import onnx",
            "",
            "import onnx_ops",
            "",
            'model = onnx.parser.parse_model("""',
            textwrap.indent(f"{head}>\n{graph}", "    ") + '""")',
            "feeds = {",
            feeds,
            "}",
            "",
            *comparison(op),
        ]
    )


def comparison(op: Op) -> Iterator[str]:
    """Lines that run the session and compare its results with the expected ones."""
    expected = op.example.expected()
    if len(expected) == 1:
        ((name, array),) = expected.items()
        yield f"({name},) = onnx_ops.InferenceSession(model).run(None, feeds)"
        yield wrapped(f"expected = {literal(array.tolist())}")
        yield f"np.testing.assert_allclose({name}, expected, {TOLERANCE})"
        return
    yield "results = onnx_ops.InferenceSession(model).run(None, feeds)"
    yield "expected = ["
    for name, array in expected.items():
        yield wrapped(f"    {literal(array.tolist())},  # {name}")
    yield "]"
    yield "for result, wanted in zip(results, expected, strict=True):"
    yield f"    np.testing.assert_allclose(result, wanted, {TOLERANCE})"


def dtype_name(dtype: np.dtype) -> str:
    """The name of a dtype in the namespace of NumPy; np.bool is missing in NumPy 1."""
    return "bool_" if dtype.kind == "b" else str(dtype)


def literal(value: Any) -> str:
    """A number, or a nested list of numbers, as a Python expression."""
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    text = number(value)
    return re.sub(r"inf|nan", lambda match: f"np.{match[0]}", text)


def number(value: float) -> str:
    """An int, or a float with DIGITS significant digits and a decimal point or exponent."""
    if isinstance(value, int):
        return str(value)
    text = f"{value:.{DIGITS}g}"
    return text if re.search(r"[^-\d]", text) else f"{text}.0"


# --- aclnn -----------------------------------------------------------------------------------------------------------


def correspondence_with_aclnn(op: Op) -> list[str]:
    """The section on the aclnn function of an op, and on the operator of CANN's graphs."""
    known = correspondence(op.name)
    blocks = ["## Correspondence with aclnn"]
    if known.aclnn is None:
        blocks.append(filled(known.note))
    else:
        prototype = f"aclnn{known.aclnn.name}GetWorkspaceSize"
        rows = [[f"`{argument}`", counterpart(op, text)] for argument, text in known.aclnn.arguments.items()]
        blocks += [
            filled(f"The arguments of `{prototype}` in order, without workspaceSize and executor:"),
            table(["aclnn", "here"], rows),
        ]
        for title, sentences in (
            ("Differences", known.aclnn.differences),
            ("Computed here, but rejected or not promised by aclnn", known.aclnn.refused),
            ("In aclnn only", known.aclnn.missing),
        ):
            if sentences:
                blocks += [f"{title}:", "\n".join(map(item, sentences))]
    if known.operator is not None:
        pairs = [*known.operator.inputs.items(), *known.operator.outputs.items()]
        order = ", ".join(f"{name} (`{own}`)" for name, own in pairs)
        note = f" {known.note}" if known.note else ""
        blocks.append(
            filled(
                f"`onnx-ops plugin {op.name}` writes a parser plugin for ATC, which makes the operator"
                f" {known.operator.name} of a node: {order}.{note}"
            )
        )
    elif known.aclnn is not None:
        blocks.append(filled(f"There is no parser plugin for ATC. {known.note}"))
    kernels = ", ".join(f"`{kernel}`" for kernel in operators(op))
    if kernels:
        blocks.append(filled(f"`onnx-ops golden {op.name}` writes a golden function in NumPy for {kernels}."))
    return blocks


def item(sentence: str) -> str:
    """An item of a list."""
    return textwrap.fill(f"- {sentence}", WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def counterpart(op: Op, text: str) -> str:
    """What an argument of aclnn is here: inputs, outputs and attributes by their names, or words."""
    kinds = {
        **dict.fromkeys(op.input_names, "input"),
        **dict.fromkeys(op.output_names, "output"),
        **dict.fromkeys(op.schema.attributes, "attribute"),
    }
    names = text.split(", ")
    return ", ".join(f"{kinds[name]} `{name}`" for name in names) if set(names) <= kinds.keys() else text


# --- the function body ---------------------------------------------------------------------------------------------


def function_body(op: Op) -> list[str]:
    """The section on the op's function body: a flowchart and the text."""
    body = example_body(op)
    text = "\n".join(wrapped(line) for line in text_of(body).splitlines())
    kinds = {value.name: kind_of_type(value) for value in example_model(op).graph.input}
    kinds.update((name, Kind.CONSTANT) for name in body.input if name not in kinds)
    flowchart = Flowchart(body.node, {name: kinds[name] for name in body.input}, list(body.output))
    return [
        "## Function body",
        filled(
            f"Run where no kernel is registered, in standard operators of opset {op.body_opset} or newer. "
            "`onnx_ops.link` writes it for the dtypes, shapes and attributes of a model; this one is for the example."
        ),
        *flowchart.blocks(),
        f"<details>\n<summary>All {count_nodes(body)} nodes</summary>",
        fenced("text", text),
        "</details>",
    ]


def count_nodes(container: onnx.FunctionProto | onnx.GraphProto) -> int:
    """Number of nodes, including those of subgraphs."""
    return sum(1 + sum(map(count_nodes, subgraphs(node))) for node in container.node)


class Kind(enum.IntEnum):
    """What a value depends on; the kind of a result is the maximum over its operands."""

    CONSTANT = 0  # constants and attributes
    SHAPE = 1  # shapes of inputs
    INTEGER = 2  # elements of integer and boolean inputs
    FLOAT = 3  # elements of floating-point inputs


TRANSPARENT = frozenset(("Cast", "CastLike", "Expand", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))
"""Operators whose result has the elements of their first input, cast, repeated or in another order."""


def kind_of_type(value: onnx.ValueInfoProto) -> Kind:
    """The kind of an input."""
    return Kind.FLOAT if value.type.tensor_type.elem_type in FLOATS else Kind.INTEGER


class Flowchart:
    """A flowchart of the data flow from floating-point inputs to the outputs.

    A box is a statement of the body. Operators that only cast or reshape are skipped; an operator with one operand and
    one user is merged into the box of its user. Values that depend only on shapes, attributes and integers have no box:
    their names are in the boxes that use them, and below the flowchart.

    Args:
        nodes: in topological order.
        inputs: kind of each formal input.
        outputs: names of the results.
        outer: the flowchart of the graph around a subgraph.
    """

    def __init__(
        self,
        nodes: Sequence[onnx.NodeProto],
        inputs: Mapping[str, Kind],
        outputs: Sequence[str],
        outer: "Flowchart | None" = None,
    ) -> None:
        self.makers: dict[str, onnx.NodeProto] = dict(outer.makers) if outer else {}
        self.inputs: dict[str, Kind] = {**(outer.inputs if outer else {}), **inputs}
        self.kinds: dict[str, Kind] = {**(outer.kinds if outer else {}), **inputs}
        for node in nodes:
            self.makers.update((name, node) for name in node.output)
            self.kinds.update((name, self._kind(node)) for name in node.output)
        self.results: dict[str, list[str]] = {}
        for output in outputs:
            self.results.setdefault(self._source(output), []).append(output)
        self.drawn = self._on_the_way(nodes)
        self.own = {name for node in self.drawn for name in node.output}
        self.merged = self._merged()
        self.boxes = [node for node in self.drawn if node.output[0] not in self.merged]

    def blocks(self) -> list[str]:
        """The flowchart as Markdown, a line with the values that it omits, and the flowcharts of subgraphs."""
        blocks = [fenced("mermaid", "\n".join([FLOWCHART_SETTINGS, "flowchart TD", *self._lines()])), *self._note()]
        for node in self.boxes:
            for graph in subgraphs(node):
                inputs = {value.name: kind_of_type(value) for value in graph.input}
                inner = Flowchart(graph.node, inputs, [value.name for value in graph.output], self)
                blocks += [f"`{graph.name}`, which `{node.op_type}` runs:", *inner.blocks()]
        return blocks

    # Data flow

    def _kind(self, node: onnx.NodeProto) -> Kind:
        kinds = [self.kinds[name] for name in used_names(node)]
        highest = max(kinds, default=Kind.CONSTANT)
        if node.op_type in ("Shape", "Size"):
            return min(highest, Kind.SHAPE)
        if node.op_type == "CastLike":
            return kinds[0]
        becomes_float = any(a.name == "to" and a.i in FLOATS for a in node.attribute)
        return Kind.FLOAT if highest == Kind.INTEGER and becomes_float else highest

    def _source(self, name: str) -> str:
        """The value whose elements these are: skips transparent operators."""
        while name in self.makers and self.makers[name].op_type in TRANSPARENT:
            name = self.makers[name].input[0]
        return name

    def _operands(self, node: onnx.NodeProto) -> list[str]:
        """The sources of a node's operands that are drawn: floating-point values and formal inputs."""
        sources = dict.fromkeys(map(self._source, used_names(node)))
        return [name for name in sources if self.kinds[name] == Kind.FLOAT or name in self.inputs]

    def _on_the_way(self, nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
        """The nodes that the results depend on."""
        wanted = {name for name in self.results if self.kinds[name] == Kind.FLOAT}
        drawn = []
        for node in reversed(nodes):
            if wanted & set(node.output):
                wanted.update(self._operands(node))
                drawn.append(node)
        return drawn[::-1]

    def _merged(self) -> set[str]:
        """The values whose expression is merged into the box that uses them."""
        uses = Counter(self._source(name) for node in self.drawn for name in used_names(node))
        merged: set[str] = set()
        for node in self.drawn:
            for name in self._operands(node):
                maker = self.makers.get(name)
                if (
                    maker in self.drawn
                    and uses[name] == 1
                    and name not in self.results
                    and len(self._operands(maker)) == 1
                    and not subgraphs(maker)
                    and not subgraphs(node)
                    and len(self._expression(node, merged | {name})) <= BOX_LENGTH
                ):
                    merged.add(name)
        return merged

    # Text

    def _lines(self) -> Iterator[str]:
        """The statements of the flowchart."""
        named = {name for node in self.boxes for name in self._leaves(node)}
        for node in self.boxes:
            names = ", ".join(name for name in node.output if name in named)
            box = node.output[0]
            yield f"    {identifier(box)}[{quoted(label(names, self._expression(node, self.merged)))}]"
            for name in self._leaves(node):
                yield f"    {self._start(name, box)} --> {identifier(box)}"
        for name, outputs in self.results.items():
            result = f"{name}__out"
            yield f"    {self._start(name, result)} --> {identifier(result)}([{quoted(', '.join(outputs))}])"

    def _start(self, name: str, end: str) -> str:
        """The start of an arrow. Inputs are repeated for each box that uses them, for short arrows."""
        if name in self.own:
            return identifier(self.makers[name].output[0])
        return f"{identifier(f'{end}__{name}')}([{quoted(name)}])"

    def _leaves(self, node: onnx.NodeProto) -> list[str]:
        """The operands of a box, including those of expressions merged into it."""
        leaves: list[str] = []
        for name in self._operands(node):
            leaves += self._leaves(self.makers[name]) if name in self.merged else [name]
        return list(dict.fromkeys(leaves))

    def _expression(self, node: onnx.NodeProto, merged: set[str]) -> str:
        """A node in ONNX's text syntax, with the string attributes and the names of subgraphs only."""
        words = ", ".join([*(a.s.decode() for a in node.attribute if a.s), *(graph.name for graph in subgraphs(node))])
        operands = ", ".join(self._operand(name, merged) for name in node.input if name)
        return f"{node.op_type}{f' <{words}>' if words else ''} ({operands})"

    def _operand(self, name: str, merged: set[str]) -> str:
        """The text of an operand: an expression, a number or a name."""
        source = self._source(name)
        if source in merged:
            return self._expression(self.makers[source], merged)
        value = constant(self.makers[source]) if source in self.makers else None
        return source if value is None else value

    def _note(self) -> list[str]:
        """A line with the values that boxes use and that have no box."""
        sources = {self._source(name) for node in self.drawn for name in node.input if name}
        written = {name for name in sources if self.kinds[name] < Kind.FLOAT and name not in self.inputs}
        names = sorted(name for name in written if constant(self.makers[name]) is None)
        if not names:
            return []
        dependencies = "shapes and attributes"
        if inputs := self._integer_inputs(names):
            dependencies = f"shapes, attributes and {listed(inputs)}"
        return [filled(f"Not drawn, as they depend only on {dependencies}: {listed(names)}.")]

    def _integer_inputs(self, names: Sequence[str]) -> list[str]:
        """The integer inputs on whose elements the values depend."""
        pending, seen = list(names), set()
        while pending:
            name = pending.pop()
            if self.kinds[name] == Kind.INTEGER and name not in seen:
                seen.add(name)
                pending += used_names(self.makers[name]) if name in self.makers else []
        return [name for name in self.inputs if name in seen]


def used_names(node: onnx.NodeProto) -> list[str]:
    """The operands of a node, including the outer values that its subgraphs use."""
    names = [name for name in node.input if name]
    for graph in subgraphs(node):
        own = {value.name for value in (*graph.input, *graph.initializer)}
        own.update(name for inner in graph.node for name in inner.output)
        names += [name for inner in graph.node for name in used_names(inner) if name not in own]
    return names


def constant(node: onnx.NodeProto) -> str | None:
    """The text of the number that a node computes; None if it is no scalar constant, or too long."""
    if node.op_type not in ("Constant", "ConstantOfShape") or any(a.ref_attr_name for a in node.attribute):
        return None
    value = next(map(helper.get_attribute_value, node.attribute), 0.0)  # the default of ConstantOfShape
    values = numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.array(value)
    if values.size != 1 or values.dtype.kind not in "iuf":
        return None
    text = f"{values.item():.{DIGITS}g}" if values.dtype.kind == "f" else str(values.item())
    return text if len(text) <= LITERAL_LENGTH else None


def label(names: str, expression: str) -> str:
    """The text of a box."""
    whole = f"{names} = {expression}" if names else expression
    if len(whole) <= LINE_LENGTH:
        return whole
    count = len(lines(expression, LINE_LENGTH))
    balanced = next(width for width in range(1, LINE_LENGTH + 1) if len(lines(expression, width)) == count)
    return "<br/>".join([*([f"{names} ="] if names else []), *lines(expression, balanced)])


def identifier(name: str) -> str:
    """A valid Mermaid identifier."""
    return "v_" + re.sub(r"\W", "_", name)


def quoted(text: str) -> str:
    """A Mermaid label in quotation marks, escaped except for <br/>."""
    return '"' + re.sub(r"<(?!br/>)", "#lt;", text.replace('"', "#quot;")) + '"'


# --- Markdown ------------------------------------------------------------------------------------------------------


def text_of(proto: onnx.ModelProto | onnx.GraphProto | onnx.FunctionProto | onnx.NodeProto) -> str:
    """ONNX's text format of a proto."""
    return str(onnx.printer.to_text(proto)).strip()


def fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def filled(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def wrapped(line: str, width: int = CODE_WIDTH) -> str:
    """A line of code, broken after commas into lines of at most `width`, with an indent of four spaces."""
    if len(line) <= width:
        return line
    indent = line[: len(line) - len(line.lstrip())] + "    "
    return f"\n{indent}".join(lines(line, width - len(indent)))


def lines(code: str, width: int) -> list[str]:
    """A line of code, broken after commas into lines of at most `width` where possible."""
    found = [""]
    for piece in re.findall(r".+?, |.+$", code):
        if found[-1] and len(found[-1] + piece.rstrip()) > width:
            found.append("")
        found[-1] += piece
    return [line.rstrip() for line in found]


def prose(text: str) -> str:
    """A paragraph as Markdown; its line breaks are kept if no line is too long."""
    paragraph = inline(text)
    return paragraph if all(len(line) <= WIDTH for line in paragraph.splitlines()) else filled(paragraph)


def inline(text: str) -> str:
    """Escape Markdown's special characters outside of backticks."""
    return re.sub(r"(`[^`]*`)|([*<\\])", lambda match: match[1] or f"\\{match[2]}", text)


if __name__ == "__main__":
    sys.exit(main())
