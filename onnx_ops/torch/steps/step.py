"""A training step in PyTorch as a function of named tensors: loss, gradients, and new values of buffers."""

from __future__ import annotations

import contextlib
import inspect
import operator
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor

from onnx_ops.core.step_format import GRAD_SCALE, GRADIENT, LOSS, NEXT, OUTPUT, SEED
from onnx_ops.torch.base.arguments import DynamicShapes, bound, children, dimensions, replaced, shapes_by_name, tensors
from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.base.pairs import as_like, as_real
from onnx_ops.torch.steps.recomputation import ordered_recomputation
from onnx_ops.torch.tracing.effects import Effects, storage_of
from onnx_ops.torch.tracing.randomness import Draw, Random
from onnx_ops.torch.tracing.trace import Tensors

EXCHANGED = 2**18
"""Elements that are copied at a time where two tensors exchange theirs."""


class _Call(torch.nn.Module):
    """The loss as a module that contains the model, for torch.func.functional_call.

    `forward` computes the gradients too, so that activation checkpointing recomputes from the same parameters.
    """

    def __init__(self, model: torch.nn.Module, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self._loss = model, loss

    def forward(self, then: Callable[[Any], Any], *args: Any) -> tuple[Any, Tensors]:
        result = then(self._loss(self.model, *args))
        return result, named_tensors(self.model)


@dataclass(frozen=True)
class ModelCall:
    """A call of a model.

    Attributes:
        arguments: by the names of the parameters of the model's `forward`, the positional ones first.
        positional: the number of positional arguments.
    """

    arguments: dict[str, Any]
    positional: int

    def run(self, model: torch.nn.Module, arguments: Mapping[str, Any]) -> Any:
        """The result of the call with other arguments."""
        values = list(arguments.items())
        return model(*(value for _, value in values[: self.positional]), **dict(values[self.positional :]))


@dataclass(frozen=True)
class FunctionCall:
    """A call of a function of a model and of arguments of the loss.

    Attributes:
        function: `function(model, ...)`.
        arguments: by the names of its further parameters.
    """

    function: Callable[..., Any]
    arguments: dict[str, Any]

    def run(self, model: torch.nn.Module, arguments: Mapping[str, Any]) -> Any:
        """The result of the call with other arguments."""
        signature = inspect.signature(self.function)
        call = inspect.BoundArguments(signature, OrderedDict({next(iter(signature.parameters)): model, **arguments}))
        call.apply_defaults()
        return self.function(*call.args, **call.kwargs)


@dataclass
class RunInfo:
    """Information about a run of the step.

    Attributes:
        used: the parameters that have a gradient.
        changed: the buffers and parameters that the loss changes.
        draws: the number of draws of random numbers.
        call: the first call of the model outside the transforms of torch.func; None if the loss does not call it.
        returns_loss: whether that call returns the loss, and otherwise nothing but floating numbers.
        effects: the storages that operators read and wrote; empty in a run with FakeTensors.
        seeded: the draws from generators of the model, or from PyTorch's after the model has seeded that.
    """

    used: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    draws: int = 0
    call: ModelCall | None = None
    returns_loss: bool = False
    effects: Effects = field(default_factory=Effects)
    seeded: list[Draw] = field(default_factory=list)


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
        CaptureError: arguments or dynamic_shapes that do not fit, a model without parameters, or a name that both an
            argument and a parameter or buffer have.
    """

    def __init__(
        self, model: torch.nn.Module, loss: Callable[..., Any], args: tuple[Any, ...], dynamic_shapes: DynamicShapes
    ) -> None:
        if not isinstance(model, torch.nn.Module):
            raise CaptureError(f"the model is a {type(model).__name__}, expected a torch.nn.Module")
        if not isinstance(args, tuple | list):
            raise CaptureError(f"the example is a {type(args).__name__}, expected a tuple of the loss's arguments")
        self._call = _Call(model, loss)
        self._loss = loss
        self.model = model
        self.parameters = dict(model.named_parameters())
        self.buffers = {name: buffer for name, buffer in model.named_buffers() if buffer.layout is torch.strided}
        self._others = {name: buffer for name, buffer in model.named_buffers() if name not in self.buffers}
        self.persistent = set(model.state_dict())
        self.tied = _tied(model, self.parameters | self.buffers)
        self._given = bound(loss, args, skip=1)
        self.arguments = {name: tensor for name, tensor in tensors(self._given)}
        for name, tensor in self.arguments.items():
            if tensor.layout is not torch.strided:
                raise CaptureError(
                    f"the argument '{name}' is a sparse tensor, which a graph cannot have: pass its indices and its"
                    " values, and compute with index_select and index_add, or pass to_dense() of it"
                )
        self.dynamic = dict(dimensions(self._given, shapes_by_name(self._given, dynamic_shapes)))
        self._check_names()

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
        self, values: Tensors, info: RunInfo, changed: Collection[str] | None = None, own: Collection[str] = ()
    ) -> Tensors:
        """Run forward and backward pass.

        Args:
            values: parameters, buffers, seed and arguments, by name; they are not changed, except for those in `own`.
                With a GRAD_SCALE among them, this multiple of the loss is differentiated.
            info: filled with information about the run.
            changed: the parameters and buffers that the loss changes; None to find them, which needs a run without
                FakeTensors.
            own: names of parameters whose values the loss may change in their memory, which saves copies of them.

        Returns:
            Loss, further outputs, gradients and new values of changed parameters and buffers, by the names of the
            graph's outputs.

        Raises:
            CaptureError: a result of the loss, a gradient, a change of a parameter or a random operator that a graph
                cannot have.
        """
        info.call = None
        leaves = {name: values[name].detach() for name in (*self.parameters, *self.arguments)}
        copied = leaves.keys() - own if changed is None else changed
        leaves = {n: t.clone() if n in copied else t for n, t in leaves.items()}
        for name, tensor in (self.parameters | self.arguments).items():
            leaves[name].requires_grad_(tensor.requires_grad)
        given = self._registered({name: values[name].clone() for name in self.buffers} | leaves)
        for name, parameter in self.parameters.items():
            _follow_hooks(name, parameter, given[name])
        arguments = {name: leaves[name] for name in self.arguments}
        wanted = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
        before = {} if changed is not None else {n: (t._version, storage_of(t)) for n, t in given.items()}
        others = {name: (tensor, tensor._version) for name, tensor in self._others.items()}

        random = Random(values[SEED])
        scale = values.get(GRAD_SCALE)

        first = _FirstCall(self.model, info)

        def differentiated(result: Any) -> Tensors:
            loss, reported = _outputs(result)
            info.returns_loss = first.returned(loss)
            outputs = {LOSS: loss.detach()} | {name: value.detach() for name, value in reported.items()}
            random.closed = True
            found = _gradients(loss if scale is None else loss * scale, wanted)
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
            outputs, after = torch.func.functional_call(
                self._call,
                {f"model.{name}": tensor for name, tensor in given.items()},
                (differentiated, *replaced(self._given, arguments).values()),
                tie_weights=True,
            )
        info.draws, info.seeded = random.used, random.seeded
        for name in self.trained():
            if after.get(name) is not given[name]:
                raise CaptureError(
                    f"the loss puts another object in the place of the parameter '{name}', which the optimizer does not"
                    " know: change its elements in place, under torch.no_grad()"
                )
        for name, (tensor, version) in others.items():
            if after.get(name) is not tensor or tensor._version != version:
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
        changed_state = {name: as_real(after[name].detach()) for name in info.changed}
        for name, tensor in changed_state.items():
            if tensor.shape != values[name].shape:  # not that of `given`, which may have been resized in place
                raise CaptureError(
                    f"the step changes the shape of the buffer '{name}' from {tuple(values[name].shape)} to"
                    f" {tuple(tensor.shape)}, which state of a graph cannot: if the first call of the model gives"
                    " it its shape, call the model once before the capture"
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
            values: parameters, buffers and the tensors among the arguments, by name.
            call: the call, whose arguments are replaced.

        Returns:
            The tensors in the result: `output`, or `output.<path>` for several.
        """
        copies = {name: values[name].clone() for name in (*self.parameters, *self.buffers)}
        named = {f"model.{name}": tensor for name, tensor in self._registered(copies).items()}
        arguments = replaced(call.arguments, values)
        # Some models compute tensors from parameters when their mode changes: they have to use the given parameters.
        whole = _Call(self.model, lambda model: call.run(model.train().eval(), arguments))
        result, _ = torch.func.functional_call(whole, named, (lambda result: result,), tie_weights=True)
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
            return self._loss(model.train().eval(), *args)

        result, _ = torch.func.functional_call(
            _Call(self.model, loss),
            {f"model.{name}": tensor for name, tensor in given.items()},
            (lambda result: result, *replaced(self._given, leaves).values()),
            tie_weights=True,
        )
        value, reported = _outputs(result)
        return {LOSS: value.detach()} | {name: tensor.detach() for name, tensor in reported.items()}

    def check_constants(self, graph: torch.fx.GraphModule, changed: Collection[str]) -> None:
        """Check that no constant of a graph is a parameter or buffer, or a view of one.

        Buffers that are neither in the model's state_dict nor in `changed` may be constants.

        Raises:
            CaptureError: a constant of the graph is state of the step.
        """
        fixed = self.buffers.keys() - self.persistent - set(changed)
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


def _follow_hooks(name: str, parameter: torch.Tensor, leaf: torch.Tensor) -> None:
    """Let the hooks of a parameter change the gradient with respect to the tensor that is differentiated in its place.

    Args:
        name: of the parameter, for errors.
    """
    if getattr(parameter, "_post_accumulate_grad_hooks", None):
        raise CaptureError(
            f"the parameter '{name}' has a hook of register_post_accumulate_grad_hook, which a capture does not follow:"
            " remove it. A hook of register_hook may change the gradient, and the optimizer is captured with the step"
        )
    if leaf.requires_grad:
        for hook in (parameter._backward_hooks or {}).values():
            leaf.register_hook(hook)


def _gradients(loss: torch.Tensor, wanted: Tensors) -> dict[str, torch.Tensor | None]:
    """The gradient with respect to each leaf; None if the loss does not depend on it.

    What the backward of an autograd function adds to the `grad` of a leaf, as that of reversible layers does, which
    differentiates the layers that it computes again, is part of it.
    """
    try:
        found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True) if wanted else ()
    except RuntimeError as error:
        if "backward through the graph a second time" in str(error):
            raise CaptureError(
                "the loss is differentiated before the step differentiates it: return it without a call of backward(),"
                " as the capture takes the gradients and updates the parameters"
            ) from error
        if "use_reentrant" not in str(error):
            raise
        raise CaptureError(
            "the model recomputes activations by torch.utils.checkpoint with use_reentrant=True, which a capture cannot"
            " differentiate: pass use_reentrant=False (in transformers: gradient_checkpointing_enable("
            "gradient_checkpointing_kwargs={'use_reentrant': False}))"
        ) from error
    gradients = dict(zip(wanted, found, strict=True))
    for name, leaf in wanted.items():
        gradient = gradients[name]
        if leaf.grad is not None:
            gradient = gradients[name] = leaf.grad if gradient is None else gradient + leaf.grad
        if gradient is not None and gradient.layout is not torch.strided:
            raise CaptureError(f"the gradient of '{name}' is sparse; capture needs dense ones (sparse=False)")
    return gradients


