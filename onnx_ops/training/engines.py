"""What makes the steps of a trainer: one session, or two with an exchange between workers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto

from onnx_ops.core.types import TensorType
from onnx_ops.training.binding import BoundSession, Tensors
from onnx_ops.training.halves import GRADIENT, halves
from onnx_ops.training.samples import counted_axis
from onnx_ops.training.step import NEXT, InputRole, Step, StepError, numpy_dtype
from onnx_ops.training.values import Tensor
from onnx_ops.training.workers import Averages, Communicator, broadcast, check_agreement, mark_of

Arrays = dict[str, np.ndarray]
Sets = tuple[Tensors, Tensors]
"""The state as it is and the one that a step writes, each of them at every second step."""
MakeSession = Callable[[onnx.ModelProto], ort.InferenceSession]


class WholeStep:
    """A step in one session.

    Attributes:
        takes_none: whether a step can be made without a batch.
    """

    takes_none = False

    def __init__(self, model: onnx.ModelProto, sets: Sets, session: MakeSession) -> None:
        self._bound = BoundSession(session(model), sets, _next(sets), _reported(model))

    def run(self, turn: int, batch: Callable[[], Arrays]) -> Arrays:
        """Make a step from one set to the other.

        Args:
            turn: the set that is read.
            batch: checks the batch and returns it.

        Returns:
            What the step reports.
        """
        return self._bound.run(turn, batch())

    def loaded(self, state: Arrays) -> None:
        """Take notice of a state that was loaded."""


class SharedStep:
    """A step that workers share: each its own half, the average of what is then there, and the other half by all alike.

    Attributes as for `WholeStep`.
    """

    takes_none = True

    def __init__(
        self,
        model: onnx.ModelProto,
        sets: Sets,
        session: MakeSession,
        communicator: Communicator,
        batch_dimension: str | None,
    ) -> None:
        step, cut = Step.of(model), halves(model)
        self._inputs = step.batch(model)
        self._counted = counted_axis(self._inputs, batch_dimension)
        contents = (half.SerializeToString(deterministic=True) for half in (cut.own, cut.shared))
        check_agreement(communicator, mark_of(contents), "the step that they make")
        broadcast(communicator, (tensor.array for tensor in sets[0].values()))
        for name, tensor in sets[1].items():
            tensor.array[...] = sets[0][name].array

        self._sets = sets
        self._averages = Averages(communicator, cut.averaged)
        own, shared = self._averages.own, self._averages.shared
        self._reported = _reported(model)
        self._scalars = [name for name in shared if name in self._reported and not name.startswith(GRADIENT)]
        self._buffers = [name.removeprefix(NEXT) for name in shared if name.startswith(NEXT)]
        self._rank = communicator.rank
        self._seeds = {n: Tensor.holding(sets[0][n].array, TensorProto.INT64) for n in step.names(InputRole.SEED)}
        self._alike = step.names(InputRole.SEED, InputRole.SETTING)
        self._loaded = 0
        gradients = {name: tensor for name, tensor in shared.items() if name.startswith(GRADIENT)}
        self._own = BoundSession(
            session(cut.own),
            [{**now, **self._seeds} for now in sets],
            [own, own],
            {name: dtype for name, dtype in self._reported.items() if name not in own},
        )
        self._shared = BoundSession(
            session(cut.shared), [{**now, **gradients} for now in sets], _next(sets), self._reported
        )

    def run(self, turn: int, batch: Callable[[], Arrays]) -> Arrays:
        """As for `WholeStep`; what fails on this worker alone fails on the others too, so that none waits for it."""
        now, then = self._sets[turn], self._sets[1 - turn]
        samples, found, failure = 0, {}, None
        try:
            arrays = batch()
            samples = self._samples(arrays)
            if samples:
                for name, seed in self._seeds.items():
                    seed.array[...] = _of_worker(int(now[name].array), self._rank)
                found = self._own.run(turn, arrays)
        except Exception as error:
            failure = error
        mark = mark_of([self._loaded.to_bytes(4, "little"), *(now[name].array.tobytes() for name in self._alike)])
        if not self._averages.exchange(samples, mark, failure):
            raise StepError("no worker has a sample for this step")
        shared = self._averages.shared
        for name in self._buffers:
            then[name].array[...] = shared[NEXT + name].array
        found |= {name: shared[name].array.copy() for name in self._scalars}
        found |= self._shared.run(turn, {})
        return {name: found[name] for name in self._reported if name in found}

    def loaded(self, state: Arrays) -> None:
        """Take notice of a state that was loaded, which the others are to load too."""
        contents = (text for name, array in sorted(state.items()) for text in (name.encode(), array.tobytes()))
        self._loaded = mark_of([self._loaded.to_bytes(4, "little"), *contents])

    def _samples(self, arrays: Arrays) -> int:
        if self._inputs and not arrays:
            return 0
        if self._counted is None:  # each takes the same number
            return 1
        name, axis = self._counted
        return arrays[name].shape[axis]


def _of_worker(seed: int, rank: int) -> np.int64:
    """The seed of a worker's own random numbers; worker 0 has the one that a single worker would have."""
    if rank == 0:
        return np.int64(seed)
    return np.random.SeedSequence([seed % 2**64, rank]).generate_state(1, np.uint64).view(np.int64)[0]


def _next(sets: Sets) -> tuple[Tensors, Tensors]:
    """What the outputs of next values write: the other set."""
    now, then = sets
    changed = [name for name in now if then[name] is not now[name]]
    return {NEXT + name: then[name] for name in changed}, {NEXT + name: now[name] for name in changed}


def _reported(model: onnx.ModelProto) -> dict[str, np.dtype]:
    """The outputs that are no next values, and their dtypes."""
    outputs = {value.name: TensorType.of_proto(value.type) for value in model.graph.output}
    return {name: numpy_dtype(tensor) for name, tensor in outputs.items() if not name.startswith(NEXT)}
