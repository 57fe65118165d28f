"""A PyTorch model and a loss, captured as one ONNX graph: forward, gradients, and the optimizer's update."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass, RemoveUnusedNodesPass
from torch.fx.experimental.symbolic_shapes import is_symbolic

from onnx_ops.core.step_format import GRADIENT, NEXT, SEED, InputRole
from onnx_ops.core.version import __version__
from onnx_ops.torch.arguments import tensors
from onnx_ops.torch.base.arrays import to_array
from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.explanations import Whereabouts, refuse_compiled
from onnx_ops.torch.operators.gradient_marks import gradient
from onnx_ops.torch.optimizers import Plan, clipped
from onnx_ops.torch.preserving import preserved
from onnx_ops.torch.randomness import Random
from onnx_ops.torch.steps import JointStep, ModelCall, Seen
from onnx_ops.torch.tracing import Dynamic, Tensors, Traced, eager_mode, to_onnx, trace
from onnx_ops.torch.verification.tolerances import compare
from onnx_ops.torch.verification.trials import trials
from onnx_ops.torch.verification.verify import Graph, Updates, Verification, arrays
from onnx_ops.training.step import Bounds, Step, summary
from onnx_ops.training.step_files import step_model


@dataclass(frozen=True)
class Capture:
    """A captured graph, and what it starts from.

    Attributes:
        model: the graph. Its inputs are the state, then the batch; `onnx_ops.Step` reads its metadata.
        state: the values of the state now: parameters, buffers, optimizer state, seed and learning rates, by input.
        inference: the forward graph of the model in evaluation mode, with the state's parameters as initializers; None
            if it was left out (`inference=False`), the loss does not call the model, or the model draws random numbers
            in evaluation mode too.
    """

    model: onnx.ModelProto
    state: dict[str, np.ndarray]
    inference: onnx.ModelProto | None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {summary(self.model)}>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one self-contained, linked file whose initial state are the defaults of its inputs."""
        onnx.save(step_model(self.model, self.state, self.inference), path)


def gradients(
    model: torch.nn.Module,
    loss: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    dynamic_shapes: Any = None,
    opset_version: int = 21,
    check: bool = True,
    inference: bool = True,
) -> Capture:
    """A loss and its gradients as one ONNX graph.

    Args:
        model: any module; its mode (train or eval) is kept.
        loss: `loss(model, *args)` returns a floating scalar, or a tuple or dict with the scalar first and further
            tensors to be reported.
        args: example arguments: tensors, and lists, tuples, dicts and dataclasses of tensors. What else is in them is a
            constant of the graph.
        dynamic_shapes: the dimensions of the arguments that may change, as for torch.export.export. The sizes that
            `Dim("time", min=16, max=512)` allows are in the graph's metadata; `onnx_ops.Trainer` refuses others.
        opset_version: of the standard operators, at least 18.
        check: compare the graph with PyTorch on the arguments, and after that step with other parameters and arguments.
        inference: capture the forward graph of the model in evaluation mode too. Without it the capture is faster, and
            `onnx_ops.Trainer.export` has nothing to export.

    Returns:
        A Capture. Inputs of its graph: parameters and buffers under their names in `state_dict` (tied ones once, under
        the first name), then the arguments under the names of the loss's parameters (`batch.x` for what is inside one).
        Outputs: `loss`, what else is reported (the keys of a dict, `output.1` of a tuple), `grad.<parameter>` for each
        parameter that requires it, `grad.<argument>` for each argument that does, `next.<name>` for each buffer and
        parameter that the loss changes.

    Raises:
        CaptureError: what cannot be captured, or a graph whose numbers are not those of PyTorch.
    """
    joint = JointStep(model, loss, args, dynamic_shapes)
    return _captured(joint, None, None, opset_version, check, inference)


