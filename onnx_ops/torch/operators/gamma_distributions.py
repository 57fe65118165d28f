"""Gamma and Dirichlet distributions, and so beta, chi-squared and Student's t: draws, and their derivatives.

The derivatives with respect to the parameters, at fixed random numbers, are PyTorch's approximations
(ATen/native/Distributions.h).
"""

from __future__ import annotations

import torch
from torch import Tensor

from onnx_ops.torch.base.table import decomposes, draws
from onnx_ops.torch.operators.polynomials import in_float64, polynomial
from onnx_ops.torch.operators.random_numbers import Generator

aten = torch.ops.aten

PROPOSALS = 8
"""Each is accepted with a probability above 0.95, so that all are refused in 4e-11 of draws: then alpha - 1/3."""


def _gamma(random: Generator, alpha: Tensor) -> Tensor:
    """Standard gamma numbers (Marsaglia and Tsang, 2000) of float32 or float64."""
    shape, dtype = alpha.shape, alpha.dtype
    small = alpha < 1
    d = torch.where(small, alpha + 1, alpha) - 1 / 3
    c = (9 * d).rsqrt()
    found, done = torch.ones_like(d), torch.zeros_like(d, dtype=torch.bool)
    for _ in range(PROPOSALS):
        x = random.normal(shape, dtype)
        v = (1 + c * x) ** 3
        u = 1 - random.uniform(shape, dtype)
        accepted = (v > 0) & (torch.log(u) < 0.5 * x * x + d * (1 - v + torch.log(v)))
        found = torch.where(accepted & ~done, v, found)
        done = done | accepted
    return d * found * torch.where(small, (1 - random.uniform(shape, dtype)) ** (1 / alpha), 1.0)


@draws(aten._standard_gamma.default)
def _standard_gamma(random: Generator, alpha: Tensor, generator: torch.Generator | None = None) -> Tensor:
    wide = alpha.to(torch.promote_types(alpha.dtype, torch.float32))
    return _gamma(random, wide).clamp(min=torch.finfo(alpha.dtype).tiny).to(alpha.dtype)


@draws(aten._sample_dirichlet.default)
def _sample_dirichlet(random: Generator, alpha: Tensor, generator: torch.Generator | None = None) -> Tensor:
    numbers = _gamma(random, alpha.double())
    limits = torch.finfo(alpha.dtype)
    return (numbers / numbers.sum(-1, keepdim=True)).clamp(limits.tiny, 1 - limits.eps / 2).to(alpha.dtype)


def _without_nan(found: Tensor) -> Tensor:
    return torch.where(found.isnan(), 0.0, found)


RATIONAL = (
    (
        (0.16009398, -0.094634809, 0.025146376, -0.0030648343),
        (0.53487893, 0.1298071, 0.065735949, -0.0015649758),
        (0.040121004, -0.0065914022, -0.0026286047, -0.0013441777),
    ),
    (
        (1.0, 0.32668115, 0.10406089, 0.0014179084),
        (0.16639465, 0.020070113, -0.0035938915, -0.00058392623),
        (0.017050642, -0.0021309326, 0.00085092367, -1.5247877e-07),
    ),
)
"""Coefficients of numerator and denominator in powers of log(x / alpha), and for each in powers of log(alpha)."""


@decomposes(aten._standard_gamma_grad.default)
@in_float64
def _standard_gamma_grad(alpha: Tensor, x: Tensor) -> Tensor:
    """-(d cdf(x; alpha) / d alpha) / pdf(x; alpha)."""
    large = torch.where((0.9 * alpha <= x) & (x <= 1.1 * alpha), _gamma_near_mean(alpha, x), _gamma_saddle(alpha, x))
    u, v = (x / alpha).log(), alpha.log()
    p, q = (sum(u**i * polynomial(v, row) for i, row in enumerate(rows)) for rows in RATIONAL)
    return torch.where(x < 0.8, _gamma_series(alpha, x), torch.where(alpha > 8, large, torch.exp(p / q)))


def _gamma_series(alpha: Tensor, x: Tensor) -> Tensor:
    """Taylor's series of small x."""
    factor, first, second = torch.ones_like(x), 1 / alpha, alpha**-2
    for i in range(1, 6):
        factor = factor * (-x / i)
        first = first + factor / (alpha + i)
        second = second + factor / (alpha + i) ** 2
    power = x**alpha
    density = x ** (alpha - 1) * torch.exp(-x)
    slope = (x.log() - aten.digamma(alpha)) * (power * first) - power * second
    return _without_nan(-slope / density)


def _gamma_near_mean(alpha: Tensor, x: Tensor) -> Tensor:
    """Rice's saddle point expansion of large alpha around its singularity."""
    first = 1 + 24 * alpha * (1 + 12 * alpha)
    second = 1440 * alpha**2 + 6 * x * (53 - 120 * x) - 65 * x * x / alpha + alpha * (107 + 3600 * x)
    return first * second / (1244160 * alpha**4)


def _gamma_saddle(alpha: Tensor, x: Tensor) -> Tensor:
    """Rice's saddle point expansion of large alpha."""
    logarithm, root = (x / alpha).log(), (8 * alpha).sqrt()
    correction = (x - alpha - alpha * logarithm) ** -1.5
    terms = root / (alpha - x) - torch.where(x < alpha, correction, -correction)
    slope = logarithm * terms - (2 / alpha).sqrt() * (alpha + x) / (alpha - x) ** 2
    stirling = 1 + 1 / (12 * alpha) * (1 + 1 / (24 * alpha))
    return -stirling * x * slope / root


