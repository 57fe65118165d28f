"""What operators do to memory while a step runs in PyTorch, and the state of a step that is not the model's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from onnx_ops.torch.base.errors import CaptureError

Storages = dict[int, StorageWeakRef]
"""Storages by identity, which stays theirs as long as a weak reference to them is held."""


def storage_of(tensor: torch.Tensor) -> int | None:
    """The identity of a tensor's storage; None for tensors without one, such as sparse tensors."""
    return next(iter(_storages([tensor])), None)


def _storages(values: Iterable[Any]) -> Storages:
    found: Storages = {}
    for value in values:
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            reference = StorageWeakRef(value.untyped_storage())
            found[reference.cdata] = reference
    return found


class Effects(TorchDispatchMode):
    """While it is entered: notes the storages that operators read, write and return."""

    def __init__(self) -> None:
        super().__init__()
        self._read: Storages = {}
        self._written: Storages = {}
        self._returned: Storages = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self._read |= _storages(tree_leaves((args, kwargs)))
        self._written |= _storages(tree_leaves(list(_written(func, args, kwargs))))
        result = func(*args, **kwargs)
        self._returned |= _storages(tree_leaves(result))
        return result

    def wrote(self, tensor: torch.Tensor) -> bool:
        """Whether an operator has written to a tensor, or to another one that has its storage."""
        return storage_of(tensor) in self._written

    def alive(self) -> Storages:
        """The storages that operators have met and that are still in use."""
        return {key: storage for key, storage in (self._read | self._returned).items() if not storage.expired()}

    def replaced(self, earlier: Storages) -> list[int]:
        """The earlier storages that this run has read, and then written to or put others in the place of."""
        return [key for key, storage in earlier.items() if key in self._read and self._ended(key, storage)]

    def _ended(self, key: int, storage: StorageWeakRef) -> bool:
        return key in self._written or storage.expired()


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """The arguments that an operator writes to."""
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield args[i] if i < len(args) else kwargs.get(argument.name)
    if func is torch.ops.aten.native_batch_norm.default and args[5]:  # writes what it does not declare
        yield from args[3:5]


class Unregistered:
    """The storages in use after a first run of a step, to find those that are state of it without being the model's."""

    def __init__(self, model: torch.nn.Module, first: Effects) -> None:
        self._earlier = first.alive()
        self._names = {
            storage: f"{path}.{name}" if path else name
            for path, module in model.named_modules()
            for name, value in vars(module).items()
            for storage in _storages(tree_leaves(value))
        }

    def refuse(self, second: Effects) -> None:
        """Refuse, with a CaptureError, a step that changes what it has read and an earlier run has left."""
        for storage in second.replaced(self._earlier):
            name = self._names.get(storage)
            what = "a tensor" if name is None else f"the tensor '{name}'"
            raise CaptureError(
                f"each step reads {what} that the step before has changed, but it is neither a parameter nor a buffer"
                " of the model, so that it cannot be state of the graph: register it by register_buffer of a module"
            )
