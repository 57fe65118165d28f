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

    A process has thousands of modules. Those of installed packages are looked through only once there are others.

    Args:
        functions: by name.
        without: modules that keep them.
    """

    def __init__(self, functions: Mapping[str, Any], *without: ModuleType) -> None:
        self._functions, self._without = functions, without
        self._count = 0
        self._users: list[dict[str, Any]] = []
        self._installed: list[dict[str, Any]] = []

    @property
    def names(self) -> Iterable[str]:
        """Those of the functions."""
        return self._functions

    @contextlib.contextmanager
    def replaced(self, others: Mapping[str, Any]) -> Iterator[None]:
        """A context in which the modules have other functions of these names."""
        found = self._found()
        for names, own in found:
            names.update((alias, others[name]) for alias, name in own.items())
        try:
            yield
        finally:
            for names, own in found:
                names.update((alias, self._functions[name]) for alias, name in own.items())

    def _found(self) -> list[tuple[dict[str, Any], dict[str, str]]]:
        """The namespaces of modules, and the names of the functions by those that they have there."""
        if self._count != len(sys.modules):
            self._count, self._users, self._installed = len(sys.modules), [], []
            for module in list(sys.modules.values()):
                names = getattr(module, "__dict__", None)
                if not isinstance(names, dict) or any(module is other for other in self._without):
                    continue  # some packages enter objects of classes of their own
                file = names.get("__file__")
                if not isinstance(file, str) or not (is_library(file) or file.startswith(INSTALLED)):
                    self._users.append(names)
                elif not self._functions.keys().isdisjoint(names):
                    self._installed.append(names)
        names_of = {id(function): name for name, function in self._functions.items()}
        shared = [(names, names.keys() & self._functions.keys()) for names in self._installed]
        return [
            *((names, {n: n for n in own if names[n] is self._functions[n]}) for names, own in shared),
            *((names, {n: names_of[id(v)] for n, v in [*names.items()] if id(v) in names_of}) for names in self._users),
        ]
