"""Translates the body of one function: statements, expressions and conditions."""

from __future__ import annotations

import ast
import builtins
import contextlib
import dataclasses
import enum
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Any, NoReturn

import numpy as np

from onnx_ops.core.errors import OpError
from onnx_ops.library.translation import classes
from onnx_ops.library.translation.errors import TranslationError
from onnx_ops.library.translation.intrinsics import BUILTINS, KINDS, METHODS, SPECIAL, Builtin
from onnx_ops.library.translation.program import Program, plain

Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "oo_add",
    ast.Sub: "oo_subtract",
    ast.Mult: "oo_multiply",
    ast.FloorDiv: "oo_floor_divide",
    ast.Mod: "oo_modulo",
    ast.BitAnd: "oo_and",
    ast.BitOr: "oo_or",
}
IN_PLACE: dict[type[ast.operator], str] = {ast.Add: "oo_add_to", ast.BitOr: "oo_or_to"}
"""Operators whose augmented assignments change lists and dictionaries."""
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "oo_equal(s, {0}, {1})",
    ast.NotEq: "!oo_equal(s, {0}, {1})",
    ast.Lt: "oo_less(s, {0}, {1})",
    ast.LtE: "oo_at_most(s, {0}, {1})",
    ast.Gt: "oo_less(s, {1}, {0})",
    ast.GtE: "oo_at_most(s, {1}, {0})",
    ast.In: "oo_in(s, {0}, {1})",
    ast.NotIn: "!oo_in(s, {0}, {1})",
    ast.Is: "oo_is({0}, {1})",
    ast.IsNot: "!oo_is({0}, {1})",
}
ORDERS: dict[type[ast.cmpop], str] = {ast.Lt: "<", ast.Gt: ">", ast.LtE: "l", ast.GtE: "g"}
"""Comparisons that arrays have."""
MISSING = object()
"""In place of the constant that an expression is not."""


class UnknownMethodError(TranslationError):
    """A method that no class has which was met so far."""


