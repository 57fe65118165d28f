"""The trainer, which makes the steps of a training and holds its state."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import onnx
import onnxruntime as ort

from onnx_ops.core.step_format import GRAD_SCALE, InputRole, learning_rate_names
from onnx_ops.core.types import TensorType
from onnx_ops.graph.stored import Source
from onnx_ops.integrations.sessions import kernels_registered
from onnx_ops.training.adapters import adapter_names
from onnx_ops.training.arrays import check_names, check_state, listed
from onnx_ops.training.batch_axis import counted_axis
from onnx_ops.training.batches import Batches
from onnx_ops.training.checkpoints import open_checkpoint, write_checkpoint
from onnx_ops.training.errors import StepError
from onnx_ops.training.learning_rates import check_rates
from onnx_ops.training.pretrained import WEIGHTS, converted, open_weights
from onnx_ops.training.session_step_runner import SessionStepRunner
from onnx_ops.training.shared_state import SHARED, SharedState, changing_names, untied_state
from onnx_ops.training.state import State, StatePart
from onnx_ops.training.step import Step, summary
from onnx_ops.training.step_files import StepSource, open_step
from onnx_ops.training.step_runner import StepRunner
from onnx_ops.training.step_sessions import session_maker
from onnx_ops.training.trainer_step import Mode, TrainerStep
from onnx_ops.training.weights import FOR_READERS
from onnx_ops.training.workers.communicator import Communicator
from onnx_ops.training.workers.ending import end_all_by_exceptions
from onnx_ops.training.workers.meeting import Meeting
from onnx_ops.training.workers.step_runner import DistributedStepRunner

CPU = "CPUExecutionProvider"


class IncompatibleKeys(NamedTuple):
    """The result of loading a state.

    Attributes:
        missing_keys: the names that the loaded state lacks; their values have not changed.
        unexpected_keys: the names that the step does not have.
    """

    missing_keys: list[str]
    unexpected_keys: list[str]


class Trainer:
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
        self._checkpoint: Path | None = None
        """The last checkpoint that was written or loaded."""

        shared = SharedState()
        models: dict[str, onnx.ModelProto] = {}
        names: dict[str, dict[str, str]] = {}
        self._rates: list[str] = []
        for name, source in given.items():
            models[name], start = open_step(source)
            types = Step.of(models[name]).state(models[name])
            check_state(types, start)
            check_rates(learning_rate_names(types), start)
            names[name] = shared.add(name, models[name], start)
            self._rates += [names[name][own] for own in learning_rate_names(types)]
        self._types, self._step = shared.types, Step(shared.roles, shared.tied)
        changing = {name: changing_names(model) for name, model in models.items()}
        written = {names[name][own] for name, found in changing.items() for own in found}
        self._changing = [name for name in self._types if name in written]
        changing_types = [self._types[name] for name in self._changing]
        session = session_maker(sess_options, providers, changing_types, distributed=communicator is not None)
        self._state = State(self._types, shared.start, self._changing)
        if keep_previous or not kernels_registered() or (providers is not None and list(providers) != [CPU]):
            self._state.keep_previous()

        meeting = None if communicator is None else Meeting(communicator, list(models))

        def made(name: str, model: onnx.ModelProto) -> TrainerStep:
            record = Step.of(model)
            part, inputs = StatePart(self._state, names[name], changing[name]), record.batch(model)
            counted = counted_axis(inputs, batch_dimension, required=communicator is not None)
            batches = Batches(inputs, record.bounds, record.ranges, counted, may_be_empty=communicator is not None)
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

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of the whole state: parameters, buffers, optimizer state, seed and settings, by name."""
        return {name: array.copy() for name, array in self._arrays.items()}

    def load_state_dict(self, state: Mapping[str, Source], *, strict: bool = True) -> IncompatibleKeys:
        """Replace the state. All workers must load the same one.

        After an exception, also that of an interrupt, the state is the old one or the new one, never a mixture.

        Args:
            state: arrays of the right dtypes and shapes, by the names in `state_dict()`. A tied parameter or buffer can
                have any of its names.
            strict: whether the names must be those of the whole state. Otherwise names that are missing keep their
                values, and others are ignored, as in PyTorch's `load_state_dict`.

        Returns:
            The missing and the unexpected names, both empty if `strict`.

        Raises:
            StepError: names, dtypes or shapes that do not fit; masked arrays; tied names with different values;
                learning rates that are not finite or less than 0. The state is then as it was.
        """
        untied = untied_state(state, self._step.tied)
        keys = IncompatibleKeys(
            [name for name in self._types if name not in untied], [name for name in untied if name not in self._types]
        )
        if not strict:
            untied = {name: array for name, array in untied.items() if name in self._types}
        self._check_state(untied, () if strict else keys.missing_keys)
        whole = untied if strict else {**self._arrays, **untied}
        for step in self._made.values():
            step.runner.discard_accumulated()
        runner = next(iter(self._made.values())).runner
        self._state.load(whole, runner.checksum_after_load(self._state.loaded, untied))
        return keys

    def weights(self) -> dict[str, np.ndarray]:
        """Copies of parameters and buffers, tied ones under each of their names, as in a torch module's state_dict."""
        own = self._step.names(InputRole.PARAMETER, InputRole.BUFFER)
        names = {name: name for name in own} | dict(self._step.tied)
        state = self._state.now
        return {other: state[name].array.copy() for other, name in names.items()}

    def save(
        self, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None, *, frozen: bool = True
    ) -> None:
        """Write the state to a safetensors file.

        The file is replaced atomically: whenever and however the process ends, the old or the new one is complete. A
        folder that it may leave beside the file begins with ".onnx_ops_", and is removed by the next process that
        writes a file there. Workers have the same state; only one of them should write it. The file has a checksum,
        which `load` verifies. Accumulated gradients are not written: a resumed training repeats these batches.

        Args:
            path: a new file, or one to replace.
            metadata: strings to store in the file.
            frozen: whether to write the parameters and buffers that the step does not change. A file without them is
                loaded with `load(path, strict=False)`, into a trainer that has them.

        Raises:
            OSError: a file that cannot be written.
            StepError: a path that is no regular file.
        """
        arrays = self._arrays
        if not frozen:
            fixed = set(self._step.names(*SHARED)).difference(self._changing)
            arrays = {name: array for name, array in arrays.items() if name not in fixed}
        write_checkpoint(Path(path), arrays, metadata or {})
        self._checkpoint = Path(path)

    def load(self, path: str | os.PathLike[str], *, strict: bool = True) -> dict[str, str]:
        """Replace the state by that in a safetensors file, as by `load_state_dict`.

        Args:
            path: the file.
            strict: whether the file must have the whole state and nothing else. Otherwise names that it lacks keep
                their values, and names that the step lacks are ignored, but not all of them.

        Returns:
            The metadata of the file.

        Raises:
            OSError: a file that cannot be read.
            StepError: no safetensors file, or a state that does not fit. The state is then as it was.
        """
        state, metadata = open_checkpoint(Path(path))
        if state and not strict and {*self._types, *self._step.tied}.isdisjoint(state):
            first, wanted = next(iter(state)), next(iter(self._types), None)
            raise StepError(
                f"{path} has no name of the step: it has '{first}' and {len(state) - 1} others, expected names such as"
                f" '{wanted}'"
            )
        shared = set(self._step.names(*SHARED))
        others = [name for name in self._types if name not in shared]
        if strict and state and others and set(others).isdisjoint(state):
            raise StepError(
                f"{path} has neither optimizer state nor settings, such as '{others[0]}': a file of weights is"
                " loaded by load_weights"
            )
        try:
            self.load_state_dict(state, strict=strict)
        except StepError as error:
            raise type(error)(f"{path}: {error}") from error
        self._checkpoint = Path(path)
        return metadata

    def load_weights(
        self, path: str | os.PathLike[str], *, strict: bool = True, cast: bool = False
    ) -> IncompatibleKeys:
        """Replace parameters and buffers by those in a file of a pretrained model; all other state keeps its values.

        Tensors are found by their names in the `state_dict` of the captured model, as `save_pretrained` of Hugging
        Face's libraries writes them; of tied ones the file needs one. All workers must load the same file.

        Args:
            path: a safetensors file such as model.safetensors, an index of several such as
                model.safetensors.index.json, or a folder with either.
            strict: whether the file must have all parameters and buffers and nothing else. Otherwise names that it
                lacks keep their values, and names that the step lacks are ignored, but not all of them.
            cast: whether floating tensors are converted to the floating dtypes of the step.

        Returns:
            The missing and the unexpected names, both empty if `strict`.

        Raises:
            OSError: a file that cannot be read.
            StepError: no such file; names, dtypes or shapes that do not fit; tied names with different values. The
                state is then as it was.
        """
        given = open_weights(Path(path))
        own = self._step.names(*SHARED)
        names = dict(zip(own, own, strict=True)) | dict(self._step.tied)
        found = {name: tensor for name, tensor in given.items() if name in names}
        reached = {names[name] for name in found}
        keys = IncompatibleKeys([name for name in own if name not in reached], [n for n in given if n not in names])
        if not found or (strict and (keys.missing_keys or keys.unexpected_keys)):
            raise StepError(
                f"{path} does not have the parameters and buffers of the step; missing: {_quoted(keys.missing_keys)};"
                f" unexpected: {_quoted(keys.unexpected_keys)}" + ("; strict=False loads the others" if found else "")
            )
        types = {name: self._types[names[name]] for name in found}
        self.load_state_dict(converted(found, types, cast=cast), strict=False)
        return keys

    def save_weights(self, path: str | os.PathLike[str]) -> None:
        """Write parameters and buffers to a safetensors file, which `from_pretrained` and `load_weights` read.

        They have their names in the `state_dict` of the captured model, tied ones the first of them. The file is
        replaced atomically, as by `save`.

        Args:
            path: a new file, or one to replace; in a folder it is model.safetensors.

        Raises:
            OSError: a file that cannot be written.
            StepError: a path that is no regular file.
        """
        file, arrays = Path(path), self._arrays
        weights = {name: arrays[name] for name in self._step.names(*SHARED)}
        write_checkpoint(file / WEIGHTS if file.is_dir() else file, weights, FOR_READERS)

    def save_adapter(self, path: str | os.PathLike[str], adapter_name: str = "default") -> None:
        """Write the trained parameters to a safetensors file, such as peft's adapter_model.safetensors.

        Parameters of an adapter of peft, such as `base_model.model.q.lora_A.default.weight`, have the names that
        `PeftModel.save_pretrained` gives them, here `base_model.model.q.lora_A.weight`; other trained parameters have
        their own. `PeftModel.from_pretrained` also needs adapter_config.json, which `save_pretrained` writes. The file
        is replaced atomically, as by `save`.

        Args:
            path: a new file, or one to replace.
            adapter_name: of the adapter in the captured model.

        Raises:
            OSError: a file that cannot be written.
            StepError: a path that is no regular file; parameters that have the same name in the file.
        """
        arrays = self._arrays
        names = self._adapter_names(adapter_name)
        write_checkpoint(Path(path), {filed: arrays[name] for filed, name in names.items()}, FOR_READERS)

    def load_adapter(self, path: str | os.PathLike[str], adapter_name: str = "default") -> None:
        """Replace the parameters that `save_adapter` writes by those in a file of peft, or of `save_adapter`.

        All other state keeps its values.

        Args:
            path: a safetensors file.
            adapter_name: of the adapter in the captured model.

        Raises:
            OSError: a file that cannot be read.
            StepError: no safetensors file; names, dtypes or shapes that do not fit. The state is then as it was.
        """
        names = self._adapter_names(adapter_name)
        arrays, _ = open_checkpoint(Path(path))
        check_names(str(path), {filed: self._types[name] for filed, name in names.items()}, arrays)
        self.load_state_dict({names[filed]: array for filed, array in arrays.items()}, strict=False)

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

    @property
    def _arrays(self) -> dict[str, np.ndarray]:
        """The state without copying; the next step overwrites it."""
        return {name: tensor.array for name, tensor in self._state.now.items()}

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

    def _reload(self) -> str:
        """How to give the trainer a state, for messages."""
        return "load_state_dict" if self._checkpoint is None else f"load, the last one is {self._checkpoint}"

    def _check_state(self, state: Mapping[str, Source], omitted: Collection[str] = ()) -> None:
        types = {name: tensor for name, tensor in self._types.items() if name not in omitted}
        check_state(types, state)
        check_rates([name for name in self._rates if name in types], state)

    def _adapter_names(self, adapter: str) -> dict[str, str]:
        """The parameters of an adapter, by their names in files."""
        return adapter_names(self._step.names(InputRole.PARAMETER), self._changing, adapter)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Raise TypeError for copy.copy and pickle: a copy would share the tensors, but not the state's version."""
        raise TypeError(
            "a Trainer cannot be copied or pickled: make another one of the same step, and give it this one's"
            " state_dict() by load_state_dict"
        )


def step_of(trainer: Trainer, name: str = "") -> TrainerStep:
    """A step of a trainer, by name if there are several; StepError if there is none of that name."""
    return trainer[name] if name else trainer._only()


def _quoted(names: Iterable[str]) -> str:
    return listed([f"'{name}'" for name in names]) or "none"
