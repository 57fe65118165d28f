"""Golden functions in NumPy, in the format of CANN's repositories of operators (tests/assets/golden.py).

Source of the format: gitcode.com/cann/ops-nn, 9.1. A file has the dict `__golden__`: under "kernel", the name of the
function of each kernel. A function takes the inputs of the operator in order, its attributes by keyword, and further
keywords, such as formats, that it ignores.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import keyword
import re
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType

from onnx_ops.ascend import definitions
from onnx_ops.ascend.correspondence import correspondence
from onnx_ops.ascend.records import GeAttribute, GeOperator
from onnx_ops.core.errors import OpError
from onnx_ops.core.op import Op
from onnx_ops.core.version import __version__
from onnx_ops.ops import OPS

PACKAGE = __name__.partition(".")[0]
MARKS = f"{PACKAGE}.loops"
"""Where the decorators are that mark functions for the compiler of kernels; NumPy does not need them."""


def kernel_name(operator: str) -> str:
    """The name of an operator's kernel: "CTCLossV2Grad" is "ctc_loss_v2_grad"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", operator).lower()


def definition_name(op: Op) -> str:
    """The name of an op's definition in golden files."""
    return kernel_name(op.name)


def operators(op: Op) -> dict[str, str]:
    """The kernels of the operators for which there is a golden function, each with that operator, for an op."""
    known = correspondence(op.name)
    names = [*([] if known.operator is None else [known.operator.name]), *known.related]
    return {kernel_name(name): name for name in names}


@functools.cache
def kernels() -> Mapping[str, Op]:
    """The op of each kernel for which there is a golden function."""
    return {kernel: op for op in OPS.values() for kernel in operators(op)}


def golden_source(op: Op) -> str:
    """A file with a golden function for each operator that corresponds to an op. It needs NumPy and ml_dtypes alone.

    Raises:
        OpError: an op to which no operator corresponds.
    """
    names = operators(op)
    if not names:
        note = correspondence(op.name).note
        raise OpError(op.name, f"there is no golden function, expected an op with an operator of CANN. {note}")
    inlined = _Inlined()
    functions = {kernel: _add_function(inlined, op, kernel) for kernel in names}
    table = "".join(f'        "{kernel}": "{function}",\n' for kernel, function in functions.items())
    imports = "".join(f"{line}\n" for line in inlined.imports_in_order())
    return (
        f'''#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Written by `onnx-ops golden {op.name}` of onnx_ops {__version__}, from its definition in NumPy.
"""Golden functions of {", ".join(names.values())}."""

from __future__ import annotations

{imports}
__golden__ = {{
    "kernel": {{
{table}    }}
}}


'''
        + "\n\n\n".join(inlined.definitions.values())
        + "\n"
    )


class _Inlined:
    """Definitions of this package, with all that they use of it.

    Attributes:
        definitions: source by name, each after what it uses.
        imports: lines for what other packages have.
    """

    def __init__(self) -> None:
        self.definitions: dict[str, str] = {}
        self.imports: set[str] = set()
        self._origins: dict[str, tuple[str, str]] = {}

    def add(self, module: str, name: str, alias: str) -> None:
        """A definition of a module, under a name of its own."""
        found = _Source.of(module)
        node = found.definitions.get(name)
        if node is None:
            imported, original = found.imported[name]
            if imported.startswith(f"{PACKAGE}."):
                assert original is not None, f"{module}: import the names of {imported}"
                self.add(imported, original, alias)
            elif original is None:
                self.imports.add(f"import {imported}" + (f" as {name}" if name != imported else ""))
            else:
                self.imports.add(f"from {imported} import {original}" + (f" as {name}" if name != original else ""))
            return
        if alias in self._origins:
            assert self._origins[alias] == (module, name), f"two definitions of {alias}"
            return
        self._origins[alias] = (module, name)
        for used in found.uses(node):
            self.add(module, used, used)
        self.definitions[alias] = found.text(node, name, alias)

    def imports_in_order(self) -> list[str]:
        """The lines of imports, those of the standard library first."""
        own = sorted(line for line in self.imports if line.split()[1].partition(".")[0] in sys.stdlib_module_names)
        return [*own, *([""] if own else []), *sorted(self.imports - {*own})]


