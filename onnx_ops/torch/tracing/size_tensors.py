"""Tensors of numbers that depend on dynamic sizes alone, which code reads as sizes: `x.view(torch.div(n, 8), 8)`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import statically_known_true

from onnx_ops.torch.base.sizes import Size

aten = torch.ops.aten

ARITHMETIC: Mapping[OpOverload, Callable[[Any, Any], Any]] = {
    aten.add.Tensor: operator.add,
    aten.sub.Tensor: operator.sub,
    aten.mul.Tensor: operator.mul,
}
COPIES = {aten.alias.default, aten.clone.default, aten.detach.default, aten.lift_fresh.default, aten._to_copy.default}


class SizeTensors:
    """The numbers in tensors () int64 that a trace makes of dynamic sizes."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[torch.Tensor, int, Size]] = {}

    def number(self, given: object) -> Size | None:
        """A number itself, or that in a tensor, as an expression of sizes; None if it is not known as one."""
        if isinstance(given, int | torch.SymInt):
            return given
        tensor, version, number = self._known.get(id(given), (None, None, None))
        return number if tensor is not None and tensor._version == version else None

    def note(self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: object) -> None:
        """Note the number in the result of an operator, if it is known."""
        if not isinstance(result, torch.Tensor) or result.dtype is not torch.int64 or result.dim():
            return
        number = self._computed(func, args, kwargs)
        if isinstance(number, torch.SymInt):
            self._known[id(result)] = result, result._version, number

    def _computed(self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Size | None:
        if func in (aten.full.default, aten.scalar_tensor.default):
            return self.number(args[-1])
        if func in COPIES:
            return self.number(args[0])
        division = func is aten.floor_divide.default or (
            func is aten.div.Tensor_mode and kwargs.get("rounding_mode") in ("floor", "trunc")
        )
        if not division and (func not in ARITHMETIC or "alpha" in kwargs):
            return None
        first, second = map(self.number, args[:2])
        if first is None or second is None:
            return None
        if not division:
            return ARITHMETIC[func](first, second)
        positive = isinstance(second, int) and second > 0 and statically_known_true(first >= 0)
        return first // second if positive else None
