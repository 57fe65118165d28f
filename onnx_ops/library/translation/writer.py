"""Writes lines of C for a Python function, whose names and constants it resolves."""

from __future__ import annotations

import abc
import ast
import builtins
import contextlib
import enum
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Any, NoReturn

from onnx_ops.core.errors import OpError
from onnx_ops.library.translation import classes
from onnx_ops.library.translation.errors import TranslationError
from onnx_ops.library.translation.program import Program

MISSING = object()
"""Returned for an expression that is not constant."""


class Writer(abc.ABC):
    """The lines of the C function of a Python function, and its names with their meaning.

    Args:
        program: what constants and other functions are entered into.
        function: the Python function, which the program wants.
    """

    def __init__(self, program: Program, function: FunctionType) -> None:
        self.program = program
        self._function, self._name = function, program.functions[function]
        lines, self._line = inspect.getsourcelines(function)
        (tree,) = ast.parse(textwrap.dedent("".join(lines))).body
        self._file = inspect.getsourcefile(function) or "?"
        self._at: ast.AST = tree
        if not isinstance(tree, ast.FunctionDef):
            self.refuse(tree, "this is no function")
        self._tree = tree
        self._lines: list[str] = []
        self._indent = 1
        self._temporaries = 0
        self._read: set[str] = set()
        self._scopes: list[dict[str, str]] = [{}]
        parameters = inspect.signature(function).parameters
        self._parameters = {name: i for i, name in enumerate(parameters)}
        self._outer: dict[str, Any] = {**vars(builtins), **function.__globals__}
        self._outer |= inspect.getclosurevars(function).nonlocals
        if function in program.bound:
            self._outer[next(iter(parameters))] = program.bound[function]
            del self._parameters[next(iter(parameters))]
        self._rebound = {node.target.id for node in ast.walk(tree) if isinstance(node, ast.NamedExpr)}

    def refuse(self, node: ast.AST, what: str) -> NoReturn:
        line = self._line + getattr(node, "lineno", 1) - 1
        raise TranslationError(f"{self._file}:{line}: {self._function.__qualname__}: {what}: {ast.unparse(node)}")

    # --- lines -------------------------------------------------------------------------------------------------------

    def emit(self, line: str) -> None:
        self._lines.append("    " * self._indent + line)

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.emit(f"{head} {{")
        self._indent += 1
        yield
        self._indent -= 1
        self.emit("}")

    def fresh(self) -> str:
        self._temporaries += 1
        return f"t{self._temporaries}"

    def kept(self, expression: str, kind: str = "V") -> str:
        """A variable with the value of an expression."""
        name = self.fresh()
        self.emit(f"{kind} {name} = {expression};")
        return name

    # --- names and constants -----------------------------------------------------------------------------------------

    def _scope_of(self, node: ast.Name) -> dict[str, str]:
        for scope in reversed(self._scopes):
            if node.id in scope:
                return scope
        self.refuse(node, "this name is not a variable")

    def _is_variable(self, name: str) -> bool:
        return any(name in scope for scope in self._scopes)

    def _variable(self, node: ast.Name) -> str:
        name = self._scope_of(node)[node.id]
        self._read.add(name)
        return self.kept(name) if node.id in self._rebound else name

    def constant_of(self, node: ast.expr) -> Any:
        """The value of an expression that does not depend on variables, MISSING for others.

        Lists are not constant, as they may be changed.
        """
        match node:
            case ast.Constant(value):
                return value
            case ast.Name(name) if not self._is_variable(name):
                if name not in self._outer:
                    self.refuse(node, "this name is not known")
                return self._outer[name]
            case ast.Attribute(base, name):
                own = self.constant_of(base)
                if self._has_constant_attributes(own):
                    if not hasattr(own, name):
                        self.refuse(node, "there is no such attribute")
                    return getattr(own, name)
            case ast.UnaryOp(ast.USub(), operand):
                value = self.constant_of(operand)
                if isinstance(value, int | float):
                    return -value
            case ast.Tuple(elements):
                values = [self.constant_of(element) for element in elements]
                if all(value is not MISSING for value in values):
                    return tuple(values)
            case ast.Dict(keys, elements):
                pairs = [
                    (MISSING if k is None else self.constant_of(k), self.constant_of(e))
                    for k, e in zip(keys, elements, strict=True)
                ]
                if pairs and all(part is not MISSING for pair in pairs for part in pair):
                    return dict(pairs)
        return MISSING

    def _has_constant_attributes(self, value: object) -> bool:
        """Whether attributes of a constant are constant."""
        if isinstance(value, ModuleType | type | enum.Enum | FunctionType):
            return True
        if type(value).__name__ == "EnumTypeWrapper":  # of protobuf
            return True
        return classes.is_known(type(value)) and not isinstance(value, OpError)

    def array(self, values: Sequence[str]) -> str:
        return f"(V[]){{{', '.join(values)}}}" if values else "NULL"

    # --- what translates expressions ---------------------------------------------------------------------------------

    @abc.abstractmethod
    def value(self, node: ast.expr) -> str:
        """The C expression of a value, which has no effects and may be written several times."""

    @abc.abstractmethod
    def gathered(self, elements: Sequence[ast.expr]) -> str:
        """A list of elements, with those of starred ones."""

    @abc.abstractmethod
    def condition(self, node: ast.expr) -> str:
        """The C expression, to be evaluated once and at once, of the truth of a value."""

    @abc.abstractmethod
    def until(self, node: ast.expr, decide: Callable[[ast.expr], str]) -> None:
        """A loop over the elements of a generator expression, or of an iterable, that `decide` may exit early.

        `decide` writes statements and returns the condition of the exit.
        """
