"""Runs a training step, again and again."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, numpy_helper

from onnx_ops.core.step_format import LEARNING_RATE, NEXT, InputRole, learning_rate_names
from onnx_ops.core.types import TensorType
from onnx_ops.graph.files import embed_external_data, external_files, write_model
from onnx_ops.graph.reading import load_model
from onnx_ops.integrations.sessions import InferenceSession, registered_options
from onnx_ops.training.batches import Batches
from onnx_ops.training.checkpoints import read_checkpoint, write_checkpoint
from onnx_ops.training.ending import end_all_by_exceptions
from onnx_ops.training.engines import SharedStep, WholeStep
from onnx_ops.training.refusals import refusals_as_step_errors
from onnx_ops.training.samples import counted_axis
from onnx_ops.training.state import State, cast_rate, check_rates, rates_of_groups
from onnx_ops.training.step import (
    Step,
    StepError,
    check_state,
    inference_function,
    inference_model,
    numpy_dtype,
    with_inference,
)
from onnx_ops.training.summary import summary
from onnx_ops.training.workers import Communicator

SPINNING = "session.intra_op.allow_spinning"
"""Of onnxruntime's options: whether threads that wait keep their cores busy."""


class Captured(Protocol):
    """A training step that is in memory, not in a file.

    Attributes:
        model: the step, whose metadata say what its inputs are.
        state: an array for each input of the state.
        inference: the graph of the trained network, if there is one in a model of its own.
    """

    @property
    def model(self) -> onnx.ModelProto: ...

    @property
    def state(self) -> Mapping[str, np.ndarray]: ...

    @property
    def inference(self) -> onnx.ModelProto | None: ...