class Body:
    """Writes the C function of a Python function.

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

    # --- statements --------------------------------------------------------------------------------------------------

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

    @contextlib.contextmanager
    def _loop(self, iterable: ast.expr) -> Iterator[str]:
        if isinstance(iterable, ast.Call) and self.constant_of(iterable.func) is np.argwhere:
            (argument,) = iterable.args
            mask, index = self.value(argument), self.fresh()
            following = f"oo_next_place(s, {mask}, {index} + 1)"
            with self.block(
                f"for (int64_t {index} = oo_next_place(s, {mask}, 0); {index} >= 0; {index} = {following})"
            ):
                yield self.kept(f"oo_place_at(s, {mask}, {index})")
            return
        items = self.kept(f"oo_items_of(s, {self.value(iterable)})")
        index = self.fresh()
        with self.block(f"for (int64_t {index} = 0; {index} < {items}->count; {index}++)"):
            yield f"{items}->as.items[{index}]"

    def _assign(self, target: ast.expr, value: str) -> None:
        match target:
            case ast.Name(name):
                self.emit(f"{self._scope_of(target)[name]} = {value};")
            case ast.Tuple(elements) | ast.List(elements):
                stars = [i for i, element in enumerate(elements) if isinstance(element, ast.Starred)]
                own = self.fresh()
                self.emit(f"V {own}[{len(elements)}];")
                self.emit(f"oo_unpack(s, {value}, {len(elements)}, {stars[0] if stars else -1}, {own});")
                for i, element in enumerate(elements):
                    self._assign(element.value if isinstance(element, ast.Starred) else element, f"{own}[{i}]")
            case ast.Subscript(base, key) if not isinstance(key, ast.Slice):
                self.emit(f"oo_set_item(s, {self.value(base)}, {self.value(key)}, {value});")
            case _:
                self.refuse(target, "this target is not translated")

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
                if self._is_settled(own):
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

    def _is_settled(self, value: Any) -> bool:
        """Whether attributes of a constant are constant."""
        if isinstance(value, ModuleType | type | enum.Enum | FunctionType):
            return True
        if type(value).__name__ == "EnumTypeWrapper":  # of protobuf
            return True
        return classes.is_known(type(value)) and not isinstance(value, OpError)

    # --- expressions -------------------------------------------------------------------------------------------------

    def value(self, node: ast.expr) -> str:
        """The C expression of a value, which has no effects and may be written several times."""
        constant = self.constant_of(node)
        if constant is not MISSING:
            return self.program.constant(constant)
        match node:
            case ast.Name():
                return self._variable(node)
            case ast.Attribute(base, name):
                return self.kept(f"oo_attribute_of(s, {self.value(base)}, {self.program.name(name)})")
            case ast.Subscript(base, ast.Slice(lower, upper, None)):
                parts = [self.value(base), *(self.value(e) if e else "oo_none" for e in (lower, upper))]
                return self.kept(f"oo_slice(s, {', '.join(parts)})")
            case ast.Subscript(base, key):
                return self.kept(f"oo_item(s, {self.value(base)}, {self.value(key)})")
            case ast.Call():
                return self._call(node)
            case ast.BinOp(left, operator, right) if type(operator) in ARITHMETIC:
                return self.kept(f"{ARITHMETIC[type(operator)]}(s, {self.value(left)}, {self.value(right)})")
            case ast.UnaryOp(ast.USub(), operand):
                return self.kept(f"oo_negative(s, {self.value(operand)})")
            case ast.BoolOp(operator, values):
                return self._first_of(operator, values)
            case ast.Compare(left, [operator], [right]) if type(operator) in ORDERS:
                a, b = self.value(left), self.value(right)
                return self.kept(f"oo_compared(s, '{ORDERS[type(operator)]}', {a}, {b})")
            case ast.Compare() | ast.UnaryOp(ast.Not()):
                return self.kept(f"oo_bool({self.condition(node)})")
            case ast.IfExp(test, body, orelse):
                return self._choice(test, body, orelse)
            case ast.JoinedStr(pieces):
                own = [self._piece(piece) for piece in pieces]
                return self.kept(f"oo_joined(s, {len(own)}, {self.array(own)})")
            case ast.Tuple(elements):
                return self._display("TUPLE", elements)
            case ast.List(elements):
                return self._display("LIST", elements)
            case ast.Set(elements):
                return self.kept(f"oo_set_of(s, &{self._gathered(elements)})")
            case ast.Dict(keys, elements):
                return self._dictionary(keys, elements)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node)
            case ast.NamedExpr(target, value):
                own_value = self.value(value)
                self._assign(target, own_value)
                return own_value
            case _:
                self.refuse(node, "this expression is not translated")

    def array(self, values: Sequence[str]) -> str:
        return f"(V[]){{{', '.join(values)}}}" if values else "NULL"

    def _first_of(self, operator: ast.boolop, values: Sequence[ast.expr]) -> str:
        own = self.kept(self.value(values[0]))
        negation = "" if isinstance(operator, ast.And) else "!"
        for value in values[1:]:
            self.emit(f"if ({negation}oo_is_true(s, {own})) {{")
            self._indent += 1
            self.emit(f"{own} = {self.value(value)};")
        for _ in values[1:]:
            self._indent -= 1
            self.emit("}")
        return own

    def _choice(self, test: ast.expr, body: ast.expr, orelse: ast.expr) -> str:
        own = self.kept("NULL")
        with self.block(f"if ({self.condition(test)})"):
            self.emit(f"{own} = {self.value(body)};")
        with self.block("else"):
            self.emit(f"{own} = {self.value(orelse)};")
        return own

    def _piece(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(str(value)):
                return self.program.constant(value)
            case ast.FormattedValue(value, conversion, None) if conversion in (-1, ord("r"), ord("s")):
                function = "oo_repr" if conversion == ord("r") else "oo_to_str"
                return self.kept(f"{function}(s, {self.array([self.value(value)])})")
            case _:
                self.refuse(node, "this format is not translated")

    def _display(self, kind: str, elements: Sequence[ast.expr]) -> str:
        if not any(isinstance(element, ast.Starred) for element in elements):
            own = [self.value(element) for element in elements]
            return self.kept(f"oo_new(s, OO_{kind}, 0, {len(own)}, {self.array(own)})")
        items = self._gathered(elements)
        return items if kind == "LIST" else self.kept(f"oo_tuple(s, &{items})")

    def _gathered(self, elements: Sequence[ast.expr]) -> str:
        """A list of elements, with those of starred ones."""
        own = self.kept("oo_new(s, OO_LIST, 0, 0, NULL)")
        for element in elements:
            if isinstance(element, ast.Starred):
                self.emit(f"oo_extend(s, {own}, {self.value(element.value)});")
            else:
                self.emit(f"oo_append(s, {own}, {self.value(element)});")
        return own

    def _dictionary(self, keys: Sequence[ast.expr | None], elements: Sequence[ast.expr]) -> str:
        own = self.kept("oo_new(s, OO_DICT, 0, 0, NULL)")
        for key, element in zip(keys, elements, strict=True):
            if key is None:
                self.emit(f"oo_merge(s, {own}, {self.value(element)});")
            else:
                self.emit(f"oo_set_item(s, {own}, {self.value(key)}, {self.value(element)});")
        return own

    # --- comprehensions ----------------------------------------------------------------------------------------------

    def _comprehension(self, node: Comprehension) -> str:
        kind = {ast.SetComp: "SET", ast.DictComp: "DICT"}.get(type(node), "LIST")
        own = self.kept(f"oo_new(s, OO_{kind}, 0, 0, NULL)")

        def take() -> None:
            if isinstance(node, ast.DictComp):
                self.emit(f"oo_set_item(s, {own}, {self.value(node.key)}, {self.value(node.value)});")
            else:
                put = "oo_put" if isinstance(node, ast.SetComp) else "oo_append"
                self.emit(f"{put}(s, {own}, {self.value(node.elt)});")

        self._each(node.generators, take)
        return own

    def _each(self, generators: Sequence[ast.comprehension], take: Callable[[], None]) -> None:
        """Loops of a comprehension; `take` writes what happens to each element."""
        first, *others = generators
        if first.is_async:
            self.refuse(first.iter, "asynchronous loops are not translated")
        with self._loop(first.iter) as item:
            names = [n.id for n in ast.walk(first.target) if isinstance(n, ast.Name)]
            self._scopes.append({name: f"{name}_{self.fresh()}" for name in names})
            for own in self._scopes[-1].values():
                self.emit(f"V {own} = NULL;")
            self._assign(first.target, item)
            for test in first.ifs:
                self.emit(f"if (!({self.condition(test)})) continue;")
            if others:
                self._each(others, take)
            else:
                take()
            for own in self._scopes.pop().values():
                if own not in self._read:
                    self.emit(f"(void){own};")

    def until(self, node: ast.expr, decide: Callable[[ast.expr], str]) -> None:
        """A loop over the elements of a generator expression, or of an iterable, that `decide` may leave.

        `decide` writes statements and returns the condition to leave.
        """
        if not isinstance(node, ast.GeneratorExp) or len(node.generators) != 1:
            self.refuse(node, "expected a generator expression with one loop")

        def take() -> None:
            self.emit(f"if ({decide(node.elt)}) break;")

        self._each(node.generators, take)

    # --- conditions --------------------------------------------------------------------------------------------------

    def condition(self, node: ast.expr) -> str:
        """The C expression, to be evaluated once and at once, of whether a value is true."""
        match node:
            case ast.Compare(left, operators, others):
                return self._compared(left, operators, others)
            case ast.UnaryOp(ast.Not(), operand):
                return f"!({self.condition(operand)})"
            case ast.BoolOp(operator, values):
                own = self.kept(self.condition(values[0]), "int")
                negation = "" if isinstance(operator, ast.And) else "!"
                for value in values[1:]:
                    with self.block(f"if ({negation}{own})"):
                        self.emit(f"{own} = {self.condition(value)};")
                return own
            case ast.Call(func, [operand, kinds], []) if self.constant_of(func) is isinstance:
                return self._is_instance(operand, self.constant_of(kinds), kinds)
            case ast.Call(func, [iterable], []) if self.constant_of(func) in (any, all):
                negation, found = ("", 1) if self.constant_of(func) is any else ("!", 0)
                own = self.kept(str(1 - found), "int")

                def decide(element: ast.expr) -> str:
                    self.emit(f"if ({negation}({self.condition(element)})) {own} = {found};")
                    return f"{own} == {found}"

                self.until(iterable, decide)
                return own
            case _:
                return f"oo_is_true(s, {self.value(node)})"

    def _compared(self, left: ast.expr, operators: Sequence[ast.cmpop], others: Sequence[ast.expr]) -> str:
        a = self.value(left)
        if len(operators) > 1:
            a = self.kept(a)
        own = self.fresh()
        if len(operators) > 1:
            self.emit(f"int {own} = 1;")
        for i, (operator, other) in enumerate(zip(operators, others, strict=True)):
            if isinstance(operator, ast.Is | ast.IsNot):
                known = [c for c in (self.constant_of(left), self.constant_of(other)) if c is not MISSING]
                if not any(c is None or isinstance(c, bool | enum.Enum) for c in known):
                    self.refuse(other, "identity is translated for None, bool and members of enumerations")
            b = self.value(other)
            test = COMPARISONS[type(operator)].format(a, b)
            if len(operators) == 1:
                return test
            self.emit(f"{own} = {test};")
            if i < len(operators) - 1:
                self.emit(f"if ({own}) {{")
                self._indent += 1
            a, left = b, other
        for _ in operators[1:]:
            self._indent -= 1
            self.emit("}")
        return own

    def _is_instance(self, operand: ast.expr, kinds: Any, node: ast.expr) -> str:
        value = self.value(operand)
        tests = []
        for kind in kinds if isinstance(kinds, tuple) else (kinds,):
            if kind in KINDS:
                tests.append(f"oo_isinstance({value}, {KINDS[kind]})")
            elif isinstance(kind, type) and classes.is_record(kind) and not kind.__subclasses__():
                tests.append(f"({value}->kind == OO_RECORD && {value}->type == {self.program.kind(kind)})")
            else:
                self.refuse(node, "this class is not translated")
        return " || ".join(tests)

    # --- calls -------------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> str:
        own = self.constant_of(node.func)
        if own is MISSING:
            if not isinstance(node.func, ast.Attribute):
                self.refuse(node, "this call is not translated")
            return self._method(node, node.func.value, node.func.attr)
        if own in (any, all, isinstance):
            return self.kept(f"oo_bool({self.condition(node)})")
        if any(own is special for special in SPECIAL):
            return SPECIAL[own](self, node)
        if own in BUILTINS:
            return self._builtin(node, BUILTINS[own], [])
        if isinstance(own, type):
            return self._made(node, own)
        if inspect.ismethod(own):
            function, first = own.__func__, own.__self__
            if not isinstance(first, type):
                return self._applied(node, function, [self.program.constant(first)])
            if self.program.bound.setdefault(function, first) is not first:
                self.refuse(node, "a class method of several classes is not translated")
            return self._applied(node, function, ["oo_none"])
        if isinstance(plain(own), FunctionType):
            return self._applied(node, plain(own), [])
        self.refuse(node, "this function is not translated")

    def _builtin(self, node: ast.Call, builtin: Builtin, first: Sequence[str]) -> str:
        values = [*first, *(self.value(argument) for argument in node.args)]
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            self.refuse(node, "these arguments are not translated")
        if not builtin.least <= len(values) <= builtin.most:
            self.refuse(node, "this number of arguments is not translated")
        values += (
            builtin.defaults[len(builtin.defaults) - (builtin.most - len(values)) :]
            if len(values) < builtin.most
            else ()
        )
        return self.kept(f"{builtin.name}(s, {self.array(values)})")

    def _made(self, node: ast.Call, kind: type) -> str:
        number = self.program.kind(kind)
        if classes.is_enumeration(kind):
            if len(node.args) != 1 or node.keywords:
                self.refuse(node, "expected one value")
            return self.kept(f"oo_member(s, {number}, {self.value(node.args[0])})")
        if not classes.can_be_made(kind):
            self.refuse(node, f"objects of class {kind.__qualname__} are not made in translated code")
        bound = self._bound(node, classes.arguments_of(kind), [])
        count = len(classes.fields_of(kind))
        return self.kept(f"oo_new(s, OO_RECORD, {number}, {count}, {bound})")

    def _applied(self, node: ast.Call, function: Callable[..., Any], first: Sequence[str]) -> str:
        name = self.program.function(function)
        bound = self._bound(node, inspect.signature(function), first)
        return self.kept(f"{name}(s, {bound})")

    def _method(self, node: ast.Call, base: ast.expr, name: str) -> str:
        value = self.value(base)
        methods = self.program.methods(name)
        fields = [kind for kind in self.program.seen if classes.is_record(kind) and name in classes.fields_of(kind)]
        if name in METHODS:
            if methods:
                self.refuse(node, "a method of builtins and of classes")
            return self._builtin(node, METHODS[name], [value])
        if methods:
            signatures = [inspect.signature(method).parameters.values() for method in methods.values()]
            forms = {tuple((p.kind, p.default, p.name if node.keywords else "") for p in own) for own in signatures}
            if len(forms) > 1:
                self.refuse(node, "methods of several classes with different parameters")
            self.program.invoked[name] = None
            bound = self._bound(node, inspect.signature(next(iter(methods.values()))), [value])
            return self.kept(f"m_{name}(s, {bound})")
        if fields:
            if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
                self.refuse(node, "these arguments are not translated")
            values = [self.value(argument) for argument in node.args]
            if self.program.called.setdefault(name, len(values)) != len(values):
                self.refuse(node, "another number of arguments than elsewhere")
            own = self.kept(f"oo_attribute_of(s, {value}, {self.program.name(name)})")
            return self.kept(f"oo_called(s, {own}, {self.array(values)})")
        raise UnknownMethodError(f"no class with method '{name}' was met")

    def _bound(self, node: ast.Call, signature: inspect.Signature, first: Sequence[str]) -> str:
        """The array of the arguments of a call, one for each parameter."""
        parameters = list(signature.parameters.values())
        if any(p.kind is p.VAR_KEYWORD for p in parameters) or any(k.arg is None for k in node.keywords):
            self.refuse(node, "keyword arguments in a dictionary are not translated")
        given: dict[str, str] = {}
        positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        if any(isinstance(argument, ast.Starred) for argument in node.args):
            items = self._gathered(node.args)
            for value in reversed(first):
                items = self.kept(f"oo_add(s, oo_new(s, OO_LIST, 0, 1, {self.array([value])}), {items})")
            targets = [*positional, *([rest] if rest else [])]
            star = len(positional) if rest else -1
            own = self.fresh()
            self.emit(f"V {own}[{len(targets)}];")
            self.emit(f"oo_unpack(s, {items}, {len(targets)}, {star}, {own});")
            given = {name: f"{own}[{i}]" for i, name in enumerate(targets)}
            if rest:
                given[rest] = self.kept(f"oo_tuple(s, &{given[rest]})")
        else:
            values = [*first, *(self.value(argument) for argument in node.args)]
            given = dict(zip(positional, values, strict=False))
            if len(values) > len(positional) and not rest:
                self.refuse(node, "too many arguments")
            if rest:
                own_rest = values[len(positional) :]
                given[rest] = self.kept(f"oo_new(s, OO_TUPLE, 0, {len(own_rest)}, {self.array(own_rest)})")
        for keyword in node.keywords:
            assert keyword.arg
            if keyword.arg in given or keyword.arg not in signature.parameters:
                self.refuse(node, f"argument '{keyword.arg}' is given twice or unknown")
            given[keyword.arg] = self.value(keyword.value)
        for parameter in parameters:
            if parameter.name not in given:
                if parameter.default is parameter.empty or isinstance(parameter.default, dataclasses.Field):
                    self.refuse(node, f"argument '{parameter.name}' is missing")
                given[parameter.name] = self.program.constant(parameter.default)
        return self.array([given[p.name] for p in parameters])
