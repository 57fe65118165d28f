"""Packed sequences: of padded ones (T, N, ...) the rows up to the end of each, those of the first step first.

Layers compute with the padded form, and a mask of the rows that are before the ends. The rows are for code that reads
`PackedSequence.data`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast
from unittest import mock

import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils.weak import WeakTensorKeyDictionary

from onnx_ops.torch.base.sizes import Size
from onnx_ops.torch.base.table import replaces


@dataclass(frozen=True)
class Packing:
    """Where the rows of packed sequences, which are sorted by length, are in the padded form.

    Attributes:
        mask: (T, N) bool, which rows there are; T is the largest length.
        places: (S,) int64, the indices of these rows among T * N.
    """

    mask: Tensor
    places: Tensor

    @classmethod
    def of_mask(cls, mask: Tensor) -> Packing:
        return cls(mask, mask.flatten().nonzero().flatten())

    @classmethod
    def of(cls, batch_sizes: Tensor) -> Packing:
        """The packing with the numbers of sequences (T,) that are not at their end, as PackedSequence has them."""
        if batch_sizes not in _PACKINGS:
            order = torch.arange(cast(int, batch_sizes[0].item()))
            _PACKINGS[batch_sizes] = cls.of_mask(order < batch_sizes.unsqueeze(1))
        found: Packing = _PACKINGS[batch_sizes]
        return found

    def pack(self, padded: Tensor) -> Tensor:
        """The rows (S, ...) of a padded tensor (T, N, ...)."""
        rows = padded.flatten(0, 1).index_select(0, self.places)
        _PADDED[rows] = (padded, rows._version, padded._version)
        return rows

    def pad(self, rows: Tensor, padding: float = 0) -> Tensor:
        """Rows (S, ...) in the padded form (T, N, ...)."""
        padded, *versions = _PADDED.get(rows, (rows,))
        if versions != [rows._version, padded._version]:
            order = self.mask.flatten().to(torch.int64).cumsum(0) - 1
            padded = rows.index_select(0, order.clamp(min=0)).unflatten(0, self.mask.shape)
        return torch.where(self.mask.reshape(*self.mask.shape, *[1] * (rows.dim() - 1)), padded, padding)


_PACKINGS = WeakTensorKeyDictionary()
"""The Packing of tensors that are the batch_sizes of packed sequences."""

_PADDED = WeakTensorKeyDictionary()
"""The padded form that rows come from, and the versions of both at that time."""


@replaces(torch._pack_padded_sequence)
def _pack_padded_sequence(input: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    padded = input.transpose(0, 1) if batch_first else input
    torch._check(lengths.shape[0] == padded.shape[1])
    longest = cast(int, lengths.max().item())
    torch._check(longest <= padded.shape[0])
    torch._check(lengths.min().item() >= 1)
    torch._check((lengths[1:] > lengths[:-1]).sum().item() == 0)  # they are sorted
    packing = Packing.of_mask(torch.arange(longest).unsqueeze(1) < lengths)
    batch_sizes = packing.mask.sum(1)
    _PACKINGS[batch_sizes] = packing
    return packing.pack(padded.narrow(0, 0, longest)), batch_sizes


@replaces(torch._pad_packed_sequence)
def _pad_packed_sequence(
    data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: Size
) -> tuple[Tensor, Tensor]:
    packing = Packing.of(batch_sizes)
    padded = packing.pad(data, padding_value)
    missing = total_length - padded.shape[0]
    if not statically_known_true(missing == 0):
        padded = torch.cat([padded, padded.new_full((missing, *padded.shape[1:]), padding_value)])
    return padded.transpose(0, 1) if batch_first else padded, packing.mask.sum(0)


@replaces(torch.zeros)
def _zeros(*given: Any, size: Sequence[Any] | None = None, **options: Any) -> Tensor:
    """The initial states of a layer have the size batch_sizes[0], a tensor."""
    sizes = given if size is None else size
    sizes = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], list | tuple) else sizes
    return torch.zeros([_number(one) if isinstance(one, Tensor) else one for one in sizes], **options)


def _number(size: Tensor) -> Size:
    if size._base in _PACKINGS and size.storage_offset() == 0:
        return Packing.of(size._base).mask.shape[1]
    return cast(int, size.item())


def checked_states() -> contextlib.AbstractContextManager[Any]:
    """nn.RNN and nn.GRU compare the shape of given states with one that is not a number in a trace."""
    of_numbers = nn.RNNBase.get_expected_hidden_size

    def expected(layer: nn.RNNBase, input: Tensor, batch_sizes: Tensor | None) -> tuple[Size, ...]:
        if batch_sizes is None:
            return of_numbers(layer, input, None)
        directions = 2 if layer.bidirectional else 1
        width = layer.proj_size or layer.hidden_size
        return layer.num_layers * directions, Packing.of(batch_sizes).mask.shape[1], width

    return mock.patch.object(nn.RNNBase, "get_expected_hidden_size", expected)
