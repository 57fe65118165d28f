"""The step runner of distributed training: a step in parts, each in a session, with an exchange after each but one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto

from onnx_ops.core.step_format import GRADIENT, NEXT, InputRole
from onnx_ops.graph.stored import Source, blocks
from onnx_ops.training.binding import Arrays, BoundSession, Tensor, Tensors
from onnx_ops.training.conditions import check_conditions
from onnx_ops.training.counters import Counters, counted_parts
from onnx_ops.training.errors import refusals_as_step_errors
from onnx_ops.training.seeds import derived_seed
from onnx_ops.training.state import StatePart, Version
from onnx_ops.training.step import Step
from onnx_ops.training.step_runner import Checks, MakeSession, UpdateSession, check_loss, reported_dtypes
from onnx_ops.training.workers.agreement import check_agreement, checksum
from onnx_ops.training.workers.communicator import Communicator, broadcast
from onnx_ops.training.workers.exchange import Exchange
from onnx_ops.training.workers.meeting import Meeting
from onnx_ops.training.workers.partition import partition


class DistributedStepRunner:
    """Runs a step that workers share; a StepRunner.

    Each worker runs the local parts with its own samples; the values of all are exchanged after each of them. The last
    part is computed from what was exchanged, identically by each worker.

    Args:
        model: the step.
        state: the state; that of worker 0 is copied to all.
        session: makes the session of a part.
        communicator: of all workers.
        meeting: where they meet next; of all steps of the training.
        step_name: name of the step.
        counted: the input, and its axis, whose size is the number of samples; None if all workers have as many.
        synchronize_batch_norm: whether batch norm normalizes with the samples of all workers.
        check_finite: whether a loss that is NaN or infinite is refused, unless it differs between workers.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        state: StatePart,
        session: MakeSession,
        communicator: Communicator,
        meeting: Meeting,
        step_name: str,
        counted: tuple[str, int] | None,
        synchronize_batch_norm: bool,
        check_finite: bool,
    ) -> None:
        step = Step.of(model)
        with refusals_as_step_errors("the step cannot be shared by workers"):
            parts = partition(model, synchronize_batch_norm=synchronize_batch_norm)
        self._inputs = step.batch(model)
        self._counted = counted
        models = [*(local.model for local in parts.local), parts.shared]
        contents = (part.SerializeToString(deterministic=True) for part in models)
        check_agreement(communicator, checksum(contents), "the step that they make")
        now, then = state.sets
        broadcast(communicator, (tensor.array for tensor in now.values()))
        for name, tensor in then.items():
            tensor.array[...] = now[name].array

        self._rank = communicator.rank
        self._exchanges = [Exchange(communicator, local.exchanged) for local in parts.local]
        self._meeting, self._step_name = meeting, step_name
        meeting.end(self._exchanges[0].leave)
        sent = {name: tensor for exchange in self._exchanges for name, tensor in exchange.own.items()}
        combined = {name: tensor for exchange in self._exchanges[:-1] for name, tensor in exchange.of_all.items()}
        self._averages = self._exchanges[-1].of_all
        gradients = {name: tensor for name, tensor in self._averages.items() if name.startswith(GRADIENT)}

        self._reported = reported_dtypes(model)
        self._scalars = [n for n in self._averages if n in self._reported and not n.startswith(GRADIENT)]
        checks = Checks.of(model, check_finite)
        self._loss = checks.loss if checks.loss in self._averages else None
        self._conditions = checks.conditions
        self._own = self._exchanges[-1].own
        self._own_gradients = {name: self._own[name] for name in gradients}
        self._accumulated = _Accumulated()
        self._last_scalars: Arrays = {}
        """The reported scalars of the last accumulated batch."""
        self._buffers = [name.removeprefix(NEXT) for name in self._averages if name.startswith(NEXT)]
        self._seeds = {n: Tensor.holding(now[n].array, TensorProto.INT64) for n in step.names(InputRole.SEED)}
        self._compared = step.names(InputRole.SEED, InputRole.SETTING)

        varying = {value.name for value in parts.shared.graph.input if value.name not in step.roles}
        split = counted_parts(model, parts.shared, varying | {*self._buffers})
        self._counters = Counters(split, state, session)
        given = {**combined, **gradients, **self._counters.written}
        self._shared = UpdateSession(
            split.update, state, session, lambda own: {**own, **given}, checks.of_part(split.update)
        )
        self._state, self._sets = state, state.sets
        self._local = [
            BoundSession(
                session(local.model),
                [{**own, **self._seeds, **combined, **sent} for own in self._sets],
                [sent, sent],
                {name: dtype for name, dtype in self._reported.items() if name not in sent},
                local.passed - sent.keys(),
            )
            for local in parts.local
        ]

    def run(self, version: Version, batch: Callable[[], Arrays]) -> Arrays:
        """Make a step. If it fails on one worker it fails on all of them, so that none waits."""
        found, _, batches = self._run_local(version, batch, update=True)
        if self._loss is not None:
            check_loss(self._loss, self._averages[self._loss].array)
        own = self._accumulated.batches
        taken = self._accumulated.discard()  # first, so that an interrupt does not lead to a second update
        found |= {name: self._averages[name].array.copy() for name in self._scalars}
        # They change before the update only where others have had more batches.
        changed = current = {} if batches == own + 1 else self._counters.current(version)
        try:
            for number in range(own, batches):  # some of them were those of other workers alone
                if number > own:
                    self._state.assign(changed)
                changed = self._counters.next(version)
            self._counters.write(changed)
            found |= self._shared.run(version.turn, {})
        except Exception:
            self._state.assign(current)
            self._accumulated.restore(taken)
            raise
        then = self._sets[1 - version.turn]
        for name in self._counters.replaced:
            then[name].array[...] = changed[name]
        for name in self._buffers:  # last, as the shared part may read their previous values
            then[name].array[...] = self._averages[NEXT + name].array
        return {name: found[name] for name in self._reported if name in found}

    @property
    def accumulated(self) -> int:
        return self._accumulated.batches

    def accumulate(self, version: Version, batch: Callable[[], Arrays]) -> Arrays:
        """Add the gradients of this worker's batch, without an exchange except for those of batch norm."""
        found, samples, _ = self._run_local(version, batch, update=False)
        if not samples:
            return {}
        if self._loss is not None:
            check_loss(self._loss, self._own[self._loss].array)
        self._accumulated.add(self._own_gradients, samples)
        buffers = {name: self._own[NEXT + name].array.copy() for name in self._buffers}
        self._state.assign(buffers | self._counters.next(version))
        self._last_scalars = {name: self._own[name].array.copy() for name in self._scalars}
        found |= self._last_scalars
        return {name: found[name] for name in self._reported if name in found}

    def discard_accumulated(self) -> None:
        self._accumulated.discard()

    def _run_local(self, version: Version, batch: Callable[[], Arrays], *, update: bool) -> tuple[Arrays, int, int]:
        """Run the local parts, with an exchange after each; without an update, none after the last one.

        Returns:
            Reported outputs of this worker's batch that are not averaged; its number of samples; and, with an update,
            the largest number of batches that a worker has had since the last one.
        """
        now = self._sets[version.turn]
        arrays: Arrays = {}
        found: Arrays = {}
        passed: dict[str, ort.OrtValue] = {}
        last = len(self._local) - 1
        if update or last:
            self._meeting.begin(self._step_name)
        samples, batches, state = 0, 0, self._checksum(version, now)
        for number, (local, exchange) in enumerate(zip(self._local, self._exchanges, strict=True)):
            exchanges = update or number < last
            if exchanges:
                self._meeting.expect(exchange.leave)
            failure, weight = None, 0
            try:
                if not number:
                    arrays = batch()
                    samples = self._samples(arrays)
                    for name, seed in self._seeds.items():
                        seed.array[...] = derived_seed(int(now[name].array), self._rank, self._accumulated.batches)
                if samples:
                    found |= local.run(version.turn, arrays, passed)
                    check_conditions(self._conditions, found)
                weight = self._with_accumulated(samples, now) if update and number == last else samples
            except Exception as error:
                failure = error
            try:
                if exchanges:
                    batches = exchange(weight, state, failure, self._accumulated.batches + bool(samples))
                elif failure is not None:
                    raise failure
            except Exception:
                self._meeting.end(self._exchanges[0].leave)  # no worker continues this step
                raise
        self._meeting.end(self._exchanges[0].leave)
        return found, samples, batches

    def _with_accumulated(self, samples: int, now: Tensors) -> int:
        """Include the accumulated gradients in this worker's own values.

        Args:
            samples: number of samples of this worker's batch.
            now: the current set of tensors of the state.

        Returns:
            The number of samples, with the accumulated ones.
        """
        if not self._accumulated.batches:
            return samples
        if not samples:
            kept = self._last_scalars | {NEXT + name: now[name].array for name in self._buffers}
            for name, array in kept.items():
                self._own[name].array[...] = array
        return self._accumulated.combine(self._own_gradients, samples)

    def _checksum(self, version: Version, now: Tensors) -> int:
        """Of what must be equal on all workers: loaded states, number of steps, seed and settings."""
        numbers = (version.loaded, version.steps)
        settings = (now[name].array.tobytes() for name in self._compared)
        return checksum([*(number.to_bytes(8, "little") for number in numbers), *settings])

    def checksum_after_load(self, before: int, state: Mapping[str, Source]) -> int:
        def contents() -> Iterator[bytes | memoryview]:
            yield before.to_bytes(4, "little")
            for name, source in sorted(state.items()):
                yield name.encode()
                yield from blocks(source)

        return checksum(contents())

    def _samples(self, arrays: Arrays) -> int:
        """The weight of this worker's batch in averages: its number of samples."""
        if self._inputs and not arrays:
            return 0
        if self._counted is None:
            return 1
        name, axis = self._counted
        return arrays[name].shape[axis]


