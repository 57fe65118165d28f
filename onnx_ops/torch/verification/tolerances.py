"""Compares outputs of a captured graph with those of PyTorch, and bounds the errors of rounding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from onnx_ops.core.step_format import LOSS
from onnx_ops.torch.base.errors import DifferenceError


class Tolerance(NamedTuple):
    """The largest error of a tensor.

    Attributes:
        own: relative to its largest entry.
        all_: relative to the largest entry of all tensors compared: a gradient that is 0 except for rounding, such as
            that of a bias before a batch norm, is as large as the rounding errors of the others.
        absolute: the least that is allowed.
    """

    own: float
    all_: float
    absolute: float = 0.0


# Errors of sums in another order; those of wrong graphs are much larger.
TOLERANCES: Mapping[np.dtype, Tolerance] = {
    np.dtype(np.float64): Tolerance(1e-8, 1e-11),
    np.dtype(np.float32): Tolerance(1e-3, 1e-5),
}
# bfloat16 rounds by up to 2**-9; where float32 sums in another order are rounded to another number, the difference of
# 2**-8 reaches all later results. This holds for the float32 gradients of a step that computes under autocast too.
SIXTEEN_BITS = Tolerance(5e-2, 5e-3)
# A float32 graph that is converted to float64 has constants that were rounded to float32. Deep networks with batch norm
# and choices among nearly equal numbers make more of that: twice the effect of such a change of the inputs is allowed,
# up to a relative error of 0.01.
WIDENED = Tolerance(1e-5, 1e-7)
OF_CONSTANTS, LARGEST_OF_CONSTANTS = 2.0, 1e-2
# Errors that are allowed in float32 if the graph is correct in float64: ten times PyTorch's error in float32, or the
# effect of a change of the inputs that is about a hundred times as large as rounding, up to a relative error of 0.5, or
# twice PyTorch's of the same tensor where that is larger: the largest at these inputs and after such changes, as one
# error may be small by chance. A graph in which the same input of a ReLU changes its sign rounds too: the tolerance
# above is added to that effect.
ROUNDING, LARGEST_ROUNDING = 10.0, 0.5
# Results that are 0 but for rounding have no digit to compare. In float64 they may be off by this share of what
# PyTorch's are off by in float32; by the second one if a graph is converted to float64, with constants in float32.
VANISHING, VANISHING_WIDENED = 1e-6, 1e-3
FLOATS = {np.dtype(np.float32), np.dtype(np.float64)}
# Errors of rounding of an updated parameter, in machine epsilons, relative to each element.
UPDATED = 4.0
# The share of the elements of a parameter whose update may be off by more: with optimizers that take signs, rounding
# decides that of a sum that is 0 but for rounding.
FEW = 1e-4
PIECE = 2**16
"""Elements that are compared at a time."""


class Comparison:
    """A comparison of results of the graph with those of PyTorch, one after the other.

    Args:
        what: names the results in the error.
        got: the graph's results by name.
        largest: the largest entry of all results; 0 where rounding errors of others do not reach a result.
    """

    def __init__(self, what: str, got: Mapping[str, np.ndarray], largest: float = 0.0) -> None:
        self._what, self._got, self._largest = what, got, largest
        self._wrong: list[str] = []

    def add(
        self,
        name: str,
        wanted: np.ndarray,
        tolerance: Tolerance | None = None,
        *,
        before: np.ndarray | None = None,
    ) -> None:
        """Compare a result.

        Args:
            name: of the result.
            wanted: PyTorch's.
            tolerance: maximal errors, relative to the largest entry of the tensor and of all results; default by dtype.
            before: what an update has made the result of: in float32 and float64 the changes are compared too, which
                may be much smaller than the entries.
        """
        got = self._got.get(name)
        if got is None:
            self._wrong.append(f"{name} is missing")
        elif got.shape != wanted.shape:
            self._wrong.append(f"{name} has shape {got.shape}, {wanted.shape} in PyTorch")
        else:
            off, size = _difference(got, wanted), largest_entry(wanted)
            allowed = _allowed(wanted.dtype, size, self._largest, tolerance)
            if not off <= allowed:
                text = f"{name} is off by {off:.2g} where {allowed:.2g} is allowed; its largest entry is {size:.2g}"
                self._wrong.append(text)
            elif before is not None and wanted.dtype in FLOATS:
                change = _largest_change(before, wanted)
                # Roundings to 16 bits, as in the iterations of Muon, add up.
                share = TOLERANCES[wanted.dtype][0] if tolerance is None else LARGEST_ROUNDING
                wrong = _wrong_changes(got, wanted, share * change)
                if wrong > FEW * wanted.size:
                    text = f"{name} is off by up to {off:.2g}, in {wrong} elements; its largest change is {change:.2g}"
                    self._wrong.append(text)

    def check(self) -> None:
        """Raise a DifferenceError for a missing result, another shape, or an error above the tolerance."""
        refuse(self._what, self._wrong)


def refuse(what: str, wrong: Sequence[str]) -> None:
    """Raise a DifferenceError if results of the graph, which `what` names, are wrong."""
    if wrong:
        more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise DifferenceError(
            f"{what} of the captured graph are not those of PyTorch: {'; '.join(wrong[:5])}{more}."
            " With check=False the graph is not compared"
        )


def compare(
    what: str,
    got: Mapping[str, np.ndarray],
    wanted: Mapping[str, np.ndarray],
    tolerance: Tolerance | Mapping[str, Tolerance] | None = None,
) -> None:
    """Compare results of the graph with those of PyTorch.

    Args:
        what: names the results in the error.
        got: the graph's results by name; those that `wanted` does not have are ignored.
        wanted: PyTorch's results by name.
        tolerance: maximal errors, relative to the largest entry of a tensor and of all tensors, or those of each result
            by name; default by dtype.

    Raises:
        CaptureError: a missing result, another shape, or an error above the tolerance.
    """
    comparison = Comparison(what, got, largest_of(wanted))
    for name, array in wanted.items():
        comparison.add(name, array, tolerance.get(name) if isinstance(tolerance, Mapping) else tolerance)
    comparison.check()


def rounding(
    theirs: Mapping[str, np.ndarray],
    near: Mapping[str, np.ndarray],
    exact: Mapping[str, np.ndarray],
    noise: Mapping[str, float],
    errors_of_pytorch: Mapping[str, float],
) -> dict[str, Tolerance]:
    """The tolerances for rounding errors of a graph that is correct in float64, of floating results by name.

    Args:
        theirs: PyTorch's results in float32.
        near: PyTorch's results of a computation in float64 for inputs with a relative change larger than rounding.
        exact: PyTorch's results of a computation in float64.
        noise: what PyTorch's results in float32 are off by, of those that have no digit in float32.
        errors_of_pytorch: the largest that PyTorch's results in float32 are off by, of finite ones, at these inputs and
            others near them.
    """
    largest = largest_of(exact)
    own, all_, _ = TOLERANCES[np.dtype(np.float32)]
    of_own = {}
    errors = [own]
    for name, array in exact.items():
        size = largest_entry(array)
        if array.dtype not in FLOATS:
            continue
        of_own[name] = 0.0
        if size:
            rounded, changed = ((_difference(each[name], array) - all_ * largest) / size for each in (theirs, near))
            of_own[name] = (errors_of_pytorch.get(name, 0.0) - all_ * largest) / size
            errors += [min(error, LARGEST_ROUNDING) for error in (ROUNDING * rounded, changed + own)]
    shared = max(errors)
    return {
        name: Tolerance(max(shared, 2 * error), all_, ROUNDING * noise.get(name, 0.0)) for name, error in of_own.items()
    }


def of_constants(
    exact: Mapping[str, np.ndarray], changes: Mapping[str, float], tolerance: Mapping[str, Tolerance]
) -> dict[str, Tolerance]:
    """The tolerances for a graph that is converted to float64, by name.

    Args:
        exact: PyTorch's results in float64.
        changes: the largest changes of them by relative changes of the inputs as large as rounding to float32.
        tolerance: for constants whose rounding has no larger effect.
    """
    found = {}
    for name, given in tolerance.items():
        size = largest_entry(exact[name])
        change = OF_CONSTANTS * changes[name] / size if size else 0.0
        found[name] = given._replace(own=max(given.own, min(change, LARGEST_OF_CONSTANTS)))
    return found


def errors_of_float32(single: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The largest error of floating results by name, of PyTorch's in float32; of results that overflow there none."""
    errors = {name: _difference(single[name], array) for name, array in exact.items() if array.dtype in FLOATS}
    return {name: error for name, error in errors.items() if math.isfinite(error)}


