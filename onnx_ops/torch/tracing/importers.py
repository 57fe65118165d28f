"""Functions in all modules that have them under their own names."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

from onnx_ops.torch.tracing.frames import INSTALLED, is_library


class Importers:
    """The modules that have some functions under their own names.

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
        found = [(names, self._found(names)) for names in self._namespaces()]
        for names, own in found:
            names.update((name, others[name]) for name in own)
        try:
            yield
        finally:
            for names, own in found:
                names.update((name, self._functions[name]) for name in own)

    def _namespaces(self) -> list[dict[str, Any]]:
        """Those of the modules that may have the functions."""
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
        return [*self._installed, *self._users]

    def _found(self, names: Mapping[str, Any]) -> list[str]:
        functions = self._functions
        return [name for name in names.keys() & functions.keys() if names[name] is functions[name]]