class _Accumulated:
    """The mean of a worker's gradients over the batches since the last step.

    Attributes:
        batches: number of these batches.
    """

    def __init__(self) -> None:
        self.restore((0, 0))
        self._means: dict[str, np.ndarray] = {}

    def discard(self) -> tuple[int, int]:
        """Forget the batches; their number and that of their samples is returned."""
        taken = self.batches, self._samples
        self.restore((0, 0))
        return taken

    def restore(self, taken: tuple[int, int]) -> None:
        """Remember what `discard` has returned."""
        self.batches, self._samples = taken

    def add(self, gradients: Tensors, count: int) -> None:
        """Add a batch of `count` samples."""
        batches, samples = self.discard()  # so that an interrupt leaves no mixture
        for name, tensor in gradients.items():
            if not batches:
                wide = np.float64 if tensor.array.dtype == np.float64 else np.float32
                self._means.setdefault(name, np.empty(tensor.array.shape, wide))[...] = tensor.array
            else:
                mean = self._means[name]
                mean += (tensor.array - mean) * (count / (samples + count))
        self.batches, self._samples = batches + 1, samples + count

    def combine(self, gradients: Tensors, count: int) -> int:
        """Replace gradients of `count` further samples by the mean over all samples, whose number is returned."""
        total = self._samples + count
        for name, tensor in gradients.items():
            mean = self._means[name]
            tensor.array[...] = mean + (tensor.array - mean) * (count / total) if count else mean
        return total
