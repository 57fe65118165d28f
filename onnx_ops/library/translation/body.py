"""Translates the body of one function, statement by statement."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from onnx_ops.library.translation.errors import TranslationError
from onnx_ops.library.translation.expressions import ARITHMETIC, Comprehension, Expressions

IN_PLACE: dict[type[ast.operator], str] = {ast.Add: "oo_add_to", ast.BitOr: "oo_or_to"}
"""Operators whose augmented assignments change lists and dictionaries."""


class Body(Expressions):
    """Writes the C function of a Python function.

    Args:
        program: what constants and other functions are entered into.
        function: the Python function, which the program wants.
    """

    def written(self) -> str:
        """The C function."""
        parameters = self._parameters
        body = self._tree.body
        self._check_scopes(body)
        for name in parameters:
            self._scopes[0][name] = f"{name}_"
        locals_ = [name for name in self._assigned(body) if name not in parameters]
        self._scopes[0] |= {name: f"{name}_" for name in locals_}
        try:
            for statement in body:
                self._statement(statement)
        except TranslationError as error:
            if str(error).startswith(self._file):
                raise
            line = self._line + getattr(self._at, "lineno", 1) - 1
            raise type(error)(f"{self._file}:{line}: {self._function.__qualname__}: {error}") from error
        if not isinstance(body[-1], ast.Return | ast.Raise):
            self.emit(f"return {'yielded' if self._yields else 'oo_none'};")
        read = {name: i for name, i in parameters.items() if f"{name}_" in self._read}
        unread = [*([] if read else ["a"]), *(f"{name}_" for name in locals_ if f"{name}_" not in self._read)]
        unread += [] if self._yields or any("(s," in line for line in self._lines) else ["s"]
        head = [f"static V {self._name}(S *s, const V *a) {{"]
        head += [f"    V {name}_ = a[{i}];" for name, i in read.items()]
        head += [f"    V {name}_ = NULL;" for name in locals_]
        head += [f"    (void){name};" for name in unread]
        head += ["    V yielded = oo_new(s, OO_LIST, 0, 0, NULL);"] if self._yields else []
        return "\n".join([*head, *self._lines, "}\n"])

    def _check_scopes(self, body: Sequence[ast.stmt]) -> None:
        nodes = [inner for statement in body for inner in ast.walk(statement)]
        yields = [node.value for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield)]
        self._yields = bool(yields)
        for node in nodes:
            if isinstance(node, ast.Raise | ast.Assert | ast.Return) and self._yields:
                self.refuse(node, "a generator is evaluated at once, so that it must not end early")
            if isinstance(node, ast.Yield) and node not in yields:
                self.refuse(node, "what a generator is sent is not translated")
            if isinstance(node, ast.YieldFrom | ast.Await | ast.Lambda | ast.FunctionDef | ast.ClassDef):
                self.refuse(node, "inner functions are not translated")
            if isinstance(node, ast.Global | ast.Nonlocal | ast.Import | ast.ImportFrom | ast.Delete):
                self.refuse(node, "this statement is not translated")

    def _assigned(self, body: Sequence[ast.stmt]) -> list[str]:
        """Names that the function itself assigns to, in order; those of comprehensions are their own."""
        found: dict[str, None] = {}

        def visit(node: ast.AST) -> None:
            if isinstance(node, Comprehension):
                for inner in ast.walk(node):
                    if isinstance(inner, ast.NamedExpr):
                        found[inner.target.id] = None
                return
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found[node.id] = None
            for child in ast.iter_child_nodes(node):
                visit(child)

        for statement in body:
            visit(statement)
        return list(found)

    def _statement(self, node: ast.stmt) -> None:
        self._at = node
        match node:
            case ast.Expr(ast.Constant()) | ast.Pass():
                pass
            case ast.Expr(ast.Yield(value)) if value:
                self.emit(f"oo_append(s, yielded, {self.value(value)});")
            case ast.Expr(value):
                self.emit(f"(void){self.value(value)};")
            case ast.Return(value):
                self.emit(f"return {self.value(value) if value else 'oo_none'};")
            case ast.Assign(targets, value):
                own = self.value(value) if len(targets) == 1 else self.kept(self.value(value))
                for target in targets:
                    self._assign(target, own)
            case ast.AnnAssign(target, _, value):
                if value:
                    self._assign(target, self.value(value))
            case ast.AugAssign(ast.Name() as target, operator, value) if type(operator) in ARITHMETIC:
                function = IN_PLACE.get(type(operator), ARITHMETIC[type(operator)])
                left = self._variable(target)
                self._assign(target, self.kept(f"{function}(s, {left}, {self.value(value)})"))
            case ast.If(test, body, orelse):
                with self.block(f"if ({self.condition(test)})"):
                    self._statements(body)
                if orelse:
                    with self.block("else"):
                        self._statements(orelse)
            case ast.For(target, iterable, body, []):
                with self._loop(iterable) as item:
                    self._assign(target, item)
                    self._statements(body)
            case ast.While(test, body, []):
                with self.block("for (;;)"):
                    self.emit(f"if (!({self.condition(test)})) break;")
                    self._statements(body)
            case ast.Continue():
                self.emit("continue;")
            case ast.Break():
                self.emit("break;")
            case ast.Raise(exception, None) if exception:
                self.emit(f"oo_raise(s, {self.value(exception)});")
            case ast.Assert(test, None):
                self.emit(f'if (!({self.condition(test)})) oo_fail(s, "AssertionError: ");')
            case _:
                self.refuse(node, "this statement is not translated")

    def _statements(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)
