"""Verification of a captured graph: compares two steps, the second from the state of the first, with PyTorch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import onnx
import torch

from onnx_ops.core.step_format import GRADIENT, NEXT
from onnx_ops.graph.slices import part
from onnx_ops.torch.base.arrays import as_array, as_tensor
from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.base.pairs import as_like
from onnx_ops.torch.steps.calls import RunInfo
from onnx_ops.torch.steps.step import JointStep
from onnx_ops.torch.steps.update import Update
from onnx_ops.torch.tracing.contexts import eager_mode
from onnx_ops.torch.tracing.preserving import preserved
from onnx_ops.torch.tracing.program import Tensors
from onnx_ops.torch.verification.graph import Arrays, Graph, arrays
from onnx_ops.torch.verification.tolerances import (
    LARGEST_OF_CONSTANTS,
    SIXTEEN_BITS,
    VANISHING,
    VANISHING_WIDENED,
    WIDENED,
    Tolerance,
    compare,
    errors_of_float32,
    largest_entry,
    of_constants,
    refuse,
    rounding,
)
from onnx_ops.torch.verification.trials import Trial, disturbances
from onnx_ops.torch.verification.updates import Updates
from onnx_ops.torch.verification.widening import Float32Computation, Float64Computation, rounds_to_16_bits, to_float64
from onnx_ops.training.condition_parts import check_parts, condition_parts
from onnx_ops.training.conditions import check_conditions
from onnx_ops.training.counters import WRITTEN
from onnx_ops.training.errors import StepError
from onnx_ops.training.step import Step

DISTURBANCE = 1e-5
"""Relative change of the inputs that changes the sign of more inputs of ReLUs than rounding does."""
ROUNDED_CONSTANT = 2.0**-23
"""Relative change of the inputs of the size of that of a constant which is rounded to float32."""
NARROW = {torch.float16, torch.bfloat16}
SAMPLES = 3
"""Such changes that are tried to learn how large rounding errors are."""
DRAWS = 8
"""Such changes that are tried: which inputs change their sign, and how much gradients depend on them, is random."""


def _if_run(model: onnx.ModelProto, values: Tensors) -> Arrays | None:
    try:
        return Graph(model).run(values)
    except CaptureError:
        return None


class Verification:
    """Compares successive steps of a graph with PyTorch's.

    Args:
        model: the graph, whose outputs include the gradients.
        joint: the same step in PyTorch.
        update: the update that was captured; None if the graph has none.
    """

    def __init__(self, model: onnx.ModelProto, joint: JointStep, update: Update | None) -> None:
        self._model, self._joint = model, joint
        self._updates = updates = None if update is None else Updates(joint, update)
        self._updated = set() if updates is None else updates.names
        whole = _with_written(model, self._updated)
        self._graph = Graph(whole if updates is None else updates.divided(whole))
        record = Step.of(model)
        self._conditions, self._bounds = record.conditions, record.bounds
        self._tolerance = SIXTEEN_BITS if rounds_to_16_bits(model) else None
        self._state = {} if updates is None else updates.state()
        self._wide_graphs: dict[frozenset[str], Graph] = {}
        self._noise: dict[str, float] = {}

    def check_flags(self, first: Trial) -> None:
        """Check that the first step does not end the conditions on buffers alone, as on a flag that is set by it.

        Raises:
            CaptureError: it does, so that all later steps would be refused.
        """
        buffers = self._joint.buffers.keys()
        after = {name.removeprefix(NEXT): tensor for name, tensor in first.state.items()}
        for own in condition_parts(self._model, self._conditions):
            read = [value.name for value in own.model.graph.input]
            changed = [name for name in read if name in after]
            if not changed or not buffers >= set(read):
                continue
            if own.problem(_if_run(own.model, first.make() | after)) is not None:
                condition = own.condition
                code = f" ({condition.code})" if condition.code else ""
                raise CaptureError(
                    f"{condition.line}{code} decides by the buffer '{changed[0]}' what to do, which each step changes:"
                    " the way of the example would be valid for the first step alone. If the first call of the model"
                    " initializes it, call the model once before the capture"
                )

    def step(self, trial: Trial, *, last: bool = False) -> str | None:
        """Compare the next step.

        Args:
            trial: the same step in PyTorch.
            last: whether no step follows one that is compared: its state is not kept.

        Returns:
            The message about a condition that the trial violates, which is then not compared; None if all hold.

        Raises:
            CaptureError: the results differ from PyTorch's, or onnxruntime does not run the graph.
        """
        values = trial.make()
        if (violated := self._outside_bounds(values)) is not None:
            return violated
        try:
            got = self._run(self._state | values)
        except StepError as error:
            return str(error)
        # The update first: afterwards the new parameters are not in memory while PyTorch computes the gradients. But
        # wrong gradients, which may be the cause of a wrong update, are reported before it.
        difference: CaptureError | None = None
        if self._updates is not None:
            changed = {name.removeprefix(NEXT): tensor for name, tensor in trial.state.items()}
            written = {name: got.pop(name) for name in list(got) if name.startswith(WRITTEN)}
            try:
                wanted = {name: as_array(changed[name.removeprefix(WRITTEN)]) for name in written}
                compare("outputs", written, wanted, self._tolerance)
                for name, array in written.items():
                    own = name.removeprefix(WRITTEN)
                    changed[own] = as_like(as_tensor(array), changed[own])
                self._updates.compare(self._state | values, changed, got, last=last)
            except CaptureError as error:
                difference = error
        # Parameters that both the loss and the optimizer change are compared after the update only.
        if last:
            got = {name: array for name, array in got.items() if name not in self._updated}
            self._updates, self._state = None, {}
        for expected in trial.run(values):
            self._check(got, {name: expected[name] for name in expected if name not in self._updated}, values)
            got = {n: array for n, array in got.items() if not (n.startswith(GRADIENT) and n in expected)}
            del expected  # before the next part is computed
        if difference is not None:
            raise difference
        self._state |= {name: as_tensor(got[NEXT + name]) for name in self._state if NEXT + name in got}
        return None

    def _outside_bounds(self, values: Tensors) -> str | None:
        """The message about a size that the step does not take, as one by which code branches elsewhere."""
        for value in self._model.graph.input:
            for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
                bounds = self._bounds.get(dimension.dim_param)
                if bounds is None or value.name not in values:
                    continue
                size = values[value.name].shape[axis]
                if not bounds.hold(size):
                    return f"{dimension.dim_param} is {size} in '{value.name}', which the step takes {bounds} alone"
        return None

    def compare_outputs(self, trial: Trial) -> None:
        """Compare a step without its update, by which no later comparison changes.

        Raises:
            CaptureError: as for `step`.
        """
        values = trial.make()
        try:
            got = self._run(self._state | values)
        except StepError:  # a condition refuses it
            return
        for expected in trial.run(values):
            self._check(got, {name: expected[name] for name in expected if name not in self._updated}, values)

    def _run(self, values: Tensors) -> Arrays:
        """The graph's results; StepError if a condition is violated, which may be why onnxruntime does not run it."""
        try:
            got = self._graph.run(values)
        except CaptureError:
            check_parts(self._model, self._conditions, lambda model: _if_run(model, values))
            raise
        check_conditions(self._conditions, got)
        return got

    def _check(self, got: Arrays, expected: Tensors, values: Tensors) -> None:
        """Compare outputs with those of PyTorch; in float64 too if they differ.

        Rounding changes the sign of some inputs of ReLUs, and thereby gradients: by percents in deep networks with
        batch norm, in PyTorch too.
        """
        theirs = arrays(expected)
        _check_dtypes(got, theirs)
        try:
            compare("outputs", got, theirs, self._tolerance)
        except CaptureError as refused:
            exact = self._in_double(_wide(values), values, theirs)
            if exact is None:
                raise
            rounded = {name: array.astype(theirs[name].dtype, copy=False) for name, array in exact.items()}
            if _difference(got, rounded, self._tolerance) is not None:
                remaining = self._beyond_rounding(refused, got, theirs, exact, values)
                if remaining is not None:
                    raise remaining from None

    def _computed(
        self, given: Tensors, values: Tensors, theirs: Arrays, computation: AbstractContextManager[Any]
    ) -> Arrays | None:
        """PyTorch's outputs in another dtype or for other values; None if the model or the loss fails there.

        They are rounded to float32 unless they are in float64 in the model, which takes half of the memory.

        Args:
            given: state and arguments; the loss may change the parameters in their memory. It is emptied.
            values: the state in its own dtypes, for code that reads parameters by other references.
            theirs: arrays with the names and dtypes of the outputs.
            computation: the mode to compute in.
        """
        differentiated = [name.removeprefix(GRADIENT) for name in theirs if name.startswith(GRADIENT)]
        own = self._joint.parameters.keys()
        try:
            with preserved(self._joint.model), eager_mode(), self._joint.with_parameters(values), computation:
                found = self._joint.run(given, RunInfo(), own=own, differentiated=differentiated)
                return {name: _rounded(as_array(found.pop(name)), array.dtype) for name, array in theirs.items()}
        except Exception:  # the user's code requires another dtype
            return None
        finally:
            given.clear()

    def _near(self, values: Tensors, theirs: Arrays, seed: int, amount: float = DISTURBANCE) -> Arrays | None:
        """PyTorch's outputs in float64 for state and arguments that differ from these, by more than rounding."""
        return self._in_double(_disturbed(_wide(values), seed, amount), values, theirs)

    def _in_double(self, given: Tensors, values: Tensors, theirs: Arrays) -> Arrays | None:
        """PyTorch's outputs for these values in float64."""
        return self._computed(given, values, theirs, Float64Computation(single=_has_single(theirs)))

    def _in_single(self, given: Tensors, values: Tensors, theirs: Arrays) -> Arrays | None:
        """PyTorch's outputs for these values in float32, or in 16 bits what has those in the model."""
        kept = {name: values[name].dtype if values[name].dtype in NARROW else torch.float32 for name in given}
        narrow = {name: t.to(kept[name]) if t.is_floating_point() else t for name, t in given.items()}
        return self._computed(narrow, values, theirs, Float32Computation())

    def _vanishing(self, theirs: Arrays, exact: Arrays, values: Tensors) -> dict[str, float]:
        """What PyTorch's outputs are off by in float32, of those that are 0 but for rounding."""
        single = theirs if _has_single(theirs) else self._in_single(_wide(values), values, theirs)
        errors = {} if single is None else errors_of_float32(single, exact)
        return {name: error for name, error in errors.items() if error >= largest_entry(exact[name])}

    def _with_samples(self, noise: dict[str, float], theirs: Arrays, values: Tensors) -> dict[str, float]:
        """The largest errors, with those for other values: an output may be right by chance, as terms that cancel."""
        for seed in range(SAMPLES if noise else 0):
            near = self._near(values, theirs, seed)
            found = {} if near is None else self._errors_near(near, theirs, values, seed)
            noise = {name: max(error, found.get(name, 0.0)) for name, error in noise.items()}
        return noise

    def _errors_near(self, near: Arrays, theirs: Arrays, values: Tensors, seed: int) -> dict[str, float]:
        """What PyTorch's outputs are off by in float32 for the state and arguments whose outputs are `near`."""
        single = self._in_single(_disturbed(_wide(values), seed), values, theirs)
        return {} if single is None else errors_of_float32(single, near)

    def _wide_graph(self, names: frozenset[str]) -> Graph:
        """The graph of these outputs in float64."""
        if names not in self._wide_graphs:
            graph = self._model.graph
            outputs = [value for value in graph.output if value.name in names]
            self._wide_graphs[names] = Graph(to_float64(part(self._model, graph.input, outputs)), optimized=False)
        return self._wide_graphs[names]

    def _beyond_rounding(
        self, refused: CaptureError, got: Arrays, theirs: Arrays, exact: Arrays, values: Tensors
    ) -> CaptureError | None:
        """The difference that rounding does not explain.

        None if the graph is correct in float64, and its errors in float32 are within the tolerance for rounding.

        Args:
            refused: the difference in float32.
        """
        noise = self._vanishing(theirs, exact, values)
        if noise and noise.keys() <= self._noise.keys():  # the samples of an earlier step may do
            known = {name: max(error, self._noise[name]) for name, error in noise.items()}
            if self._unexplained(refused, got, theirs, exact, values, known, draws=1) is None:
                return None
        self._noise = self._with_samples(noise, theirs, values)
        return self._unexplained(refused, got, theirs, exact, values, self._noise, draws=DRAWS)

    def _unexplained(
        self,
        refused: CaptureError,
        got: Arrays,
        theirs: Arrays,
        exact: Arrays,
        values: Tensors,
        noise: Mapping[str, float],
        *,
        draws: int,
    ) -> CaptureError | None:
        """As `_beyond_rounding`, with known errors of results that are 0 but for rounding.

        Args:
            noise: these errors.
            draws: changes of the inputs that are tried.
        """
        difference = self._inexact(refused, exact, values, noise)
        if difference is not None:
            return difference
        errors = errors_of_float32(theirs, exact)
        for seed in range(draws):
            near = self._near(values, theirs, seed)
            difference = _difference(got, exact, rounding(theirs, near or exact, exact, noise, errors))
            if difference is None:
                return None
            if near is not None and _has_single(theirs):
                found = self._errors_near(near, theirs, values, seed)
                errors = {name: max(error, found.get(name, 0.0)) for name, error in errors.items()}
            del near  # before the next ones are computed
        return difference

    def _inexact(
        self, refused: CaptureError, exact: Arrays, values: Tensors, noise: Mapping[str, float]
    ) -> CaptureError | None:
        """The difference of the graph in float64 from these results; None if it has them.

        Args:
            refused: the difference in float32, which is returned if nothing can be compared in float64.
            exact: the results.
            values: state and arguments.
            noise: of those results that are 0 but for rounding.
        """
        try:
            graph = self._wide_graph(frozenset(exact))
            computed = graph.run(_wide({n: t for n, t in (self._state | values).items() if n in graph.inputs}))
        except CaptureError:  # onnxruntime lacks a float64 kernel
            return refused
        converted = _has_single(exact)
        share = VANISHING_WIDENED if converted else VANISHING
        tolerance = {name: WIDENED._replace(absolute=share * noise.get(name, 0.0)) for name in exact}
        difference = _difference_in_float64(computed, exact, tolerance)
        largest = {name: each._replace(own=LARGEST_OF_CONSTANTS) for name, each in tolerance.items()}
        if difference is None or not converted or _difference_in_float64(computed, exact, largest) is not None:
            return difference
        changes = dict.fromkeys(exact, 0.0)
        for seed in range(DRAWS):
            near = self._near(values, exact, seed, amount=ROUNDED_CONSTANT)
            if near is None:
                break
            found = errors_of_float32(near, exact)
            changes = {name: max(change, found.get(name, 0.0)) for name, change in changes.items()}
            difference = _difference_in_float64(computed, exact, of_constants(exact, changes, tolerance))
            if difference is None:
                break
        return difference


