"""Methods of types that are written in C, which Python does not let be replaced, as that of an int or a torch.Size."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock


@contextlib.contextmanager
def replaced_method(kind: type, name: str, method: Callable[..., Any]) -> Iterator[None]:
    """A context in which instances of a type have another method of a name."""
    (names,) = gc.get_referents(vars(kind))  # the dictionary that the proxy of it shows
    try:
        with mock.patch.dict(names, {name: method}):
            _forget_methods(kind)
            yield
    finally:
        _forget_methods(kind)


def _forget_methods(kind: type) -> None:
    """Make Python look up the methods of a type anew."""
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
