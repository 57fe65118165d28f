"""Caches in the code of a model, of functools and in dictionaries, while the model is traced."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CellType
from typing import Any
from unittest import mock
from weakref import WeakSet

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.types import py_sym_types
from torch.utils._pytree import tree_is_leaf

from onnx_ops.torch.tracing.frames import is_library
from onnx_ops.torch.tracing.preserving import OF_PYTORCH

SYMPY = str(Path(sympy.__file__).parent)
Cache = functools._lru_cache_wrapper  # functools.cache and functools.lru_cache make it


class _Caches:
    """The cached functions of the process.

    All objects are looked through only if there may be new ones among them, as that takes longer than anything else in
    the capture of a small model: each instance is a reference to its type.
    """

    def __init__(self) -> None:
        self._all: WeakSet[Any] = WeakSet()
        self._outside: WeakSet[Any] = WeakSet()
        self._others: int | None = None

    def outside(self) -> list[Any]:
        """Those outside of PyTorch, this package and the standard library."""
        if gc.get_freeze_count():
            gc.unfreeze()  # no function of gc finds objects that are frozen
        if self._others != self._references():
            found = [cache for cache in gc.get_referrers(Cache) if type(cache) is Cache]
            self._all = WeakSet(found)
            self._outside = WeakSet(cache for cache in found if not _of_library(cache))
            self._others = self._references()
        return list(self._outside)

    def _references(self) -> int:
        """The number of references to the type but for those of known instances, which are not looked for again."""
        return sys.getrefcount(Cache) - len(self._all)


_CACHES = _Caches()


def _of_library(cache: functools._lru_cache_wrapper[Any]) -> bool:
    """Whether a library has decorated its own function; a user may have a cache of torch.arange.

    sympy is one here: its caches have expressions, and it computes what it cannot look up.
    """
    function = cache.__wrapped__
    code = getattr(function, "__code__", None)
    if code is None or not (is_library(code.co_filename) or code.co_filename.startswith(SYMPY)):
        return False
    return getattr(sys.modules.get(function.__module__), function.__name__, None) is not function


@contextlib.contextmanager
def without_traced_values() -> Iterator[None]:
    """Clear on exit the caches that hold tensors or sizes of a trace."""
    try:
        yield
    finally:
        caches = _CACHES.outside()
        if _have_traced_values(*caches):
            for cache in caches:
                if _have_traced_values(cache):
                    cache.cache_clear()


def _have_traced_values(*caches: Any) -> bool:
    """Whether a tensor or size of a trace is among the arguments and results of cached functions, or in one of them.

    The objects of a level are looked at by their types, as there may be very many of them.
    """
    level, seen, opened = gc.get_referents(*caches), set[int](), dict[type, bool]()
    while level:
        kinds = set(map(type, level)) - opened.keys()
        if any(issubclass(kind, (FakeTensor, *py_sym_types)) for kind in kinds):
            return True
        if kinds:
            one_of = {type(value): value for value in level if type(value) in kinds}
            opened |= {kind: not tree_is_leaf(value) for kind, value in one_of.items()}
        containers = {id(value): value for value in level if opened[type(value)]}
        level = gc.get_referents(*(value for own, value in containers.items() if own not in seen))
        seen |= containers.keys()
    return False


def hashes_a_size(error: TypeError) -> bool:
    """Whether a dynamic size was to be a key of a dictionary or cache."""
    return "unhashable type: non-nested SymInt" in str(error)


@contextlib.contextmanager
def bypassed_caches() -> Iterator[None]:
    """Call the functions behind caches, as torch.compile does: arguments that are dynamic sizes cannot be keys."""
    caches = {id(cache): cache for cache in _CACHES.outside()}
    holders = [holder for holder in gc.get_referrers(*caches.values()) if holder is not caches]
    places = [place for holder in holders for place in _places(holder, caches)]
    # Attributes of classes are assigned too, as Python keeps copies of what it has found in their dictionaries.
    for owner in [owner for owner in gc.get_objects() if issubclass(type(owner), type)]:
        named = [(name, value) for name, value in vars(owner).items() if id(value) in caches]
        places += ((value, functools.partial(setattr, owner, name)) for name, value in named)
    for cache, assign in places:
        assign(cache.__wrapped__)
    try:
        yield
    finally:
        for cache, assign in places:
            assign(cache)


@contextlib.contextmanager
def dictionaries_of_sizes(model: torch.nn.Module) -> Iterator[None]:
    """Let the empty dictionaries that modules have as attributes take dynamic sizes as keys, as caches of results.

    One that has entries may be a table, in which a graph cannot look up a size.
    """
    with contextlib.ExitStack() as stack:
        for module in model.modules():
            empty = [name for name, value in vars(module).items() if type(value) is dict and not value]
            own: dict[str, Any] = {name: _OfSizes() for name in empty if name not in OF_PYTORCH}
            stack.enter_context(mock.patch.dict(vars(module), own))
        yield


def _hashable(key: object) -> object:
    """A key with expressions in the place of dynamic sizes; those that depend on data have values, and remain."""
    if isinstance(key, tuple):
        return tuple(map(_hashable, key))
    return key.node.expr if isinstance(key, torch.SymInt) and not free_unbacked_symbols(key) else key


class _OfSizes(dict[Any, Any]):
    """A dictionary whose keys may be dynamic sizes, or tuples that have some."""

    def __contains__(self, key: object) -> bool:
        return super().__contains__(_hashable(key))

    def __getitem__(self, key: object) -> Any:
        return super().__getitem__(_hashable(key))

    def __setitem__(self, key: object, value: object) -> None:
        super().__setitem__(_hashable(key), value)

    def get(self, key: object, default: Any = None) -> Any:
        return super().get(_hashable(key), default)

    def setdefault(self, key: object, default: Any = None) -> Any:
        return super().setdefault(_hashable(key), default)


def _places(holder: object, caches: Mapping[int, Any]) -> Iterator[tuple[Any, Callable[[Any], None]]]:
    """The cached functions in a variable of a closure, or a dictionary, with the assignments to these places."""
    if isinstance(holder, CellType):
        yield holder.cell_contents, functools.partial(setattr, holder, "cell_contents")
    elif isinstance(holder, dict):
        for name, value in holder.items():
            if id(value) in caches:
                yield value, functools.partial(holder.__setitem__, name)
