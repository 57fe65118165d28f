"""What a captured graph is compared with: PyTorch at the captured state, and at another state with another batch.

At the captured state alone a graph with a parameter as a constant would pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from onnx_ops.core.step_format import NEXT
from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.effects import Unregistered
from onnx_ops.torch.preserving import preserved
from onnx_ops.torch.steps import JointStep, RunInfo
from onnx_ops.torch.tracing import Tensors, eager_mode

NOISE = 0.05
"""By so much of itself a parameter or an element of the batch changes at most."""
AWAY_FROM_ZERO = 0.01
"""What becomes of zeros among trained parameters, relative to the largest entry: at 0 they may hide gradients."""


@dataclass(frozen=True)
class Trial:
    """Values of the model's state and the arguments, and the outputs of one step of PyTorch from there."""

    values: Tensors
    expected: Tensors


def trials(joint: JointStep, info: RunInfo) -> tuple[Trial, Trial]:
    """A step of PyTorch from the captured state, and one after it from a state close to the one that it reached.

    Args:
        joint: the step. Its model is afterwards as it was.
        info: gets what the first run shows.

    Raises:
        CaptureError: a step that has state beside parameters and buffers.
    """
    with preserved(joint.model):  # afterwards: state that a run leaves in an attribute is found by the next one
        return _two_trials(joint, info)


def _two_trials(joint: JointStep, info: RunInfo) -> tuple[Trial, Trial]:
    start = joint.state() | joint.argument_values()
    with eager_mode():
        first = Trial(start, joint.run(start, info))
    unregistered = Unregistered(joint.model, info.effects)
    for values in _others(joint, first):
        trial = _run_trial(joint, values, first, unregistered)
        if trial is not None:
            return first, trial
    with eager_mode():
        joint.run(start, again := RunInfo())
    unregistered.refuse(again.effects)
    return first, first


def _run_trial(joint: JointStep, values: Tensors, first: Trial, unregistered: Unregistered) -> Trial | None:
    """The trial with these values; None if PyTorch refuses them or makes NaNs of them."""
    info = RunInfo()
    try:
        with warnings.catch_warnings(action="ignore"), eager_mode(), joint.with_parameters(values):
            expected = joint.run(values, info)
    except CaptureError:
        raise
    except Exception:  # the user's code or PyTorch, which the changed values do not suit
        return None
    unregistered.refuse(info.effects)
    if expected.keys() != first.expected.keys() or any(
        bool(tensor.isnan().any()) and not bool(first.expected[name].isnan().any()) for name, tensor in expected.items()
    ):
        return None
    return Trial(values, expected)


def _others(joint: JointStep, first: Trial) -> Iterator[Tensors]:
    """States and batches that differ from the first, those that differ most first."""
    generator = torch.Generator().manual_seed(0)
    reached = {name.removeprefix(NEXT): value for name, value in first.expected.items() if name.startswith(NEXT)}
    state = {name: value for name, value in (first.values | reached).items() if name not in joint.arguments}
    state |= disturbed({name: state[name] for name in joint.parameters}, NOISE)
    state |= {name: _away_from_zero(state[name], generator) for name in joint.trained()}
    arguments = {name: first.values[name] for name in joint.arguments}
    changed = {name: _shrunk(value, generator) for name, value in arguments.items()}
    sizes = _other_sizes(joint.dynamic, arguments)
    if sizes:
        yield state | {n: _reordered(value, sizes.get(n, {}), generator) for n, value in changed.items()}
    yield state | {name: _reordered(value, {}, generator) for name, value in changed.items()}
    yield state | arguments


def _noise(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Numbers from -1 to 1."""
    return (2 * torch.rand(like.shape, generator=generator) - 1).to(like.dtype)


def disturbed(values: Tensors, amount: float) -> Tensors:
    """Floating tensors each of whose elements is changed by so much of itself at most."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: tensor * (1 + amount * _noise(tensor, generator)) if tensor.is_floating_point() else tensor
        for name, tensor in values.items()
    }


def _away_from_zero(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if not tensor.is_floating_point() or not tensor.numel():
        return tensor
    return torch.where(tensor == 0, AWAY_FROM_ZERO * (tensor.abs().max() or 1.0) * _noise(tensor, generator), tensor)


def _shrunk(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Numbers that are closer to 0: those between 0 and 1 stay there, as probabilities have to."""
    return tensor * (1 - NOISE * _noise(tensor, generator).abs()) if tensor.is_floating_point() else tensor


def _reordered(tensor: torch.Tensor, sizes: Mapping[int, int], generator: torch.Generator) -> torch.Tensor:
    """The rows in another order, the same for all tensors of as many rows, and in other numbers along some axes."""
    if not tensor.dim():
        return tensor
    rows = tensor.shape[0]
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(rows))
    for axis, size in ({0: rows} | dict(sizes)).items():
        places = torch.arange(size) % max(tensor.shape[axis], 1)
        tensor = tensor.index_select(axis, order[places] if axis == 0 else places)
    return tensor


def _other_sizes(dynamic: Mapping[str, Mapping[int, Any]], arguments: Tensors) -> dict[str, dict[int, int]]:
    """Other sizes of the dynamic dimensions that have names, by tensor and axis.

    Of those without a name only the trace finds out whether they can change.
    """
    places = [
        (name, axis, dim)
        for name, axes in dynamic.items()
        for axis, dim in axes.items()
        if isinstance(dim, torch.export.Dim)
    ]
    new = {d.__name__: _other_size(arguments[n].shape[axis], d) for n, axis, d in places if not hasattr(d, "root")}
    found: dict[str, dict[int, int]] = {}
    for name, axis, dim in places:
        root = getattr(dim, "root", None)
        if root is None:
            found.setdefault(name, {})[axis] = new[dim.__name__]
        elif root.__name__ in new:  # such as 2 * Dim("N")
            found.setdefault(name, {})[axis] = dim.fn(new[root.__name__])
    return found


def _other_size(size: int, dim: Any) -> int:
    least, most = max(getattr(dim, "min", None) or 2, 2), getattr(dim, "max", None)
    if most is None or size < most:
        return size + 1
    return size - 1 if size > least else size
