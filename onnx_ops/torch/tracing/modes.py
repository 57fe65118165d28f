"""The base class of modes that see the operators of a step, and the tensors and numbers of their arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch.types import py_sym_types
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ARGUMENTS = {
    *(bool, int, float, complex, str, type(None), *py_sym_types),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
}
"""The types of the arguments of operators that are neither tensors nor lists."""


class OperatorMode(TorchDispatchMode):
    """A mode whose method is called without PyTorch's guard against torch.compile, a fifth of the time of a trace.

    Within a step compiled functions run as they are written (`contexts.portable_kernels`).
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def leaves_of(arguments: object) -> list[Any]:
    """As torch.utils._pytree.tree_leaves, in a fraction of the time for arguments and results of operators."""
    kind = type(arguments)
    if kind in ARGUMENTS or isinstance(arguments, torch.Tensor):
        return [arguments]
    if kind is not tuple and kind is not list and kind is not dict:
        return tree_leaves(arguments)
    found: list[Any] = []
    for argument in arguments.values() if isinstance(arguments, dict) else arguments:  # type: ignore[attr-defined]
        if type(argument) in ARGUMENTS or isinstance(argument, torch.Tensor):
            found.append(argument)
        else:
            found += leaves_of(argument)
    return found
