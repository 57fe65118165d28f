"""Storages that operators read and write in a step of PyTorch, and state of the step outside parameters and buffers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.tracing.frames import line_now
from onnx_ops.torch.tracing.modes import OperatorMode, leaves_of
from onnx_ops.torch.tracing.variables import containers, identities, tensors_of

OF_SHAPES = {
    f"aten::{name}"
    for name in (
        *("empty_like", "full_like", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like"),
        *("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros"),
    )
}
"""Operators that read of a tensor its shape and dtype alone."""

Storages = dict[int, StorageWeakRef]
"""Storages by address, which is not reused as long as a weak reference exists."""

FORGOTTEN = 2**26
"""Bytes of new storages after which a run forgets those that are freed."""


def storage_of(tensor: torch.Tensor) -> int | None:
    """The address of a tensor's storage; None for a tensor that is not strided, such as a sparse one."""
    return next(iter(storages([tensor])), None)


def storages(values: Iterable[Any]) -> Storages:
    """The storages of the strided tensors among some values."""
    found: Storages = {}
    with torch._C.DisableTorchFunction():  # each attribute would go through all modes of functions
        for value in values:
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                reference = StorageWeakRef(value.untyped_storage())
                found[reference.cdata] = reference
    return found


def _size_of(values: Iterable[Any]) -> int:
    """Bytes of the strided tensors among some values."""
    with torch._C.DisableTorchFunction():
        return sum(v.nbytes for v in values if isinstance(v, torch.Tensor) and v.layout is torch.strided)


class Effects(OperatorMode):
    """A mode that records the storages that operators read, write and return.

    Storages that the run itself makes and frees are forgotten: a weak reference keeps the header of a storage, and
    headers between freed blocks fragment the heap. The gradients of 32 slices of a tensor of 8 MiB took 1.1 GB so.
    """

    def __init__(self) -> None:
        super().__init__()
        self._read: Storages = {}
        self._written: Storages = {}
        self._returned: Storages = {}
        self._new: Storages = {}  # of them, those that operators have made
        self._size = 0  # bytes of what was new since freed storages were forgotten

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func._schema.name.startswith("aten::_nested_"):
            line = line_now()
            raise CaptureError(
                f"a nested tensor is made{'' if line is None else f' at {line}'}, which a graph does not have. Pad its"
                " parts, as by torch.nn.utils.rnn.pad_sequence, and mask what is added, as in attention by attn_mask"
            )
        kwargs = kwargs or {}
        if func._schema.name not in OF_SHAPES:
            self._read |= storages(leaves_of((args, kwargs)))
        self._written |= written_storages(func, args, kwargs)
        result = func(*args, **kwargs)
        leaves = leaves_of(result)
        returned = storages(leaves)
        # Key by key: a difference of views of dictionaries goes through all keys of the second one.
        if new := [key for key in returned if key not in self._read and key not in self._returned]:
            self._new |= {key: returned[key] for key in new}
            self._size += _size_of(leaves)
        self._returned |= returned
        if self._size > FORGOTTEN:
            self._forget_freed()
        return result

    def _forget_freed(self) -> None:
        for key in [key for key, storage in self._new.items() if storage.expired()]:
            for found in (self._new, self._read, self._written, self._returned):
                found.pop(key, None)
        self._size = 0

    def wrote(self, tensor: torch.Tensor) -> bool:
        """Whether an operator has written to a tensor's storage."""
        return storage_of(tensor) in self._written

    def made(self) -> Storages:
        """The storages that operators have returned and that still exist."""
        return {key: storage for key, storage in self._returned.items() if not storage.expired()}

    def alive(self) -> Storages:
        """The storages that operators have read or returned and that still exist."""
        return self.made() | {key: storage for key, storage in self._read.items() if not storage.expired()}

    def has_read(self, key: int) -> bool:
        """Whether an operator has read a storage."""
        return key in self._read

    def replaced(self, earlier: Storages) -> list[int]:
        """Of earlier storages, those that this run has read, and has written to or freed."""
        return [key for key, storage in earlier.items() if key in self._read and self._ended(key, storage)]

    def _ended(self, key: int, storage: StorageWeakRef) -> bool:
        return key in self._written or storage.expired()


@functools.cache
def _places_written(func: OpOverload) -> list[tuple[int, str]]:
    """The places and names of the arguments that an operator writes to by its schema."""
    arguments = enumerate(func._schema.arguments)
    return [(i, a.name) for i, a in arguments if a.alias_info is not None and a.alias_info.is_write]


def written(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """The arguments that an operator writes to."""
    for i, name in _places_written(func):
        yield args[i] if i < len(args) else kwargs.get(name)
    if func is torch.ops.aten.native_batch_norm.default and args[5]:  # its schema does not declare these writes
        yield from args[3:5]


def written_storages(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Storages:
    """The storages that an operator writes to."""
    changed = list(written(func, args, kwargs))
    return storages(leaves_of(changed)) if changed else {}


class Unregistered:
    """State of a step that is neither a parameter nor a buffer: what a first run has left, and a second one changes.

    Args:
        model: the modules whose attributes name tensors in errors.
        loss: the function whose variables do.
        first: the effects of the first run.
    """

    def __init__(self, model: torch.nn.Module, loss: Callable[..., Any], first: Effects) -> None:
        self._model, self._loss = model, loss
        self._earlier, self._made = first.alive(), first.made()
        made_first = self._made.keys()
        # The elements of containers, and the tensors among them that the first run has made.
        self._kept = {
            name: (identities(kept), made)
            for name, kept in containers(model, loss).items()
            if (made := storages(leaves_of(kept)).keys() & made_first)
        }
        named = tensors_of(model, loss)
        self._names = {storage: name for name, tensor in named if (storage := storage_of(tensor)) is not None}

    def refuse(self, second: Effects) -> None:
        """Raise a CaptureError if the second run reads a storage that the first one has left, and changes it.

        So it does if the storage is in a history: a list, deque or dictionary that the second run has changed.
        """
        for storage in second.replaced(self._earlier):
            name = self._names.get(storage)
            what = "a tensor" if name is None else f"the tensor '{name}'"
            raise CaptureError(
                f"each step reads {what} that the step before has changed, but it is neither a parameter nor a buffer"
                f" of the model, so that it cannot be state of the graph: {REGISTER}"
            )
        for name, kept in containers(self._model, self._loss).items():
            before, made = self._kept.get(name, (None, set()))
            if before is not None and before != identities(kept) and any(map(second.has_read, made)):
                raise CaptureError(
                    f"each step adds to '{name}', and reads tensors that steps before have added, but these are neither"
                    " parameters nor buffers of the model, so that they cannot be state of the graph: keep them in one"
                    f" tensor, and {REGISTER}"
                )

    def kept(self, second: Effects) -> str | None:
        """What the first run has made and the second one reads, as a table that is computed once; None if nothing."""
        read = [storage for storage in self._made if second.has_read(storage)]
        names = (f"the tensor '{self._names[storage]}'" for storage in read if storage in self._names)
        return next(names, "a tensor") if read else None


REGISTER = "make the module that has it an attribute of the model, or register it by register_buffer"
