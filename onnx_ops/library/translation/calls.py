"""Translates calls of functions, methods and classes."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from onnx_ops.library.translation import classes
from onnx_ops.library.translation.errors import TranslationError
from onnx_ops.library.translation.intrinsics import BUILTINS, METHODS, SPECIAL, Builtin
from onnx_ops.library.translation.program import plain
from onnx_ops.library.translation.writer import MISSING, Writer


class UnknownMethodError(TranslationError):
    """A method that none of the classes found so far has."""


class Calls(Writer):
    """Translates calls, and binds their arguments to parameters."""

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
            items = self.gathered(node.args)
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