def training_step(
    model: torch.nn.Module,
    loss: Callable[..., Any],
    args: tuple[Any, ...],
    optimizer: torch.optim.Optimizer,
    *,
    dynamic_shapes: Any = None,
    clip_grad_norm: float | None = None,
    opset_version: int = 21,
    check: bool = True,
    inference: bool = True,
) -> Capture:
    """A whole step of training as one ONNX graph: as `gradients`, with the optimizer's update in place of gradients.

    Args:
        model, loss, args, dynamic_shapes, opset_version, check, inference: as for `gradients`.
        optimizer: a torch.optim.SGD, Adam or AdamW, or a subclass that overrides no method but `__init__`, over
            parameters of the model; the step starts from its state.
        clip_grad_norm: gradients are scaled down to this norm first, as torch.nn.utils.clip_grad_norm_ does.

    Returns:
        A Capture. Further inputs of its graph: `optimizer.<state>.<parameter>`, and `learning_rate` (`learning_rate.0`
        and so on for several groups). Outputs: `loss`, what else is reported, `next.<input>` of all that changes.
        A parameter without a gradient stays as it is.

    Raises:
        CaptureError: as `gradients`; an optimizer, or an option of one, that is not supported.
    """
    joint = JointStep(model, loss, args, dynamic_shapes)
    return _captured(joint, optimizer, clip_grad_norm, opset_version, check, inference)


def _captured(
    joint: JointStep,
    optimizer: torch.optim.Optimizer | None,
    clip_grad_norm: float | None,
    opset_version: int,
    check: bool,
    inference: bool,
) -> Capture:
    refuse_compiled(joint.model)
    eager = Seen()
    first, second = trials(joint, eager)
    plan = None if optimizer is None else Plan(optimizer, joint.parameters, eager.used)
    values = joint.state() | ({} if plan is None else plan.state() | plan.rates()) | joint.arguments_now()

    names: list[str] = []
    seen = Seen()

    def whole(given: Tensors) -> Tensors:
        outputs = joint.run(given, seen, eager.changed)
        if plan is not None:
            found = {name: gradient(outputs[GRADIENT + name], name) for name in seen.used}
            outputs |= {GRADIENT + name: tensor for name, tensor in found.items()}
            if clip_grad_norm is not None:
                found = clipped(found, clip_grad_norm)
            reached = {name: outputs[NEXT + name] for name in seen.changed}
            outputs |= {NEXT + name: tensor for name, tensor in plan.updated(given | reached, found).items()}
        names[:] = outputs
        return outputs

    where = Whereabouts(joint.model)
    traced = trace(whole, values, joint.dynamic, where)
    joint.check_constants(traced.graph, seen.changed)
    _check_names(values, names)
    exported = to_onnx(traced, values, names, opset_version, where)
    ranges = tuple(found for found in traced.ranges if found.input in joint.arguments)
    record = Step(_settled(exported.graph, joint, plan, seen), joint.tied, _bounds(traced.dynamic), ranges)
    if check:
        updates = None
        if optimizer is not None and plan is not None:
            updates = Updates(joint, optimizer, plan, seen.used, clip_grad_norm)
        verification = Verification(_step(exported, record), joint, updates)
        for trial in (first, second):
            verification.step(trial)
    if plan is not None:
        _leave_out_gradients(exported)
    forward = None
    if inference and eager.call is not None and seen.call is not None:
        dynamic = _dynamic(seen.call, traced)
        forward = _inference(joint, eager.call, dynamic, opset_version, where, check)
    state = {name: to_array(values[name]) for name in record.roles}
    return Capture(_step(exported, record), state, forward)


def _check_names(inputs: Iterable[str], outputs: list[str]) -> None:
    """No two values of the interface have one name."""
    seen = set()
    for name in (*inputs, *outputs):
        if name in seen:
            raise CaptureError(
                f"'{name}' would name two values of the step; rename the argument, parameter or reported output"
            )
        seen.add(name)


