"""A PyTorch model and a loss, captured as one ONNX graph: forward, gradients, and the optimizer's update."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes.common import RemoveUnusedNodesPass
from torch.optim.swa_utils import AveragedModel

from onnx_ops.core.step_format import (
    GRAD_SCALE,
    GRADIENT,
    NEXT,
    SEED,
    InputRole,
)
from onnx_ops.torch.base.arguments import DynamicShapes
from onnx_ops.torch.base.arrays import as_array, to_array
from onnx_ops.torch.base.errors import CaptureError, DifferenceError, UnexplainedError
from onnx_ops.torch.forward import Forward, make_constant, model_proto
from onnx_ops.torch.garbage import collected_rarely
from onnx_ops.torch.lowering.export import to_onnx
from onnx_ops.torch.optimizers.plan import Optimizers, Plan
from onnx_ops.torch.progress import Progress
from onnx_ops.torch.rewriting.elementary_functions import functions_by_op
from onnx_ops.torch.rewriting.renormalizing import renormalize
from onnx_ops.torch.rewriting.selecting import select_by_op
from onnx_ops.torch.rewriting.silus import silus_by_op
from onnx_ops.torch.rewriting.sorting import sorts_by_op
from onnx_ops.torch.steps.averaging import Averaging
from onnx_ops.torch.steps.calls import RunInfo
from onnx_ops.torch.steps.loss_scaling import LossScaling
from onnx_ops.torch.steps.step import JointStep
from onnx_ops.torch.steps.update import Update
from onnx_ops.torch.tracing.explanations import (
    Locations,
    refuse_autocast,
    refused_control_flow,
    ties_explained,
    vectors_explained,
)
from onnx_ops.torch.tracing.frames import warn
from onnx_ops.torch.tracing.inspections import Inspections
from onnx_ops.torch.tracing.learning_rates import constant_rates
from onnx_ops.torch.tracing.program import Tensors
from onnx_ops.torch.tracing.trace import trace
from onnx_ops.torch.verification.bounds import given_bounds, step_bounds
from onnx_ops.torch.verification.outside import outside_explained
from onnx_ops.torch.verification.single import named_dimensions
from onnx_ops.torch.verification.trials import INTEGERS, KEPT, Trial, rerun, resized, trials
from onnx_ops.torch.verification.verify import Verification
from onnx_ops.training.counters import WRITTEN
from onnx_ops.training.freed_memory import LARGE, returned_when_freed
from onnx_ops.training.step import Step, summary
from onnx_ops.training.step_files import save_step


@dataclass(frozen=True)
class Capture:
    """A captured graph and its initial state.

    Attributes:
        model: the graph. Its inputs are the state, then the batch; `onnx_ops.Step` reads its metadata.
        state: the initial state: parameters, buffers, optimizer state, seed and learning rates, by the names of inputs.
        inference: the forward graph in evaluation mode, with the state's parameters as initializers; None with
            `inference=False`, if the loss does not call the model, if the model returns nothing but the loss, or no
            tensors, such as a distribution, if it draws random numbers in evaluation mode too, or if the loss passes it
            a number that depends on a dynamic size.
        evaluation: the graph of the loss and the further outputs in evaluation mode, whose inputs are state, then the
            batch; None without `evaluation=True`.
    """

    model: onnx.ModelProto
    state: dict[str, np.ndarray]
    inference: onnx.ModelProto | None
    evaluation: onnx.ModelProto | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {summary(self.model)}>"

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        external: bool = False,
        frozen: str | None = None,
        prepared: bool = False,
    ) -> None:
        """Write a self-contained, linked step file, in which the initial state is the default values of the inputs.

        Above 2 GiB, which is protobuf's limit, or with `external`, the state is written into a second file, as external
        data of ONNX. It is a safetensors file, a checkpoint of the initial state: its tensors have the names of the
        inputs, those of the module's state_dict among them. Both files belong into the same folder. An existing file is
        replaced once the new one is complete; of two files the step file is replaced last, and does not accept other
        weights.

        Args:
            path: the step file, a new one or one to replace, such as "step.onnx"; the second one is "step.safetensors".
            external: whether to write the state into the second file in any case.
            frozen: name of a safetensors file in the same folder, such as "base.safetensors", for the parameters and
                buffers that the step does not change, in place of the second file. It is written if it does not exist;
                else it must have their values. So several steps, such as those of several adapters, share one file.
            prepared: whether to add the graphs with which the trainer in C and C++ updates the state in place, and
                accumulates gradients; `onnx_ops.Trainer` makes them itself.

        Raises:
            OSError: a file that cannot be read or written.
            StepError: a file for the frozen part that has other contents.
            ModelFileError: a path that is no regular file; constants of the graph that exceed 2 GiB; with `frozen` also
                `external`, what the step changes above 2 GiB, or nothing that is frozen.
        """
        save_step(
            self.model,
            self.state,
            self.inference,
            Path(path),
            external=external,
            frozen=frozen,
            evaluation=self.evaluation,
            prepared=prepared,
        )


def gradients(
    model: torch.nn.Module,
    loss: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    dynamic_shapes: DynamicShapes = None,
    opset_version: int = 21,
    check: bool = True,
    inference: bool | Callable[..., Any] = True,
    evaluation: bool = False,
    specialize: bool = False,
) -> Capture:
    """A loss and its gradients as one ONNX graph.

    Args:
        model: any module; its mode (train or eval) is kept.
        loss: `loss(model, *args)` returns a floating scalar, or a tuple or dict with the scalar first and further
            tensors to be reported.
        args: example arguments: tensors, and lists, tuples, dicts and dataclasses of tensors. Other values in them are
            constants of the graph.
        dynamic_shapes: the dimensions of the arguments that may change, as for torch.export.export. The sizes that
            `Dim("time", min=16, max=512)` allows are in the graph's metadata; `onnx_ops.Trainer` refuses others.
        opset_version: of the standard operators, at least 18.
        check: compare two steps of the graph with PyTorch, the second one with other parameters and arguments.
        inference: capture a forward graph in evaluation mode too, for `onnx_ops.Trainer.export`. True captures the
            first call of the model, without the inputs that only a loss needs which the model computes itself, such as
            `labels`, and without the outputs that depend on these. A function captures what it computes:
            `lambda model, ids, mask: model(ids, attention_mask=mask).logits`; the names of its further parameters are
            those of arguments of the loss, and of inputs of the graph. With False the capture is faster.
        evaluation: capture the loss and the further outputs with the model in evaluation mode too, for
            `onnx_ops.Trainer.evaluate`.
        specialize: where Python reads a number from a tensor and branches on it, as in `if labels.max() >= classes`,
            capture the way that the example takes. The step then has conditions: `onnx_ops.Trainer` raises a StepError
            that names the line, before the state changes, for numbers that would take another way. Other programs read
            the outputs `condition.holds` and `condition.numbers`; the forward graph fails. Where Python branches on a
            dynamic size, as in `if len(x) > 64`, the sizes that take the way of the example are likewise the only ones.

    Returns:
        A Capture. Inputs of its graph: parameters and buffers by their names in `state_dict` (tied ones once, by the
        first name), then the arguments by the names of the loss's parameters (`batch.x` for a tensor in a container).
        Outputs: `loss`, further outputs of the loss (the keys of a dict, `output.1` of a tuple), `grad.<name>` for each
        parameter and argument that requires a gradient, `next.<name>` for each buffer and parameter that the loss
        changes.

    Raises:
        CaptureError: the step cannot be captured, or the graph's results differ from PyTorch's.
    """
    joint = JointStep(model, loss, args, dynamic_shapes)
    return _captured(joint, _Options(opset_version, check, inference, evaluation, specialize))


def training_step(
    model: torch.nn.Module,
    loss: Callable[..., Any],
    args: tuple[Any, ...],
    optimizer: Optimizers,
    *,
    dynamic_shapes: DynamicShapes = None,
    clip_grad_norm: float | None = None,
    grad_scaler: torch.amp.GradScaler | None = None,
    averaged: AveragedModel | None = None,
    opset_version: int = 21,
    check: bool = True,
    inference: bool | Callable[..., Any] = True,
    evaluation: bool = False,
    specialize: bool = False,
) -> Capture:
    """A training step as one ONNX graph: as `gradients`, with the optimizer's update in place of the gradients.

    Args:
        model, loss, args, dynamic_shapes, opset_version, check, inference, evaluation, specialize: as for `gradients`.
        optimizer: of parameters of the model; its state is the initial state of the graph. An optimizer of torch.optim
            whose step needs no closure and whose gradients are dense, one of a registered class, or a subclass that
            overrides only `__init__`. Several optimizers, such as a Muon for matrices and an AdamW for the other
            parameters, in a list; their groups count as those of one.
        clip_grad_norm: maximal total norm of the gradients of the optimizer's parameters, as for
            torch.nn.utils.clip_grad_norm_.
        grad_scaler: a torch.amp.GradScaler("cpu"), for losses under torch.autocast with float16; its scale is state of
            the step. A step whose gradients are not finite lowers it, and leaves parameters and optimizer state as they
            were.
        averaged: a torch.optim.swa_utils.AveragedModel of the model, whose averages the step updates after the
            parameters, as `averaged.update_parameters(model)` does; its state is the initial state of the averages.

    Returns:
        A Capture. Further inputs of its graph: `optimizer.<state>.<parameter>`, and `learning_rate` (`learning_rate.0`
        and so on for several groups); with `averaged`, `averaged.<name>` for the averages, by their names in its
        state_dict. Outputs: `loss`, further outputs of the loss, `next.<input>` for each input that
        the step changes. A parameter without a gradient, or that is not in the optimizer, is an input without optimizer
        state; the graph does not compute its gradient.

    Raises:
        CaptureError: as for `gradients`; the optimizer is not supported.
    """
    joint = JointStep(model, loss, args, dynamic_shapes)
    scaling = LossScaling(grad_scaler, joint.parameters) if grad_scaler and grad_scaler.is_enabled() else None
    if scaling is not None and not isinstance(optimizer, torch.optim.Optimizer) and len(optimizer) > 1:
        raise CaptureError("a GradScaler skips the steps of each optimizer by itself; with one, expected one optimizer")
    averaging = None if averaged is None else Averaging(averaged, joint.parameters, joint.buffers)

    def update(used: Sequence[str]) -> Update:
        return Update(Plan(optimizer, joint.parameters, used), clip_grad_norm, scaling, averaging)

    scale = {} if scaling is None else {GRAD_SCALE: scaling.state()[GRAD_SCALE]}
    options = _Options(opset_version, check, inference, evaluation, specialize)
    return _captured(joint, options, update, scale, optimizer if isinstance(optimizer, Iterable) else [optimizer])


@dataclass(frozen=True)
class _Options:
    """Options of a capture, as `gradients` has them."""

    opset_version: int
    check: bool
    inference: bool | Callable[..., Any]
    evaluation: bool
    specialize: bool


def _captured(
    joint: JointStep,
    options: _Options,
    update_of: Callable[[Sequence[str]], Update] | None = None,
    scale: Mapping[str, torch.Tensor] = MappingProxyType({}),
    optimizers: Iterable[torch.optim.Optimizer] = (),
) -> Capture:
    """Capture a step.

    Args:
        joint: its forward and backward pass.
        options: of the capture.
        update_of: of the names of the parameters that have a gradient, the update; None for a step without.
        scale: the factor of the loss, by its name; empty without loss scaling.
        optimizers: those of the update.
    """
    refuse_autocast()
    inspections = Inspections()
    try:
        with _economical(joint), inspections.watched(hidden=False):
            return _attempted(joint, options, update_of, scale, optimizers)
    except (DifferenceError, UnexplainedError) as error:
        if not inspections.found:
            raise
        first = error
    try:
        with _economical(joint), inspections.watched(hidden=True):
            return _attempted(joint, options, update_of, scale, optimizers)
    except UnexplainedError:
        raise first from first.__cause__


@contextlib.contextmanager
def _economical(joint: JointStep) -> Iterator[None]:
    """A context in which the garbage collector takes less time, and freed tensors of a large model no memory."""
    large = sum(parameter.nbytes for parameter in joint.parameters.values()) > LARGE
    with collected_rarely(), returned_when_freed() if large else contextlib.nullcontext():
        yield


def _attempted(
    joint: JointStep,
    options: _Options,
    update_of: Callable[[Sequence[str]], Update] | None,
    scale: Mapping[str, torch.Tensor],
    optimizers: Iterable[torch.optim.Optimizer],
) -> Capture:
    progress = Progress()
    eager = RunInfo()
    with refused_control_flow(), constant_rates(optimizers):
        steps = trials(joint, eager, dict(scale), several=options.specialize)
    update = None if update_of is None else update_of(eager.used)
    joint.check_memory(eager, [] if update is None else [member.name for member in update.plan.members])
    states = {} if update is None else update.state()
    make = steps[0].make
    start = make()
    sizes_of_results = {name: tensor.nbytes for part in steps[0].run({}) for name, tensor in part.items()}
    outputs, size_of_results = set(sizes_of_results), sum(sizes_of_results.values())
    arguments = {name: start[name] for name in joint.arguments}
    state = {name: tensor for name, tensor in start.items() if name not in arguments and name not in scale}
    _check_names((*state, *arguments), [*states])
    values = state | states | arguments

    names: list[str] = []
    seen = RunInfo()

    def whole(given: Tensors) -> Tensors:
        outputs = joint.run(given, seen, eager.changed)
        if update is not None:
            outputs = update.outputs(given, outputs, seen)
        names[:] = outputs
        return outputs

    def trial_at(sizes: Mapping[str, Mapping[int, int]]) -> Trial | None:
        return resized(joint, make, sizes, outputs)

    def refuses(sizes: Mapping[str, Mapping[int, int]]) -> bool:
        try:
            return trial_at(sizes) is None
        except CaptureError:  # with other outputs
            return False

    progress.ended("steps of PyTorch")
    where = Locations(joint.model, options.specialize)
    fixed = joint.buffers.keys() - set(eager.changed)
    constants = joint.constants(eager.changed)
    followed = values if options.specialize else fixed
    traced = trace(whole, values, joint.dynamic, where, followed, constants, refuses)
    joint.check_constants(traced.graph, seen.changed)
    names += traced.condition_outputs()
    _check_names(values, [*names, *(WRITTEN + name for name in seen.changed)])
    progress.ended(f"trace of {len(traced.graph.graph.nodes)} operators")
    exported = to_onnx(traced, values, names, options.opset_version, where)
    select_by_op(exported)
    silus_by_op(exported)
    functions_by_op(exported)
    sorts_by_op(exported)
    renormalize(exported)
    progress.ended("translation to ONNX")
    ranges = tuple(found for found in traced.ranges if found.input in joint.arguments)
    record = Step(
        _resolve_inputs(exported.graph, joint, seen, {} if update is None else update.roles()),
        joint.tied,
        given_bounds(traced.dynamic),
        ranges,
        tuple(traced.conditions),
    )
    compared: list[Callable[[], Tensors]] = []
    verification: Verification | None = None
    tried = options.check and size_of_results <= KEPT
    if options.check:
        verification = Verification(_step(exported, record), joint, update)
        with (
            outside_explained(eager.outside),
            vectors_explained(traced.graph),
            ties_explained(traced.graph, lambda: rerun(joint, eager)),
        ):
            compared = _verify(verification, steps, more=tried)

    names_of_dimensions = named_dimensions(exported.graph)
    integers = [name for name, tensor in joint.arguments.items() if tensor.dtype in INTEGERS]
    sizes_of = verification if tried else None
    bounds = step_bounds(record.bounds, traced, names_of_dimensions, integers, trial_at, sizes_of)
    record = dataclasses.replace(record, bounds=bounds)
    if options.check:
        progress.ended("comparison with PyTorch")
    steps.clear()
    _remove_outputs(exported, gradients=update is not None)
    forward = Forward(
        joint, traced, options.opset_version, where, options.check, None if options.specialize else fixed, constants
    )
    trained = _inference_graph(forward, options.inference, eager, seen)
    evaluated = forward.of_loss(record.roles, compared) if options.evaluation else None
    if trained or evaluated:
        progress.ended("graphs in evaluation mode")
    of_model = joint.parameters.keys() | joint.buffers.keys()  # which go on to change
    initial = {name: to_array(values[name]) if name in of_model else as_array(values[name]) for name in record.roles}
    return Capture(_step(exported, record), initial, trained, evaluated)


def _inference_graph(
    forward: Forward, inference: bool | Callable[..., Any], eager: RunInfo, seen: RunInfo
) -> onnx.ModelProto | None:
    """The graph of the option `inference`: of a function, or of the first call of the model."""
    if callable(inference):
        return forward.of_function(inference)
    if not inference:
        return None
    try:
        return forward.of_first_call(eager, seen)
    except CaptureError as error:
        raise CaptureError(
            f"{error}. The step itself is captured; this is of the model in evaluation mode, without gradients:"
            " inference=False leaves that graph out, and inference= takes a function of the model in its place"
        ) from error


def _verify(verification: Verification, pending: list[Trial], *, more: bool) -> list[Callable[[], Tensors]]:
    """Compare successive steps.

    Args:
        verification: of the graph.
        pending: the trial of the example, then those of which the first one is compared for which the graph's
            conditions hold. It is emptied, as the results of a trial are as large as the parameters.
        more: whether further trials follow.

    Returns:
        What makes the values of the trials that were compared.
    """
    compared = [pending[0].make]
    verification.check_flags(pending[0])
    if (violated := verification.step(pending.pop(0))) is not None:
        raise CaptureError(f"the example violates a condition of the captured graph: {violated}")
    while pending:
        make = pending[0].make
        violated = verification.step(pending.pop(0), last=not more)
        if violated is None:
            pending.clear()
            return [*compared, make]
    warn(
        "the step is compared with PyTorch at the captured state only, as other states and batches that were tried"
        f" violate a condition: {violated}"
    )
    return compared


def _check_names(inputs: Iterable[str], outputs: list[str]) -> None:
    """Raise a CaptureError if two inputs or outputs have the same name."""
    seen = set()
    for name in (*inputs, *outputs):
        if name in seen:
            raise CaptureError(
                f"'{name}' would name two values of the step; rename the argument, parameter or reported output"
            )
        seen.add(name)


def _resolve_inputs(
    graph: ir.Graph, joint: JointStep, seen: RunInfo, of_update: Mapping[str, InputRole]
) -> dict[str, InputRole]:
    """Remove the inputs that are no state of the step, and return the roles of the others.

    A buffer that is not in the model's state_dict becomes a constant, unless the step changes it. The seed is removed
    if the step draws no random numbers. `of_update` has the roles of the state of the update.
    """
    roles = dict.fromkeys(joint.parameters, InputRole.PARAMETER) | dict.fromkeys(joint.buffers, InputRole.BUFFER)
    roles |= of_update
    roles[SEED] = InputRole.SEED
    for value in list(graph.inputs):
        name = value.name or ""
        constant = name in joint.buffers and name not in joint.persistent and name not in seen.changed
        if constant or (name == SEED and not seen.draws):
            graph.inputs.remove(value)
            del roles[name]
        if constant:
            make_constant(graph, value, joint.buffers[name].clone())
    return {value.name: roles[value.name] for value in graph.inputs if value.name in roles}


def _step(model: ir.Model, record: Step) -> onnx.ModelProto:
    """The graph of a step with the record in its metadata."""
    proto = model_proto(model)
    record.write_into(proto)
    return proto


def _remove_outputs(model: ir.Model, *, gradients: bool) -> None:
    """Remove state that stays as it was from the outputs, with `gradients` those too, and the nodes for them."""
    graph = model.graph
    kept = [
        value
        for value in graph.outputs
        if not _is_unchanged(value) and not (gradients and (value.name or "").startswith(GRADIENT))
    ]
    graph.outputs.clear()
    graph.outputs.extend(kept)
    RemoveUnusedNodesPass()(model)


def _is_unchanged(value: ir.Value) -> bool:
    """Whether an output is the next value of an input, and is that input."""
    node = value.producer()
    source = node.inputs[0] if node is not None and node.op_type == "Identity" else None
    return source is not None and source.is_graph_input() and value.name == f"{NEXT}{source.name}"
