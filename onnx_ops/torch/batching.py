"""What the transforms of torch.func need for dynamic sizes: PyTorch's own code makes numbers of them."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._C._functorch import _add_batch_dim, _unwrap_batched
from torch._functorch import eager_transforms
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch.library import _scoped_library

aten = torch.ops.aten

BATCHED = "FuncTorchBatched"
"""The dispatch key of the rules of vmap."""


@contextlib.contextmanager
def symbolic_batches() -> Iterator[None]:
    """A context in which vmap, jacrev and jacfwd keep the dynamic sizes of what they batch."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(eager_transforms, "_construct_standard_basis_for", _standard_basis))
        library = stack.enter_context(_scoped_library("aten", "IMPL"))
        with warnings.catch_warnings(action="ignore"):  # of kernels that are overridden
            for name, rule in RULES.items():
                library.impl(name, _kernel(rule), BATCHED)
        yield


def _standard_basis(tensors: Sequence[Tensor], tensor_numels: Sequence[int]) -> tuple[Tensor, ...]:
    """For each tensor of n elements its columns of the unit matrix, (sum of all n, *shape of the tensor)."""
    rows = torch.arange(sum(tensor_numels)).unsqueeze(1)
    starts = itertools.accumulate(tensor_numels, initial=0)
    return tuple(
        (rows == torch.arange(start, start + numel)).to(tensor.dtype).reshape(-1, *tensor.shape)
        for tensor, start, numel in zip(tensors, starts, tensor_numels, strict=False)
    )


Rule = Callable[..., Tensor]
"""An operator on the tensors of a batch: of the function that unwraps a tensor, and the operator's arguments."""


def _kernel(rule: Rule) -> Callable[..., Tensor]:
    """The kernel of a rule, whose result has the batch as its first dimension if a tensor has one."""

    def kernel(*args: Any, **kwargs: Any) -> Tensor:
        level = retrieve_current_functorch_interpreter().level()
        batched = False

        def unwrapped(tensor: Tensor) -> Tensor | None:
            """A tensor with the batch as its first dimension; None for one that is the same for the whole batch."""
            nonlocal batched
            value, place = _unwrap_batched(tensor, level)
            if place is None:
                return None
            batched = True
            return value.movedim(place, 0)

        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchBatched)):
            result = rule(unwrapped, *args, **kwargs)
        return _add_batch_dim(result, 0, level) if batched else result

    return kernel


def _cat(unwrapped: Callable[[Tensor], Tensor | None], tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    found = [unwrapped(tensor) for tensor in tensors]
    size = next((tensor.shape[0] for tensor in found if tensor is not None), None)
    if size is None:
        return torch.cat(list(tensors), dim)
    whole = [
        tensor.expand(size, *tensor.shape) if batch is None else batch
        for tensor, batch in zip(tensors, found, strict=True)
    ]
    return torch.cat(whole, dim + 1 if dim >= 0 else dim)


def _slice_backward(
    unwrapped: Callable[[Tensor], Tensor | None], grad_output: Tensor, input_sizes: Sequence[int], dim: int, *part: int
) -> Tensor:
    grad = unwrapped(grad_output)
    if grad is not None:
        grad_output, input_sizes, dim = grad, [grad.shape[0], *input_sizes], dim + 1 if dim >= 0 else dim
    result: Tensor = aten.slice_backward(grad_output, input_sizes, dim, *part)
    return result


RULES: dict[str, Rule] = {"cat": _cat, "slice_backward": _slice_backward}
