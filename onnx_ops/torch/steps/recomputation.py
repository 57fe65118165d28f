"""Activation checkpointing: parts of a model whose activations the backward pass recomputes.

The recomputed operators read tensors from outside the part through barriers that wait for the gradient of the part's
output. Otherwise they would be equal to those of the forward pass, so that optimizers would merge both, or a runtime
could execute them before their results are needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
import torch.utils.checkpoint
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map_only

from onnx_ops.torch.base.arguments import tensors
from onnx_ops.torch.operators.barriers import barrier
from onnx_ops.torch.tracing.effects import Storages, storage_of, storages, written_storages
from onnx_ops.torch.tracing.modes import OperatorMode, leaves_of
from onnx_ops.torch.tracing.randomness import Random


@contextlib.contextmanager
def ordered_recomputation(random: Random, state: Iterable[torch.Tensor]) -> Iterator[None]:
    """A context in which torch.utils.checkpoint recomputes after the gradient, and draws the same random numbers.

    With use_reentrant=True it does so in the way of use_reentrant=False, which can be traced. Its results are the same:
    they have no gradient where no argument requires one.

    Args:
        random: draws the random numbers of the step.
        state: the parameters and buffers, which are read without barriers.
    """
    own = storages(state)
    # Modules that have imported `checkpoint` call the decorator's wrapper of it, which calls this attribute.
    undecorated = torch.utils.checkpoint.checkpoint.__wrapped__

    def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: bool | None = None, **kwargs: Any) -> Any:
        constant = use_reentrant is not False and not any(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
        with torch.no_grad() if constant else contextlib.nullcontext():
            return undecorated(_Part(function, random, own), *args, use_reentrant=False, **kwargs)

    def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        return checkpoint(function, *args, use_reentrant=True, preserve_rng_state=preserve_rng_state)

    with (
        mock.patch.object(undecorated, "__dynamo_disable", checkpoint, create=True),
        mock.patch.object(torch.utils.checkpoint.CheckpointFunction, "apply", apply),
    ):
        yield


class _Part:
    """A checkpointed function, whose second call and further ones recompute the first one."""

    def __init__(self, function: Callable[..., Any], random: Random, state: Storages) -> None:
        self._function, self._random, self._state = function, random, state
        self._first_draw: int | None = None
        self._gradient: torch.Tensor | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._first_draw is None:
            self._first_draw = self._random.used
            result = self._function(*args, **kwargs)
            for _, tensor in tensors(result):
                if tensor.requires_grad:
                    tensor.register_hook(self._reached)
            return result
        if self._gradient is None:  # recomputed outside of a backward pass
            with self._random.repeated(self._first_draw, None):
                return self._function(*args, **kwargs)
        zero = barrier(torch.zeros((), dtype=torch.int64), self._gradient)
        with self._random.repeated(self._first_draw, zero), _Barriers(self._gradient, self._state):
            return self._function(*args, **kwargs)

    def _reached(self, gradient: torch.Tensor) -> None:
        """Record the first gradient that reaches an output."""
        if self._gradient is None:
            self._gradient = gradient


class _Barriers(OperatorMode):
    """A mode in which operators read tensors that were computed before it through barriers.

    Tensors of known values, which control flow may depend on, and state are read directly.

    Args:
        after: what the barriers wait for.
        state: the storages of parameters and buffers.
    """

    def __init__(self, after: torch.Tensor, state: Storages) -> None:
        super().__init__()
        self._after = after
        self._direct = dict(state)
        self._waiting: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self._direct |= written_storages(func, args, kwargs)
        args, kwargs = tree_map_only(FakeTensor, self._read, (args, kwargs))
        result = func(*args, **kwargs)
        self._direct |= storages(leaves_of(result))
        return result

    def _read(self, tensor: FakeTensor) -> torch.Tensor:
        if tensor.constant is not None or tensor.layout is not torch.strided or storage_of(tensor) in self._direct:
            return tensor
        if id(tensor) not in self._waiting:
            self._waiting[id(tensor)] = tensor, barrier(tensor, self._after)
        return self._waiting[id(tensor)][1]
