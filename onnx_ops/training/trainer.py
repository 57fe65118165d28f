"""The trainer, which makes the steps of a training and holds its state."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import onnx
import onnxruntime as ort

from onnx_ops.core.step_format import GRAD_SCALE, learning_rate_names
from onnx_ops.core.types import TensorType
from onnx_ops.integrations.sessions import kernels_registered
from onnx_ops.training.arrays import check_state
from onnx_ops.training.batch_axis import counted_axis
from onnx_ops.training.batches import Batches
from onnx_ops.training.errors import StepError
from onnx_ops.training.learning_rates import check_rates
from onnx_ops.training.session_step_runner import SessionStepRunner
from onnx_ops.training.shared_state import SharedState, changing_names
from onnx_ops.training.state import StatePart
from onnx_ops.training.step import Step, summary
from onnx_ops.training.step_files import StepSource, open_step
from onnx_ops.training.step_runner import StepRunner
from onnx_ops.training.step_sessions import session_maker
from onnx_ops.training.trainer_state import TrainerState
from onnx_ops.training.trainer_step import Mode, TrainerStep
from onnx_ops.training.workers.communicator import Communicator
from onnx_ops.training.workers.ending import end_all_by_exceptions
from onnx_ops.training.workers.meeting import Meeting
from onnx_ops.training.workers.step_runner import DistributedStepRunner

CPU = "CPUExecutionProvider"


class Trainer(TrainerState):
    """Trains with a training step, in onnxruntime alone.

    Parameters, buffers and optimizer state stay in onnxruntime's memory, where steps update them in place. A step that
    is refused leaves the state as it was: batches are checked before the step, and what the loss depends on before the
    first update. A step that fails during its update, for want of memory, say, raises a StateLostError: another state
    must be loaded. An interrupt leaves the state before a step or the one after it.

    With `keep_previous` there are two sets of tensors, of which a step reads one and writes the other, so that no step
    that fails changes the state. So there are without kernels, with other providers than that of the CPU, and for a
    loss of unknown shape.

    Several steps can train one state, such as the two of a GAN, or those of a head alone and of the whole model. They
    are captured from one model, so that parameters and buffers of the same name are one tensor; optimizer state, seed
    and learning rates are of each step, and have its name before their own in the state. `trainer["generator"]` is a
    TrainerStep, which has the methods of a trainer that concern one step:

        trainer = onnx_ops.Trainer({"generator": generator, "discriminator": discriminator})
        trainer["generator"].step(noise=noise)
        trainer["generator"].learning_rate = 1e-4
        trainer.save("checkpoint.safetensors")

    A trainer is not thread-safe.

    With a communicator several workers, usually processes, train together: each makes the same steps with samples of
    its own. Gradients are averaged over the workers, weighted by their numbers of samples, and each worker computes the
    update from the averages, so that the state is the same on all, bit for bit. The loss must be the mean over the
    samples of a batch. With `synchronize_batch_norm`, statistics and sums of batch norm are exchanged as well.

    Args:
        step: path of a step file, its model or the bytes of that, or a capture of `onnx_ops.torch`. Or several of these
            by name; tensors that they share have the same start values.
        sess_options, providers: as for onnxruntime.InferenceSession. By default the threads of workers' sessions do not
            spin while they wait.
        communicator: of all workers, such as mpi4py.MPI.COMM_WORLD. The state of worker 0 is copied to all. An uncaught
            exception then ends all of them.
        batch_dimension: name of the dimension whose size is the number of samples; needed with a communicator if the
            first axes of the batch's inputs have different names.
        synchronize_batch_norm: whether batch norm in training normalizes with the samples of all workers, as one worker
            with the whole batch does; else with those of each worker. Captured steps with torch.nn.BatchNorm1d to 3d
            can be synchronized; a step without a BatchNormStats is refused.
        check_finite: whether a step whose loss is NaN or infinite raises a StepError and leaves the state as it was.
            The loss is the first reported output, if it is one floating number. Steps that scale their loss are not
            checked: they skip the update instead.
        keep_previous: whether steps write to a second set of tensors, which needs the memory of the state once more.

    Attributes:
        steps: the names of the steps; empty if there is one without a name.
        communicator, batch_dimension: as given.

    Raises:
        StepError: no training step; steps that do not fit one state; start values that `load_state_dict` refuses; with
            a communicator, a step without values named `grad.<parameter>`, or whose next state depends on the batch
            otherwise than through them; batch norm that cannot be synchronized; a model that onnxruntime refuses.
        WorkerError: workers whose steps differ.
        OSError, ModelFileError: a file, or external data, that cannot be read.
        OpError, LinkError: as `onnx_ops.InferenceSession`.
    """

    def __init__(
        self,
        step: StepSource | Mapping[str, StepSource],
        sess_options: ort.SessionOptions | None = None,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        *,
        communicator: Communicator | None = None,
        batch_dimension: str | None = None,
        synchronize_batch_norm: bool = False,
        check_finite: bool = True,
        keep_previous: bool = False,
    ) -> None:
        if communicator is not None:
            end_all_by_exceptions(communicator)
        given = step if isinstance(step, Mapping) else {"": step}
        if not given or (isinstance(step, Mapping) and "" in step):
            raise StepError(f"the steps are {list(given)}, expected at least one, each with a name")
        self.steps: tuple[str, ...] = tuple(step) if isinstance(step, Mapping) else ()
        self._label = os.fspath(step) if isinstance(step, str | os.PathLike) else ""
        self.communicator, self.batch_dimension = communicator, batch_dimension

        shared = SharedState()
        models: dict[str, onnx.ModelProto] = {}
        names: dict[str, dict[str, str]] = {}
        rates: list[str] = []
        for name, source in given.items():
            models[name], start = open_step(source)
            types = Step.of(models[name]).state(models[name])
            check_state(types, start)
            check_rates(learning_rate_names(types), start)
            names[name] = shared.add(name, models[name], start)
            rates += [names[name][own] for own in learning_rate_names(types)]
        changing = {name: changing_names(model) for name, model in models.items()}
        super().__init__(shared, {names[name][own] for name, found in changing.items() for own in found}, rates)
        session = session_maker(
            sess_options,
            providers,
            self._types.values(),
            [self._types[name] for name in self._changing],
            distributed=communicator is not None,
        )
        if keep_previous or not kernels_registered() or (providers is not None and list(providers) != [CPU]):
            self._state.keep_previous()

        meeting = None if communicator is None else Meeting(communicator, list(models))

        def made(name: str, model: onnx.ModelProto) -> TrainerStep:
            record = Step.of(model)
            part, inputs = StatePart(self._state, names[name], changing[name]), record.batch(model)
            counted = counted_axis(inputs, batch_dimension, required=communicator is not None)
            bounds = {d: b.of_other_statistics() if synchronize_batch_norm else b for d, b in record.bounds.items()}
            batches = Batches(inputs, bounds, record.ranges, counted, may_be_empty=communicator is not None)
            finite = check_finite and GRAD_SCALE not in record.roles
            runner: StepRunner
            if communicator is None or meeting is None:
                runner = SessionStepRunner(model, part, session, lambda: counted_axis(inputs, batch_dimension), finite)
            else:
                runner = DistributedStepRunner(
                    model, part, session, communicator, meeting, name, counted, synchronize_batch_norm, finite
                )
            return TrainerStep(model, part, batches, runner, session, self._reload)

        kept = self._state.keeps_previous
        self._made = {name: made(name, model) for name, model in models.items()}
        if len(models) > 1 and kept != self._state.keeps_previous:  # the steps before wrote to the only set of tensors
            self._made = {name: made(name, model) for name, model in models.items()}

    def __repr__(self) -> str:
        found = [
            f"'{name or self._label or step.model.graph.name}': {summary(step.model)}"
            for name, step in self._made.items()
        ]
        return f"<{type(self).__name__} of {'; '.join(found)}>"

    def __getitem__(self, step: str) -> TrainerStep:
        """The step of a name; StepError if there is none."""
        if step not in self.steps:
            known = ", ".join(map(repr, self.steps)) or "one step, which has no name"
            raise StepError(f"there is no step {step!r}: the trainer has {known}")
        return self._made[step]

    @property
    def batch_inputs(self) -> dict[str, TensorType]:
        """Types of the arguments of `step`, by name."""
        return self._only().batch_inputs

    def step(self, /, **batch: np.ndarray) -> dict[str, np.ndarray]:
        """Make one step.

        Args:
            batch: an array for each of `batch_inputs`, by name; `**{"batch.x": ...}` for names that are no identifiers.
                No dtype is converted. A worker without samples passes arrays of size 0 along the batch axis, or none.
                After `accumulate`, none are needed: the update is then computed from the accumulated gradients.

        Returns:
            The reported outputs, the loss among them, by name. Those that depend on the batch are missing without one.
            With a communicator floating scalars are averaged like gradients; other outputs that depend on the batch are
            those of the worker, and missing if it has no sample.

        Raises:
            StepError: arrays of wrong names, dtypes or shapes; dimensions of one name with different sizes, or with
                sizes outside the bounds of the capture; masked arrays; labels or other indices that are out of range; a
                batch without samples, with a communicator on all workers together; a loss that is NaN or infinite,
                unless `check_finite` is False.
            StateLostError: a step that has failed during its update, now or before.
            WorkerError: another worker has failed in this step; workers that differ in learning rates, seed, or the
                state that was loaded.
            onnxruntime exceptions: a call that a kernel refuses; the message names op and input.
        """
        return self._only().step(**batch)

    def accumulate(self, /, **batch: np.ndarray) -> dict[str, np.ndarray]:
        """Add the gradients of a batch to those that the next `step` applies.

        A step after some calls of `accumulate` makes one update, from the mean of the gradients over the samples of
        their batches and its own, as if these were one batch: PyTorch's `backward` several times before
        `optimizer.step()`, with losses that are weighted by the numbers of samples. It is a method of its own, for
        `step` takes all its arguments as inputs of the batch, whatever their names.

            for batch in batches[:-1]:
                trainer.accumulate(**batch)
            trainer.step(**batches[-1])

        The loss must be the mean over the samples of a batch; clipping, weight decay and learning rates apply to the
        mean of the gradients. Buffers, such as the running statistics of batch norm, change with each batch, and each
        batch has other random numbers. `load` and `load_state_dict` discard accumulated gradients. The first call makes
        sessions, and memory for the gradients of all trained parameters.

        Args:
            batch: as for `step`.

        Returns:
            The reported outputs of the batch, by name, without those that depend on the gradients. With a communicator
            they are those of the worker.

        Raises:
            StepError: a batch or a loss that `step` refuses, after which the accumulated gradients are as before; a
                batch that failed while its gradients were added, after which there are none; a step without values
                named `grad.<parameter>`, or whose next state depends on the batch otherwise than through them; inputs
                whose first axes have different names, without `batch_dimension`.
            onnxruntime exceptions: as for `step`.
        """
        return self._only().accumulate(**batch)

    def evaluate(self, mode: Mode = "eval", /, **batch: np.ndarray) -> dict[str, np.ndarray]:
        """The loss and the further reported outputs on the current state, which does not change.

        Weights are not copied: the graph reads those of the training. Its session is made by the first call. Random
        numbers are those of the next step. With a communicator the results are those of this worker's samples: other
        workers need not take part.

        Args:
            mode: "eval" for the loss in evaluation mode, of a step captured with `evaluation=True`; "train" for the
                loss as the step computes it, in the mode that the model was captured in.
            batch: as for `step`.

        Returns:
            The reported outputs, by name. A loss may be NaN or infinite.

        Raises:
            StepError: a step without evaluation graph; a batch that `step` refuses, such as one without samples.
            onnxruntime exceptions: as for `step`.
        """
        return self._only().evaluate(mode, **batch)

    def predict(self, /, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs of the inference graph on the current state.

        Weights are not copied, as by `evaluate`; `export` writes the graph to a file.

        Args:
            inputs: an array for each input of the inference graph, by name. No dtype is converted.

        Returns:
            The outputs, by name. Those of no samples are empty, as in PyTorch.

        Raises:
            StepError: a step without inference graph; arrays of wrong names, dtypes or shapes.
            onnxruntime exceptions: as for `step`.
        """
        return self._only().predict(**inputs)

    # --- the state ----------------------------------------------------------------------------------------------------

    @property
    def has_inference_graph(self) -> bool:
        """Whether the step has an inference graph, for `predict` and `export`."""
        return self._only().has_inference_graph

    @property
    def has_evaluation_graph(self) -> bool:
        """Whether the step has an evaluation graph, for `evaluate`."""
        return self._only().has_evaluation_graph

    @property
    def learning_rate(self) -> float | Any:  # Any, so that type checkers let a float be computed with
        """The learning rate, a float; a tuple of one for each parameter group if there are several.

        It can be set to a float, for all groups, or to a sequence of one for each group.

        Raises:
            StepError: a step without a setting 'learning_rate'; a sequence whose length is not the number of groups; a
                rate that is not finite or less than 0. The rates are then as they were.
        """
        return self._only().learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float | Sequence[float]) -> None:
        self._only().learning_rate = rate

    def export(self, path: str | os.PathLike[str], *, averaged: bool = False) -> None:
        """Write the inference graph with the current parameters and buffers, as a model of its own.

        A model above 2 GiB has them as external data, in a file with ".data" appended to its name.

        Args:
            path: a new file, or one to replace; its extension determines the format.
            averaged: whether to write the averages of weights that the step updates in place of the weights; buffers
                that it does not average are the current ones.

        Raises:
            StepError: a step without an inference graph; with `averaged` also one without averages.
            ModelFileError: a file that cannot be written.
        """
        self._only().export(path, averaged=averaged)

    # --- private ------------------------------------------------------------------------------------------------------

    def _runners(self) -> list[StepRunner]:
        return [step.runner for step in self._made.values()]

    def _only(self) -> TrainerStep:
        """The step of a trainer that has one; StepError for a trainer with several."""
        if len(self._made) > 1:
            first = self.steps[0]
            raise StepError(
                f"the trainer has the steps {', '.join(map(repr, self.steps))}, expected one of them by its name, such"
                f" as trainer['{first}'].step(...)"
            )
        (step,) = self._made.values()
        return step

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Raise TypeError for copy.copy and pickle: a copy would share the tensors, but not the state's version."""
        raise TypeError(
            "a Trainer cannot be copied or pickled: make another one of the same step, and give it this one's"
            " state_dict() by load_state_dict"
        )


def step_of(trainer: Trainer, name: str = "") -> TrainerStep:
    """A step of a trainer, by name if there are several; StepError if there is none of that name."""
    return trainer[name] if name else trainer._only()
