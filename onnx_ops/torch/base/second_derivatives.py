"""Gradients that are to be differentiated again, as by autograd.grad(..., create_graph=True)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def gradients_of(
    function: Callable[..., Tensor | Sequence[Tensor]], inputs: Sequence[Tensor | None], grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """The gradients of a function of operators that PyTorch differentiates any number of times, for a backward pass
    whose own operators it does not differentiate.

    Args:
        function: of the inputs; its results are those of the forward pass, which is run again.
        inputs: of the forward pass.
        grads: with respect to the results; None for results that nothing depends on.

    Returns:
        For each input its gradient; None for an input without one.
    """
    with torch.enable_grad():  # which is off in the last backward pass
        # Views, as one of them may depend on another one.
        given = [None if tensor is None else tensor.view_as(tensor) for tensor in inputs]
        results = function(*given)
        pairs = zip([results] if isinstance(results, Tensor) else results, grads, strict=True)
        differentiated = [(result, grad) for result, grad in pairs if grad is not None and result.requires_grad]
        wanted = [tensor for tensor in given if tensor is not None and tensor.requires_grad]
        if not differentiated or not wanted:
            return [None] * len(inputs)
        outputs, of_outputs = zip(*differentiated, strict=True)
        gradients = torch.autograd.grad(outputs, wanted, of_outputs, create_graph=True, allow_unused=True)
    found: dict[int, Any] = dict(zip(map(id, wanted), gradients, strict=True))
    return [found.get(id(tensor)) for tensor in given]
