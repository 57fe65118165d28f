"""The state of a trainer: copies of it, and the files that it is written to and read from."""

from __future__ import annotations

import abc
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from onnx_ops.core.step_format import InputRole
from onnx_ops.graph.stored import Source
from onnx_ops.training.adapters import adapter_names
from onnx_ops.training.arrays import check_names, check_state, listed
from onnx_ops.training.checkpoints import open_checkpoint, write_checkpoint
from onnx_ops.training.errors import StepError
from onnx_ops.training.learning_rates import check_rates
from onnx_ops.training.pretrained import WEIGHTS, converted, open_weights
from onnx_ops.training.shared_state import SHARED, SharedState, untied_state
from onnx_ops.training.state import State
from onnx_ops.training.step import Step
from onnx_ops.training.step_runner import StepRunner
from onnx_ops.training.weights import FOR_READERS


class IncompatibleKeys(NamedTuple):
    """The result of loading a state.

    Attributes:
        missing_keys: the names that the loaded state lacks; their values have not changed.
        unexpected_keys: the names that the step does not have.
    """

    missing_keys: list[str]
    unexpected_keys: list[str]


class TrainerState(abc.ABC):
    """The part of a trainer that concerns its state.

    Args:
        shared: of the steps.
        changing: the names of the tensors that a step changes.
        rates: the names of the learning rates.
    """

    def __init__(self, shared: SharedState, changing: Collection[str], rates: Sequence[str]) -> None:
        self._types, self._roles, self._rates = shared.types, Step(shared.roles, shared.tied), rates
        self._changing = [name for name in self._types if name in changing]
        self._state = State(self._types, shared.start, self._changing)
        self._checkpoint: Path | None = None
        """The last checkpoint that was written or loaded."""

    @abc.abstractmethod
    def _runners(self) -> Sequence[StepRunner]:
        """The runners of the steps."""

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
        if not isinstance(state, Mapping):
            raise StepError(f"the state is a {type(state).__name__}, expected arrays by name")
        untied = untied_state(state, self._roles.tied)
        keys = IncompatibleKeys(
            [name for name in self._types if name not in untied], [name for name in untied if name not in self._types]
        )
        if not strict:
            untied = {name: array for name, array in untied.items() if name in self._types}
        self._check_state(untied, () if strict else keys.missing_keys)
        whole = untied if strict else {**self._arrays, **untied}
        runners = self._runners()
        for runner in runners:
            runner.discard_accumulated()
        self._state.load(whole, runners[0].checksum_after_load(self._state.loaded, untied))
        return keys

    def weights(self) -> dict[str, np.ndarray]:
        """Copies of parameters and buffers, tied ones under each of their names, as in a torch module's state_dict."""
        own = self._roles.names(InputRole.PARAMETER, InputRole.BUFFER)
        names = {name: name for name in own} | dict(self._roles.tied)
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
            fixed = set(self._roles.names(*SHARED)).difference(self._changing)
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
        if state and not strict and {*self._types, *self._roles.tied}.isdisjoint(state):
            first, wanted = next(iter(state)), next(iter(self._types), None)
            raise StepError(
                f"{path} has no name of the step: it has '{first}' and {len(state) - 1} others, expected names such as"
                f" '{wanted}'"
            )
        shared = set(self._roles.names(*SHARED))
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
        own = self._roles.names(*SHARED)
        names = dict(zip(own, own, strict=True)) | dict(self._roles.tied)
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
        weights = {name: arrays[name] for name in self._roles.names(*SHARED)}
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

    # --- private ------------------------------------------------------------------------------------------------------

    @property
    def _arrays(self) -> dict[str, np.ndarray]:
        """The state without copying; the next step overwrites it."""
        return {name: tensor.array for name, tensor in self._state.now.items()}

    def _check_state(self, state: Mapping[str, Source], omitted: Collection[str] = ()) -> None:
        types = {name: tensor for name, tensor in self._types.items() if name not in omitted}
        check_state(types, state)
        check_rates([name for name in self._rates if name in types], state)

    def _adapter_names(self, adapter: str) -> dict[str, str]:
        """The parameters of an adapter, by their names in files."""
        return adapter_names(self._roles.names(InputRole.PARAMETER), self._changing, adapter)

    def _reload(self) -> str:
        """How to give the trainer a state, for messages."""
        return "load_state_dict" if self._checkpoint is None else f"load, the last one is {self._checkpoint}"


def _quoted(names: Iterable[str]) -> str:
    return listed([f"'{name}'" for name in names]) or "none"