class Trainer:
    """Trains with a training step, in onnxruntime alone.

    Parameters, buffers and the optimizer's state stay in onnxruntime's memory: a step reads one set of them and writes
    the other, and nothing is copied between steps. A step that is refused, or fails, leaves the state as it was.

    A trainer belongs to one thread at a time.

    With a communicator several workers, processes as a rule, train together: each makes the same steps, with samples of
    its own. Gradients are averaged over the workers, weighted by their samples, and each makes the update with the
    averages, so that all have the same state, bit for bit. The loss must be the mean over the samples of a batch. With
    `synchronize_batch_norm` statistics and sums of batch norm are exchanged too, while the step is made.

    Args:
        step: the path of a step's file, its model or the bytes of that, or what `onnx_ops.torch` captures.
        sess_options, providers: as for onnxruntime.InferenceSession. Without options the threads of workers' sessions
            keep no core busy while they wait.
        communicator: of all workers, such as mpi4py.MPI.COMM_WORLD. They start from the state of worker 0. An exception
            that nothing catches then ends all of them.
        batch_dimension: the name of the dimension that counts samples; with a communicator it is needed if the first
            axes of the batch's inputs have several names.
        synchronize_batch_norm: whether batch norm in training normalizes with the samples of all workers, so that they
            make the step of one with the whole batch; else each normalizes with its own. Captured steps with
            torch.nn.BatchNorm1d to 3d can be synchronized; a step without a BatchNormStats is refused.
        check_finite: whether a step whose loss is NaN or infinite raises a StepError and leaves the state as it was.
            The loss is the first output that the step reports, if it is one floating number.

    Attributes:
        batch_inputs: the types that `step` takes, by name.

    Raises:
        StepError: what is no training step, or starts from a state that `load_state_dict` refuses; with a communicator,
            one without values named `grad.<parameter>`, or whose next state depends on the batch otherwise than by
            these; batch norm that cannot be synchronized; a model that onnxruntime refuses.
        WorkerError: workers whose steps differ.
        OSError, ModelFileError: a file, or external data, that cannot be read.
        OpError, LinkError: as `onnx_ops.InferenceSession`.
    """

    def __init__(
        self,
        step: str | os.PathLike[str] | bytes | onnx.ModelProto | Captured,
        sess_options: ort.SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        *,
        communicator: Communicator | None = None,
        batch_dimension: str | None = None,
        synchronize_batch_norm: bool = False,
        check_finite: bool = True,
    ) -> None:
        if communicator is not None:
            end_all_by_exceptions(communicator)
        model, start = _opened(step)
        self._name = os.fspath(step) if isinstance(step, str | os.PathLike) else model.graph.name
        self._step = Step.of(model)
        self._types = self._step.state(model)
        self._check_state(start)
        self._model = model
        self._shared = communicator is not None
        self._check_finite = check_finite
        registered = registered_options(sess_options, stacklevel=3)
        if communicator is not None and sess_options is None:
            # Threads that wait for their session's next run would keep the cores from other workers and other parts.
            registered.add_session_config_entry(SPINNING, "0")
        self.batch_inputs: dict[str, TensorType] = self._step.batch(model)
        counted = _counted(self.batch_inputs, batch_dimension, self._shared)
        self._batches = Batches(
            self.batch_inputs, self._step.bounds, self._step.ranges, counted, may_be_empty=self._shared
        )
        outputs = {value.name for value in model.graph.output}
        self._state = State(self._types, start, [name for name in self._types if NEXT + name in outputs])

        def session(model: onnx.ModelProto) -> InferenceSession:
            with refusals_as_step_errors("the step cannot be run"):
                return InferenceSession(model, registered, providers)

        self._engine: WholeStep | SharedStep
        if communicator is None:
            self._engine = WholeStep(model, self._state.sets, session)
        else:
            self._engine = SharedStep(model, self._state.sets, session, communicator, counted, synchronize_batch_norm)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of '{self._name}': {summary(self._model)}>"

    def step(self, /, **batch: np.ndarray) -> dict[str, np.ndarray]:
        """Make one step.

        Args:
            batch: an array for each of `batch_inputs`, by name; by `**{"batch.x": ...}` where that is no identifier.
                They are used as they are: no dtype is converted. A worker that has no sample gives arrays of no sample,
                or none at all.

        Returns:
            What the step reports, the loss among it, by the names of its outputs. Of workers, floating scalars are
            averaged like gradients, and what depends on the batch otherwise is each worker's own; one without a sample
            does not have it.

        Raises:
            StepError: arrays of wrong names, dtypes or shapes, dimensions of one name that differ among them or are
                beyond the bounds that the step was captured with, masked arrays; labels or other indices that are out
                of range; a batch without a sample, with a communicator those of all workers; a loss that is NaN or
                infinite, unless `check_finite` is False.
            WorkerError: another worker has failed in this step; workers that differ in learning rates, seed, or the
                state that was loaded.
            onnxruntime's exceptions: what a kernel refuses; their text names op and input.
        """
        reported = self._engine.run(self._state.version, lambda: self._checked(batch))
        if self._check_finite:
            self._check_loss(reported)
        self._state.stepped()
        return reported

    # --- the state ----------------------------------------------------------------------------------------------------

    @property
    def has_inference_graph(self) -> bool:
        """Whether there is something to export."""
        return inference_function(self._model) is not None

    @property
    def learning_rate(self) -> float | Any:  # Any, so that type checkers let a float be computed with
        """The learning rate: a float; for several groups of parameters a tuple with one for each.

        Setting a float sets that of all groups, a sequence that of each.

        Raises:
            StepError: a step without a setting 'learning_rate'; a sequence of another length than there are groups; a
                rate that is no finite number of at least 0. The rates are then as they were.
        """
        state = self._state.now
        rates = tuple(float(state[name].array) for name in self._rate_names())
        return rates if len(rates) > 1 else rates[0]

    @learning_rate.setter
    def learning_rate(self, rate: float | Sequence[float]) -> None:
        names = self._rate_names()
        rates = rates_of_groups(rate, len(names))
        dtypes = [numpy_dtype(self._types[name]) for name in names]
        self._state.assign({n: cast_rate(rate, dtype) for n, rate, dtype in zip(names, rates, dtypes, strict=True)})

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of the whole state: parameters, buffers, optimizer state, seed and settings, by name."""
        return {name: array.copy() for name, array in self._arrays.items()}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Resume from another state. Workers do it all alike.

        An exception, that of an interrupt included, leaves either the state as it was or all of the other one.

        Args:
            state: an array of the right dtype and shape for each name in `state_dict()`. What is tied can be given
                under any of its names.

        Raises:
            StepError: names, dtypes or shapes that do not fit; masked arrays; tied names with different values;
                learning rates that are no finite numbers of at least 0. The state is then as it was.
        """
        untied = self._untied(state)
        self._check_state(untied)
        self._state.load(untied, self._engine.load_mark(self._state.version.loads, untied))

    def weights(self) -> dict[str, np.ndarray]:
        """Copies of parameters and buffers alone, what is tied under each of its names: a torch module's state_dict."""
        own = self._step.names(InputRole.PARAMETER, InputRole.BUFFER)
        names = {name: name for name in own} | dict(self._step.tied)
        state = self._state.now
        return {other: state[name].array.copy() for other, name in names.items()}

    def save(self, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
        """Write the whole state into a safetensors file.

        Whenever the process ends, by whatever, the old file or the new one is there, and whole. A folder that is left
        beside it then begins with ".onnx_ops_"; the next process that writes a file there removes it. Workers have the
        same state; one of them is to write it. The file has a checksum, which `load` compares.

        Args:
            path: a new file, or one to replace.
            metadata: texts to keep with it.

        Raises:
            OSError: a file that cannot be written.
            StepError: a path that is no regular file.
        """
        write_checkpoint(Path(path), self._arrays, metadata or {})

    def load(self, path: str | os.PathLike[str]) -> dict[str, str]:
        """Resume from the state in a safetensors file; what it needs to hold is as for `load_state_dict`.

        Returns:
            The texts that were saved with it.

        Raises:
            OSError: a file that cannot be read.
            StepError: no safetensors file, or a state that does not fit. The state is then as it was.
        """
        state, metadata = read_checkpoint(Path(path))
        self.load_state_dict(state)
        return metadata

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the inference graph, with parameters and buffers as they are now, as a model of its own.

        Raises:
            StepError: a step without an inference graph.
            ModelFileError: a file that cannot be written.
        """
        write_model(inference_model(self._model, self._arrays), Path(path), Path(path))

    # --- inside -------------------------------------------------------------------------------------------------------

    @property
    def _arrays(self) -> dict[str, np.ndarray]:
        """The state where it is; it changes with the next step but one."""
        return {name: tensor.array for name, tensor in self._state.now.items()}

    def _rate_names(self) -> list[str]:
        """The settings that are learning rates; StepError if there is none."""
        names = learning_rate_names(self._types)
        if not names:
            raise StepError(f"the step has no setting '{LEARNING_RATE}'")
        return names

    def _check_state(self, state: Mapping[str, Any]) -> None:
        check_state(self._types, state)
        check_rates(learning_rate_names(self._types), state)

    def _check_loss(self, reported: Mapping[str, np.ndarray]) -> None:
        """Refuse a step whose loss is no finite number, on all workers alike."""
        loss = reported.get(self._engine.loss or "")
        if loss is not None and loss.size == 1 and not math.isfinite(loss.reshape(())):
            raise StepError(
                f"'{self._engine.loss}' is {loss.reshape(())}, and the state is as before the step: expected a finite"
                " number; look for NaN and infinity in the batch, or lower the learning rate. Steps with such a loss"
                " are made with Trainer(..., check_finite=False)"
            )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse copy.copy and pickle: a copy would share the tensors and not know whose turn it is."""
        raise TypeError(
            "a Trainer cannot be copied or pickled: make another one of the same step, and give it this one's"
            " state_dict() by load_state_dict"
        )

    def _untied(self, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The state by the names of inputs alone."""
        untied = {name: array for name, array in state.items() if name not in self._step.tied}
        for other, first in self._step.tied.items():
            if other in state and not _same(untied.setdefault(first, state[other]), state[other]):
                raise StepError(f"'{other}' differs from '{first}', to which it is tied")
        return untied

    def _checked(self, batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The arrays of a batch as sessions take them; none if a worker gives none."""
        return {} if not batch and self._shared else self._batches.checked(batch)


def _counted(inputs: Mapping[str, TensorType], batch_dimension: str | None, shared: bool) -> tuple[str, int] | None:
    """Where the number of samples of a batch is found; a single worker need not know that."""
    try:
        return counted_axis(inputs, batch_dimension)
    except StepError:
        if shared or batch_dimension is not None:
            raise
        return None


def _same(one: Any, other: Any) -> bool:
    """Whether two arrays agree in every bit."""
    return (
        isinstance(one, np.ndarray)
        and isinstance(other, np.ndarray)
        and one.dtype == other.dtype
        and one.shape == other.shape
        and one.tobytes() == other.tobytes()
    )


# --- where a step comes from ------------------------------------------------------------------------------------------


def _opened(
    step: str | os.PathLike[str] | bytes | onnx.ModelProto | Captured,
) -> tuple[onnx.ModelProto, Mapping[str, np.ndarray]]:
    """A step without its start, and the start."""
    if isinstance(step, str | os.PathLike | bytes | onnx.ModelProto):
        model = load_model(step)
        if isinstance(step, str | os.PathLike):
            path = Path(step)
            external_files(model, path)
            embed_external_data(model, path)
        roles = Step.of(model).roles
        start = {tensor.name: _start(tensor) for tensor in model.graph.initializer if tensor.name in roles}
    else:
        model, start = load_model(step.model), dict(step.state)
        if step.inference is not None and inference_function(model) is None:
            model = with_inference(model, step.inference)
        roles = Step.of(model).roles
    rest = [tensor for tensor in model.graph.initializer if tensor.name not in roles]
    del model.graph.initializer[:]
    model.graph.initializer.extend(rest)
    return model, start


def _start(tensor: TensorProto) -> np.ndarray:
    if tensor.data_location == TensorProto.EXTERNAL:
        raise StepError(f"'{tensor.name}' has its data in another file, which is found only if the path is given")
    with refusals_as_step_errors(f"the start of '{tensor.name}' cannot be read"):
        return numpy_helper.to_array(tensor)
