"""Operators of a backward pass that torch.onnx translates wrongly, taken apart before it sees them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

NAMES = (
    "nll_loss_forward",  # its translation makes up total_weight, which the gradient divides by
    "nll_loss_backward",
    "nll_loss2d_forward",
    "nll_loss2d_backward",
)


@functools.cache
def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """What `make_fx` takes apart.

    All of core ATen would be more than torch.onnx can translate: SiLU's gradient then ends in empty_permuted.
    """
    overloads = [getattr(torch.ops.aten, name).default for name in NAMES]
    return {overload: torch._decomp.decomposition_table[overload] for overload in overloads}
