"""Gradients that are differentiated again, of operators whose second derivative PyTorch computes with fixed sizes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.autograd.function import FunctionCtx
from torch.autograd.graph import GradientEdge
from torch.library import Library

from onnx_ops.torch.base.table import TABLE
from onnx_ops.torch.base.transforms import within_transforms


@contextlib.contextmanager
def repeated_gradients() -> Iterator[None]:
    """A context in which the functions of `TABLE.second_derivatives` differentiate operators of backward passes.

    Of those with create_graph=True only: other ones, and transforms of torch.func, remain as they are.
    """
    run = torch.autograd._engine_run_backward

    def running(
        outputs: Sequence[Tensor | GradientEdge],
        gradients: Sequence[Tensor | None],
        keep_graph: bool,
        create_graph: bool,
        *args: Any,
        **options: Any,
    ) -> Any:
        with _registered() if create_graph and not within_transforms() else contextlib.nullcontext():
            return run(outputs, gradients, keep_graph, create_graph, *args, **options)

    with mock.patch.object(torch.autograd, "_engine_run_backward", running):
        yield


@contextlib.contextmanager
def _registered() -> Iterator[None]:
    library = Library("aten", "IMPL")
    try:
        for operator in TABLE.second_derivatives:
            library.impl(operator, functools.partial(_Differentiated.apply, operator), "Autograd")
        yield
    finally:
        library._destroy()


class _Differentiated(torch.autograd.Function):
    """An operator of a backward pass, with the derivative that the table has."""

    @staticmethod
    def forward(ctx: FunctionCtx, operator: OpOverload, *args: Any) -> tuple[Tensor | None, ...]:
        ctx.set_materialize_grads(False)
        ctx.operator, ctx.args = operator, [None if isinstance(arg, Tensor) else arg for arg in args]
        ctx.places = [i for i, arg in enumerate(args) if isinstance(arg, Tensor)]
        ctx.save_for_backward(*(args[i] for i in ctx.places))
        with torch._C._AutoDispatchBelowAutograd():
            return tuple(operator(*args))

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        args = list(ctx.args)
        for place, tensor in zip(ctx.places, ctx.saved_tensors, strict=True):
            args[place] = tensor
        found = TABLE.second_derivatives[ctx.operator](grads, *args)
        return None, *found, *[None] * (len(args) - len(found))