def _settled(graph: ir.Graph, joint: JointStep, plan: Plan | None, seen: Seen) -> dict[str, InputRole]:
    """The roles of the graph's inputs, after those that no step needs have been taken out.

    A buffer that is not in the model's state_dict is a constant, unless the step changes it.
    """
    roles = dict.fromkeys(joint.parameters, InputRole.PARAMETER) | dict.fromkeys(joint.buffers, InputRole.BUFFER)
    if plan is not None:
        roles |= dict.fromkeys(plan.state(), InputRole.OPTIMIZER) | dict.fromkeys(plan.rates(), InputRole.SETTING)
    roles[SEED] = InputRole.SEED
    for value in list(graph.inputs):
        name = value.name or ""
        constant = name in joint.buffers and name not in joint.persistent and name not in seen.changed
        if constant or (name == SEED and not seen.draws):
            graph.inputs.remove(value)
            del roles[name]
        if constant:
            _fix(graph, value, joint.buffers[name])
    return {value.name: roles[value.name] for value in graph.inputs if value.name in roles}


def _fix(graph: ir.Graph, value: ir.Value, tensor: torch.Tensor) -> None:
    """Make a value that was an input a constant."""
    value.const_value = ir.tensor(to_array(tensor), name=value.name)
    graph.register_initializer(value)


def _proto(model: ir.Model) -> onnx.ModelProto:
    """A model without the exporter's notes, for they name files of the machine that it was captured on."""
    ClearMetadataAndDocStringPass()(model)
    for value in (*model.graph.inputs, *(value for node in model.graph.all_nodes() for value in node.outputs)):
        value.metadata_props.clear()
    proto = ir.to_proto(model)
    proto.producer_name, proto.producer_version = "onnx_ops", __version__
    return proto


def _step(model: ir.Model, record: Step) -> onnx.ModelProto:
    """The graph of a step, with what its inputs are."""
    proto = _proto(model)
    record.write_into(proto)
    return proto


def _bounds(dynamic: Dynamic) -> dict[str, Bounds]:
    """The sizes that torch.export.Dim(name, min=, max=) allows, for those dimensions that may not have every size."""
    dims = [dim for axes in dynamic.values() for dim in axes.values() if isinstance(dim, torch.export.Dim)]
    found = {dim.__name__: Bounds(dim.min, dim.max if isinstance(dim.max, int) else None) for dim in dims}
    return {name: bounds for name, bounds in found.items() if bounds != Bounds()}


def _leave_out_gradients(model: ir.Model) -> None:
    """Take the gradients out of the outputs, and what only they need out of the graph."""
    graph = model.graph
    kept = [value for value in graph.outputs if not (value.name or "").startswith(GRADIENT)]
    graph.outputs.clear()
    graph.outputs.extend(kept)
    RemoveUnusedNodesPass()(model)


def _dynamic(call: ModelCall, traced: Traced) -> Dynamic:
    """The dynamic dimensions of the arguments of a call, as the trace has them."""
    found: dict[str, dict[int, Any]] = {}
    for name, tensor in tensors(call.arguments):
        sizes = {axis: size for axis, size in enumerate(tensor.shape) if is_symbolic(size)}
        found[name] = {axis: traced.dimension(size) for axis, size in sizes.items()}
    return found


def _inference(
    joint: JointStep, call: ModelCall, dynamic: Dynamic, opset_version: int, where: Whereabouts, check: bool
) -> onnx.ModelProto | None:
    """The model alone, in evaluation mode, called as the loss does it first."""
    arguments = {name: tensor.detach().clone() for name, tensor in tensors(call.arguments)}
    values = joint.state() | arguments
    random = Random(values.pop(SEED))
    outputs: list[str] = []

    def forward(given: Tensors) -> Tensors:
        with random:
            result = joint.infer(given, call)
        outputs[:] = result
        return result

    traced = trace(forward, values, dynamic, where)
    joint.check_constants(traced.graph, joint.buffers)
    if random.used:
        return None
    exported = to_onnx(traced, values, outputs, opset_version, where)
    with preserved(joint.model), eager_mode():
        expected = joint.infer(values, call) if check else {}
    graph = exported.graph
    for value in list(graph.inputs):
        if value.name in arguments:
            continue
        graph.inputs.remove(value)
        if value.uses():
            _fix(graph, value, values[value.name or ""])
    proto = _proto(exported)
    if check:
        compare("outputs in evaluation mode", Graph(proto).run(arguments), arrays(expected))
    return proto
