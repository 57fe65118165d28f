"""Translates expressions, comprehensions and conditions."""

from __future__ import annotations

import ast
import contextlib
import enum
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from onnx_ops.library.translation import classes
from onnx_ops.library.translation.calls import Calls
from onnx_ops.library.translation.intrinsics import KINDS
from onnx_ops.library.translation.writer import MISSING

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
"""Comparisons of arrays."""


class Expressions(Calls):
    """Translates expressions to values and conditions, and comprehensions to loops."""

    # --- loops and targets -------------------------------------------------------------------------------------------

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

    # --- expressions -------------------------------------------------------------------------------------------------

    def value(self, node: ast.expr) -> str:
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
                return self.kept(f"oo_set_of(s, &{self.gathered(elements)})")
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
        items = self.gathered(elements)
        return items if kind == "LIST" else self.kept(f"oo_tuple(s, &{items})")

    def gathered(self, elements: Sequence[ast.expr]) -> str:
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
        """Write the loops of a comprehension; `take` writes the statements for each element."""
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
        if not isinstance(node, ast.GeneratorExp) or len(node.generators) != 1:
            self.refuse(node, "expected a generator expression with one loop")

        def take() -> None:
            self.emit(f"if ({decide(node.elt)}) break;")

        self._each(node.generators, take)

    # --- conditions --------------------------------------------------------------------------------------------------

    def condition(self, node: ast.expr) -> str:
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

    def _is_instance(self, operand: ast.expr, kinds: object, node: ast.expr) -> str:
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
