"""Replacements for functions of PyTorch while a model is captured, whatever code calls them."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as functional
from torch.overrides import TorchFunctionMode

from onnx_ops.torch.operators import TABLE
from onnx_ops.torch.operators.batch_norm import cumulative_averages

Functions = Mapping[Any, Callable[..., Any]]
"""Functions of PyTorch, and functions with the same parameters that run in their place."""

DIFFERENTIATION = (torch.autograd.grad, torch.Tensor.backward)


class Substitution(TorchFunctionMode):
    """While it is entered, replacements run in place of functions of PyTorch."""

    def __init__(self, functions: Functions) -> None:
        super().__init__()
        self._functions = functions

    def __torch_function__(
        self, func: Any, types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        ours = self._functions.get(func)
        # These call other functions: differentiation a backward function of the user, torch.nn.functional its own.
        nested = func in DIFFERENTIATION or getattr(func, "__globals__", None) is functional.__dict__
        if ours is None and nested:
            with self:
                return _without_override(func)(*args, **(kwargs or {}))
        return (ours or func)(*args, **(kwargs or {}))


def _without_override(function: types.FunctionType) -> types.FunctionType:
    """A copy of a function of torch.nn.functional that skips __torch_function__; the functions that it calls do not."""
    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    unasked = function.__globals__ | dict.fromkeys(names, lambda *args: False)
    copied = types.FunctionType(function.__code__, unasked, function.__name__, None, function.__closure__)
    copied.__defaults__, copied.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return copied


class whole_ops(Substitution):
    """While it is entered, losses and layers of PyTorch run as ops of this domain, which torch.onnx exports as nodes.

    For calls of torch.onnx.export, together with `translation_table`.
    """

    def __init__(self) -> None:
        super().__init__(TABLE.replacements)
        self._contexts: list[contextlib.AbstractContextManager[None]] = []

    def __enter__(self) -> whole_ops:
        self._contexts.append(cumulative_averages())
        self._contexts[-1].__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._contexts.pop().__exit__(*error)
