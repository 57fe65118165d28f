"""Draws of the von Mises distribution, which PyTorch repeats until all are accepted."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from unittest import mock

import torch
from torch import Tensor
from torch.distributions import von_mises

PROPOSALS = 20
"""Each is accepted with a probability above 0.65, so that all are refused in 8e-10 of draws: then the first one."""


@contextlib.contextmanager
def bounded_rejections() -> Iterator[None]:
    """A context in which a draw has a number of proposals that does not depend on data."""
    with mock.patch.object(von_mises, "_rejection_sample", _drawn):
        yield


def _drawn(loc: Tensor, concentration: Tensor, proposal_r: Tensor, x: Tensor) -> Tensor:
    """Angles of the shape of `x` (Best and Fisher 1979)."""
    u1, u2, u3 = torch.rand((3, PROPOSALS, *x.shape), dtype=loc.dtype).unbind()
    z = torch.cos(math.pi * u1)
    cosine = ((1 + proposal_r * z) / (proposal_r + z)).clamp(-1, 1)
    c = concentration * (proposal_r - cosine)
    accepted = (c * (2 - c) > u2) | ((c / u2).log() + 1 - c >= 0)
    angles = (u3 - 0.5).sign() * cosine.acos()
    first = accepted.to(torch.int64).argmax(0, keepdim=True)
    return (angles.gather(0, first).squeeze(0) + math.pi + loc) % (2 * math.pi) - math.pi
