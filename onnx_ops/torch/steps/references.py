"""Parameters and buffers that modules have in containers too, as in `self.scales = [self.scale_0, self.scale_1]`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from torch.utils._pytree import tree_any, tree_map

OF_PYTORCH = frozenset(vars(torch.nn.Module()))
"""Attributes of each module, such as its parameters, in which torch.func.functional_call replaces tensors."""


class References:
    """The attributes of a model's modules that hold parameters or buffers in lists, tuples and dictionaries.

    Args:
        model: the model.
        tensors: its parameters and buffers, by name.
    """

    def __init__(self, model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
        self._names = {id(tensor): name for name, tensor in tensors.items()}
        self._found = [
            (module, attribute, value)
            for module in model.modules()
            for attribute, value in vars(module).items()
            if attribute not in OF_PYTORCH and tree_any(self._is_known, value)
        ]

    @contextlib.contextmanager
    def replaced(self, given: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """A context in which the containers hold the given tensors, by name, in place of the model's."""
        with contextlib.ExitStack() as stack:
            for module, attribute, value in self._found:
                changed = tree_map(lambda leaf: given[self._names[id(leaf)]] if self._is_known(leaf) else leaf, value)
                stack.enter_context(mock.patch.dict(vars(module), {attribute: changed}))
            yield

    def _is_known(self, leaf: Any) -> bool:
        return id(leaf) in self._names
