"""Dynamic sizes of 1, which a trace takes to be 2 or more: whether the graph is right for them too.

PyTorch's own code computes the same for both. That of a model or loss may not, as in `if len(x) > 1`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import onnx_ir as ir
import torch

from onnx_ops.torch.base.arguments import Dimension
from onnx_ops.torch.tracing.frames import Line, warn
from onnx_ops.torch.tracing.program import Dynamic

Place = tuple[str, int]
"""An input and an axis of it."""
Sizes = dict[str, dict[int, int]]
"""Sizes by input and axis."""


def refused_at_one(
    dynamic: Dynamic,
    decided: Mapping[frozenset[Place], Line | None],
    names: Mapping[Place, str],
    is_right: Callable[[Sizes], bool | None],
    *,
    all_of_them: bool,
) -> set[str]:
    """The names of dynamic dimensions whose size 1 a graph is not right for.

    Args:
        dynamic: the dynamic dimensions of inputs.
        decided: those that code may treat otherwise if their size is 1 (all of a set), with the line.
        names: of the dimensions in the graph.
        is_right: whether the graph is right with other sizes; None if that is unknown, as PyTorch refuses them.
        all_of_them: whether to try dimensions too that no code is known to treat otherwise.
    """
    places = {
        (name, axis): dim for name, axes in dynamic.items() for axis, dim in axes.items() if not _is_above_one(dim)
    }
    names = {place: names[place] for place, dim in places.items() if place in names and not hasattr(dim, "root")}
    lines: dict[frozenset[str], Line | None] = {}
    for found, line in decided.items():
        if found <= names.keys():
            lines.setdefault(frozenset(names[place] for place in found), line)
    single = [frozenset([name]) for name in dict.fromkeys(names.values())] if all_of_them else []
    refused: set[str] = set()
    for ones in sorted({*single, *lines}, key=lambda each: (len(each), sorted(each))):
        if ones.isdisjoint(refused):
            right = is_right(_with_size(1, places, names, ones))
            if right is None:  # also where PyTorch refuses 1, but not 2, for which batch norm has values to normalize
                refuses = ones in lines or (all_of_them and is_right(_with_size(2, places, names, ones)) is not None)
            else:
                refuses = not right
            if refuses:
                name = max(ones, key=list(names.values()).index)
                refused.add(name)
                if right is False and (line := lines.get(ones)) is not None:
                    warn(
                        f"the graph does not have what the code does at {line} where {name} is 1: that size is refused"
                    )
    return refused


def refused_at_zero(
    dynamic: Dynamic,
    names: Mapping[Place, str],
    is_right: Callable[[Sizes], bool | None],
    allowed: Collection[str],
    integers: Collection[str],
) -> set[str]:
    """The names of dynamic dimensions whose size 0 a graph is not right for, or PyTorch refuses.

    That of the samples is not tried, as a step takes at least one, nor are others where an input of integers keeps its
    elements: some kernels of PyTorch, as those of nn.EmbeddingBag, read with them where there are none.

    Args:
        dynamic, names, is_right: as for `refused_at_one`.
        allowed: the names of the dimensions that may have no elements.
        integers: the inputs of integers.
    """
    places = {(name, axis): dim for name, axes in dynamic.items() for axis, dim in axes.items()}
    roots = {place: name for place, name in names.items() if not hasattr(places.get(place), "root")}
    first = {name for (_, axis), name in names.items() if not axis}
    samples = first if len(first) == 1 else set()
    emptied = [{name for (own, _), name in roots.items() if own == each} for each in integers]
    tried = set(allowed).difference(samples).intersection(*emptied)

    def refuses(name: str) -> bool:
        right = is_right(_with_size(0, places, roots, [name]))
        # PyTorch may refuse the values that arguments of another size have.
        return is_right(_with_size(2, places, roots, [name])) is not None if right is None else not right

    return {name for name in dict.fromkeys(roots.values()) if name in tried and refuses(name)}


def named_dimensions(graph: ir.Graph) -> dict[Place, str]:
    """The names of the dynamic dimensions of the inputs of a graph."""
    return {
        (value.name or "", axis): size.value
        for value in graph.inputs
        for axis, size in enumerate(value.shape or ())
        if isinstance(size, ir.SymbolicDim) and size.value
    }


def _is_above_one(dim: Dimension) -> bool:
    return isinstance(dim, torch.export.Dim) and not hasattr(dim, "root") and (dim.min or 0) > 1


def _with_size(size: int, places: Mapping[Place, Dimension], names: Mapping[Place, str], of: Collection[str]) -> Sizes:
    """The sizes where some dimensions are `size`, and of those that are multiples of them."""
    found: Sizes = {}
    for (name, axis), dim in places.items():
        root = getattr(dim, "root", None)
        if root is not None and root.__name__ in of:
            found.setdefault(name, {})[axis] = dim.fn(size)
        elif names.get((name, axis)) in of:
            found.setdefault(name, {})[axis] = size
    return found
