"""A training step in PyTorch as a function of named tensors: loss, gradients, and new values of buffers."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from onnx_ops.core.step_format import GRAD_SCALE, GRADIENT, LOSS, NEXT, OUTPUT, SEED
from onnx_ops.torch.base.arguments import DynamicShapes, bound, dimensions, replaced, shapes_by_name, tensors
from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.base.pairs import as_like, as_real
from onnx_ops.torch.steps.calls import FirstCall, FunctionCall, ModelCall, RunInfo
from onnx_ops.torch.steps.differentiation import follow_hooks, gradients, loss_and_outputs
from onnx_ops.torch.steps.memory import overlapping
from onnx_ops.torch.steps.recomputation import ordered_recomputation
from onnx_ops.torch.steps.references import References
from onnx_ops.torch.tracing.effects import storage_of
from onnx_ops.torch.tracing.program import Tensors
from onnx_ops.torch.tracing.randomness import Random

EXCHANGED = 2**18
"""Elements that are copied at a time where two tensors exchange theirs."""


class ReshapedError(CaptureError):
    """A step changes the shapes of buffers.

    Args:
        shapes: of each of them, by name, before and after the step.
    """

    def __init__(self, shapes: Mapping[str, tuple[torch.Size, torch.Size]]) -> None:
        name, (before, after) = next(iter(shapes.items()))
        super().__init__(
            f"the step changes the shape of the buffer '{name}' from {tuple(before)} to {tuple(after)}, which state of"
            " a graph cannot: if the first call of the model gives it its shape, call the model once before the capture"
        )
        self.shapes = shapes


class _Call(torch.nn.Module):
    """The loss as a module that contains the model.

    `forward` computes the gradients too, so that activation checkpointing recomputes from the same parameters.
    """

    def __init__(self, model: torch.nn.Module, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self._loss = model, loss

    def forward(self, then: Callable[[Any], Any], *args: Any) -> tuple[Any, Tensors]:
        result = then(self._loss(self.model, *args))
        return result, dict(_names(self.model))


class JointStep:
    """Forward and backward pass of a loss as one function of named tensors.

    Args:
        model: the module that the loss calls.
        loss: `loss(model, *args)` returns a scalar, or a tuple or dict with the scalar first.
        args: example arguments.
        dynamic_shapes: their dynamic dimensions, as for torch.export.export.

    Attributes:
        parameters, buffers: those of the model, by name; a tied tensor has its first name. Buffers that are not dense,
            such as sparse ones, are no state of the step; they may be constants of the graph.
        persistent: the names in the model's state_dict.
        tied: the other names of tied tensors, with the first name.
        arguments: the tensors among the arguments, by path.
        dynamic: the dynamic dimensions of the arguments.

    Raises:
        CaptureError: arguments or dynamic_shapes that do not fit, a model without parameters or with uninitialized
            ones, or a name that both an argument and a parameter or buffer have.
    """

    def __init__(
        self, model: torch.nn.Module, loss: Callable[..., Any], args: tuple[Any, ...], dynamic_shapes: DynamicShapes
    ) -> None:
        if not isinstance(model, torch.nn.Module):
            raise CaptureError(f"the model is a {type(model).__name__}, expected a torch.nn.Module")
        if isinstance(model, torch.jit.ScriptModule):
            raise CaptureError("the model is a program of TorchScript, expected the torch.nn.Module it was made from")
        if not isinstance(args, tuple | list):
            raise CaptureError(f"the example is a {type(args).__name__}, expected a tuple of the loss's arguments")
        _check_initialized(model)
        self._call = _Call(model, loss)
        self.loss = loss
        self.model = model
        self.parameters = dict(model.named_parameters())
        self.buffers = {name: buffer for name, buffer in model.named_buffers() if buffer.layout is torch.strided}
        self._others = {name: buffer for name, buffer in model.named_buffers() if name not in self.buffers}
        self._references = References(model, loss, self.parameters | self.buffers)
        self.persistent = set(model.state_dict())
        self.tied = _tied(model, self.parameters | self.buffers)
        self._further_names = _further_names(model)
        self._given = bound(loss, args, skip=1)
        self.arguments = {name: tensor for name, tensor in tensors(self._given)}
        self.dynamic = dict(dimensions(self._given, shapes_by_name(self._given, dynamic_shapes)))
        self._check_names()

    def leave(self, names: Collection[str]) -> None:
        """Let buffers be attributes of their modules like any other, and no state of the step."""
        self.buffers = {name: buffer for name, buffer in self.buffers.items() if name not in names}
        self._references = References(self.model, self.loss, self.parameters | self.buffers)

    def state(self) -> Tensors:
        """The current parameters and buffers, in the model's memory, and a seed of 0; complex ones as (..., 2)."""
        values = {**self.parameters, **self.buffers, SEED: torch.zeros((), dtype=torch.int64)}
        return {name: as_real(tensor.detach()) for name, tensor in values.items()}

    def _registered(self, values: Tensors) -> Tensors:
        """The parameters and buffers as the model has them, of values as `state` returns them."""
        return {name: as_like(values[name], own) for name, own in (self.parameters | self.buffers).items()}

    def argument_values(self) -> Tensors:
        """Copies of the tensors among the arguments."""
        return {name: tensor.detach().clone() for name, tensor in self.arguments.items()}

    def trained(self) -> list[str]:
        """The names of the parameters that require a gradient."""
        return [name for name, parameter in self.parameters.items() if parameter.requires_grad]

    def run(
        self,
        values: Tensors,
        info: RunInfo,
        changed: Collection[str] | None = None,
        own: Collection[str] = (),
        differentiated: Collection[str] | None = None,
    ) -> Tensors:
        """Run forward and backward pass.

        Args:
            values: parameters, buffers, seed and arguments, by name; they are not changed, except for those in `own`.
                With a GRAD_SCALE among them, this multiple of the loss is differentiated.
            info: filled with information about the run.
            changed: the parameters and buffers that the loss changes; None to find them, which needs a run without
                FakeTensors.
            own: names of parameters whose values the loss may change in their memory, which saves copies of them.
            differentiated: names of the parameters and arguments whose gradients are computed; None for all of them.

        Returns:
            Loss, further outputs, gradients and new values of changed parameters and buffers, by the names of the
            graph's outputs.

        Raises:
            CaptureError: a result of the loss, a gradient, a change of a parameter or a random operator that a graph
                cannot have.
        """
        info.call = None
        leaves = {name: values[name].detach() for name in (*self.parameters, *self.arguments)}
        copied = leaves.keys() - own if changed is None else {*changed, *self.arguments}
        leaves = {n: t.clone() if n in copied else t for n, t in leaves.items()}
        for name, tensor in (self.parameters | self.arguments).items():
            leaves[name].requires_grad_(tensor.requires_grad)
        given = self._registered({name: values[name].clone() for name in self.buffers} | leaves)
        for name, parameter in self.parameters.items():
            follow_hooks(name, parameter, given[name])
        arguments = {name: leaves[name] for name in self.arguments}
        among = leaves if differentiated is None else differentiated
        wanted = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad and name in among}
        before = {} if changed is not None else {n: (t._version, storage_of(t)) for n, t in given.items()}
        others = {name: (tensor, tensor._version) for name, tensor in self._others.items()}

        random = Random(values[SEED])
        scale = values.get(GRAD_SCALE)

        first = FirstCall(self.model, info)

        def with_gradients(result: object) -> Tensors:
            loss, reported = loss_and_outputs(result)
            info.returns_loss = first.returned(loss)
            outputs = {LOSS: loss.detach().reshape(())} | {name: value.detach() for name, value in reported.items()}
            random.closed = True
            found = gradients(loss if scale is None else loss * scale, wanted)
            info.used = [n for n, gradient in found.items() if gradient is not None and n in self.parameters]
            filled = {n: torch.zeros_like(wanted[n]) if g is None else g for n, g in found.items()}
            if scale is not None:
                inverse = scale.double().reciprocal().to(scale.dtype)
                filled = {name: gradient * inverse for name, gradient in filled.items()}
            return outputs | {GRADIENT + name: gradient for name, gradient in filled.items()}

        with (
            random,
            info.effects if changed is None else contextlib.nullcontext(),
            first,
            ordered_recomputation(random, given.values()),
        ):
            outputs, after = self._run(self._call, given, with_gradients, *replaced(self._given, arguments).values())
        info.draws, info.seeded = random.used, random.seeded
        for name in self.buffers.keys() - after.keys():
            raise CaptureError(
                f"the loss removes the buffer '{name}' from the model, or puts None in its place, which a graph cannot:"
                " its state has the same tensors after each step"
            )
        for name, first_name in self._further_names.items():
            if after.get(name) is not after.get(first_name):
                raise CaptureError(
                    f"the loss puts another object in the place of '{name}' or of '{first_name}', which are one tensor"
                    " in the model: change its elements in place, or make them two, by .clone(), before the capture"
                )
        for name in self.trained():  # PyTorch's optimizer skips parameters without a gradient, in each step
            if after.get(name) is not given[name] and (name not in after or name in info.used):
                raise CaptureError(
                    f"the loss puts another object in the place of the parameter '{name}', which has a gradient, and"
                    " which the optimizer does not know: change its elements in place, under torch.no_grad()"
                )
        known = {id(tensor) for tensor in given.values()}
        for name, tensor in after.items():
            is_known = name in given or id(tensor) in known
            if isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad and not is_known:
                raise CaptureError(
                    f"the loss adds the parameter '{name}' to the model, which the optimizer does not know: if the"
                    " first call of the model makes it, call the model once before the optimizer is made"
                )
        for name, (tensor, version) in others.items():
            if tensor._version != version or after.get(name) is not tensor:
                raise CaptureError(f"the loss changes the buffer '{name}', which is sparse; state of a graph is dense")
        info.changed = [
            name
            for name, tensor in given.items()
            if name in after
            and (
                name in changed
                if changed is not None
                else after[name] is not tensor
                or before[name] != (tensor._version, storage_of(tensor))
                or info.effects.wrote(tensor)
            )
        ]
        if changed is None:
            info.replaced = [name for name in info.changed if storage_of(after[name]) != before[name][1]]
            info.overlapping = list(overlapping({name: after[name] for name in given if name in after}))
        changed_state = {name: as_real(after[name].detach()) for name in info.changed}
        shapes = {  # that of `given` may have been resized in place
            name: (values[name].shape, tensor.shape)
            for name, tensor in changed_state.items()
            if tensor.shape != values[name].shape
        }
        if shapes:
            raise ReshapedError(shapes)
        for name, tensor in changed_state.items():
            if tensor.dtype != values[name].dtype:
                raise CaptureError(
                    f"the loss changes the dtype of '{name}' from {values[name].dtype} to {tensor.dtype}, which state"
                    " of a graph cannot: convert what is put in its place"
                )
        outputs |= {NEXT + name: tensor for name, tensor in changed_state.items()}
        if random.used:
            outputs[NEXT + SEED] = values[SEED] + 1
        return outputs

    def call_of(self, function: Callable[..., Any]) -> FunctionCall:
        """The call of a function of the model with those arguments of the loss that it has parameters for.

        Raises:
            CaptureError: no function of the model; a parameter that is no argument of the loss.
        """
        try:
            _, *others = inspect.signature(function).parameters.values()
        except (TypeError, ValueError) as error:  # built in, without a signature, or without parameters
            raise CaptureError(
                "the function for inference has no parameter, expected one of the model and of arguments of the loss,"
                f" such as lambda model, {next(iter(self._given), 'x')}: ..."
            ) from error
        arguments: dict[str, Any] = {}
        for parameter in others:
            name = parameter.name
            if parameter.kind is parameter.VAR_POSITIONAL:
                arguments[name] = tuple(arg for key, arg in self._given.items() if key.rpartition(".")[0] == name)
            elif name in self._given:
                arguments[name] = self._given[name]
            elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
                raise CaptureError(
                    f"the function for inference has the parameter '{name}', which is no argument of the loss; expected"
                    f" some of {', '.join(self._given) or 'none'}"
                )
        return FunctionCall(function, arguments)

    def infer(self, values: Tensors, call: ModelCall | FunctionCall) -> Tensors:
        """Run the model in evaluation mode, in which it stays.

        Args:
            values: parameters, buffers and tensors among the arguments, by name.
            call: the call, whose arguments of these names are replaced.

        Returns:
            The tensors in the result: `output`, or `output.<path>` for several.
        """
        copies = {name: values[name].clone() for name in (*self.parameters, *self.buffers)}
        arguments = replaced(call.arguments, {**dict(tensors(call.arguments)), **values})
        # Some models compute tensors from parameters when their mode changes: they have to use the given parameters.
        whole = _Call(self.model, lambda model: call.run(model.train().eval(), arguments))
        result, _ = self._run(whole, self._registered(copies), lambda result: result)
        return {name: tensor.detach() for name, tensor in tensors(result, OUTPUT)}

    def evaluate(self, values: Tensors) -> Tensors:
        """Run the loss with the model in evaluation mode, in which it stays.

        Args:
            values: parameters, buffers and arguments, by name; they are not changed.

        Returns:
            Loss and further outputs, by the names of the graph's outputs.
        """
        leaves = {
            name: values[name].detach().clone().requires_grad_(tensor.requires_grad)
            for name, tensor in (self.parameters | self.arguments).items()
        }
        given = self._registered({name: values[name].clone() for name in self.buffers} | leaves)

        def loss(model: torch.nn.Module, *args: Any) -> Any:
            return self.loss(model.train().eval(), *args)

        result, _ = self._run(
            _Call(self.model, loss), given, lambda result: result, *replaced(self._given, leaves).values()
        )
        value, reported = loss_and_outputs(result)
        return {LOSS: value.detach().reshape(())} | {name: tensor.detach() for name, tensor in reported.items()}

    def _run(self, call: _Call, given: Tensors, then: Callable[[Any], Any], *args: Any) -> tuple[Any, Tensors]:
        """The result of a call with the given parameters and buffers in place of the model's, and those after it."""
        with self._references.replaced(given):
            result: tuple[Any, Tensors] = call(then, *args)
        return result

    def constants(self, changed: Collection[str]) -> set[str]:
        """The names of the buffers that are constants: that are neither in the model's state_dict nor in `changed`."""
        return self.buffers.keys() - self.persistent - set(changed)

    def check_constants(self, graph: torch.fx.GraphModule, changed: Collection[str]) -> None:
        """Check that no constant of a graph is a parameter or buffer, or a view of one.

        Buffers that are neither in the model's state_dict nor in `changed` may be constants.

        Raises:
            CaptureError: a constant of the graph is state of the step.
        """
        fixed = self.constants(changed)
        state = {storage_of(t): name for name, t in (self.parameters | self.buffers).items() if name not in fixed}
        for tensor in _constants(graph):
            name = state.get(storage_of(tensor))
            if name is not None:
                kind = "parameter" if name in self.parameters else "buffer"
                raise CaptureError(
                    f"the loss reads the {kind} '{name}' by a reference from outside the model's modules, such as a"
                    " list or a variable, so that the graph would have its value of now as a constant: read it as an"
                    " attribute of its module"
                )

    def check_memory(self, info: RunInfo, updated: Collection[str]) -> None:
        """Check that no tensor of the state has elements of another one that a step changes.

        Args:
            info: about a run of the step.
            updated: the parameters that the optimizer changes.

        Raises:
            CaptureError: with the names of both.
        """
        kept = {name: t for name, t in (self.parameters | self.buffers).items() if name not in info.replaced}
        changed = {*info.changed, *updated}
        in_place = changed - (set(info.replaced) - set(updated))
        before = ((pair, changed) for pair in overlapping(kept))
        after = ((pair, in_place) for pair in info.overlapping)  # of which the next step changes both
        for pair, written in itertools.chain(before, after):
            if not written.isdisjoint(pair):
                one, other = sorted(pair, key=lambda name: name not in written)
                raise CaptureError(
                    f"'{one}', which each step changes, and '{other}' of the model are in the same memory; a graph has"
                    " each in its own: use one parameter for both, as in decoder.weight = encoder.weight, compute one"
                    " of the other where it is used, or copy it by clone()"
                )

    @contextlib.contextmanager
    def with_parameters(self, values: Tensors) -> Iterator[Tensors]:
        """Set the model's parameters in place until exit, for code that reads them by other references.

        Args:
            values: by name, with the shapes and dtypes of `state`. Until exit they have the elements of the parameters,
                and the parameters theirs, so that no third set of them is in memory.

        Yields:
            The values, whose parameters are in the memory of the model.
        """
        pairs = [(as_real(parameter.data), values[name]) for name, parameter in self.parameters.items()]
        for parameter, value in pairs:
            _exchange(parameter, value)
        try:
            yield values | {name: tensor for name, tensor in self.state().items() if name in self.parameters}
        finally:
            for parameter, value in reversed(pairs):  # which restores parameters that share memory
                _exchange(parameter, value)

    def _check_names(self) -> None:
        if not self.parameters:
            raise CaptureError("the model has no parameters")
        for name, tensor in self.arguments.items():
            if tensor.layout is not torch.strided:
                raise CaptureError(
                    f"argument '{name}' is sparse: pass its indices and values, and make a matrix of them in the loss,"
                    " by torch.sparse_coo_tensor(indices, values, size)"
                )
            if name in self.parameters or name in self.buffers:
                raise CaptureError(f"'{name}' is an argument of the loss and a name in the model; rename one of them")