def largest_of(arrays: Mapping[str, np.ndarray]) -> float:
    """The largest absolute value of the finite entries of results other than the loss."""
    return max((largest_entry(array) for name, array in arrays.items() if name != LOSS), default=0.0)


def largest_entry(array: np.ndarray) -> float:
    """The largest absolute value of the finite entries; 0 if there is none."""
    largest = 0.0
    for (piece,) in _pieces(array):
        size = _largest_size(piece)
        if not math.isfinite(size):
            size = _largest_size(piece[np.isfinite(piece)])
        largest = max(largest, size)
    return largest


def _difference(got: np.ndarray, wanted: np.ndarray) -> float:
    """The largest absolute difference; equal infinities and two NaN differ by 0, other non-finite pairs by infinity.

    That of integers is at least 1, also where float64 rounds them to one number.
    """
    largest = float(wanted.dtype.kind in "iu" and not np.array_equal(got, wanted))
    for one, other in _pieces(got, wanted):
        with np.errstate(over="ignore", invalid="ignore"):
            off = one - other
        size = _largest_size(off)
        if not math.isfinite(size):
            off[_are_same(one, other)] = 0.0
            size = _largest_size(np.where(np.isnan(off), math.inf, off))
        largest = max(largest, size)
    return largest


def _largest_change(before: np.ndarray, after: np.ndarray) -> float:
    """The largest absolute difference that is finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return max((largest_entry(other - one) for one, other in _pieces(before, after)), default=0.0)


def _wrong_changes(got: np.ndarray, wanted: np.ndarray, allowed: float) -> int:
    """The number of elements that are off by more than this and rounding; equal infinities and two NaN are not."""
    rounding_error, found = UPDATED * float(np.finfo(wanted.dtype).eps), 0
    for one, other in _pieces(got, wanted):
        with np.errstate(over="ignore", invalid="ignore"):
            near = np.abs(one - other) <= allowed + rounding_error * np.abs(other)
        found += int(np.count_nonzero(~(near | _are_same(one, other))))
    return found


def _are_same(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Which elements are equal, infinities and NaN among them."""
    return (one == other) | (np.isnan(one) & np.isnan(other))


def _largest_size(array: np.ndarray) -> float:
    """The largest absolute value of real numbers; 0 if there is none, NaN if one is NaN."""
    return max(float(array.max(initial=0.0)), -float(array.min(initial=0.0)))


def _pieces(*arrays: np.ndarray) -> Iterator[list[np.ndarray]]:
    """Pieces of arrays of one size, in float64 unless they are in float32: whole ones may take much memory."""
    flat = [array.reshape(-1) for array in arrays]
    for begin in range(0, flat[0].size, PIECE):
        pieces = [array[begin : begin + PIECE] for array in flat]
        yield [piece if piece.dtype in FLOATS else piece.astype(np.float64) for piece in pieces]


def _allowed(dtype: np.dtype, size: float, largest: float, tolerance: Tolerance | None) -> float:
    """The allowed absolute error of an array with this largest entry; 0 for integers and booleans."""
    if dtype.kind in "iub":
        return 0.0
    own, all_, absolute = tolerance or TOLERANCES.get(dtype, SIXTEEN_BITS)
    return max(own * size + all_ * largest, absolute)
