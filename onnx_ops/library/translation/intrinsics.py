"""Builtins, and functions of other packages, that have an implementation in C (folder `native`)."""

from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import helper

from onnx_ops.library.translation.writer import Writer
from onnx_ops.runtime.compiler import compile_native


@dataclass(frozen=True)
class Builtin:
    """A function of the runtime.

    Attributes:
        name: in C.
        least, most: how many arguments it takes.
        defaults: C expressions of the last ones, where they are left out.
    """

    name: str
    least: int = 1
    most: int = 1
    defaults: Sequence[str] = ()


BUILTINS: dict[Any, Builtin] = {
    len: Builtin("oo_len"),
    tuple: Builtin("oo_tuple"),
    list: Builtin("oo_list_of"),
    set: Builtin("oo_set_of"),
    dict: Builtin("oo_dict_of"),
    sum: Builtin("oo_sum"),
    str: Builtin("oo_to_str"),
    int: Builtin("oo_to_int"),
    float: Builtin("oo_to_float"),
    bool: Builtin("oo_to_bool"),
    sorted: Builtin("oo_sorted"),
    math.prod: Builtin("oo_prod"),
    MappingProxyType: Builtin("oo_same"),
    np.asarray: Builtin("oo_same"),
    np.float32: Builtin("oo_float32"),
    np.maximum: Builtin("oo_maximum", 2, 2),
    np.arange: Builtin("oo_arange"),
    np.where: Builtin("oo_where", 3, 3),
    np.floor: Builtin("oo_floor"),
    helper.np_dtype_to_tensor_dtype: Builtin("oo_same"),
}
METHODS = {
    "items": Builtin("oo_items"),
    "keys": Builtin("oo_keys"),
    "values": Builtin("oo_values_of"),
    "get": Builtin("oo_get", 2, 3, ["oo_none"]),
    "pop": Builtin("oo_pop", 1, 2, ["oo_none"]),
    "append": Builtin("oo_append_to", 2, 2),
    "join": Builtin("oo_join", 2, 2),
    "tolist": Builtin("oo_to_list"),
    "item": Builtin("oo_only"),
    "reshape": Builtin("oo_reshape", 2, 2),
    "index": Builtin("oo_index", 2, 2),
    "removeprefix": Builtin("oo_remove_prefix", 2, 2),
    "removesuffix": Builtin("oo_remove_suffix", 2, 2),
}
KINDS: dict[Any, str] = {
    int: "OO_INT",
    float: "OO_FLOAT",
    str: "OO_STR",
    tuple: "OO_TUPLE",
    list: "OO_LIST",
    dict: "OO_DICT",
    bool: "OO_BOOL",
}
"""Classes for `isinstance`."""


def _extreme(function: str) -> Callable[[Writer, ast.Call], str]:
    def written(body: Writer, node: ast.Call) -> str:
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            body.refuse(node, "these arguments are not translated")
        values = [body.value(argument) for argument in node.args]
        if len(values) > 1:
            values = [body.kept(f"oo_new(s, OO_TUPLE, 0, {len(values)}, {body.array(values)})")]
        return body.kept(f"{function}(s, {body.array(values)})")

    return written


def _zip(body: Writer, node: ast.Call) -> str:
    strict = [body.constant_of(keyword.value) for keyword in node.keywords if keyword.arg == "strict"]
    if len(strict) != len(node.keywords) or any(not isinstance(value, bool) for value in strict):
        body.refuse(node, "these arguments are not translated")
    values = body.value(ast.copy_location(ast.List(node.args, ast.Load()), node))
    return body.kept(f"{'oo_zip_strict' if strict == [True] else 'oo_zip'}(s, &{values})")


def _enumerate(body: Writer, node: ast.Call) -> str:
    if node.keywords or not 1 <= len(node.args) <= 2:
        body.refuse(node, "these arguments are not translated")
    values = [body.value(argument) for argument in node.args]
    return body.kept(f"oo_enumerate(s, {body.array([*values, body.program.constant(0)][:2])})")


def _range(body: Writer, node: ast.Call) -> str:
    if node.keywords or not 1 <= len(node.args) <= 2:
        body.refuse(node, "these arguments are not translated")
    values = [body.value(argument) for argument in node.args]
    return body.kept(f"oo_range(s, {body.array([body.program.constant(0), *values][-2:])})")


def _next(body: Writer, node: ast.Call) -> str:
    if node.keywords or not 1 <= len(node.args) <= 2:
        body.refuse(node, "these arguments are not translated")
    found = body.kept("NULL")

    def decide(element: ast.expr) -> str:
        body.emit(f"{found} = {body.value(element)};")
        return "1"

    body.until(node.args[0], decide)
    with body.block(f"if ({found} == NULL)"):
        if len(node.args) == 2:
            body.emit(f"{found} = {body.value(node.args[1])};")
        else:
            body.emit('oo_fail(s, "StopIteration: ");')
    return found


def _map(body: Writer, node: ast.Call) -> str:
    """As a list: `[function(element) for element in iterable]`."""
    if len(node.args) != 2 or node.keywords:
        body.refuse(node, "these arguments are not translated")
    element = ast.Name("map__element", ast.Load())
    target = ast.Name("map__element", ast.Store())
    call = ast.Call(node.args[0], [element], [])
    made = ast.ListComp(call, [ast.comprehension(target, node.args[1], [], 0)])
    for inner in ast.walk(made):
        ast.copy_location(inner, node)
    return body.value(made)


def _replace(body: Writer, node: ast.Call) -> str:
    if len(node.args) != 1 or any(keyword.arg is None for keyword in node.keywords):
        body.refuse(node, "these arguments are not translated")
    found = body.value(node.args[0])
    for keyword in node.keywords:
        assert keyword.arg
        value = body.value(keyword.value)
        found = body.kept(f"oo_replaced(s, {found}, {body.program.name(keyword.arg)}, {value})")
    return found


def _attribute_value(body: Writer, node: ast.Call) -> str:
    (proto,) = node.args
    return body.kept(f"oo_attribute_of(s, {body.value(proto)}, {body.program.name('value')})")


def _native(body: Writer, node: ast.Call) -> str:
    """The number of a native function."""
    function, signature = (body.value(argument) for argument in node.args)
    return body.kept(f"oo_native(s, {function}, {signature})")


SPECIAL: dict[Any, Callable[[Writer, ast.Call], str]] = {
    min: _extreme("oo_min_of"),
    max: _extreme("oo_max_of"),
    zip: _zip,
    enumerate: _enumerate,
    range: _range,
    next: _next,
    map: _map,
    dataclasses.replace: _replace,
    helper.get_attribute_value: _attribute_value,
    compile_native: _native,
}
"""Functions whose calls are not translated to calls of functions in C, with what writes them."""
