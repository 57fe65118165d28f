"""Replaces functions of PyTorch while a model is captured."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from types import FunctionType
from typing import Any, Self

import torch
import torch.nn.functional as functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from onnx_ops.torch.operators import TABLE
from onnx_ops.torch.operators.batch_norm import cumulative_averages
from onnx_ops.torch.operators.multi_head_attention import undetected_causal_masks
from onnx_ops.torch.operators.recurrent.packing import checked_states

Functions = Mapping[Any, Callable[..., Any]]
"""Functions of PyTorch, with replacements that have the same parameters.

One may return NotImplemented for arguments that it leaves to PyTorch's function.
"""

AUTOCAST_TO_FLOAT32 = {
    functional.binary_cross_entropy_with_logits,
    functional.cross_entropy,
    functional.ctc_loss,
    functional.kl_div,
    functional.multi_margin_loss,
    functional.multilabel_margin_loss,
    torch._C._nn.avg_pool3d,
    torch.binary_cross_entropy_with_logits,
    torch.cdist,
    torch.ctc_loss,
    torch.kl_div,
    torch.prod,
    torch.Tensor.prod,
}
"""Functions with replacements whose arguments torch.autocast casts to float32 on a CPU."""

NUMPY_NAMES = {"a": "input", "axis": "dim", "keepdims": "keepdim", "x": "input", "x1": "input", "x2": "other"}
"""PyTorch's names of arguments by those of NumPy, which its functions take too."""

DIFFERENTIATION = (torch.autograd.grad, torch.Tensor.backward)


class Substitution(TorchFunctionMode):
    """A mode in which replacements run in place of functions of PyTorch."""

    def __init__(self, functions: Functions) -> None:
        super().__init__()
        self._functions = functions

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        replacement = self._functions.get(func)
        if replacement is not None:
            result = _replaced(func, replacement, args, kwargs or {})
            if result is not NotImplemented:
                return result
        # Within these the mode stays active, as they call other functions: differentiation the backward of the user's
        # autograd functions, torch.nn.functional its own functions.
        own = functional.__dict__
        if isinstance(func, FunctionType) and (func in DIFFERENTIATION or func.__globals__ is own):
            with self:
                return _without_override(func)(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _replaced(
    func: Callable[..., Any], replacement: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What a replacement returns: NotImplemented where PyTorch's own function is to run."""
    if not NUMPY_NAMES.keys().isdisjoint(kwargs):
        own = inspect.signature(replacement).parameters
        kwargs = {name if name in own else NUMPY_NAMES.get(name, name): value for name, value in kwargs.items()}
    if func in AUTOCAST_TO_FLOAT32 and torch.is_autocast_enabled("cpu"):
        args, kwargs = tree_map_only(torch.Tensor, _as_float32, (args, kwargs))
        with torch.autocast("cpu", enabled=False):
            return replacement(*args, **kwargs)
    return replacement(*args, **kwargs)


def _as_float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _without_override(function: FunctionType) -> FunctionType:
    """A copy of a function that does not dispatch to __torch_function__ itself; the functions that it calls do."""
    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    without = function.__globals__ | dict.fromkeys(names, lambda *args: False)
    copied = FunctionType(function.__code__, without, function.__name__, None, function.__closure__)
    copied.__defaults__, copied.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return copied


class WholeOps(Substitution):
    """The mode of `whole_ops`.

    Args:
        native: functions that are not replaced.
    """

    def __init__(self, native: Collection[Any] = ()) -> None:
        super().__init__({func: own for func, own in TABLE.replacements.items() if func not in native})
        self._contexts: list[contextlib.ExitStack] = []

    def __enter__(self) -> Self:
        self._contexts.append(contextlib.ExitStack())
        self._contexts[-1].enter_context(cumulative_averages())
        self._contexts[-1].enter_context(checked_states())
        self._contexts[-1].enter_context(undetected_causal_masks())
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._contexts.pop().close()


class whole_ops(WholeOps):
    """A context in which losses and layers of PyTorch run as ops of this domain, which torch.onnx exports as nodes.

    Use it around torch.onnx.export, together with `translation_table`.
    """

    def __init__(self) -> None:
        super().__init__()
