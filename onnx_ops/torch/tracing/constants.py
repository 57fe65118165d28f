"""Tensors that depend on no input of a step: their values are known in a trace, and control flow may depend on them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch._ops import OpOverload
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.types import py_sym_types
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from onnx_ops.torch.tracing.effects import storages, written_storages
from onnx_ops.torch.tracing.modes import OperatorMode, leaves_of

MAX_NUMEL = 1 << 20
"""Maximal number of elements of a tensor whose values are computed while tracing."""

MAX_READ = 1 << 10
"""Maximal number of elements of an input whose values are known: larger ones are tables, which no code branches on."""

DATA_DEPENDENT = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""PyTorch's tags of operators that return a number, or a tensor whose shape depends on the values of the inputs."""

FILL_VALUES = {
    torch.ops.aten.new_full.default: None,
    torch.ops.aten.new_ones.default: 1,
    torch.ops.aten.new_zeros.default: 0,
    torch.ops.aten.full_like.default: None,
    torch.ops.aten.ones_like.default: 1,
    torch.ops.aten.zeros_like.default: 0,
}
"""Operators whose result has one value, which is not of their tensor: this value, or None if it is an argument."""


@functools.cache
def depends_on_data(func: OpOverload) -> bool:
    """Whether an operator has one of these tags."""
    return not DATA_DEPENDENT.isdisjoint(func.tags)


class Constants(OperatorMode):
    """A mode in which constants have values: tensors created from numbers, or found in closures and attributes.

    The operators on them are recorded all the same. FakeTensorMode propagates values from operator to operator and
    drops them when unknown values are written to their memory, but does not have those of the tensors above. Nor does
    it drop them when such a part of them is written to that it does not know the values of, as one at a place in data.
    """

    def __init__(self, fakes: FakeTensorMode) -> None:
        super().__init__()
        self._fakes = fakes
        self._outside = WeakTensorKeyDictionary()
        self._parts: dict[int, tuple[StorageWeakRef, torch.Tensor]] = {}
        """Known values of which a part is a FakeTensor without values, by its storage."""
        self._limit = contextlib.ExitStack()

    def __enter__(self) -> Constants:
        self._limit.enter_context(mock.patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", MAX_NUMEL))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._limit.close()

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        leaves = leaves_of((args, kwargs))
        given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        for tensor in given:
            if type(tensor) is torch.Tensor and not tensor.requires_grad and tensor not in self._outside:
                self._find(tensor)
        known = bool(given) and all(self._value(tensor) is not None for tensor in given)
        if known and depends_on_data(func):
            values = tree_map_only(torch.Tensor, self._value, (args, kwargs))
            return tree_map_only(torch.Tensor, torch.ops.aten.lift_fresh.default, _computed(func, *values))
        symbolic = any(isinstance(leaf, py_sym_types) for leaf in leaves)
        with self._without_values(func, given) if known and symbolic else contextlib.nullcontext():
            result = func(*args, **kwargs)
        made = [leaf for leaf in leaves_of(result) if isinstance(leaf, FakeTensor)]
        computable = (
            torch.Tag.nondeterministic_seeded not in func.tags
            and func is not torch.ops.aten._efficientzerotensor.default  # which has no memory
            and not symbolic
            and all(isinstance(fake.numel(), int) and fake.numel() <= MAX_NUMEL for fake in made)
        )
        if func in FILL_VALUES and computable and made:
            self._record(made[0], _filled(made[0], func, args, kwargs))
        elif given and not (known and computable):
            for fake in made:  # an operator's fake implementation may have returned a view of a known tensor
                if fake.constant is not None:
                    self._fakes.fake_tensor_converter.invalidate_constant_aliases(fake.constant)
        elif not given and computable and made and result is made[0]:
            self._record(result, _computed(func, args, kwargs))
        self._note_parts(given, made)
        if self._parts:
            for key in written_storages(func, args, kwargs).keys() & self._parts.keys():
                self._fakes.fake_tensor_converter.invalidate_constant_aliases(self._parts.pop(key)[1])
        return result

    @contextlib.contextmanager
    def _without_values(self, func: OpOverload, known: Sequence[torch.Tensor]) -> Iterator[None]:
        """A context in which known tensors have no values, with which a FakeTensorMode computes symbols as numbers."""
        fakes = [tensor for tensor in known if isinstance(tensor, FakeTensor)]
        values = [fake.constant for fake in fakes]
        for fake in fakes:
            fake.constant = None
        try:
            yield
        finally:
            for fake, value in zip(fakes, values, strict=True):
                fake.constant = value
                if func._schema.is_mutable and value is not None:
                    self._fakes.fake_tensor_converter.invalidate_constant_aliases(value)

    def _note_parts(self, given: Sequence[torch.Tensor], made: Sequence[FakeTensor]) -> None:
        """Note the results of an operator that are parts of known tensors, but have no values."""
        known = [(tensor, value) for tensor in given if (value := self._value(tensor)) is not None]
        parts = storages(fake for fake in made if fake.constant is None) if known else {}
        for tensor, value in known if parts else ():
            for key in storages([self._outside.get(tensor, tensor)]).keys() & parts.keys():
                self._parts[key] = parts[key], value

    def enter(self, fake: FakeTensor, value: torch.Tensor) -> None:
        """Record the values of an input of the step that is a constant, if it is so small that code may read it."""
        if value.numel() <= MAX_READ and value.layout is torch.strided and not value.requires_grad:
            with no_dispatch():
                self._record(fake, value.detach().clone())

    def _find(self, tensor: torch.Tensor) -> None:
        """Record the values of a tensor that is not an input of the step."""
        converter = self._fakes.fake_tensor_converter
        fake = self._outside[tensor] = converter.from_real_tensor(self._fakes, tensor)
        if tensor.numel() <= MAX_NUMEL and tensor.layout is torch.strided:
            with no_dispatch():
                copied = tensor.detach().clone()
            self._record(fake, copied)

    def _record(self, fake: FakeTensor, value: torch.Tensor) -> None:
        fake.constant = value
        self._fakes.fake_tensor_converter.set_tensor_memo(value, fake)
        self._fakes.fake_tensor_converter.add_constant_storage_mapping(fake)

    def _value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        return getattr(self._outside.get(tensor, tensor), "constant", None)


def _filled(fake: FakeTensor, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """What an operator of FILL_VALUES returns."""
    value = FILL_VALUES[func]
    if value is None:
        value = args[-1] if len(args) > 1 else kwargs["fill_value"]
    with no_dispatch():
        return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype).fill_(value)


def _computed(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of an operator outside the trace."""
    with no_dispatch():
        return func(*args, **kwargs)
