"""Runs the steps of PyTorch that a captured graph is compared with: at the captured state, and at another one.

The second state and batch find graphs that have a parameter as a constant.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch.nn import functional

from onnx_ops.core.step_format import GRADIENT, NEXT
from onnx_ops.torch.base.arrays import as_array
from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.steps.calls import RunInfo
from onnx_ops.torch.steps.step import JointStep, ReshapedError
from onnx_ops.torch.tracing.contexts import eager_mode
from onnx_ops.torch.tracing.effects import Effects, Unregistered, storage_of, storages
from onnx_ops.torch.tracing.preserving import preserved
from onnx_ops.torch.tracing.program import Dynamic, Tensors
from onnx_ops.torch.tracing.substitution import Substitution
from onnx_ops.torch.verification.outside import Outside, advanced, refuse_seeds
from onnx_ops.torch.verification.tolerances import compare

NOISE = 0.05
"""Maximal relative change of a parameter or an element of the batch."""
INTEGERS = {torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8}
KEPT = 2**25
"""Bytes of a trial's results up to which they are kept until they are compared."""
AWAY_FROM_ZERO = 0.01
"""Bound on the values that replace zeros in trained parameters, relative to the largest entry: zeros hide gradients."""


@dataclass(frozen=True)
class Trial:
    """A step of PyTorch.

    Attributes:
        make: returns the model's state and the arguments, by name: made anew, as they may be as large as the model.
        run: yields the outputs of the step for these, by name: in parts, each with the gradients of some parameters, if
            all of them are as large as the model.
        state: those of them that are new values of parameters and buffers.
    """

    make: Callable[[], Tensors]
    run: Callable[[Tensors], Iterable[Tensors]]
    state: Tensors


def trials(joint: JointStep, info: RunInfo, scale: Tensors, *, several: bool = False) -> list[Trial]:
    """Run a step of PyTorch from the captured state, and one from a state close to its result.

    Args:
        joint: the step; its model is not changed.
        info: filled with information about the first run.
        scale: the factor of the loss, by its name; empty without loss scaling.
        several: whether to run all second steps, in case that the graph's conditions do not hold for the first of them.

    Returns:
        The trials; the first one twice if PyTorch runs no other batch or state.

    Raises:
        CaptureError: the step has state that is neither a parameter nor a buffer.
    """
    try:
        return _trials(joint, info, scale, several=several)
    except ReshapedError as error:
        # Buffers of other shapes than before, which are not in the state_dict, may be what a step makes anew each time.
        if not joint.persistent.isdisjoint(error.shapes):
            raise
        joint.leave(error.shapes)
        info.effects = Effects()
        return _trials(joint, info, scale, several=several, reshaped=error)


def _trials(
    joint: JointStep, info: RunInfo, scale: Tensors, *, several: bool, reshaped: ReshapedError | None = None
) -> list[Trial]:
    """As `trials`; `reshaped` is the error if the step reads buffers that an earlier one has left in other shapes."""
    start = joint.state() | joint.argument_values() | scale
    outside = Outside(joint.model, joint.loss)
    with preserved(joint.model), eager_mode():
        expected = joint.run(start, info)
        outside.first_run_ended()
        halves = _halves(expected)
        kept = _repeat(joint, start, expected, halves, info, outside, reshaped)
        moved = None if kept is None else _moved(joint, start, expected)
        later = None if moved is None else _results(joint, moved)
    if kept is not None and moved is not None and later is not None:
        with preserved(joint.model), eager_mode():
            first_step = _results(joint, moved)
        if first_step is not None:
            _compare_with_first(kept, later, first_step)
    if outside.may_be_of_numbers():
        with preserved(joint.model), eager_mode():
            again = joint.run(start, RunInfo(), info.changed, differentiated=halves[0])
            outside.compare_restored(expected, again)
            del again  # which may be as large as the model
    if outside.may_be_a_cache():
        with preserved(joint.model), eager_mode():
            outside.compare(expected, joint.run(start, RunInfo()))
    others = _others(joint, start, expected)

    def comparable(found: Tensors, half: Collection[str]) -> bool:
        return found.keys() == _with_gradients(expected, half).keys() and not any(
            bool(tensor.isnan().any()) and not bool(expected[name].isnan().any()) for name, tensor in found.items()
        )

    made = (_run_trial(joint, make, comparable, halves) for make in others)
    seconds = list(itertools.islice(filter(None, made), None if several else 1))
    info.outside = outside.check()
    first = Trial(lambda: start, lambda _: (_with_gradients(expected, half) for half in halves), _state(expected))
    return [first, *(seconds or [first])]