def _with_written(model: onnx.ModelProto, updated: Collection[str]) -> onnx.ModelProto:
    """A graph with what the loss writes into parameters that the optimizer updates, from which their updates begin."""
    made = {name for node in model.graph.node for name in node.output}
    names = {value.name: WRITTEN + value.name.removeprefix(NEXT) for value in model.graph.output}
    written = [value for value in model.graph.output if value.name in updated and names[value.name] in made]
    if not written:
        return model
    found = onnx.ModelProto()
    found.CopyFrom(model)
    for value in written:
        found.graph.output.add().CopyFrom(value)
        found.graph.output[-1].name = names[value.name]
    return found


def _check_dtypes(got: Arrays, wanted: Arrays) -> None:
    wrong = [
        f"{name} is {got[name].dtype}, {array.dtype} in PyTorch"
        for name, array in wanted.items()
        if name in got and got[name].dtype != array.dtype
    ]
    refuse("outputs", wrong)


def _wide(values: Tensors) -> Tensors:
    """Copies of floating tensors in float64, other tensors as they are."""
    return {n: t.to(torch.float64, copy=True) if t.is_floating_point() else t for n, t in values.items()}


def _disturbed(values: Tensors, seed: int, amount: float = DISTURBANCE) -> Tensors:
    """Floating tensors with random relative changes, in place of the ones before, which are not needed any more."""
    for name, tensor in disturbances(values, amount, seed):
        values[name] = tensor
    return values


def _rounded(array: np.ndarray, own: np.dtype) -> np.ndarray:
    """A float64 array in float32 unless its own dtype is float64; others as they are."""
    if array.dtype != np.float64 or own == np.float64:
        return array
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def _has_single(results: Arrays) -> bool:
    return any(array.dtype == np.float32 for array in results.values())


def _difference(
    got: Arrays,
    wanted: Arrays,
    tolerance: Tolerance | Mapping[str, Tolerance] | None = None,
    what: str = "outputs",
) -> CaptureError | None:
    try:
        compare(what, got, wanted, tolerance)
    except CaptureError as difference:
        return difference
    return None


def _difference_in_float64(got: Arrays, wanted: Arrays, tolerance: Mapping[str, Tolerance]) -> CaptureError | None:
    return _difference(got, wanted, tolerance, "outputs in float64")
