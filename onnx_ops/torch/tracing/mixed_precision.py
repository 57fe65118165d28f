"""Operators on float16 and bfloat16 tensors, which are computed in float32 and rounded, as PyTorch's CPU kernels do.

The casts are part of the graph: onnxruntime's CPU provider has few kernels of bfloat16 and float16, and which ones
depends on its build.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_map

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.tracing.effects import Storages, storages, written, written_storages
from onnx_ops.torch.tracing.frames import line_now
from onnx_ops.torch.tracing.modes import OperatorMode, leaves_of

aten = torch.ops.aten

NARROW = (torch.float16, torch.bfloat16)
"""The dtypes that are not computed in."""

EXACT = {
    operator
    for packet in (
        aten._to_copy,
        aten._unsafe_view,
        aten.alias,
        aten.cat,
        aten.clone,
        aten.copy_,
        aten.detach,
        aten.embedding,
        aten.index_select,
        aten.lift_fresh,
        aten.permute,
        aten.select,
        aten.slice,
        aten.split,
        aten.split_with_sizes,
        aten.squeeze,
        aten.squeeze_,
        aten.t,
        aten.t_,
        aten.transpose,
        aten.transpose_,
        aten.unbind,
        aten.unsqueeze,
        aten.unsqueeze_,
        aten.view,
        aten._reshape_alias,
    )
    for operator in (getattr(packet, name) for name in packet.overloads())
} | {
    aten.gelu_backward.default,
    aten.hardshrink_backward.default,
    aten.native_dropout_backward.default,
    aten.threshold_backward.default,
}
"""The operators that are exported as nodes with 16-bit kernels: movements of data, casts, and ops of this domain."""


ROUNDED_SCALARS = (aten.add.Tensor, aten.add_.Tensor, aten.sub.Tensor, aten.sub_.Tensor, aten.rsub.Scalar)
"""The operators that round a number to the dtype of a tensor before they compute with it."""


class Float32Computation(OperatorMode):
    """A mode in which operators of 16-bit tensors cast their inputs to float32, and their results back.

    Views that are no movements of `EXACT`, such as a diagonal, are copies then.

    Raises:
        CaptureError: an operator writes to such a copy.
    """

    def __init__(self) -> None:
        super().__init__()
        self._copies: Storages = {}

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable and torch.Tag.inplace_view not in func.tags:
            self._check_writes(func, args, kwargs)
        if func in EXACT or func.namespace != "aten" or not any(map(_is_narrow, leaves_of((args, kwargs)))):
            return func(*args, **kwargs)
        wide = {id(leaf): _wide(leaf) for leaf in leaves_of((args, kwargs)) if _is_narrow(leaf)}
        changed = [tensor for tensor in leaves_of(list(written(func, args, kwargs))) if _is_narrow(tensor)]
        originals = {id(wide[id(tensor)]): tensor for tensor in changed}
        with disable_proxy_modes_tracing(), _without_new_sizes(args):
            expected = func(*args, **kwargs)
        with torch._C._DisableAutocast():
            if func in ROUNDED_SCALARS and isinstance(args[1], float):
                args = (args[0], _rounded(args[1], args[0].dtype), *args[2:])
            args, kwargs = tree_map(lambda leaf: wide.get(id(leaf), leaf), (args, kwargs))
            result = func(*args, **kwargs)
            for tensor in changed:
                tensor.copy_(wide[id(tensor)])
            result = tree_map(lambda found, wanted: originals.get(id(found), _cast(found, wanted)), result, expected)
        if _is_view(func) and not any(map(_is_expanded, leaves_of(expected))):
            self._copies |= storages(leaves_of(result))
        return result

    def _check_writes(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._copies.keys() & written_storages(func, args, kwargs).keys():
            line = line_now()
            where = "" if line is None else f" at {line}"
            raise CaptureError(
                f"{func} writes to a view of a 16-bit tensor{where}, which is a copy in a graph, as it is computed in"
                " float32: write to elements of the tensor itself, select by torch.where,"
                " or compute it in float32"
            )


def _without_new_sizes(args: tuple[Any, ...]) -> contextlib.AbstractContextManager[None]:
    """A context in which the sizes of results that depend on data are none that the graph computes."""
    mode = detect_fake_mode(args)
    if mode is None or mode.shape_env is None:
        return contextlib.nullcontext()
    found: contextlib.AbstractContextManager[None] = mode.shape_env.ignore_fresh_unbacked_symbols()
    return found


def _is_view(func: OpOverload) -> bool:
    """Whether the results of an operator have the memory of its input, which it does not change."""
    aliases = [returned.alias_info for returned in func._schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def _is_expanded(tensor: torch.Tensor) -> bool:
    """Whether elements have the same memory: what writes to such a tensor has made a copy of it."""
    return any(isinstance(stride, int) and stride == 0 for stride in tensor.stride())


def _is_narrow(leaf: object) -> bool:
    """Whether an argument is a 16-bit floating tensor, or its dtype."""
    return leaf in NARROW if isinstance(leaf, torch.dtype) else isinstance(leaf, torch.Tensor) and leaf.dtype in NARROW


def _rounded(number: float, dtype: torch.dtype) -> float:
    with no_dispatch():
        return torch.tensor(number, dtype=dtype).item()


def _wide(leaf: torch.Tensor | torch.dtype) -> torch.Tensor | torch.dtype:
    return torch.float32 if isinstance(leaf, torch.dtype) else aten._to_copy.default(leaf, dtype=torch.float32)


def _cast(found: Any, wanted: Any) -> Any:
    if isinstance(wanted, torch.Tensor) and found.dtype is not wanted.dtype:
        return aten._to_copy.default(found, dtype=wanted.dtype)
    return found
