"""C++ source of parser plugins, by which ATC converts nodes of this domain to operators of CANN's graphs (GE)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnx.defs import OpSchema

from onnx_ops.ascend.correspondence import correspondence
from onnx_ops.ascend.records import Constant, GeAttribute, GeOperator
from onnx_ops.core.domain import DOMAIN
from onnx_ops.core.errors import OpError
from onnx_ops.core.op import Op
from onnx_ops.core.version import __version__

PARTITIONED_CALL = "PartitionedCall"
"""The operator of a graph that a parser replaces by a graph of its own."""


def has_plugin(op: Op) -> bool:
    """Whether there is an operator that corresponds to an op."""
    return correspondence(op.name).operator is not None


def plugin_source(ops: Iterable[Op]) -> str:
    """One file with the parsers of ops.

    Raises:
        OpError: an op that no operator corresponds to.
    """
    parsers = [_Parser(op) for op in ops]
    functions = "\n\n".join("\n".join(parser.functions()) for parser in parsers)
    registrations = "\n\n".join(parser.registration() for parser in parsers)
    return f"""{HEADER}
namespace domi {{
namespace {{

using Node = ge::onnx::NodeProto;

{functions}

}}  // namespace

{registrations}
}}  // namespace domi
"""


HEADER = f"""// Parser plugins for ATC: nodes of the ONNX domain "{DOMAIN}" become operators of CANN.
//
// Written by `onnx-ops plugin` of onnx_ops {__version__}, from the schemas of the ops and CANN's definitions of the
// operators. It has been compiled against stub headers, and has not been run on an NPU.
//
// Build it as a library of the framework "onnx" of a custom operator package: link it with CANN's libregister and the
// code that protoc makes of CANN's ge_onnx.proto.