def _check_initialized(model: torch.nn.Module) -> None:
    """Raise a CaptureError for a parameter or buffer that has no shape yet."""
    for name, tensor in named_tensors(model).items():
        if is_lazy(tensor):
            raise CaptureError(
                f"'{name}' of the model is uninitialized, as in lazy modules before their first call: call the model"
                " once before the capture"
            )


def _exchange(first: torch.Tensor, second: torch.Tensor) -> None:
    """Exchange the elements of two tensors of the same shape, a part at a time."""
    rows = max(EXCHANGED * max(len(first), 1) // max(first.numel(), 1), 1) if first.dim() else 0
    parts = zip(first.split(rows), second.split(rows), strict=True) if rows else [(first, second)]
    for one, other in parts:
        kept = one.clone()
        one.copy_(other)
        other.copy_(kept)


def _tied(model: torch.nn.Module, first: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Further names of tied tensors in the model's state_dict, with the first name."""
    names = {id(tensor): name for name, tensor in first.items()}
    return {
        other: names[id(tensor)]
        for other, tensor in model.state_dict(keep_vars=True).items()
        if other not in first and id(tensor) in names
    }


def _further_names(model: torch.nn.Module) -> dict[str, str]:
    """All further names of tied parameters and buffers, with the first name."""
    first = {id(tensor): name for name, tensor in named_tensors(model).items()}
    return {name: first[id(tensor)] for name, tensor in _names(model) if first[id(tensor)] != name}


def _names(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """All names of the parameters and buffers of a model, tensors of several names under each."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def named_tensors(model: torch.nn.Module) -> Tensors:
    """The parameters and buffers of a model by name, tensors of several names under the first."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def _constants(graph: torch.fx.GraphModule) -> Iterator[torch.Tensor]:
    """The constant tensors of a graph and its subgraphs."""
    for module in graph.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            value = operator.attrgetter(node.target)(module) if node.op == "get_attr" else None
            if isinstance(value, torch.Tensor):
                yield value
