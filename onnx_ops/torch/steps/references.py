"""Other tensors in the place of parameters and buffers of a model, wherever its modules and the loss have these."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from torch.distributions import Distribution
from torch.utils._pytree import tree_any, tree_map

from onnx_ops.torch.tracing.preserving import OF_PYTORCH
from onnx_ops.torch.tracing.variables import is_small, objects


class References:
    """The places in which modules and other objects have parameters and buffers.

    They are registered, under names that may contain dots. Attributes, and lists, tuples and dictionaries in them, may
    have them too, as in `self.scales = [self.scale_0, self.scale_1]`, or be `self.scale_0.detach()`. So may
    distributions that are attributes: that of a prior in GPyTorch has its buffers; and attributes of objects that the
    loss refers to, as `self.anchors = model.anchors` of one that computes the loss.

    Args:
        model: the model.
        loss: the loss.
        tensors: its parameters and buffers, by name; a tied tensor has one of its names.
    """

    def __init__(self, model: torch.nn.Module, loss: Callable[..., Any], tensors: Mapping[str, torch.Tensor]) -> None:
        self._names = {id(tensor): name for name, tensor in tensors.items()}
        self._in_memory = {_memory(tensor): name for name, tensor in tensors.items() if tensor.numel()}
        self._registered = [
            (registered, key, self._names[id(tensor)])
            for module in model.modules()
            for registered in (module._parameters, module._buffers)
            for key, tensor in registered.items()
            if id(tensor) in self._names
        ]
        self._found = [
            (holder, attribute, value)
            for holder in (*_holders(model), *objects(model, loss))
            for attribute, value in vars(holder).items()
            if attribute not in OF_PYTORCH
            and is_small(value)
            and tree_any(lambda leaf: self._name(leaf) is not None, value)
        ]

    @contextlib.contextmanager
    def replaced(self, given: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """A context in which the modules have the given tensors, by name, in place of the model's."""

        def other(leaf: object) -> object:
            name = self._name(leaf)
            return leaf if name is None else given[name] if id(leaf) in self._names else given[name].detach()

        with contextlib.ExitStack() as stack:
            for registered, key, name in self._registered:
                stack.callback(registered.__setitem__, key, registered[key])
                registered[key] = given[name]
            for holder, attribute, value in self._found:
                stack.enter_context(mock.patch.dict(vars(holder), {attribute: tree_map(other, value)}))
            yield

    def _name(self, leaf: object) -> str | None:
        """The name of the parameter or buffer that a leaf is, or is when it is detached; None for another one."""
        if id(leaf) in self._names:
            return self._names[id(leaf)]
        if not isinstance(leaf, torch.Tensor) or leaf.requires_grad or leaf.layout is not torch.strided:
            return None
        return self._in_memory.get(_memory(leaf))


def _holders(model: torch.nn.Module) -> Iterator[torch.nn.Module | Distribution]:
    """The modules of a model, and the distributions that are attributes of these or of one another."""
    waiting: list[torch.nn.Module | Distribution] = list(model.modules())
    seen = {id(module) for module in waiting}
    while waiting:
        holder = waiting.pop()
        yield holder
        for value in vars(holder).values():
            if isinstance(value, Distribution) and id(value) not in seen:
                seen.add(id(value))
                waiting.append(value)


def _memory(tensor: torch.Tensor) -> Hashable:
    """Which elements in memory a tensor has, and as what."""
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.data_ptr()