CORRECTION = (
    (
        (
            (1.003668233, -0.01061107488, -0.0657888334, 0.01201642863),
            (0.6336835991, -0.3557432599, 0.05486251648, -0.001465281033),
            (-0.03276231906, 0.004474107445, 0.002429354597, -0.0001557569013),
        ),
        (
            (0.221950385, -0.3187676331, 0.01799915743, 0.01074823814),
            (-0.2951249643, 0.06219954479, 0.01535556598, 0.001550077057),
            (0.02155310298, 0.004170831599, 0.001292462449, 6.976601077e-05),
        ),
        (
            (-0.05980841433, 0.008441916499, 0.01085618172, 0.002319392565),
            (0.02911413504, 0.01400243777, -0.002721828457, 0.000751041181),
            (0.005900514878, -0.001936558688, -9.495446725e-06, 5.385558597e-05),
        ),
    ),
    (
        (
            (1.0, -0.02924021934, -0.04438342661, 0.007285809825),
            (0.6357567472, -0.3473456711, 0.05454656494, -0.002407477521),
            (-0.03301322327, 0.004845219414, 0.00231480583, -0.0002307248149),
        ),
        (
            (0.5925320577, -0.1757678135, 0.01505928619, 0.000564515273),
            (0.1014815858, -0.06589186703, 0.01272886114, -0.0007316646956),
            (-0.007258481865, 0.001096195486, 0.0003934994223, -4.12701925e-05),
        ),
        (
            (0.06469649321, -0.0236701437, 0.002902096474, -5.896963079e-05),
            (0.001925008108, -0.002869809258, 0.0008000589141, -6.063713228e-05),
            (-0.0003477407336, 6.959756487e-05, 1.097287507e-05, -1.650964693e-06),
        ),
    ),
)
"""Coefficients of numerator and denominator in powers of log(x), a and b of `_beta_rational`."""


@decomposes(aten._dirichlet_grad.default)
@in_float64
def _dirichlet_grad(x: Tensor, alpha: Tensor, total: Tensor) -> Tensor:
    """-(d cdf(x; alpha, beta) / d alpha) / pdf(x; alpha, beta) / (1 - x) of the beta distribution.

    Args:
        x: a number of the distribution.
        alpha: its first parameter.
        total: the sum of its two parameters.
    """
    beta = total - alpha
    boundary = total * x * (1 - x)
    found = torch.where((alpha > 6) & (beta > 6), _beta_saddle(x, alpha, beta), _beta_rational(x, alpha, total))
    found = torch.where((x >= 0.5) & (boundary < 0.75), -_beta_series_of_beta(1 - x, beta, alpha), found)
    return torch.where((x <= 0.5) & (boundary < 2.5), _beta_series(x, alpha, beta), found)


def _beta_series(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """Taylor's series of small x, with respect to alpha."""
    factor = aten.digamma(alpha) - aten.digamma(alpha + beta) - x.log()
    term, series = torch.ones_like(x), (factor + 1 / alpha) / alpha
    for i in range(1, 11):
        term = term * (i - beta) * x / i
        series = series + term / (alpha + i) * (factor + 1 / (alpha + i))
    return _without_nan(x * (1 - x) ** -beta * series)


def _beta_series_of_beta(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """Taylor's series of small x, with respect to beta."""
    factor = aten.digamma(alpha + beta) - aten.digamma(beta)
    term, rising, slope, series = torch.ones_like(x), torch.ones_like(x), torch.zeros_like(x), factor / alpha
    for i in range(1, 9):
        term = term * (-x / i)
        slope = slope * (beta - i) + rising
        rising = rising * (beta - i)
        series = series + term / (alpha + i) * (slope + factor * rising)
    return _without_nan(-((1 - x) ** (1 - beta)) * series)


def _beta_saddle(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """Rice's saddle point expansion of large parameters, around its singularity a polynomial."""
    total = alpha + beta
    mean, deviation = alpha / total, (alpha * beta / (total + 1)).sqrt() / total
    inner = alpha * (8 * (1 - x) * (135 * beta - 11))
    inner = alpha * ((453 + 1620 * beta * (1 - x) - 455 * x) * beta + inner)
    inner = alpha * (3 * (59 + 180 * beta - 90 * x) * beta**2 + inner)
    inner = alpha * ((43 + 20 * (16 + 27 * beta) * x) * beta**3 + inner)
    scale = (1 + 12 * alpha) * (1 + 12 * beta) / total**2 / (12960 * alpha**3 * beta**2 * (1 + 12 * total))
    near = scale / (1 - x) * (47 * x * beta**4 + inner)

    def stirling(z: Tensor) -> Tensor:
        return 1 + 1 / (12 * z) + 1 / (288 * z * z)

    distance = beta * x + alpha * (x - 1)
    first = 2 * alpha**2 * (x - 1) + alpha * beta * (x - 1) - x * beta**2
    first = first / ((2 * alpha / beta).sqrt() * total**1.5 * distance**2)
    second = 0.5 * (alpha / (total * x)).log()
    third = (8 * alpha * beta / total).sqrt() / distance
    fourth = (beta * (beta / (total * (1 - x))).log() + alpha * (alpha / (total * x)).log()) ** -1.5
    terms = first + second * (third + torch.where(x < mean, fourth, -fourth))
    factor = -x / (2 * alpha * beta / total).sqrt() * (stirling(alpha) * stirling(beta) / stirling(total))
    return torch.where((x - mean).abs() <= 0.1 * deviation, near, factor * terms)


def _beta_rational(x: Tensor, alpha: Tensor, total: Tensor) -> Tensor:
    """A rational correction of an approximation."""
    u = x.log()
    a = alpha.log() - u
    b = total.log() - a
    p, q = (
        sum(u**i * a**j * polynomial(b, row) for i, rows in enumerate(table) for j, row in enumerate(rows))
        for table in CORRECTION
    )
    return p / q * x * (aten.digamma(total) - aten.digamma(alpha)) / (total - alpha)
