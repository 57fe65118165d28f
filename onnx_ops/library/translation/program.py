"""The translated program: its functions, its constants, and the names and classes in them."""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import numpy as np
from numba.core.typing import Signature
from onnx.defs import OpSchema

from onnx_ops.library.translation import classes
from onnx_ops.library.translation.errors import TranslationError

RUNTIME_NAMES = ("name", "value", "shape", "ndim", "dtype", "size", "attributes")
"""Names of attributes with numbers that native/values.h defines."""
SINGLETONS: dict[Any, str] = {None: "oo_none", False: "oo_false", True: "oo_true"}
MOST = 2**62
OPAQUE = (Signature, OpSchema.FormalParameterOption)
"""Values that are only compared; those of onnx 1.19 are no `enum.Enum`."""


@dataclass
class Constant:
    """A constant and its initializer in C, without the indices of the constants that it refers to.

    Attributes:
        value: the object.
        fields: initializers of the members of `oo_object`, without that of `items`.
        items: C expressions of its items, or for those of a record None until their names are used.
    """

    value: Any
    fields: str
    items: list[str | None] | None = None


@dataclass
class Program:
    """The state of the translation.

    Attributes:
        names: numbers of the attributes' names.
        constants: in the order of their numbers.
        kinds: numbers of classes of which there are values.
        seen: classes that translated code may meet, with methods.
        functions: C names of translated functions.
        wanted: those whose bodies are still to be written.
        bound: the classes that class methods are called on.
        called: how many arguments the functions in fields of a name are called with.
        used: names of attributes that are read.
        invoked: names of methods that are called.
    """

    names: dict[str, int] = field(default_factory=lambda: {name: i for i, name in enumerate(RUNTIME_NAMES)})
    constants: list[Constant] = field(default_factory=list)
    kinds: dict[type, int] = field(default_factory=dict)
    seen: dict[type, None] = field(default_factory=dict)
    functions: dict[FunctionType, str] = field(default_factory=dict)
    wanted: list[FunctionType] = field(default_factory=list)
    bound: dict[Callable[..., Any], type] = field(default_factory=dict)
    called: dict[str, int] = field(default_factory=dict)
    used: dict[str, None] = field(default_factory=dict)
    invoked: dict[str, None] = field(default_factory=dict)
    _numbers: dict[Any, str] = field(default_factory=dict)

    # --- names, classes and functions --------------------------------------------------------------------------------

    def name(self, text: str) -> str:
        """The C constant of an attribute's name."""
        self.used[text] = None
        self.names.setdefault(text, len(self.names))
        return f"OO_NAME_{text}"

    def kind(self, own: type) -> int:
        """The number of a class."""
        if not classes.is_known(own):
            raise TranslationError(f"values of class {own.__qualname__} are not translated")
        if own not in self.kinds:
            self.kinds[own] = len(self.kinds)
            self.seen[own] = None
        return self.kinds[own]

    def function(self, own: Callable[..., Any]) -> str:
        """The C name of a function, which is translated."""
        own = plain(own)
        if (
            not isinstance(own, FunctionType)
            or hasattr(own, "__wrapped__")
            or not own.__module__.startswith("onnx_ops.")
        ):
            raise TranslationError(f"function {own!r} is not translated")
        if own not in self.functions:
            file = own.__module__.rpartition(".")[2].strip("_")
            self.functions[own] = f"f{len(self.functions)}_{file}_{own.__name__.strip('_')}"
            self.wanted.append(own)
            for value in own.__globals__.values():
                if inspect.isclass(value) and value.__module__.startswith("onnx_ops.") and classes.is_known(value):
                    self.seen[value] = None
        return self.functions[own]

    def methods(self, name: str) -> dict[type, FunctionType]:
        """The functions that a method of a name may be, by class."""
        found = ((kind, classes.method_of(kind, name)) for kind in self.seen)
        return {kind: method for kind, method in found if method is not None}

    # --- constants ---------------------------------------------------------------------------------------------------

    def constant(self, value: object) -> str:
        """The C expression of a constant."""
        if value is None or isinstance(value, bool):
            return SINGLETONS[value]
        key = self._key(value)
        if key not in self._numbers:
            constant = self._constant(value)
            self._numbers[key] = f"K({len(self.constants)})"
            self.constants.append(constant)
        return self._numbers[key]

    def met(self, value: object) -> str | None:
        """The C expression of a constant, None if it is not among them."""
        return self._numbers.get(self._key(value))

    def _key(self, value: Any) -> Any:
        if isinstance(value, enum.Enum):
            return type(value), value
        if type(value) in (int, str):
            return type(value), value
        if type(value) in (float, np.float32):
            return type(value), float(value).hex()
        if type(value) in (tuple, list):
            return type(value), tuple(map(self.constant, value))
        if isinstance(value, Mapping):
            return Mapping, tuple(self.constant(item) for pair in value.items() for item in pair)
        if isinstance(value, OPAQUE):
            return type(value), value
        return id(value)  # which stays that of the value: a constant keeps it

    def _constant(self, value: Any) -> Constant:
        if isinstance(value, enum.Enum):
            kind = self.kind(type(value))
            return Constant(
                value, f".kind = OO_MEMBER, .type = {kind}, .as.member = {{{value.value}, {text(value.name)}}}"
            )
        if type(value) is int:
            if abs(int(value)) > MOST:
                raise TranslationError(f"constant {value} exceeds {MOST}")
            return Constant(value, f".kind = OO_INT, .as.integer = {value}")
        if type(value) in (float, np.float32):
            single = int(type(value) is np.float32)
            return Constant(value, f".kind = OO_FLOAT, .type = {single}, .as.number = {number(float(value))}")
        if type(value) is str:
            return Constant(value, f".kind = OO_STR, .count = {len(value.encode())}, .as.text = {text(value)}")
        if isinstance(value, FunctionType):
            return Constant(value, ".kind = OO_FUNCTION")
        if isinstance(value, OPAQUE):
            return Constant(value, ".kind = OO_OPAQUE")
        if classes.is_known(type(value)):
            return self._record(value)
        kinds: dict[type, str] = {tuple: "OO_TUPLE", list: "OO_LIST", set: "OO_SET", frozenset: "OO_SET"}
        if type(value) in kinds:
            ordered = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
            items = [self.constant(item) for item in ordered]
            return Constant(value, f".kind = {kinds[type(value)]}, .count = {len(items)}", [*items])
        if isinstance(value, Mapping):
            pairs = [self.constant(item) for pair in value.items() for item in pair]
            return Constant(value, f".kind = OO_DICT, .count = {len(value)}", [*pairs])
        raise TranslationError(f"constants of class {type(value).__qualname__} are not translated: {value!r}")

    def _record(self, value: Any) -> Constant:
        kind: type = type(value)
        names = classes.fields_of(kind)
        fields = f".kind = OO_RECORD, .type = {self.kind(kind)}, .count = {len(names)}"
        if classes.is_named_tuple(kind):
            return Constant(value, fields, [self.constant(item) for item in value])
        return Constant(value, fields, [None] * len(names))

    def complete(self) -> bool:
        """Add what names that are used now need of records and classes; returns whether anything was added."""
        added = False
        for constant in list(self.constants):
            kind: type = type(constant.value)
            if constant.items is None or kind not in self.kinds:
                continue
            for i, name in enumerate(classes.fields_of(kind)):
                if constant.items[i] is None and name in self.used:
                    constant.items[i] = self._field(constant.value, name)
                    added = True
        before = len(self.functions), len(self.constants)
        for kind in list(self.kinds):
            own = [classes.property_of(kind, name) for name in self.used]
            own += [classes.method_of(kind, name) for name in self.invoked]
            for function in own:
                if function is not None:
                    self.function(function)
            for member in classes.members_of(kind):
                self.constant(member)
        return added or (len(self.functions), len(self.constants)) != before

    def _field(self, value: object, name: str) -> str:
        own = classes.field_of(value, name)
        found = self.constant(own)
        if name in self.called and isinstance(own, FunctionType):
            if len(inspect.signature(own).parameters) != self.called[name]:
                raise TranslationError(f"{own.__qualname__} has other parameters than others in field '{name}'")
            constant = self.constants[int(found[2:-1])]
            constant.fields = f".kind = OO_FUNCTION, .as.code = {self.function(own)}"
        return found


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of a cached one."""
    return function.__wrapped__ if isinstance(function, functools._lru_cache_wrapper) else function


def text(value: str) -> str:
    """A string in C."""
    shown = "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in value.encode())
    return f'"{shown}"'


def number(value: float) -> str:
    """A float in C."""
    if value != value:
        return "NAN"
    return value.hex() if abs(value) != float("inf") else f"{'-' if value < 0 else ''}INFINITY"