def resized(
    joint: JointStep, make: Callable[[], Tensors], sizes: Mapping[str, Mapping[int, int]], outputs: Collection[str]
) -> Trial | None:
    """The trial with other sizes of the arguments; None if PyTorch raises an error.

    Args:
        joint: the step.
        make: makes the values of the first trial.
        sizes: the sizes, by argument and axis.
        outputs: the names of its outputs.

    Raises:
        CaptureError: with these sizes the step has other outputs.
    """
    start = make()
    batch = with_sizes({name: start[name] for name in joint.arguments}, sizes)

    def expected(found: Tensors, _: Collection[str]) -> bool:
        if found.keys() != set(outputs):
            raise CaptureError(f"the outputs are {sorted(found)}, expected {sorted(outputs)}")
        return True

    return _run_trial(joint, lambda: make() | batch, expected, [joint.parameters.keys() | joint.arguments.keys()])


@contextlib.contextmanager
def batch_norm_refusals() -> Iterator[list[Exception]]:
    """A context that notes the errors of batch norm for less than two values of a channel."""
    found: list[Exception] = []
    verify = vars(functional)["_verify_batch_size"]

    def noting(size: list[int]) -> None:
        try:
            verify(size)
        except ValueError as error:
            found.append(error)
            raise

    with mock.patch.object(functional, "_verify_batch_size", noting):
        yield found


def rerun(joint: JointStep, info: RunInfo) -> None:
    """Run the step of PyTorch from the captured state once more; `info` is that of the first run."""
    with preserved(joint.model), eager_mode():
        joint.run(joint.state() | joint.argument_values(), RunInfo(), info.changed)


def _repeat(
    joint: JointStep,
    start: Tensors,
    expected: Tensors,
    halves: Sequence[Collection[str]],
    info: RunInfo,
    outside: Outside,
    reshaped: ReshapedError | None,
) -> str | None:
    """Run the step again, with what the first run has left in attributes, and compare the results.

    Returns:
        What it reads of that; None if nothing, or if the results differ.
    """
    unregistered = Unregistered(joint.model, joint.loss, info.effects)
    left = [] if reshaped is None else [b for n, b in joint.model.named_buffers() if n in reshaped.shapes]
    for half in halves:
        repeated = RunInfo()
        try:
            with advanced(draw.generator for draw in info.seeded):
                again = joint.run(start, repeated, differentiated=half)
        except Exception as error:  # by the user's code or PyTorch, as when kept tensors belong to a freed graph
            outside.failed(error)
            return None
        if reshaped is not None and any(map(repeated.effects.has_read, storages(left))):
            raise reshaped
        unregistered.refuse(repeated.effects)
        if half is halves[0]:
            outside.second_run_ended()
        refuse_seeds(info.seeded, repeated.seeded)
        if not outside.compare(_with_gradients(expected, half), again):
            return None
        del again  # before the next half is computed
    return unregistered.kept(repeated.effects)


def _moved(joint: JointStep, start: Tensors, expected: Tensors) -> Tensors:
    """The batch of the first trial, and the state that a step may lead to."""
    reached = {name.removeprefix(NEXT): value for name, value in expected.items() if name.startswith(NEXT)}
    state = start | reached
    return state | dict(disturbances({name: state[name] for name in joint.trained()}, NOISE, seed=0))


def _results(joint: JointStep, values: Tensors) -> Tensors | None:
    """The results of a run but for gradients; None if PyTorch raises an error."""
    try:
        return joint.run(values, RunInfo(), differentiated=())
    except Exception:
        return None


def _compare_with_first(kept: str, later: Tensors, first: Tensors) -> None:
    """Raise a CaptureError if a step after others differs from a first one with the same state and batch."""
    results, again = (
        {name: as_array(tensor) for name, tensor in run.items() if not tensor.is_complex()} for run in (first, later)
    )
    try:
        compare("results", again, results)
    except CaptureError as error:
        raise CaptureError(
            f"the first step keeps {kept}, which it computes from parameters or buffers, and later ones read it, but a"
            " graph computes it in each step. Call the loss once before the capture, so that it exists, or compute it"
            " in each step"
        ) from error


def _state(outputs: Tensors) -> Tensors:
    return {name: tensor for name, tensor in outputs.items() if name.startswith(NEXT)}


