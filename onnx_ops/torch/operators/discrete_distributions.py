"""Poisson and binomial distributions: draws.

Those of small means count the values whose cumulative probability a uniform number exceeds. Others are drawn by
transformed rejection (Hormann, 1993), as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from onnx_ops.torch.base.table import draws
from onnx_ops.torch.operators.random_numbers import Generator

aten = torch.ops.aten

SMALL = 10
"""The mean from which on numbers are drawn by rejection."""
VALUES = 64
"""A number of a smaller mean is as large with a probability below 1e-27."""
PROPOSALS = 16
"""Each is accepted with a probability above 0.7, so that all are refused in 5e-9 of draws: then the mean, rounded."""


@draws(aten.poisson.default)
def _poisson(random: Generator, input: Tensor, generator: torch.Generator | None = None) -> Tensor:
    mean = input.double()
    few, many = mean.clamp(max=SMALL), mean.clamp(min=SMALL)
    # p(k) / p(k - 1) = mean / k
    ratios = few.unsqueeze(-1).log() - torch.arange(1.0, VALUES, dtype=torch.float64).log()
    small = _by_inversion(random, -few, ratios)
    b = 0.931 + 2.53 * many.sqrt()
    a = -0.059 + 0.02483 * b

    def accepted(k: Tensor, u: Tensor, v: Tensor) -> Tensor:
        density = k * many.log() - many - aten.lgamma(k + 1)
        return (v * (1.1239 + 1.1328 / (b - 3.4)) / (a / (u * u) + b)).log() <= density

    large = _by_rejection(
        random, a, b, many + 0.43, 0.9277 - 3.6224 / (b - 2), torch.full_like(many, torch.inf), accepted
    )
    return torch.where(mean < SMALL, small, large).to(input.dtype)


@draws(aten.binomial.default)
def _binomial(random: Generator, count: Tensor, prob: Tensor, generator: torch.Generator | None = None) -> Tensor:
    n, given = torch.broadcast_tensors(count.double(), prob.double())
    p = torch.minimum(given, 1 - given).clamp(min=0)
    odds = p / (1 - p)
    places = torch.arange(1.0, VALUES, dtype=torch.float64)
    few = torch.where(n * p < SMALL, n, 0.0)
    # p(k) / p(k - 1) = (n - k + 1) / k * odds
    ratios = (odds.unsqueeze(-1) * (few.unsqueeze(-1) + 1 - places).clamp(min=0) / places).log()
    small = _by_inversion(random, few * torch.log1p(-p), ratios)
    many = torch.where(n * p < SMALL, 20.0, n)
    q = torch.where(n * p < SMALL, 0.5, p)
    deviation = (many * q * (1 - q)).sqrt()
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * q
    mode = ((many + 1) * q).floor()
    at_mode = aten.lgamma(mode + 1) + aten.lgamma(many - mode + 1)

    def accepted(k: Tensor, u: Tensor, v: Tensor) -> Tensor:
        density = at_mode - aten.lgamma(k + 1) - aten.lgamma(many - k + 1) + (k - mode) * (q / (1 - q)).log()
        return (v * (2.83 + 5.1 / b) * deviation / (a / (u * u) + b)).log() <= density

    large = _by_rejection(random, a, b, many * q + 0.5, 0.92 - 4.2 / b, many, accepted)
    found = torch.where(n * p < SMALL, small, large)
    found = torch.where(given > 0.5, n - found, found)
    return torch.where(given.isnan(), torch.nan, found.clamp(min=0)).to(count.dtype)


def _by_inversion(random: Generator, first: Tensor, ratios: Tensor) -> Tensor:
    """Numbers k from 0 on, of logarithms of probabilities.

    Args:
        first: of 0.
        ratios: (..., VALUES - 1), of k relative to k - 1.
    """
    logarithms = torch.cat([first.unsqueeze(-1), first.unsqueeze(-1) + ratios.cumsum(-1)], -1)
    uniform = random.uniform(first.shape, torch.float64)
    return (uniform.unsqueeze(-1) >= logarithms.exp().cumsum(-1)).sum(-1).to(torch.float64)


def _by_rejection(
    random: Generator,
    a: Tensor,
    b: Tensor,
    center: Tensor,
    squeeze: Tensor,
    largest: Tensor,
    accepted: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Tensor:
    """Numbers from 0 to `largest` around a center.

    Args:
        a, b: of the transformation of a uniform number.
        squeeze: bound on the second uniform number below which a proposal near the center is accepted.
        accepted: of a proposal, of the distance of its uniform number to the ends, and of the second uniform number.
    """
    shape = (PROPOSALS, *center.shape)
    first, second = (random.uniform(shape, torch.float64) for _ in range(2))
    first = first - 0.5
    distance = 0.5 - first.abs()
    k = ((2 * a / distance + b) * first + center).floor()
    inside = (k >= 0) & (k <= largest)
    holds = ((distance >= 0.07) & (second <= squeeze)) | (
        inside & accepted(torch.where(inside, k, 0.0), distance, second)
    )
    place = holds.to(torch.uint8).argmax(0, keepdim=True)
    return torch.where(holds.any(0), k.gather(0, place).squeeze(0), center.floor())
