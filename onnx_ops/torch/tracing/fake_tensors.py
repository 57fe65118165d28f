"""The FakeTensors of a trace."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import is_symbolic

from onnx_ops.torch.tracing.modes import leaves_of

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import _CacheKeyState, _DispatchCacheValidEntry


@contextlib.contextmanager
def unchanged_conversions() -> Iterator[None]:
    """A context in which a conversion that changes no tensor of a module, such as `layer.to(x.dtype)`, does nothing.

    PyTorch assigns the tensors to the module again, for FakeTensors by swapping them with new parameters, which fails.
    """
    convert = torch.nn.Module._apply

    def converted(
        module: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> torch.nn.Module:
        with torch.no_grad():
            if all(fn(tensor) is tensor for tensor in (*module.parameters(recurse), *module.buffers(recurse))):
                return module
        return convert(module, fn, recurse)

    with mock.patch.object(torch.nn.Module, "_apply", converted):
        yield


class FakeTensors(FakeTensorMode):
    """FakeTensorMode, which keeps the results of a call with dynamic sizes only if there is a second call like it.

    To keep one takes about half as long as to compute it, and most calls in a small model are the only ones. To make a
    view of what is kept takes longer than to detach a tensor.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._seen: set[Any] = set()
        self._compares_keys = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in OperatorMode

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[object] = (), kwargs: Any = None
    ) -> object:
        return self.dispatch(func, types, args, kwargs or {})

    def _cached_dispatch_impl(
        self, func: OpOverload, types: Sequence[type], args: Sequence[object], kwargs: Mapping[str, object]
    ) -> object:
        if func is torch.ops.aten.detach.default:
            return self._dispatch_impl(func, types, args, kwargs)
        shapes = [leaf.shape for leaf in leaves_of((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if any(is_symbolic(size) for shape in shapes for size in shape):
            call = func, *(size.node.expr if is_symbolic(size) else size for shape in shapes for size in shape)
            if call not in self._seen:
                self._seen.add(call)
                return self._dispatch_impl(func, types, args, kwargs)
        return super()._cached_dispatch_impl(func, types, args, kwargs)

    def _get_output_info_for_cache_entry(self, *args: Any) -> Any:
        """PyTorch makes a result once more to compare its dispatch keys, for which one without elements suffices.

        Sizes that depend on data may not allow to make it, which PyTorch finds out by that.
        """
        *_, output = args
        if isinstance(output, torch.Tensor):
            sizes = (*output.shape, *output.stride(), output.storage_offset())
            self._compares_keys = all(not is_symbolic(size) or size.node.has_hint() for size in sizes)
        try:
            return super()._get_output_info_for_cache_entry(*args)
        finally:
            self._compares_keys = False

    def _output_from_cache_entry(self, state: _CacheKeyState, entry: _DispatchCacheValidEntry, *args: Any) -> Any:
        if self._compares_keys:
            (info,) = entry.output_infos
            empty = dataclasses.replace(info.metadata, shape=(0,), stride=(1,), storage_offset=0, storage_bytes=None)
            entry = dataclasses.replace(entry, output_infos=(dataclasses.replace(info, metadata=empty),))
        return super()._output_from_cache_entry(state, entry, *args)
