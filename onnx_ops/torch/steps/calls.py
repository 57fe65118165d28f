"""What is known of a run of a step: what it reads, writes, draws and calls."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._dynamo.eval_frame import OptimizedModule

from onnx_ops.torch.base.arguments import bound, tensors
from onnx_ops.torch.tracing.effects import Effects
from onnx_ops.torch.tracing.randomness import Draw


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
        replaced: those of them that are in other memory afterwards; empty in a run that does not find them.
        overlapping: the pairs of buffers and parameters that have memory in common afterwards; empty in such a run.
        draws: the number of draws of random numbers.
        call: the first call of the model outside the transforms of torch.func; None if the loss does not call it.
        returns_loss: whether that call returns the loss, and otherwise nothing but floating numbers.
        effects: the storages that operators read and wrote; empty in a run with FakeTensors.
        seeded: the draws from generators of the model, or from PyTorch's after the model has seeded that.
        outside: what the loss does outside of tensors, with a remedy, if two runs agree nevertheless.
    """

    used: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    overlapping: list[tuple[str, str]] = field(default_factory=list)
    draws: int = 0
    call: ModelCall | None = None
    returns_loss: bool = False
    effects: Effects = field(default_factory=Effects)
    seeded: list[Draw] = field(default_factory=list)
    outside: str = ""


class FirstCall:
    """Records the arguments of the first call of a model in `info.call`.

    Tensors within a transform of torch.func do not exist after it, so calls with these do not count. Nor do those of
    copies of the model that the loss makes, which have its hooks.
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

    def __deepcopy__(self, memo: dict[int, Any]) -> FirstCall:
        """Itself: what it records has references to memory that are not to be copied."""
        return self

    def returned(self, loss: torch.Tensor) -> bool:
        """Whether the call has returned a loss, and otherwise nothing but floating numbers."""
        found = self._returned or []
        return any(tensor is loss for tensor in found) and all(
            tensor is loss or (not tensor.dim() and tensor.is_floating_point()) for tensor in found
        )

    def _record(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if model is self._model and self._info.call is None:
            whole = model._orig_mod if isinstance(model, OptimizedModule) else model  # of torch.compile
            arguments = bound(whole.forward, args) | kwargs
            if not any(is_functorch_wrapped_tensor(tensor) for _, tensor in tensors(arguments)):
                self._info.call = ModelCall(arguments, len(args))

    def _record_result(self, model: torch.nn.Module, args: tuple[Any, ...], result: object) -> None:
        if model is self._model and self._returned is None and self._info.call is not None:
            self._returned = [tensor for _, tensor in tensors(result)]