def _outputs(result: Any) -> tuple[torch.Tensor, Tensors]:
    """The loss, and the further tensors of the loss function's result, by name."""
    if isinstance(result, torch.Tensor):
        loss, rest = result, {}
    else:
        inner = children(result)
        if not inner:
            raise CaptureError(f"the loss returned {type(result).__name__}, expected a scalar, a tuple or a dict")
        prefix = "" if isinstance(result, Mapping) else f"{OUTPUT}."
        (_, loss), *others = inner.items()
        rest = {n: t for key, value in others for n, t in tensors(value, f"{prefix}{key}")}
    if not isinstance(loss, torch.Tensor) or loss.dim() or not loss.is_floating_point():
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise CaptureError(f"the loss is {what}, expected a floating scalar: end it with .mean() or .sum()")
    if not loss.requires_grad:
        raise CaptureError("the loss depends on no parameter that requires a gradient")
    return loss, rest


class _FirstCall:
    """Records the arguments of the first call of a model in `info.call`.

    Tensors within a transform of torch.func do not exist after it, so calls with these do not count.
    """

    def __init__(self, model: torch.nn.Module, info: RunInfo) -> None:
        self._model, self._info = model, info
        self._returned: list[torch.Tensor] | None = None

    def __enter__(self) -> None:
        self._hooks = [
            self._model.register_forward_pre_hook(self._record, with_kwargs=True),
            self._model.register_forward_hook(self._record_result),
        ]

    def __exit__(self, *error: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        self._returned = None

    def returned(self, loss: torch.Tensor) -> bool:
        """Whether the call has returned a loss, and otherwise nothing but floating numbers."""
        found = self._returned or []
        return any(tensor is loss for tensor in found) and all(
            not tensor.dim() and tensor.is_floating_point() for tensor in found
        )

    def _record(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._info.call is None:
            arguments = bound(model.forward, args) | kwargs
            if not any(is_functorch_wrapped_tensor(tensor) for _, tensor in tensors(arguments)):
                self._info.call = ModelCall(arguments, len(args))

    def _record_result(self, model: torch.nn.Module, args: tuple[Any, ...], result: Any) -> None:
        if self._returned is None and self._info.call is not None:
            self._returned = [tensor for _, tensor in tensors(result)]
