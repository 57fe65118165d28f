"""The quantiles of the normal distribution, and the inverse of the error function."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from onnx_ops.torch.base.custom_ops import custom_operator
from onnx_ops.torch.base.loops import any_of, branch
from onnx_ops.torch.base.nodes import Value, double, op
from onnx_ops.torch.base.table import decomposes
from onnx_ops.torch.operators.polynomials import horner, in_float64, polynomial, ratio

aten = torch.ops.aten

# M. J. Wichura, Algorithm AS 241: the percentage points of the normal distribution, Applied Statistics 37 (1988).
CENTRAL = (
    (
        3.3871328727963665,
        133.14166789178438,
        1971.5909503065513,
        13731.69376550946,
        45921.95393154987,
        67265.7709270087,
        33430.57558358813,
        2509.0809287301227,
    ),
    (
        1.0,
        42.31333070160091,
        687.1870074920579,
        5394.196021424751,
        21213.794301586597,
        39307.89580009271,
        28729.085735721943,
        5226.495278852854,
    ),
)
MIDDLE = (
    (
        1.4234371107496835,
        4.630337846156546,
        5.769497221460691,
        3.6478483247632045,
        1.2704582524523684,
        0.2417807251774506,
        0.022723844989269184,
        0.0007745450142783414,
    ),
    (
        1.0,
        2.053191626637759,
        1.6763848301838038,
        0.6897673349851,
        0.14810397642748008,
        0.015198666563616457,
        0.0005475938084995345,
        1.0507500716444169e-09,
    ),
)
FAR = (
    (
        6.657904643501103,
        5.463784911164114,
        1.7848265399172913,
        0.29656057182850487,
        0.026532189526576124,
        0.0012426609473880784,
        2.7115555687434876e-05,
        2.0103343992922881e-07,
    ),
    (
        1.0,
        0.599832206555888,
        0.1369298809227358,
        0.014875361290850615,
        0.0007868691311456133,
        1.8463183175100548e-05,
        1.421511758316446e-07,
        2.0442631033899397e-15,
    ),
)


def _quantile(q: Tensor, tail: Tensor) -> Tensor:
    """Where the distribution function is 1/2 + q.

    Args:
        q: in [-1/2, 1/2].
        tail: 1/2 - abs(q), without the rounding of that difference.
    """
    central = q * ratio(0.180625 - q * q, *CENTRAL)
    r = (-tail.log()).sqrt()
    outer = torch.where(r <= 5, ratio(r - 1.6, *MIDDLE), ratio(r - 5, *FAR))
    outer = torch.where(tail == 0, math.inf, outer)
    return torch.where(q.abs() <= 0.425, central, q.sign() * outer)


@decomposes(aten.special_ndtri.default)
@in_float64
def _ndtri(x: Tensor) -> Tensor:
    return _quantile(x - 0.5, torch.where(x < 0.5, x, 1 - x))


@decomposes(aten.erfinv.default)
def _erfinv(x: Tensor) -> Tensor:
    return _erfinv_of_doubles(x) if x.dtype is torch.float64 else _short_erfinv(x)


@in_float64
def _erfinv_of_doubles(x: Tensor) -> Tensor:
    return _quantile(x / 2, (1 - x.abs()) / 2) / math.sqrt(2)


# Polynomials that are equal to erfinv(x) / x at Chebyshev nodes, and else within 7e-9 of it, relatively: in
# w = -log(1 - x**2) <= SMALL, and in its root up to that of the largest float32 number below 1.
SMALL = 5.0
OF_SMALL = (
    0.8862269242011682,
    0.23201371276215604,
    0.011549165116928104,
    -0.0023352705948701527,
    -0.00012653947431268868,
    4.404880432626899e-05,
    4.150663236592616e-06,
    -2.0082713391637707e-06,
    2.243043015262031e-07,
    -8.931925970244222e-09,
)
OF_LARGE = (
    -1.9339789043875917,
    9.330621117754617,
    -13.145702665455309,
    10.845641205130255,
    -5.437940523525225,
    1.7579638626072505,
    -0.37066995543878944,
    0.049479589391178504,
    -0.0038096985094102885,
    0.00012925036959619455,
)


@in_float64
def _short_erfinv(x: Tensor) -> Tensor:
    """Of float32 numbers, whose squares are exact."""
    found: Tensor = x * erfinv_ratio(-(1 - x * x).log())
    return found


def _ratio_nodes(w: Value) -> Value:
    small = horner(w, OF_SMALL)

    def computed() -> Sequence[Value]:
        large = horner(op.Sqrt(w), OF_LARGE)
        large = op.Where(op.Equal(w, double(math.inf)), w, large)
        return [op.Where(op.Greater(w, double(SMALL)), large, small)]

    (found,) = branch(f"{w.name}_tail", any_of(op.Greater(w, double(SMALL))), computed, lambda: [small])
    return found


@custom_operator(_ratio_nodes, torch.empty_like)
def erfinv_ratio(w: Tensor) -> Tensor:
    """erfinv(x) / x of w = -log(1 - x**2), in float64."""
    small, large = polynomial(w, list(OF_SMALL)), polynomial(w.sqrt(), list(OF_LARGE))
    return torch.where(w > SMALL, torch.where(w == math.inf, math.inf, large), small)