def _run_trial(
    joint: JointStep,
    make: Callable[[], Tensors],
    comparable: Callable[[Tensors, Collection[str]], bool],
    halves: Sequence[Collection[str]],
) -> Trial | None:
    """The trial with these values; None if PyTorch raises an error or returns what is not comparable.

    Results of more than KEPT bytes, which are as large as the model, are computed once more when they are compared.

    Args:
        joint: the step.
        make: makes the values.
        comparable: whether results are, of which the gradients are those of some names.
        halves: names whose gradients are computed together.
    """
    info = RunInfo()

    def run(
        values: Tensors,
        info: RunInfo,
        changed: Collection[str] | None = None,
        *,
        half: Collection[str],  # whose gradients are computed
    ) -> Tensors:
        shared = storages(joint.parameters.values())
        # Those that were made for this run.
        own = [n for n in joint.parameters if values[n].is_floating_point() and storage_of(values[n]) not in shared]
        with (
            warnings.catch_warnings(action="ignore"),
            preserved(joint.model),
            eager_mode(),
            torch.sparse.check_sparse_tensor_invariants(),  # the kernels write anywhere for indices that do not fit
            Substitution({torch.searchsorted: _searchsorted, torch.bucketize: _bucketize}),
            joint.with_parameters(values) as given,
        ):
            outputs = joint.run(given, info, changed, own, half)
            return {name: t.clone() if storage_of(t) in shared else t for name, t in outputs.items()}

    def again(values: Tensors) -> Iterator[Tensors]:
        for half in halves:
            arguments = {name: values[name].clone() for name in joint.arguments}  # which a loss may change in place
            yield run(values | arguments, RunInfo(), info.changed, half=half)

    try:
        expected = run(make(), info, half=halves[0])
        state = _state(expected)
        for half in halves[1:]:
            if not comparable(expected, halves[0]):
                return None
            del expected  # before those of the other half
            expected = run(make(), RunInfo(), info.changed, half=half)
    except CaptureError:
        raise
    except Exception:  # the user's code or PyTorch refuses the changed values
        return None
    info.effects = Effects()
    if not comparable(expected, halves[-1]):
        return None
    if len(halves) == 1 and sum(tensor.nbytes for tensor in expected.values()) <= KEPT:
        return Trial(make, lambda _: [expected], state)
    return Trial(make, again, state)


def _searchsorted(sorted_sequence: torch.Tensor, *args: Any, **options: Any) -> Any:
    """As torch.searchsorted; an error for a sequence that is not sorted, for which PyTorch's result is unspecified."""
    sorter = options.get("sorter")
    ordered = sorted_sequence if sorter is None else sorted_sequence.gather(-1, sorter)
    if (ordered[..., 1:] < ordered[..., :-1]).any():
        raise ValueError("the sequence is not sorted")
    return torch.searchsorted(sorted_sequence, *args, **options)


def _bucketize(input: Any, boundaries: torch.Tensor, **options: Any) -> Any:
    _searchsorted(boundaries, input, **options)
    return torch.bucketize(input, boundaries, **options)


def _with_gradients(results: Tensors, names: Collection[str]) -> Tensors:
    """The results, of the gradients those with respect to these parameters and arguments only."""
    others = {name for name in results if name.startswith(GRADIENT) and name.removeprefix(GRADIENT) not in names}
    return {name: tensor for name, tensor in results.items() if name not in others}


def _halves(results: Tensors) -> list[list[str]]:
    """The names whose gradients are among the results, in two parts of about the same size if they are large."""
    sizes = {name.removeprefix(GRADIENT): t.nbytes for name, t in results.items() if name.startswith(GRADIENT)}
    reached = list(itertools.accumulate(sizes.values()))
    if not sizes or reached[-1] <= KEPT:
        return [list(sizes)]
    first = [name for name, size in zip(sizes, reached, strict=True) if 2 * size <= reached[-1]]
    return [half for half in (first, [name for name in sizes if name not in first]) if half]


