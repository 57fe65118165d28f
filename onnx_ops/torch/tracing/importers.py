"""Functions and types in all modules that have them: in packages under their own names, in others under any name."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

from onnx_ops.torch.tracing.frames import INSTALLED, is_library


class Importers:
    """The modules that have some functions or types, as after `from math import sqrt as root`.

    Args:
        functions: by name.
        without: modules that keep them.
    """

    def __init__(self, functions: Mapping[str, Any], *without: ModuleType) -> None:
        self._functions, self._without = functions, {id(vars(module)) for module in without}
        _MODULES.add(functions)

    @property
    def names(self) -> Iterable[str]:
        """Those of the functions."""
        return self._functions

    @contextlib.contextmanager
    def replaced(self, others: Mapping[str, Any]) -> Iterator[None]:
        """A context in which the modules have other functions of these names."""
        with _MODULES.searched():
            places = [
                (names, alias, function, others[name])
                for name, function in self._functions.items()
                for names, alias in _MODULES.places_of(function)
                if id(names) not in self._without and names.get(alias) is function
            ]
            for names, alias, _, other in places:
                names[alias] = other
            try:
                yield
            finally:
                for names, alias, function, _ in places:
                    names[alias] = function


class _Modules:
    """The modules of the process, and where they have the functions of all `Importers`.

    A process has thousands of modules. Those of installed packages are looked through only once there are others, and
    all of them once for contexts within one another.
    """

    def __init__(self) -> None:
        self._functions: dict[int, Any] = {}
        self._names: set[str] = set()
        self._count = 0  # of modules when they were looked through
        self._users: list[dict[str, Any]] = []
        self._installed: list[dict[str, Any]] = []
        self._contexts = 0
        self._places: dict[int, list[tuple[dict[str, Any], str]]] = {}

    def add(self, functions: Mapping[str, Any]) -> None:
        """Look for these functions too."""
        self._functions.update((id(function), function) for function in functions.values())
        self._names.update(functions)
        self._count = 0

    def places_of(self, function: Any) -> list[tuple[dict[str, Any], str]]:
        """The namespaces of modules that have a function, and the names that it has there."""
        return self._places.get(id(function), [])

    @contextlib.contextmanager
    def searched(self) -> Iterator[None]:
        """A context in which the places of functions are known."""
        if self._count != len(sys.modules):
            self._list_modules()
            self._search()
        elif self._contexts == 0:
            self._search()
        self._contexts += 1
        try:
            yield
        finally:
            self._contexts -= 1

    def _list_modules(self) -> None:
        self._count, self._users, self._installed = len(sys.modules), [], []
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", None)
            if not isinstance(names, dict):
                continue  # some packages enter objects of classes of their own
            file = names.get("__file__")
            if not isinstance(file, str) or not (is_library(file) or file.startswith(INSTALLED)):
                self._users.append(names)
            elif not self._names.isdisjoint(names):
                self._installed.append(names)

    def _search(self) -> None:
        self._places = {}
        for names in self._users:
            if not self._functions.keys().isdisjoint(map(id, names.values())):
                self._add_places(names, list(names))
        for names in self._installed:
            self._add_places(names, self._names & names.keys())

    def _add_places(self, names: dict[str, Any], aliases: Iterable[str]) -> None:
        for alias in aliases:
            if id(names[alias]) in self._functions:
                self._places.setdefault(id(names[alias]), []).append((names, alias))


_MODULES = _Modules()
