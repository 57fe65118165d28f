"""Caches of functools in the code of a model, such as lru_cache, while the model is traced."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator, Mapping
from types import CellType
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor
from torch.types import py_sym_types
from torch.utils._pytree import tree_leaves

from onnx_ops.torch.frames import is_library

Cache = functools._lru_cache_wrapper  # functools.cache and functools.lru_cache make it


def _caches() -> list[Any]:
    """The cached functions outside of PyTorch, this package and the standard library.

    Instances refer to their type; a list of all objects takes twice as long.
    """
    return [cache for cache in gc.get_referrers(Cache) if type(cache) is Cache and not _of_library(cache)]


def _of_library(cache: Any) -> bool:
    code = getattr(cache.__wrapped__, "__code__", None)
    return code is None or is_library(code.co_filename)


@contextlib.contextmanager
def without_traced_values() -> Iterator[None]:
    """Clear on exit the caches that hold tensors or sizes of a trace."""
    try:
        yield
    finally:
        for cache in _caches():
            if any(isinstance(leaf, (FakeTensor, *py_sym_types)) for leaf in tree_leaves(gc.get_referents(cache))):
                cache.cache_clear()


def hashes_a_size(error: TypeError) -> bool:
    """Whether a dynamic size was to be a key of a dictionary or cache."""
    return "unhashable type: non-nested SymInt" in str(error)


@contextlib.contextmanager
def bypassed_caches() -> Iterator[None]:
    """Call the functions behind caches, as torch.compile does: arguments that are dynamic sizes cannot be keys."""
    caches = {id(cache): cache for cache in _caches()}
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


def _places(holder: Any, caches: Mapping[int, Any]) -> Iterator[tuple[Any, Callable[[Any], None]]]:
    """The cached functions in a variable of a closure, or a dictionary, with the assignments to these places."""
    if isinstance(holder, CellType):
        yield holder.cell_contents, functools.partial(setattr, holder, "cell_contents")
    elif isinstance(holder, dict):
        for name, value in holder.items():
            if id(value) in caches:
                yield value, functools.partial(holder.__setitem__, name)