def _others(joint: JointStep, start: Tensors, expected: Tensors) -> Iterator[Callable[[], Tensors]]:
    """What makes states and batches that differ from those of the first trial, in descending order of differences.

    Args:
        joint: the step.
        start: the values of the first trial.
        expected: its results.
    """
    reached = {name.removeprefix(NEXT): value for name, value in expected.items() if name.startswith(NEXT)}
    before = {name: value for name, value in (start | reached).items() if name not in joint.arguments}
    arguments = {name: start[name] for name in joint.arguments}
    generator = torch.Generator().manual_seed(0)
    sizes = _other_sizes(joint.dynamic, arguments)
    changes = [(_reordered, sizes), (_continued, sizes)] if sizes else []
    # Shrunk last: elements that are there twice differ, of which topk may take any.
    batches = [
        {name: _shrunk(change(value, own.get(name, {})), generator) for name, value in arguments.items()}
        for change, own in (*changes, (_reordered, {}))
    ]
    batches.append(arguments)

    def made(batch: Tensors) -> Tensors:
        zeros, trained, state = torch.Generator().manual_seed(1), set(joint.trained()), dict(before)
        for name, tensor in disturbances({name: before[name] for name in joint.parameters}, NOISE, seed=0):
            if name in trained:
                _move_from_zero(tensor, zeros)
            state[name] = tensor
        return state | batch

    for batch in batches:
        yield functools.partial(made, batch)


def _noise(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Uniform numbers on [-1, 1), shape and dtype of `like`."""
    return torch.rand(like.shape, generator=generator).mul_(2).sub_(1).to(like.dtype)


def disturbances(values: Tensors, amount: float, seed: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Floating tensors with random relative changes of at most `amount`, other tensors unchanged, by name."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in values.items():
        changed = tensor.is_floating_point()
        yield name, _noise(tensor, generator).mul_(amount).add_(1).mul_(tensor) if changed else tensor


def _move_from_zero(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Replace the zeros of a floating tensor, in place."""
    zeros = tensor == 0
    if zeros.any():
        tensor[zeros] = AWAY_FROM_ZERO * (tensor.abs().max() or 1.0) * _noise(tensor[zeros], generator)


def _shrunk(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A tensor scaled elementwise by factors in [1 - NOISE, 1], so that probabilities stay in [0, 1]."""
    return tensor * (1 - NOISE * _noise(tensor, generator).abs()) if tensor.is_floating_point() else tensor


def with_sizes(arguments: Tensors, sizes: Mapping[str, Mapping[int, int]]) -> Tensors:
    """Arguments with permuted rows and with other sizes, by argument and axis.

    Integers are the smallest index among them: larger ones may be out of range with these sizes, which not all
    functions that a model calls look at before they write.
    """
    found = {name: _reordered(tensor, sizes.get(name, {})) for name, tensor in arguments.items()}
    return {name: _smallest_index(t, arguments[name]) if t.dtype in INTEGERS else t for name, t in found.items()}


def _smallest_index(tensor: torch.Tensor, example: torch.Tensor) -> torch.Tensor:
    """A tensor of the smallest index in the example, which offsets of bags begin with."""
    indices = example[example >= 0]
    return torch.full_like(tensor, int(indices.min())) if len(indices) else tensor


def _reordered(tensor: torch.Tensor, sizes: Mapping[int, int]) -> torch.Tensor:
    """A tensor with permuted rows and other sizes.

    Args:
        tensor: tensors with the same number of rows get the same permutation.
        sizes: new sizes by axis; indices beyond the old size start again at 0.
    """
    if not tensor.dim():
        return tensor
    rows = tensor.shape[0]
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(rows))
    for axis, size in ({0: rows} | dict(sizes)).items():
        places = torch.arange(size) % max(tensor.shape[axis], 1)
        tensor = tensor.index_select(axis, order[places] if axis == 0 else places)
    return tensor


def _continued(tensor: torch.Tensor, sizes: Mapping[int, int]) -> torch.Tensor:
    """A tensor with other sizes, by axis, whose last index is repeated: what is sorted remains so."""
    for axis, size in sizes.items():
        tensor = tensor.index_select(axis, torch.arange(size).clamp(max=max(tensor.shape[axis] - 1, 0)))
    return tensor


def _other_sizes(dynamic: Dynamic, arguments: Tensors) -> dict[str, dict[int, int]]:
    """Other sizes of the named dynamic dimensions, by tensor and axis.

    Only the trace finds out whether those of Dim.AUTO can change.
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


def _other_size(size: int, dim: torch.export.Dim) -> int:
    """A size that the dimension may have, another one if there is one."""
    least, most = max(getattr(dim, "min", None) or 2, 2), getattr(dim, "max", None)
    if most is None or size < most:
        return size + 1
    return size - 1 if size > least else size
