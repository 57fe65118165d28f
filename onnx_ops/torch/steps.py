"""The function that a captured step computes, in PyTorch: loss, gradients, new buffers, and the optimizer's update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from onnx_ops.torch.arguments import bound, children, dimensions, replaced, shapes_by_name, tensors
from onnx_ops.torch.errors import CaptureError
from onnx_ops.torch.tracing import Tensors
from onnx_ops.torch.whole.randomness import Random

SEED = "seed"


class _Call(torch.nn.Module):
    """The loss as a module with the model in it, so that all of its parameters can be replaced for one call."""

    def __init__(self, model: torch.nn.Module, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self._loss = model, loss

    def forward(self, *args: Any) -> tuple[Any, Tensors]:
        result = self._loss(self.model, *args)
        return result, dict(self.model.named_buffers())


@dataclass(frozen=True)
class ModelCall:
    """A call of a model: its arguments by the names of the parameters of its forward, the positional ones first."""

    arguments: dict[str, Any]
    positional: int

    def run(self, model: torch.nn.Module, arguments: Mapping[str, Any]) -> Any:
        """The same call with other arguments."""
        values = list(arguments.items())
        return model(*(value for _, value in values[: self.positional]), **dict(values[self.positional :]))


@dataclass
class Seen:
    """What a run of the step has shown.

    Attributes:
        used: parameters that have a gradient.
        changed: buffers that are others after the step.
        draws: how many operators have drawn random numbers.
        call: how the model was called first; None if it was not.
    """

    used: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    draws: int = 0
    call: ModelCall | None = None


class JointStep:
    """Forward and backward pass of a loss as one function of named tensors.

    Attributes:
        parameters, buffers: those of the model, by their first names.
        persistent: the names in the model's state_dict.
        tied: other names of them, with the first.
        arguments: the tensors among the arguments, by path.
        dynamic: their dynamic dimensions.
    """

    def __init__(
        self, model: torch.nn.Module, loss: Callable[..., Any], args: tuple[Any, ...], dynamic_shapes: Any
    ) -> None:
        self._call = _Call(model, loss)
        self.model = model
        self.parameters = dict(model.named_parameters())
        self.buffers = dict(model.named_buffers())
        self.persistent = set(model.state_dict())
        self.tied = _tied(model, self.parameters | self.buffers)
        self._given = bound(loss, args, skip=1)
        self.arguments = {name: tensor for name, tensor in tensors(self._given)}
        self.dynamic = dict(dimensions(self._given, shapes_by_name(self._given, dynamic_shapes)))
        self._check_names()

    def state(self) -> Tensors:
        """Parameters, buffers and seed, with their values now."""
        values = {**self.parameters, **self.buffers, SEED: torch.zeros((), dtype=torch.int64)}
        return {name: tensor.detach().clone() for name, tensor in values.items()}

    def arguments_now(self) -> Tensors:
        """The arguments that are tensors, with their values now."""
        return {name: tensor.detach().clone() for name, tensor in self.arguments.items()}

    def trained(self) -> list[str]:
        """The parameters that require a gradient."""
        return [name for name, parameter in self.parameters.items() if parameter.requires_grad]

    def run(self, values: Tensors, seen: Seen) -> Tensors:
        """Loss, further outputs, gradients and new buffers, under the names that the graph's outputs have."""
        parameters = {n: values[n].detach().requires_grad_(p.requires_grad) for n, p in self.parameters.items()}
        buffers = {name: values[name].clone() for name in self.buffers}
        arguments = {n: values[n].detach().requires_grad_(t.requires_grad) for n, t in self.arguments.items()}
        before = {name: buffer._version for name, buffer in buffers.items()}
        writes = Writes()

        given = replaced(self._given, arguments)
        random = Random(values[SEED])
        with random, writes, _first_call(self.model, seen):
            result, after = torch.func.functional_call(
                self._call,
                ({f"model.{k}": v for k, v in parameters.items()}, {f"model.{k}": v for k, v in buffers.items()}),
                tuple(given.values()),
                tie_weights=True,
            )
        loss, reported = _outputs(result)
        seen.draws = random.used
        wanted = {n: parameters[n] for n in self.trained()}
        wanted |= {n: t for n, t in arguments.items() if t.requires_grad}
        outputs = {"loss": loss.detach()} | {name: value.detach() for name, value in reported.items()}
        random.closed = True
        with random:
            found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True) if wanted else ()
        for (name, tensor), gradient in zip(wanted.items(), found, strict=True):
            if gradient is not None and gradient.layout is not torch.strided:
                raise CaptureError(f"the gradient of '{name}' is sparse; capture needs dense ones (sparse=False)")
            outputs[f"grad.{name}"] = torch.zeros_like(tensor) if gradient is None else gradient
        seen.used = [n for n, g in zip(wanted, found, strict=True) if g is not None and n in parameters]
        seen.changed = [
            n for n, b in buffers.items() if after[n] is not b or b._version != before[n] or writes.are_to(b)
        ]
        for name in seen.changed:
            outputs[f"next.{name}"] = after[name].detach()
        if random.used:
            outputs[f"next.{SEED}"] = values[SEED] + 1
        return outputs

    def infer(self, values: Tensors, call: ModelCall) -> Tensors:
        """What the model returns in evaluation mode for a call with other arguments.

        Returns:
            `output`, or `output.<place>` for several tensors. The model is left in evaluation mode.
        """
        named = {f"model.{name}": values[name].clone() for name in (*self.parameters, *self.buffers)}
        arguments = replaced(call.arguments, values)
        # Some models compute tensors from parameters when their mode changes; these are to be made of the given ones.
        whole = _Call(self.model, lambda model: call.run(model.train().eval(), arguments))
        result, _ = torch.func.functional_call(whole, named, (), tie_weights=True)
        return {name: tensor.detach() for name, tensor in tensors(result, "output")}

    def _check_names(self) -> None:
        if not self.parameters:
            raise CaptureError("the model has no parameters")
        for name in self.arguments:
            if name in self.parameters or name in self.buffers:
                raise CaptureError(f"'{name}' is an argument of the loss and a name in the model; rename one of them")