class _Source:
    """The source of a module: its definitions and imports by name."""

    def __init__(self, module: ModuleType) -> None:
        self._lines = inspect.getsource(module).splitlines()
        self.definitions: dict[str, ast.stmt] = {}
        self.imported: dict[str, tuple[str, str | None]] = {}
        for node in ast.parse("\n".join(self._lines)).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                self.definitions[node.name] = node
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    self.definitions |= {part.id: node for part in ast.walk(target) if isinstance(part, ast.Name)}
            elif isinstance(node, ast.ImportFrom):
                self.imported |= {alias.asname or alias.name: (str(node.module), alias.name) for alias in node.names}
            elif isinstance(node, ast.Import):
                self.imported |= {alias.asname or alias.name: (alias.name, None) for alias in node.names}

    @classmethod
    @functools.cache
    def of(cls, module: str) -> _Source:
        return cls(importlib.import_module(module))

    def uses(self, node: ast.stmt) -> Iterator[str]:
        """The names of the module that a definition uses, but for decorators that mark it for the compiler."""
        marks = {id(mark) for mark in self._marks(node)}
        own = {id(part) for target in getattr(node, "targets", ()) for part in ast.walk(target)}
        for part in ast.walk(node):
            if not isinstance(part, ast.Name) or id(part) in marks | own:
                continue
            if part.id in self.definitions or part.id in self.imported:
                yield part.id

    def text(self, node: ast.stmt, name: str, alias: str) -> str:
        """A definition under another name."""
        kept = [mark for mark in getattr(node, "decorator_list", ()) if mark not in self._marks(node)]
        start = min([node.lineno, *(mark.lineno for mark in kept)])
        text = "\n".join(self._lines[start - 1 : node.end_lineno])
        return text if name == alias else re.sub(rf"\b{name}\b", alias, text, count=1)

    def _marks(self, node: ast.stmt) -> list[ast.expr]:
        return [
            mark
            for mark in getattr(node, "decorator_list", ())
            if isinstance(mark, ast.Name) and self.imported.get(mark.id, ("",))[0].startswith(MARKS)
        ]


def _add_function(inlined: _Inlined, op: Op, kernel: str) -> str:
    """Add the golden function of a kernel, with what it uses; returns its name."""
    name = f"{kernel}_golden"
    if hasattr(definitions, name):
        inlined.add(definitions.__name__, name, name)
        return name
    operator = correspondence(op.name).operator
    assert operator is not None
    if kernel != kernel_name(operator.name):  # another version of the operator
        return _add_function(inlined, op, kernel_name(operator.name))
    inlined.add(op.reference.__module__, op.reference.__name__, definition_name(op))
    inlined.definitions[name] = _translated(op, operator, name)
    return name


def _translated(op: Op, operator: GeOperator, name: str) -> str:
    """A golden function that calls the definition of the op with its names."""
    optional = {parameter.name for parameter in op.inputs if parameter.optional}
    inputs = {f"{own}_" if keyword.iskeyword(own) else own: source for own, source in operator.inputs.items()}
    parameters = [f"{own}=None" if source in optional else own for own, source in inputs.items()]
    attributes = {own: _default(op, attribute) for own, attribute in operator.attributes.items()}
    attributes |= dict.fromkeys(operator.given, "False")
    keywords = [own if default is None else f"{own}={default}" for own, default in attributes.items()]
    given = {source: own for own, source in operator.given.items()}
    arguments = [
        f"{source}={own} if {given[source]} else None" if source in given else f"{source}={own}"
        for own, source in inputs.items()
    ]
    arguments += [f"{a.source}={_converted(op, own, a)}" for own, a in operator.attributes.items()]
    arguments += [f"{source}={only}" for source, only in operator.only.items()]
    lines = "".join(f"        {argument},\n" for argument in arguments)
    kept = "" if len(operator.outputs) == len(op.output_names) else f"[:{len(operator.outputs)}]"
    parameters += [*(["*"] if keywords else []), *keywords, "**kwargs"]
    listed = "".join(f"    {parameter},\n" for parameter in parameters)
    return (
        f"def {name}(\n{listed}):\n"
        f'    """Returns {", ".join(operator.outputs)}."""\n'
        f"    return {definition_name(op)}(\n{lines}    ){kept}"
    )


def _default(op: Op, attribute: GeAttribute) -> str | None:
    """The default of an attribute, None for a required one."""
    value = op.attribute_defaults.get(attribute.source) if attribute.default is None else attribute.default
    if value is None:
        return None
    if attribute.kind == "String":
        return f'"{op.signature.choices[attribute.source][int(value)]}"'
    return repr(bool(value)) if attribute.kind == "Bool" else repr(value)


def _converted(op: Op, name: str, attribute: GeAttribute) -> str:
    """An attribute as the definition of the op takes it."""
    if attribute.kind == "String":
        return repr({text: number for number, text in op.signature.choices[attribute.source].items()}) + f"[{name}]"
    return f"int({name})" if attribute.kind == "Bool" else name
