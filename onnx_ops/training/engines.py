"""What makes the steps of a trainer: one session, or several with exchanges between workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto

from onnx_ops.core.step_format import GRADIENT, NEXT, InputRole
from onnx_ops.core.types import FLOATS, TensorType
from onnx_ops.training.binding import BoundSession, Tensors
from onnx_ops.training.ending import tell_at_exit
from onnx_ops.training.exchanges import Exchange
from onnx_ops.training.parts import parts
from onnx_ops.training.refusals import refusals_as_step_errors
from onnx_ops.training.state import Version
from onnx_ops.training.step import Step, numpy_dtype
from onnx_ops.training.values import Tensor
from onnx_ops.training.workers import Communicator, broadcast, check_agreement, mark_of

Arrays = dict[str, np.ndarray]
Sets = tuple[Tensors, Tensors]
"""The state as it is and the one that a step writes, each of them at every second step."""
MakeSession = Callable[[onnx.ModelProto], ort.InferenceSession]


class WholeStep:
    """A step in one session.

    Attributes:
        loss: the name of what is reported as the loss; None if the step reports nothing first that can be one.
    """

    def __init__(self, model: onnx.ModelProto, sets: Sets, session: MakeSession) -> None:
        self._bound = BoundSession(session(model), sets, _next(sets), _reported(model))
        self.loss = _loss(model)

    def run(self, version: Version, batch: Callable[[], Arrays]) -> Arrays:
        """Make a step from one set to the other.

        Args:
            version: of the state that is read.
            batch: checks the batch and returns it.

        Returns:
            What the step reports.
        """
        return self._bound.run(version.turn, batch())

    def load_mark(self, before: int, state: Mapping[str, np.ndarray]) -> int:
        """What `Version.loads` becomes by a state that is loaded."""
        return before


class SharedStep:
    """A step that workers share: each makes its own part, they exchange what is then there, and so on; the last part is
    made by all alike.

    Attributes as for `WholeStep`; a loss that workers do not have alike is none.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        sets: Sets,
        session: MakeSession,
        communicator: Communicator,
        counted: tuple[str, int] | None,
        synchronize_batch_norm: bool,
    ) -> None:
        step = Step.of(model)
        with refusals_as_step_errors("the step cannot be shared by workers"):
            cut = parts(model, synchronize_batch_norm=synchronize_batch_norm)
        self._inputs = step.batch(model)
        self._counted = counted
        models = [*(own.model for own in cut.own), cut.shared]
        contents = (part.SerializeToString(deterministic=True) for part in models)
        check_agreement(communicator, mark_of(contents), "the step that they make")
        broadcast(communicator, (tensor.array for tensor in sets[0].values()))
        for name, tensor in sets[1].items():
            tensor.array[...] = sets[0][name].array

        self._sets = sets
        self._exchanges = [Exchange(communicator, own.exchanged) for own in cut.own]
        self._position = 0
        """The exchange that comes next, which others may wait in."""
        tell_at_exit(communicator, lambda: self._exchanges[self._position].leave())
        self._reported = _reported(model)
        self._averages = self._exchanges[-1].of_all
        self._scalars = [n for n in self._averages if n in self._reported and not n.startswith(GRADIENT)]
        alike = {*self._averages, *(value.name for value in cut.shared.graph.output)}
        self.loss = loss if (loss := _loss(model)) in alike else None
        self._buffers = [name.removeprefix(NEXT) for name in self._averages if name.startswith(NEXT)]
        self._rank = communicator.rank
        self._seeds = {n: Tensor.holding(sets[0][n].array, TensorProto.INT64) for n in step.names(InputRole.SEED)}
        self._alike = step.names(InputRole.SEED, InputRole.SETTING)
        sent = {name: tensor for exchange in self._exchanges for name, tensor in exchange.own.items()}
        combined = {name: tensor for exchange in self._exchanges[:-1] for name, tensor in exchange.of_all.items()}
        gradients = {name: tensor for name, tensor in self._averages.items() if name.startswith(GRADIENT)}
        self._own = [
            BoundSession(
                session(own.model),
                [{**now, **self._seeds, **combined, **sent} for now in sets],
                [sent, sent],
                {name: dtype for name, dtype in self._reported.items() if name not in sent},
                own.passed - sent.keys(),
            )
            for own in cut.own
        ]
        self._shared = BoundSession(
            session(cut.shared), [{**now, **combined, **gradients} for now in sets], _next(sets), self._reported
        )

    def run(self, version: Version, batch: Callable[[], Arrays]) -> Arrays:
        """As for `WholeStep`; what fails on this worker alone fails on the others too, so that none waits for it."""
        turn = version.turn
        now, then = self._sets[turn], self._sets[1 - turn]
        arrays: Arrays = {}
        found: Arrays = {}
        passed: dict[str, ort.OrtValue] = {}
        samples, mark = 0, self._mark(version, now)
        for number, (own, exchange) in enumerate(zip(self._own, self._exchanges, strict=True)):
            self._position, failure = number, None
            try:
                if not number:
                    arrays = batch()
                    samples = self._samples(arrays)
                    for name, seed in self._seeds.items():
                        seed.array[...] = _of_worker(int(now[name].array), self._rank)
                if samples:
                    found |= own.run(turn, arrays, passed)
            except Exception as error:
                failure = error
            try:
                exchange(samples, mark, failure)
            except Exception:
                self._position = 0  # for no worker goes on with this step
                raise
        self._position = 0
        for name in self._buffers:
            then[name].array[...] = self._averages[NEXT + name].array
        found |= {name: self._averages[name].array.copy() for name in self._scalars}
        found |= self._shared.run(turn, {})
        return {name: found[name] for name in self._reported if name in found}

    def _mark(self, version: Version, now: Tensors) -> int:
        """Of what needs to be alike on all workers."""
        numbers = (version.loads, version.steps)
        settings = (now[name].array.tobytes() for name in self._alike)
        return mark_of([*(number.to_bytes(8, "little") for number in numbers), *settings])

    def load_mark(self, before: int, state: Mapping[str, np.ndarray]) -> int:
        """As for `WholeStep`; the others are to load the state too."""
        contents = (text for name, array in sorted(state.items()) for text in (name.encode(), array.tobytes()))
        return mark_of([before.to_bytes(4, "little"), *contents])

    def _samples(self, arrays: Arrays) -> int:
        if self._inputs and not arrays:
            return 0
        if self._counted is None:  # each takes the same number
            return 1
        name, axis = self._counted
        return arrays[name].shape[axis]


def _loss(model: onnx.ModelProto) -> str | None:
    """The first output that is reported, if it is of a floating dtype."""
    first = next((value for value in model.graph.output if not value.name.startswith(NEXT)), None)
    return first.name if first is not None and TensorType.of_proto(first.type).dtype in FLOATS else None


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
