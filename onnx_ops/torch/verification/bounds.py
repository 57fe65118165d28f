"""The sizes that a step takes: those that torch.export.Dim allows, for which the graph is right."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.tracing.program import Dynamic
from onnx_ops.torch.tracing.trace import Traced
from onnx_ops.torch.verification.single import Place, Sizes, refused_at_one, refused_at_zero
from onnx_ops.torch.verification.trials import Trial, batch_norm_refusals
from onnx_ops.torch.verification.verify import Verification
from onnx_ops.training.step import Bounds


def given_bounds(dynamic: Dynamic) -> dict[str, Bounds]:
    """The bounds of each torch.export.Dim(name, min=, max=) that has any."""
    dims = [dim for axes in dynamic.values() for dim in axes.values() if isinstance(dim, torch.export.Dim)]
    found = {dim.__name__: Bounds(dim.min, dim.max if isinstance(dim.max, int) else None) for dim in dims}
    return {name: bounds for name, bounds in found.items() if bounds != Bounds()}


def step_bounds(
    given: Mapping[str, Bounds],
    traced: Traced,
    names: Mapping[Place, str],
    integers: Collection[str],
    trial_at: Callable[[Sizes], Trial | None],
    verification: Verification | None,
) -> dict[str, Bounds]:
    """The bounds of the dimensions of a step, from the least sizes on for which its graph is right.

    Args:
        given: those of `given_bounds`.
        traced: the trace of the step.
        names: of the dynamic dimensions in the graph.
        integers: the inputs of integers.
        trial_at: makes a step of PyTorch at other sizes; None if PyTorch refuses them.
        verification: compares such steps with the graph; None if sizes are not tried.
    """
    normalized: set[Place] = set()  # dimensions whose size 1 is too small for batch norm

    def is_right(sizes: Sizes) -> bool | None:
        if verification is None:
            return None
        try:
            with batch_norm_refusals() as refusals:
                trial = trial_at(sizes)
            if trial is not None:
                verification.compare_outputs(trial)
        except CaptureError:
            return False
        if refusals:
            normalized.update((name, axis) for name, axes in sizes.items() for axis in axes)
        return None if trial is None else True

    empty = {names[place] for place in traced.never_empty if place in names}
    if verification is not None:
        allowed = {name for name in names.values() if name not in empty and given.get(name, Bounds()).min == 0}
        empty |= refused_at_zero(traced.dynamic, names, is_right, allowed, integers)
    small = refused_at_one(traced.dynamic, traced.decided_at_one, names, is_right, all_of_them=verification is not None)
    least = dict.fromkeys(empty, 1) | dict.fromkeys(small, 2)
    normalized -= {place for places in traced.decided_at_one for place in places}
    # Workers that share batch norm take batches of one sample.
    shared = small & {names[place] for place in normalized if place in names}
    bounds = dict(given)
    for name, size in least.items():
        own = bounds.get(name, Bounds())
        bounds[name] = own._replace(min=max(own.min, size), **({"worker_min": 1} if name in shared else {}))
    return bounds
