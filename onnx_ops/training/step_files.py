"""Step files: models of training steps together with the state that they start from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from onnx_ops.graph.files import ExternalData
from onnx_ops.graph.light import placeholder, read_light
from onnx_ops.graph.reading import is_protobuf, load_model
from onnx_ops.graph.stored import Source
from onnx_ops.linking.link import link
from onnx_ops.training.arrays import check_state
from onnx_ops.training.errors import StepError, refusals_as_step_errors
from onnx_ops.training.inference import inference_function, with_inference
from onnx_ops.training.step import Step
from onnx_ops.training.weights import check_files, fill, save_model


class Captured(Protocol):
    """A training step in memory, as `onnx_ops.torch` captures it.

    Attributes:
        model: the step, with its metadata.
        state: an array for each input of the state.
        inference: the graph of the trained network as a model of its own; None if there is none.
    """

    @property
    def model(self) -> onnx.ModelProto: ...

    @property
    def state(self) -> Mapping[str, np.ndarray]: ...

    @property
    def inference(self) -> onnx.ModelProto | None: ...


def step_model(
    model: onnx.ModelProto, state: Mapping[str, np.ndarray], inference: onnx.ModelProto | None = None
) -> onnx.ModelProto:
    """The model of a step file: self-contained, with a start value for each input of the state.

    Args:
        model: the step, with its metadata.
        state: an array for each input of the state.
        inference: the graph of the trained network, as for `with_inference`.

    Returns:
        A linked model.

    Raises:
        StepError: a model that is no step; a state or an inference graph that does not fit it.
        OpError, LinkError: as `link`.
    """
    whole = _light_step_model(model, state, inference)
    fill(whole, state)
    return whole


def save_step(
    model: onnx.ModelProto,
    state: Mapping[str, np.ndarray],
    inference: onnx.ModelProto | None,
    path: Path,
    *,
    external: bool,
) -> None:
    """Write the model of a step file, as of `step_model`, without a copy of the state.

    Args:
        model, state, inference: as for `step_model`.
        path, external: as for `save_model`; the safetensors file has the name of the model's with another extension. If
            the extension is that of a text format of ONNX, the state is written as text.

    Raises:
        As `step_model` and `save_model`.
    """
    if is_protobuf(path):
        whole = _light_step_model(model, state, inference)
        save_model(whole, state, path, f"{path.stem}.safetensors", external=external)
    else:
        onnx.save(step_model(model, state, inference), path)


def _light_step_model(
    model: onnx.ModelProto, state: Mapping[str, np.ndarray], inference: onnx.ModelProto | None
) -> onnx.ModelProto:
    """As `step_model`, with placeholders for the start values."""
    step = Step.of(model)
    check_state(step.state(model), state)
    whole = link(model if inference is None else with_inference(model, inference))
    _remove_state(whole, step)
    whole.graph.initializer.extend(placeholder(name, state[name]) for name in step.roles)
    return whole


def open_step(
    step: str | os.PathLike[str] | bytes | onnx.ModelProto | Captured,
) -> tuple[onnx.ModelProto, Mapping[str, Source]]:
    """Read a step.

    Returns:
        A copy of the model without start values, external data embedded; and the start values, by name. Those of a file
        are read from it later, unless they are small.

    Raises:
        OSError, ModelFileError: a file, or external data, that cannot be read.
        LinkError: no model.
        StepError: no training step; start values that cannot be read.
    """
    start: dict[str, Source]
    if isinstance(step, str | os.PathLike | bytes | onnx.ModelProto):
        data = None
        if isinstance(step, str | os.PathLike):
            path = Path(step)
            model, opened = read_light(path)
            data = ExternalData(path, opened | check_files(model, path))
        else:
            model = load_model(step)
        own = Step.of(model)
        start = {tensor.name: _start(tensor, data) for tensor in model.graph.initializer if tensor.name in own.roles}
        _remove_state(model, own)
        if data is not None:
            data.embed_all(model)
    else:
        model, start = load_model(step.model), dict(step.state)
        if step.inference is not None and inference_function(model) is None:
            model = with_inference(model, step.inference)
        _remove_state(model, Step.of(model))
    return model, start


def _remove_state(model: onnx.ModelProto, step: Step) -> None:
    """Remove the start values of the state from the initializers."""
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in step.roles]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)


def _start(tensor: TensorProto, data: ExternalData | None) -> Source:
    if tensor.data_location == TensorProto.EXTERNAL:
        if data is None:
            raise StepError(f"'{tensor.name}' has its data in another file, which is found only if the path is given")
        if (stored := data.stored(tensor)) is not None:
            return stored
        data.embed(tensor)
    with refusals_as_step_errors(f"the start of '{tensor.name}' cannot be read"):
        return numpy_helper.to_array(tensor)
