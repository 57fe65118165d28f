"""How an operator of this domain is declared within PyTorch, and which node it becomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from onnxscript.values import Opset

from onnx_ops.core.domain import DOMAIN, OPSET_VERSION

aclnn = Opset(DOMAIN, OPSET_VERSION)
Table = dict[Any, Callable[..., Any]]
"""Operators of PyTorch, and for each the function that writes its nodes."""


def whole_operator(
    table: Table, translation: Callable[..., Any], shapes: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Any]], Any]:
    """Make a function of tensors an operator that stays one in every graph.

    Args:
        table: where the translation is entered.
        translation: from the operator's arguments to its nodes.
        shapes: from the operator's arguments to tensors without values of its shapes and dtypes; the function itself if
            it has no need of values.
    """

    def declared(function: Callable[..., Any]) -> Any:
        operator = torch.library.custom_op(f"onnx_ops::{function.__name__}", function, mutates_args=())
        operator.register_fake(shapes or function)
        table[getattr(torch.ops.onnx_ops, function.__name__).default] = translation
        return operator

    return declared
