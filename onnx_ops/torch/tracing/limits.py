"""The sizes of dynamic dimensions that a trace is valid for, and those among them that its step is to take."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.numbers import int_oo

from onnx_ops.torch.base.arguments import Dimension
from onnx_ops.torch.tracing.certainty import certain_sizes, largest_size
from onnx_ops.torch.tracing.inputs import Input
from onnx_ops.torch.tracing.sizes import RecordedShapes, Roots, allowed_sizes

USUAL = 1024
"""Sizes of a dimension up to this number are to be possible without a bound that the user gives."""
TRIED = 8
"""The multiple of the size in the example up to which PyTorch is run to find out whether it raises an error."""


def within(dim: Dimension, sizes: Mapping[str, range]) -> Dimension:
    """A dimension without the sizes that are not in a range, which is given by its name, or that of its root."""
    if hasattr(dim, "root"):
        root = within(dim.root, sizes)
        return dim if root is dim.root else type(dim)(dim.__name__, root, dim.fn)
    if (valid := sizes.get(getattr(dim, "__name__", ""))) is None:
        return dim
    most = dim.max if valid.stop == sys.maxsize else valid.stop - 1
    return torch.export.Dim(dim.__name__, min=max(valid.start, dim.min or 0), max=most)


def take_bounds(shapes: ShapeEnv, inputs: list[Input], roots: Roots) -> dict[str, range]:
    """Remove the guards that hold up to a size of a dimension without a bound, and return the sizes up to that by name.

    Code may branch on whether there are too many elements, as before an operator that takes fewer than 2**31. Bounds
    that small batches reach are left to the user.
    """
    dims = dict(symbol for given in inputs for symbol in given.symbols())
    dims |= {roots.symbol(dim): dim.root for dim in list(dims.values()) if roots.has(dim)}
    sizes = {symbol: dim for symbol, dim in dims.items() if _has_no_bound(dim)}
    bounds: dict[str, range] = {}
    for guard in list(shapes.guards):
        symbols = guard.expr.free_symbols
        dim = sizes.get(next(iter(symbols))) if len(symbols) == 1 else None
        most = None if dim is None else largest_size(guard.expr)
        if dim is not None and most is not None and most >= USUAL:
            own = range(most + 1)
            bounds[dim.__name__] = min(own, bounds.get(dim.__name__, own), key=len)
            shapes.guards.remove(guard)
    return bounds


def _has_no_bound(dim: Dimension) -> bool:
    """Whether a dimension may be of any size, as far as is given."""
    return isinstance(dim, torch.export.Dim) and not hasattr(dim, "root") and dim.max in (None, int_oo)


def valid_sizes(shapes: RecordedShapes, inputs: list[Input]) -> dict[str, range]:
    """The sizes for which the guards on a dimension hold, by name, of dimensions that allow others too.

    A convolution takes no fewer elements than its filter has, for example. The range ends with `sys.maxsize` if it has
    the largest size that is allowed. Guards that hold for no other size than that of the example are left out, and
    those on several dimensions.
    """
    given = {guard.expr for guard in shapes.given}
    guards = [guard.expr for guard in shapes.guards if guard.expr not in given]
    found: dict[str, range] = {}
    for size, dim in (named for own in inputs for named in own.named()):
        symbol, allowed = size.node.expr, allowed_sizes(dim, least=2)
        if hasattr(dim, "root") or not symbol.is_Symbol:
            continue
        narrowed = shapes.var_to_range[symbol]
        of_guards = [
            certain_sizes(guard, symbol, allowed, size.node.hint) for guard in guards if guard.free_symbols == {symbol}
        ]
        valid = [
            range(int(narrowed.lower), int(narrowed.upper) + 1 if narrowed.upper < allowed.upper else sys.maxsize),
            *(sizes for sizes in of_guards if sizes is not None and len(sizes) > 1),
            *([found[dim.__name__]] if dim.__name__ in found else []),
        ]
        sizes = range(max(each.start for each in valid), min(each.stop for each in valid))
        if sizes != range(int(allowed.lower), sys.maxsize) and len(sizes) > 1:
            found[dim.__name__] = sizes
    return found


def taken_sizes(
    valid: Mapping[str, range],
    dims: Mapping[str, Dimension],
    example: Callable[[str], int],
    refuses: Callable[[str, int], bool],
    *,
    specialize: bool,
) -> dict[str, range]:
    """Some sizes that dimensions are to have, by name, as a trace is not valid for others; none for an error.

    Those that PyTorch takes, where it refuses smaller or larger ones; else up to a bound that small batches do not
    reach; else those that the trace is valid for, if it is specialized.

    Args:
        valid: the sizes that the trace is valid for.
        dims: the dimensions.
        example: returns the size of a dimension in the examples.
        refuses: whether PyTorch raises an error where a dimension has another size.
        specialize: whether code is to do what it does for the example.
    """
    above = {
        name: range(sizes.start, sys.maxsize)
        for name, sizes in valid.items()
        if sizes.start > max(dims[name].min or 0, 2)
    }
    below = {
        name: range(0, sizes.stop)
        for name, sizes in valid.items()
        if sizes.stop < sys.maxsize and _has_no_bound(dims[name])
    }
    refused = {name: sizes for name, sizes in above.items() if refuses(name, sizes.start - 1)}
    for name, sizes in below.items():
        if sizes.stop <= TRIED * example(name) and refuses(name, sizes.stop):
            refused[name] = range(refused.get(name, sizes).start, sizes.stop)
    if refused:
        return refused
    if large := {name: sizes for name, sizes in below.items() if sizes.stop > USUAL}:
        return large
    if not specialize:
        return {}
    return above | {name: range(above.get(name, sizes).start, sizes.stop) for name, sizes in below.items()}
