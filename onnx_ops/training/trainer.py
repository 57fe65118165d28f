"""Runs a training step, again and again."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, numpy_helper

from onnx_ops.core.types import Shape, TensorType
from onnx_ops.graph.files import embed_external_data, external_files, write_model
from onnx_ops.graph.reading import load_model
from onnx_ops.integrations.sessions import InferenceSession, registered_options
from onnx_ops.training.checkpoints import read_checkpoint, write_checkpoint
from onnx_ops.training.ending import end_all_by_exceptions
from onnx_ops.training.engines import SharedStep, WholeStep
from onnx_ops.training.step import (
    NEXT,
    InputRole,
    Step,
    StepError,
    array_text,
    check_names,
    check_state,
    inference_function,
    inference_model,
    numpy_dtype,
    tensor_text,
    with_inference,
)
from onnx_ops.training.values import Tensor
from onnx_ops.training.workers import Communicator

LEARNING_RATE = "learning_rate"
"""The setting of a step's only group of parameters; of several groups `learning_rate.0`, `learning_rate.1`, ..."""


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
        batch_dimension: the name of the dimension that counts samples, for a communicator; needed if the first axes of
            the batch's inputs have several names.
        synchronize_batch_norm: whether batch norm in training normalizes with the samples of all workers, so that they
            make the step of one with the whole batch; else each normalizes with its own. Captured steps with
            torch.nn.BatchNorm1d to 3d can be synchronized; a step without a BatchNormStats is refused.

    Attributes:
        batch_inputs: the types that `step` takes, by name.

    Raises:
        StepError: what is no training step; with a communicator, one without values named `grad.<parameter>`, or whose
            next state depends on the batch otherwise than by these; batch norm that cannot be synchronized.
        WorkerError: workers whose steps differ.
        OSError, ModelFileError: a file, or external data, that cannot be read.
        OpError, LinkError, onnxruntime's exceptions: as `onnx_ops.InferenceSession`.
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
    ) -> None:
        if communicator is not None:
            end_all_by_exceptions(communicator)
        model, start = _opened(step)
        self._step = Step.of(model)
        self._types = self._step.state(model)
        check_state(self._types, start)
        self._model = model
        registered = registered_options(sess_options, stacklevel=3)
        if communicator is not None and sess_options is None:
            # Threads that wait for their session's next run would keep the cores from other workers and other parts.
            registered.add_session_config_entry(SPINNING, "0")
        self.batch_inputs: dict[str, TensorType] = self._step.batch(model)
        self._batch = [_BatchInput.of(name, tensor) for name, tensor in self.batch_inputs.items()]
        outputs = [value.name for value in model.graph.output]
        now = {name: self._tensor(name, start[name]) for name in self._types}
        # What has no next value is in both sets.
        then = now | {name: self._tensor(name, start[name]) for name in self._types if NEXT + name in outputs}
        self._sets = (now, then)
        self._turn = 0

        def session(model: onnx.ModelProto) -> InferenceSession:
            return InferenceSession(model, registered, providers)

        self._engine: WholeStep | SharedStep
        if communicator is None:
            self._engine = WholeStep(model, self._sets, session)
        else:
            self._engine = SharedStep(model, self._sets, session, communicator, batch_dimension, synchronize_batch_norm)

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
            StepError: arrays of wrong names, dtypes or shapes, dimensions of one name that differ among them; no worker
                that has a sample.
            WorkerError: another worker has failed in this step; workers that differ in learning rates, seed, or the
                state that was loaded.
            onnxruntime's exceptions: what a kernel refuses; their text names op and input.
        """
        reported = self._engine.run(self._turn, lambda: self._checked(batch))
        self._turn = 1 - self._turn
        return reported

    # --- the state ----------------------------------------------------------------------------------------------------

    @property
    def has_inference_graph(self) -> bool:
        """Whether there is something to export."""
        return inference_function(self._model) is not None

    @property
    def learning_rate(self) -> float:
        """The learning rate; of several groups of parameters that of all. Setting it sets it for all groups."""
        rates = self.learning_rates
        if len(set(rates)) > 1:
            raise StepError(f"the groups have learning rates of their own, {rates}; see learning_rates")
        return rates[0]

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self.learning_rates = (rate,) * len(self.learning_rates)

    @property
    def learning_rates(self) -> tuple[float, ...]:
        """The learning rate of each group of parameters. StepError if the step has no setting of that name."""
        return tuple(float(array) for array in self._rates())

    @learning_rates.setter
    def learning_rates(self, rates: Sequence[float]) -> None:
        arrays = self._rates()
        if len(rates) != len(arrays):
            raise StepError(f"{len(rates)} learning rates are given, expected {len(arrays)}, one for each group")
        for rate in rates:
            if not math.isfinite(rate):
                raise StepError(f"a learning rate is {rate}, expected a finite number")
        for array, rate in zip(arrays, rates, strict=True):
            array[...] = rate

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of the whole state: parameters, buffers, optimizer state, seed and settings, by name."""
        return {name: tensor.array.copy() for name, tensor in self._now.items()}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from another state. Workers do it all alike.

        Args:
            state: an array of the right dtype and shape for each name in `state_dict()`. What is tied can be given
                under any of its names.

        Raises:
            StepError: names, dtypes or shapes that do not fit; tied names with different values. The state is then as
                it was.
        """
        untied = self._untied(state)
        check_state(self._types, untied)
        for name, tensor in self._now.items():
            tensor.array[...] = untied[name]
        self._engine.loaded(untied)

    def weights(self) -> dict[str, np.ndarray]:
        """Copies of parameters and buffers alone, what is tied under each of its names: a torch module's state_dict."""
        own = self._step.names(InputRole.PARAMETER, InputRole.BUFFER)
        names = {name: name for name in own} | dict(self._step.tied)
        return {other: self._now[name].array.copy() for other, name in names.items()}

    def save(self, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
        """Write the whole state into a safetensors file.

        Whenever the process ends, by whatever, the old file or the new one is there, and whole; what is left beside it
        then begins with ".onnx_ops_". Workers have the same state; one of them is to write it.

        Args:
            path: a new file, or one to replace.
            metadata: texts to keep with it.

        Raises:
            OSError: a file that cannot be written.
            StepError: a path that is no regular file.
        """
        arrays = {name: tensor.array for name, tensor in self._now.items()}
        write_checkpoint(Path(path), arrays, metadata or {})

    def load(self, path: str | os.PathLike[str]) -> dict[str, str]:
        """Go on from the state in a safetensors file; what it needs to hold is as for `load_state_dict`.

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
        arrays = {name: tensor.array for name, tensor in self._now.items()}
        write_model(inference_model(self._model, arrays), Path(path), Path(path))

    # --- inside -------------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> dict[str, Tensor]:
        return self._sets[self._turn]

    def _tensor(self, name: str, array: np.ndarray) -> Tensor:
        element = self._types[name].dtype
        assert element is not None
        return Tensor.holding(array, element)

    def _rates(self) -> list[np.ndarray]:
        settings = self._step.names(InputRole.SETTING)
        found = [n for n in settings if n == LEARNING_RATE or n.startswith(f"{LEARNING_RATE}.")]
        if not found:
            raise StepError(f"the step has no setting '{LEARNING_RATE}'")
        return [self._now[name].array for name in found]

    def _untied(self, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The state by the names of inputs alone."""
        untied = {name: array for name, array in state.items() if name not in self._step.tied}
        for other, first in self._step.tied.items():
            if other in state and not _same(untied.setdefault(first, state[other]), state[other]):
                raise StepError(f"'{other}' differs from '{first}', to which it is tied")
        return untied

    def _checked(self, batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The arrays of a batch as sessions take them; none if a worker gives none."""
        if not batch and self._engine.takes_none:
            return {}
        if batch.keys() != self.batch_inputs.keys():
            check_names("the batch", self.batch_inputs, batch)
        sizes: dict[str, tuple[int, str]] = {}
        return {wanted.name: wanted.checked(batch[wanted.name], sizes) for wanted in self._batch}


class _BatchInput(NamedTuple):
    """An input of the batch, and what an array needs to have to be one."""

    name: str
    tensor: TensorType
    element: int
    dtype: np.dtype
    shape: Shape | None

    @classmethod
    def of(cls, name: str, tensor: TensorType) -> _BatchInput:
        assert tensor.dtype is not None  # by the checks of a step
        return cls(name, tensor, tensor.dtype, numpy_dtype(tensor), tensor.shape)

    def checked(self, array: Any, sizes: dict[str, tuple[int, str]]) -> np.ndarray:
        """The array, contiguous; `sizes` are those of the named dimensions so far, each with the input it is from."""
        if isinstance(array, np.generic):
            array = np.asarray(array)
        if not isinstance(array, np.ndarray) or array.dtype != self.dtype:
            given = array_text(array) if isinstance(array, np.ndarray) else f"a {type(array).__name__}"
            raise StepError(
                f"'{self.name}' is {given}, expected {tensor_text(self.tensor)}; nothing is converted silently, but by"
                f" numpy.asarray(..., {_numpy_name(self.dtype)})"
            )
        if self.shape is not None:
            if len(array.shape) != len(self.shape):
                raise StepError(f"'{self.name}' is {array_text(array)}, expected {tensor_text(self.tensor)}")
            for wanted, size in zip(self.shape, array.shape, strict=True):
                if isinstance(wanted, str):
                    known, other = sizes.setdefault(wanted, (size, self.name))
                    if known != size:
                        raise StepError(
                            f"'{self.name}' is {array_text(array)}, expected {tensor_text(self.tensor)} with {wanted} ="
                            f" {known} as in '{other}'"
                        )
                elif wanted is not None and wanted != size:
                    raise StepError(f"'{self.name}' is {array_text(array)}, expected {tensor_text(self.tensor)}")
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _numpy_name(dtype: np.dtype) -> str:
    """How a dtype is written in Python."""
    return f"{'numpy' if dtype.isbuiltin == 1 else 'ml_dtypes'}.{dtype.type.__name__}"


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
    return numpy_helper.to_array(tensor)