#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/operator.h"
#include "graph/operator_factory.h"
#include "register/register.h"
#if __has_include("onnx/proto/ge_onnx.pb.h")
#include "onnx/proto/ge_onnx.pb.h"
#else
#include "proto/onnx/ge_onnx.pb.h"
#endif
"""

TYPES = {
    "Float": "float",
    "Int": "int64_t",
    "Bool": "bool",
    "String": "ge::AscendString",
    "ListInt": "std::vector<int64_t>",
}
FIELDS = {OpSchema.AttrType.FLOAT: "f", OpSchema.AttrType.INT: "i", OpSchema.AttrType.INTS: "ints"}
SOURCES = {
    OpSchema.AttrType.FLOAT: "float",
    OpSchema.AttrType.INT: "int64_t",
    OpSchema.AttrType.INTS: "std::vector<int64_t>",
}


class _Parser:
    """The parser of an op: how it reads a node, and its registration."""

    def __init__(self, op: Op) -> None:
        known = correspondence(op.name)
        if known.operator is None:
            raise OpError(op.name, f"there is no parser plugin, expected an op with an operator of CANN. {known.note}")
        self.op = op
        self.operator: GeOperator = known.operator
        self.origin = f"{DOMAIN}::{op.version}::{op.name}"
        in_order = list(self.operator.inputs.values()) == list(op.input_names)
        self.is_graph = not in_order or bool(self.operator.divided)

    def registration(self) -> str:
        graph = f"\n    .ParseOpToGraphFn(Build{self.op.name})" if self.is_graph else ""
        return f"""REGISTER_CUSTOM_OP("{PARTITIONED_CALL if self.is_graph else self.operator.name}")
    .FrameworkType(ONNX)
    .OriginOpType("{self.origin}")
    .ParseParamsFn(Parse{self.op.name}){graph}
    .ImplyType(ImplyType::TVM);"""

    def functions(self) -> Iterator[str]:
        settings = list(self._settings())
        target = "target" if settings else ""
        yield f"// {self.op.name}: {self.operator.name}."
        yield f"Status Parse{self.op.name}(const google::protobuf::Message *source, ge::Operator &{target}) {{"
        yield "  const auto *node = dynamic_cast<const Node *>(source);"
        yield "  if (node == nullptr) {"
        yield "    return FAILED;"
        yield "  }"
        yield from self._checks()
        yield from self._values()
        yield from settings
        yield "  return SUCCESS;"
        yield "}"
        if self.is_graph:
            yield ""
            yield from self._graph()

    def _settings(self) -> Iterator[str]:
        """The attributes and the inputs and outputs of the operator."""
        for name, attribute in self.operator.attributes.items():
            yield f'  target.SetAttr("{name}", {self._converted(attribute)});'
        for name, constant in self.operator.constants.items():
            yield f'  target.SetAttr("{name}", {_literal(constant)});'
        for name, given in self.operator.given.items():
            yield f'  target.SetAttr("{name}", {self._given(given)});'
        if self.is_graph:
            yield '  target.SetAttr("name", ge::AscendString(node->name().c_str()));'
            yield f'  target.SetAttr("original_type", ge::AscendString("{self.origin}"));'
            yield '  target.DynamicInputRegister("x", node->input_size());'
            yield f'  target.DynamicOutputRegister("y", {len(self.operator.outputs)});'

    # The node

    def _given(self, name: str) -> str:
        """Whether a node has an input."""
        index = self.op.input_names.index(name)
        return f"node->input_size() > {index} && !node->input({index}).empty()"

    def _checks(self) -> Iterator[str]:
        """Refuses nodes with outputs or without inputs for which the operator has no means."""
        extra = len(self.operator.outputs)
        if extra < len(self.op.output_names):
            yield f"  for (int i = {extra}; i < node->output_size(); ++i) {{"
            yield f"    if (!node->output(i).empty()) {{  // {', '.join(self.op.output_names[extra:])}"
            yield "      return FAILED;"
            yield "    }"
            yield "  }"
        optional = [parameter.optional for parameter in self.op.inputs]
        last = max((i for i, free in enumerate(optional) if not free), default=-1)
        if any(optional[: last + 1]) or (self.is_graph and any(optional)):
            yield "  for (const auto &input : node->input()) {"
            yield "    if (input.empty()) {  // the operator, or the order of its inputs, needs what is omitted"
            yield "      return FAILED;"
            yield "    }"
            yield "  }"

    def _values(self) -> Iterator[str]:
        """Reads attributes into variables named as in the schema."""
        names = {a.source for a in self.operator.attributes.values()} | set(self.operator.only)
        names |= {a.empty for a in self.operator.attributes.values() if isinstance(a.empty, str)}
        attributes = {name: a for name, a in self.op.attributes.items() if name in names}
        for name, attribute in attributes.items():
            yield f"  {SOURCES[attribute.type]} {name}{_initial(self.op.attribute_defaults.get(name))};"
        if attributes:
            yield "  for (const auto &attribute : node->attribute()) {"
            for name, attribute in attributes.items():
                yield f'    if (attribute.name() == "{name}") {{'
                field = FIELDS[attribute.type]
                value = (
                    "{attribute.ints().begin(), attribute.ints().end()}" if field == "ints" else f"attribute.{field}()"
                )
                yield f"      {name} = {value};"
                yield "    }"
            yield "  }"
        for name, only in self.operator.only.items():
            yield f"  if ({name} != {only}) {{"
            yield "    return FAILED;"
            yield "  }"
        lists = [own for own in self.operator.attributes.values() if own.kind == "ListInt"]
        for own in lists:
            if own.empty is not None:
                yield f"  if ({own.source}.empty()) {{"
                yield f"    {own.source} = {own.empty if isinstance(own.empty, str) else _literal(own.empty)};"
                yield "  }"
        if lists:
            yield f"  if ({' || '.join(f'{own.source}.size() != 2' for own in lists)}) {{  // two spatial axes"
            yield "    return FAILED;"
            yield "  }"
        for name, choices in self.op.signature.choices.items():
            if name in attributes:
                yield f"  if ({name} < 0 || {name} > {max(choices)}) {{"
                yield "    return FAILED;"
                yield "  }"
            if any(own.source == name and own.kind == "String" for own in self.operator.attributes.values()):
                words = ", ".join(f'"{choices[number]}"' for number in sorted(choices))
                yield f"  const char *const {name}_words[] = {{{words}}};"

    def _converted(self, attribute: GeAttribute) -> str:
        """A variable as a value of the operator's attribute."""
        name = attribute.source
        if attribute.kind == "Bool":
            return f"{name} != 0"
        return f"ge::AscendString({name}_words[{name}])" if attribute.kind == "String" else name

    # The graph

    def _graph(self) -> Iterator[str]:
        """A graph of the operator, whose inputs are those of the node in another order, or quotients of them."""
        yield f"Status Build{self.op.name}(const ge::Operator &source, ge::Graph &graph) {{"
        yield "  ge::AscendString name;"
        yield '  if (source.GetAttr("name", name) != ge::GRAPH_SUCCESS) {'
        yield "    return FAILED;"
        yield "  }"
        yield '  const std::string prefix = std::string(name.GetString()) + "_";'
        yield "  std::vector<ge::Operator> inputs;"
        yield "  for (size_t i = 0; i < source.GetInputsSize(); ++i) {"
        yield '    const std::string own = prefix + "input" + std::to_string(i);'
        yield '    inputs.push_back(ge::OperatorFactory::CreateOperator(own.c_str(), "Data"));'
        yield '    inputs.back().SetAttr("index", static_cast<int64_t>(i));'
        yield "  }"
        yield f"  if (inputs.size() < {sum(not p.optional for p in self.op.inputs)}) {{"
        yield "    return FAILED;"
        yield "  }"
        for own, other in self.operator.divided.items():
            yield from _created(f"{own}_quotient", "DivNoNan")  # 0 / 0 is 0
            yield f'  {own}_quotient.SetInput("x1", inputs[{self.op.input_names.index(own)}], "y");'
            yield f'  {own}_quotient.SetInput("x2", inputs[{self.op.input_names.index(other)}], "y");'
        yield from _created("result", self.operator.name)
        required = {p.name for p in self.op.inputs if not p.optional}
        for name, own in self.operator.inputs.items():
            index = self.op.input_names.index(own)
            value = f"{own}_quotient" if own in self.operator.divided else f"inputs[{index}]"
            line = f'result.SetInput("{name}", {value}, "y");'
            yield f"  {line}" if own in required else f"  if (inputs.size() > {index}) {{\n    {line}\n  }}"
        kinds: dict[str, str] = {name: a.kind for name, a in self.operator.attributes.items()}
        kinds |= {name: _kind(constant) for name, constant in self.operator.constants.items()}
        kinds |= dict.fromkeys(self.operator.given, "Bool")
        for name, kind in kinds.items():
            yield f"  {TYPES[kind]} {name}{{}};"
            yield f'  if (source.GetAttr("{name}", {name}) != ge::GRAPH_SUCCESS) {{'
            yield "    return FAILED;"
            yield "  }"
            yield f'  result.SetAttr("{name}", {name});'
        places = ", ".join(map(str, range(len(self.operator.outputs))))
        yield f"  graph.SetInputs(inputs).SetOutputs({{{{result, {{{places}}}}}}});"
        yield "  return SUCCESS;"
        yield "}"


def _created(name: str, kind: str) -> Iterator[str]:
    """Creates an operator of the graph."""
    yield f'  auto {name} = ge::OperatorFactory::CreateOperator((prefix + "{name}").c_str(), "{kind}");'


def _initial(value: object) -> str:
    """The initializer of a variable with a default of the schema; the zero of its type for a required attribute."""
    return "{}" if value is None or value == [] else f" = {_literal(value)}"


def _literal(value: object) -> str:
    """A number, a text or numbers in C++."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'ge::AscendString("{value}")'
    if isinstance(value, list | tuple):
        return f"{{{', '.join(map(str, value))}}}"
    return f"{value!r}F" if isinstance(value, float) else f"static_cast<int64_t>({value})"


def _kind(constant: Constant) -> str:
    return "Bool" if isinstance(constant, bool) else "String" if isinstance(constant, str) else "Int"