def _tied(model: torch.nn.Module, first: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Names in the model's state_dict of tensors that have another name before."""
    names = {id(tensor): name for name, tensor in first.items()}
    return {
        other: names[id(tensor)]
        for other, tensor in model.state_dict(keep_vars=True).items()
        if other not in first and id(tensor) in names
    }


def _outputs(result: Any) -> tuple[torch.Tensor, Tensors]:
    """The loss, and what else is to be reported, by name."""
    if isinstance(result, torch.Tensor):
        loss, rest = result, {}
    else:
        held = children(result)
        if not held:
            raise CaptureError(f"the loss returned {type(result).__name__}, expected a scalar, a tuple or a dict")
        prefix = "" if isinstance(result, Mapping) else "output."
        (_, loss), *others = held.items()
        rest = {n: t for key, value in others for n, t in tensors(value, f"{prefix}{key}")}
    if not isinstance(loss, torch.Tensor) or loss.dim() or not loss.is_floating_point():
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise CaptureError(f"the loss is {what}, expected a floating scalar: end it with .mean() or .sum()")
    if not loss.requires_grad:
        raise CaptureError("the loss depends on no parameter that requires a gradient")
    return loss, rest


class Writes(TorchDispatchMode):
    """While it is entered: notes the tensors that operators write to.

    Batch norm writes its running statistics without counting that in their versions.
    """

    def __init__(self) -> None:
        super().__init__()
        self._written: list[torch.Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        declared = zip(func._schema.arguments, args, strict=False)
        self._written += [value for name, value in declared if name.alias_info is not None and name.alias_info.is_write]
        if func is torch.ops.aten.native_batch_norm.default and args[5]:  # writes what it does not declare
            self._written += args[3:5]
        return func(*args, **(kwargs or {}))

    def are_to(self, tensor: torch.Tensor) -> bool:
        """Whether an operator has written to a tensor."""
        return any(written is tensor for written in self._written)


class _first_call:
    """Notes the arguments of the first call of a model."""

    def __init__(self, model: torch.nn.Module, seen: Seen) -> None:
        self._model, self._seen = model, seen

    def __enter__(self) -> None:
        self._hook = self._model.register_forward_pre_hook(self._note, with_kwargs=True)

    def __exit__(self, *error: Any) -> None:
        self._hook.remove()

    def _note(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._seen.call is None:
            self._seen.call = ModelCall(bound(model.forward, args) | kwargs, len(args))
