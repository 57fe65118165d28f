"""Numbers that a trace computes from those that it has read from data, with their values in the example.

As in `if math.isfinite(loss.item())`: in the example it is Python that computes them, and no operator returns them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.types import py_sym_types
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from onnx_ops.torch.tracing.modes import leaves_of


class ExampleNumbers:
    """The tensors () that are computed from numbers of the data alone, and their values.

    Args:
        shapes: the symbols of the trace, of which those that are read from data have values in the example.
    """

    def __init__(self, shapes: ShapeEnv) -> None:
        self._shapes = shapes
        self._known: dict[int, tuple[torch.Tensor, int, torch.Tensor]] = {}

    def number(self, tensor: torch.Tensor) -> int | float | bool | None:
        """That in a tensor; None if it is not known."""
        value = self._value(tensor)
        return None if value is None else value.item()

    def note(self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: object) -> None:
        """Note the number in the result of an operator, if those of its arguments are known."""
        if not isinstance(result, torch.Tensor) or result.dim() or torch.Tag.nondeterministic_seeded in func.tags:
            return
        given = [leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, (torch.Tensor, *py_sym_types))]
        if not given or any(self._value(leaf) is None for leaf in given):
            return
        own, options = tree_map_only((torch.Tensor, *py_sym_types), self._value, (args, dict(kwargs)))
        with _disable_current_modes():
            self._known[id(result)] = result, result._version, func(*own, **options)

    def _value(self, given: object) -> Any:
        if isinstance(given, torch.Tensor):
            tensor, version, value = self._known.get(id(given), (None, None, None))
            return value if tensor is not None and tensor._version == version else None
        if not isinstance(given, py_sym_types):
            return None
        value = given.node.expr.xreplace(self._shapes.real_tensor_prop_unbacked_vals)
        if not value.is_number:
            return None
        return int(value) if isinstance(given, torch.SymInt) else float(value)
