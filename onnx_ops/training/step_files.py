"""Step files: models of training steps together with the state that they start from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from onnx_ops.core.step_format import EVALUATION, INFERENCE
from onnx_ops.graph.files import MOST_BYTES, ExternalData, ModelFileError
from onnx_ops.graph.light import placeholder, read_light
from onnx_ops.graph.reading import is_protobuf, load_model
from onnx_ops.graph.stored import Source
from onnx_ops.linking.link import link
from onnx_ops.training.arrays import check_state
from onnx_ops.training.errors import StepError, refusals_as_step_errors
from onnx_ops.training.inference import carried_function, with_carried
from onnx_ops.training.prepared import prepare, remove_prepared
from onnx_ops.training.step import Step, frozen_names
from onnx_ops.training.weights import check_files, fill, save_model, share_weights


class Captured(Protocol):
    """A training step in memory, as `onnx_ops.torch` captures it.

    Attributes:
        model: the step, with its metadata.
        state: an array for each input of the state.
        inference: the graph of the trained network as a model of its own; None if there is none.
        evaluation: the graph of the loss in evaluation mode, likewise.
    """

    @property
    def model(self) -> onnx.ModelProto: ...

    @property
    def state(self) -> Mapping[str, np.ndarray]: ...

    @property
    def inference(self) -> onnx.ModelProto | None: ...

    @property
    def evaluation(self) -> onnx.ModelProto | None: ...


StepSource = str | os.PathLike[str] | bytes | onnx.ModelProto | Captured
"""A training step: path of a step file, its model or the bytes of that, or a capture."""


def step_model(
    model: onnx.ModelProto,
    state: Mapping[str, np.ndarray],
    inference: onnx.ModelProto | None = None,
    evaluation: onnx.ModelProto | None = None,
) -> onnx.ModelProto:
    """The model of a step file: self-contained, with a start value for each input of the state.

    Args:
        model: the step, with its metadata.
        state: an array for each input of the state.
        inference: the graph of the trained network, as for `with_carried`.
        evaluation: the graph of the loss in evaluation mode, likewise.

    Returns:
        A linked model.

    Raises:
        StepError: a model that is no step; a state or a further graph that does not fit it.
        OpError, LinkError: as `link`.
    """
    whole = _linked_step(model, state, inference, evaluation)
    _add_placeholders(whole, state)
    fill(whole, state)
    return whole


def save_step(
    model: onnx.ModelProto,
    state: Mapping[str, Source],
    inference: onnx.ModelProto | None,
    path: Path,
    *,
    external: bool,
    frozen: str | None = None,
    evaluation: onnx.ModelProto | None = None,
    prepared: bool = False,
) -> list[str]:
    """Write the model of a step file, as of `step_model`, without a copy of the state.

    Args:
        model, state, inference, evaluation: as for `step_model`.
        path, external: as for `save_model`; the safetensors file has the name of the model's with another extension. If
            the extension is that of a text format of ONNX, the state is written as text.
        frozen: name of a safetensors file in the same folder for the parameters and buffers that the step does not
            change, as for `share_weights`; not together with `external`, nor in a text format.
        prepared: whether to add the graphs of `prepare`.

    Returns:
        The names of the graphs that were added.

    Raises:
        As `step_model`, `share_weights` and `save_model`.
    """
    whole = _linked_step(model, state, inference, evaluation)
    added = prepare(whole) if prepared else []
    _add_placeholders(whole, state)
    if not is_protobuf(path):
        if frozen is not None:
            raise ModelFileError(f"cannot write {path}: a step in a text format has its state in one file")
        fill(whole, state)
        onnx.save(whole, path)
        return added
    if frozen is None:
        save_model(whole, state, path, f"{path.stem}.safetensors", external=external)
        return added
    shared = {name: state[name] for name in frozen_names(model)}
    own = {name: array for name, array in state.items() if name not in shared}
    if external or sum(array.nbytes for array in own.values()) + whole.ByteSize() > MOST_BYTES:
        raise ModelFileError(
            f"cannot write {path}: the frozen part and what the step changes cannot both be in further files"
        )
    if not shared:
        raise ModelFileError(f"cannot write {frozen}: the step changes all of its parameters and buffers")
    if Path(frozen).name != frozen:
        raise ModelFileError(f"cannot write {frozen}: expected the name of a file in the folder of {path}")
    share_weights(whole, shared, path.parent / frozen)
    save_model(whole, own, path, f"{path.stem}.safetensors", external=False)
    return added


def prepare_step(source: StepSource, path: Path, *, external: bool = False) -> list[str]:
    """Write a step with the graphs of `prepare`, which trainers in other languages need.

    Args:
        source: the step.
        path, external: as for `save_step`; the path may be that of the source.

    Returns:
        The names of the graphs.

    Raises:
        As `open_step` and `save_step`.
    """
    model, start = open_step(source)
    return save_step(model, start, None, path, external=external, prepared=True)


def _linked_step(
    model: onnx.ModelProto,
    state: Mapping[str, Source],
    inference: onnx.ModelProto | None,
    evaluation: onnx.ModelProto | None,
) -> onnx.ModelProto:
    """As `step_model`, without the start values."""
    step = Step.of(model)
    check_state(step.state(model), state)
    whole = link(_with_graphs(model, inference, evaluation))
    _remove_state(whole, step)
    return whole


def _add_placeholders(model: onnx.ModelProto, state: Mapping[str, Source]) -> None:
    """Add an initializer without contents for each input of the state."""
    model.graph.initializer.extend(placeholder(name, state[name]) for name in Step.of(model).roles)


def _with_graphs(
    model: onnx.ModelProto, inference: onnx.ModelProto | None, evaluation: onnx.ModelProto | None
) -> onnx.ModelProto:
    """The step with the graphs that it has not yet."""
    for name, graph in ((INFERENCE, inference), (EVALUATION, evaluation)):
        if graph is not None and carried_function(model, name) is None:
            model = with_carried(model, name, graph)
    return model


def open_step(step: StepSource) -> tuple[onnx.ModelProto, Mapping[str, Source]]:
    """Read a step.

    Returns:
        A copy of the model without start values and prepared graphs, external data embedded; and the start values, by
        name. Those of a file are read from it later, unless they are small.

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
    elif not hasattr(step, "model"):
        raise StepError(
            f"the step is a {type(step).__name__}, expected a path, a model, its bytes or a capture of onnx_ops.torch"
        )
    else:
        model, start = load_model(step.model), dict(step.state)
        model = _with_graphs(model, step.inference, step.evaluation)
        _remove_state(model, Step.of(model))
    remove_prepared(model)
    light = onnx.ModelProto()  # protobuf frees what is removed from a message only with the whole message
    light.CopyFrom(model)
    return light, start


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
