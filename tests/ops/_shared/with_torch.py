"""Arrays as torch's tensors and back, on the same memory."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from tests.ops._shared.arrays import BFLOAT16
from tests.ops._shared.losses import NAMES, NONE, divisor
from tests.ops._shared.numbers import Array
from tests.ops._shared.record import Call


def tensor(torch: ModuleType, array: Array) -> Any:
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def tensors(torch: ModuleType, call: Call) -> list[Any]:
    """The inputs of a call; None for one that is left out."""
    return [None if array is None else tensor(torch, array) for array in call.inputs.values()]


def array(torch: ModuleType, given: Any) -> Array:
    given = given.detach()
    if given.dtype == torch.bfloat16:
        return np.asarray(given.view(torch.int16).numpy().view(BFLOAT16))
    return np.asarray(given.numpy())


def backward(
    torch: ModuleType, loss: Callable[[str], Any], leaf: Any, grad_output: Any, reduction: int, shape: tuple[int, ...]
) -> Callable[[], Any]:
    """Autograd's gradient of loss(reduction's name) by a leaf; the loss is computed beforehand.

    A reduction whose grad_output is no scalar, which torch does not have, is made of the terms over `shape`.
    """
    leaf.requires_grad_()
    if reduction != NONE and grad_output.dim():
        grad_output, reduction = grad_output / divisor(reduction, shape), NONE
    value = loss(NAMES[reduction])
    grad_output = grad_output.to(value.dtype).expand(value.shape)
    return lambda: torch.autograd.grad(value, leaf, grad_output, retain_graph=True)[0]
