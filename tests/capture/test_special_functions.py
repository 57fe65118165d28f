"""Special functions within a step, compared with PyTorch and closed forms, and distributions that consist of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from captures import compared, gradients
from torch import Tensor, nn, special
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributions import Beta, Dirichlet, Gamma, StudentT, VonMises
from torch.export import Dim

import onnx_ops

EULER = 0.57721566490153286
GRID = [
    -7.3,
    -2.5,
    -1e-3,
    1e-12,
    1e-3,
    0.3,
    0.99999,
    1.00001,
    1.4616321449683622,
    2.0,
    2.7,
    7.99,
    8.0,
    31.7,
    1e5,
    1e200,
]
POSITIVE = [1e-300, 1e-3, 0.3, 1.0, 3.4999, 3.5, 9.0, 60.0]
EDGES = [0.0, -1.0, -4.0, math.inf, math.nan]


def bessel(order: int, x: Tensor) -> Tensor:
    """Of numbers, PyTorch's function, which is off by 4e-7, in a capture; and else Bessel's integral."""
    if isinstance(x, FakeTensor):
        return (special.bessel_j0, special.bessel_j1)[order](x)
    angle = torch.linspace(0, 2 * math.pi, 4097, dtype=torch.float64)[1:]
    return (order * angle - x.double()[:, None] * angle.sin()).cos().mean(1)


RAMP = [-90.0, -17.0, -3.0, -0.3, -1e-4, 0.0, 1e-4, 0.3, 3.0, 16.0, 90.0, math.inf, -math.inf, math.nan]

FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], list[float]]] = {
    "lgamma": (torch.lgamma, [*GRID, *EDGES, -math.inf]),
    "digamma": (torch.digamma, [*GRID, *EDGES]),
    "trigamma": (lambda x: torch.polygamma(1, x), [0.3, 1.0, 7.99, 31.7, 1e5, math.inf, math.nan]),
    "tetragamma": (lambda x: torch.polygamma(2, x), [0.3, 1.0, 7.99, 31.7, 1e5, math.nan]),
    "i0": (special.i0, [0.0, 1e-9, -3.0, 19.99, 20.0, -60.0, 700.0, math.nan]),
    "i0e": (special.i0e, [0.0, 1e-9, -3.0, 19.99, 20.0, -60.0, 1e9, math.inf, math.nan]),
    "i1": (special.i1, [0.0, 1e-9, -3.0, 19.99, 20.0, -60.0, 700.0, math.nan]),
    "i1e": (special.i1e, [0.0, 1e-9, -3.0, 19.99, 20.0, -60.0, 1e9, math.inf, math.nan]),
    "erfinv": (special.erfinv, [0.0, 1e-9, -0.3, 0.8499, 0.8501, -0.999999, 1.0, -1.0, 1.5, math.nan]),
    "ndtri": (special.ndtri, [0.0, 1e-300, 1e-9, 0.07, 0.3, 0.5, 0.92, 1 - 1e-9, 1.0, -0.1, math.nan]),
    "erfc": (special.erfc, [-30.0, -3.0, -0.3, 0.0, 0.3, 0.47, 3.9, 4.1, 9.0, 26.0, math.inf, -math.inf, math.nan]),
    "erfcx": (special.erfcx, [-30.0, -5.0, -0.3, 0.0, 0.3, 0.47, 3.9, 4.1, 26.0, 1e9, math.inf, -math.inf, math.nan]),
    "gammainc": (lambda x: special.gammainc(torch.full_like(x, 2.5), x), [*POSITIVE, *EDGES]),
    "gammaincc": (lambda x: special.gammaincc(torch.full_like(x, 2.5), x), [*POSITIVE, *EDGES]),
    "gammainc of 300": (lambda x: special.gammainc(torch.full_like(x, 300.0), x), [250.0, 300.0, 301.5, 340.0]),
    "gammaincc of 300": (lambda x: special.gammaincc(torch.full_like(x, 300.0), x), [250.0, 300.0, 301.5, 340.0]),
    "bessel_j0": (
        functools.partial(bessel, 0),
        [0.0, 1e-9, -3.0, 2.404825557695773, 19.99, 20.0, -60.0, 1e3, math.nan],
    ),
    "bessel_j1": (
        functools.partial(bessel, 1),
        [0.0, 1e-9, -3.0, 3.8317059702075125, 19.99, 20.0, -60.0, 1e3, math.nan],
    ),
    "spherical_bessel_j0": (special.spherical_bessel_j0, [0.0, 1e-9, -3.0, 0.4, 20.0, 1e3, math.inf, math.nan]),
    "softplus": (nn.functional.softplus, RAMP),
    "logsigmoid": (nn.functional.logsigmoid, RAMP),
    "logaddexp": (lambda x: torch.logaddexp(x, 0.3 * x), RAMP),
    "log_ndtr": (special.log_ndtr, [-1e5, -40.0, -3.0, -0.3, 0.0, 0.3, 3.0, 9.0, math.inf]),
}

# PyTorch's own float64 trigamma is off by 5e-10, and its gammainc of large numbers by 9e-10.
LOOSE = {"trigamma": 1e-8, "gammainc of 300": 2e-9, "gammaincc of 300": 2e-9}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_values(dtype: torch.dtype) -> None:
    """Of numbers over the whole range, beside PyTorch's in float64."""

    def loss(model: nn.Module, x: dict[str, Tensor]) -> dict[str, Tensor]:
        outputs = {f"out.{name}": FUNCTIONS[name][0](value) for name, value in x.items()}
        return {"loss": model.weight.sum(), **outputs}

    given = {name: torch.tensor(numbers, dtype=dtype) for name, (_, numbers) in FUNCTIONS.items()}
    capture = gradients(nn.Linear(1, 1).to(dtype), loss, (given,), check=False)
    session = onnx_ops.InferenceSession(capture.model)
    names = [f"out.{name}" for name in FUNCTIONS]
    # Float32 results are rounded float64 ones. In float64 each has up to five roundings, and so has PyTorch's.
    eps = 2.0**-24 if dtype is torch.float32 else 2.0**-50
    central = {name: value.abs().clamp(max=0.9) for name, value in given.items()}  # some terms are not computed
    for x in (given, central):
        feeds = {f"x.{name}": tensor.numpy() for name, tensor in x.items()}
        found = dict(zip(FUNCTIONS, session.run(names, capture.state | feeds), strict=True))
        for name, (function, _) in FUNCTIONS.items():
            wanted = function(x[name].double()).to(dtype).numpy()
            # At zeros of lgamma and digamma an absolute error is allowed.
            tolerance = max(2 * eps, LOOSE.get(name, 0.0))
            np.testing.assert_allclose(found[name], wanted, rtol=tolerance, atol=4 * eps, err_msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_gamma_functions_are_by_op(dtype: torch.dtype) -> None:
    """With their gradients, of negative numbers too; of integers they are float32."""

    def loss(model: nn.Linear, x: Tensor, counts: Tensor) -> dict[str, Tensor]:
        hidden = model(x)
        total = torch.lgamma(hidden) + torch.digamma(hidden.square() + 0.1) + special.multigammaln(hidden.exp() + 1, 2)
        return {"loss": total.sum(), "of_counts": torch.lgamma(counts) + torch.digamma(counts)}

    torch.manual_seed(0)
    model = nn.Linear(3, 2).to(dtype)
    counts = torch.tensor([1, 2, 5, 60])
    example = torch.randn(4, 3, dtype=dtype), counts
    capture = gradients(model, loss, example, dynamic_shapes=({0: Dim("rows")}, None))
    ops = [node.op_type for node in capture.model.graph.node if node.domain == "aclnn"]
    assert ops.count("Lgamma") >= 3
    assert ops.count("Digamma") >= 4
    if dtype is torch.bfloat16:
        return  # compared by the capture
    x = 3 * torch.randn(50, 3, dtype=dtype)
    # In float64: PyTorch's float32 digamma loses digits at negative numbers.
    model, x = model.double(), x.double()
    wanted = loss(model, x, counts)
    slopes = torch.autograd.grad(wanted["loss"], list(model.parameters()))
    names = ["of_counts", "grad.weight", "grad.bias"]
    session = onnx_ops.InferenceSession(capture.model)
    found = session.run(names, capture.state | {"x": x.to(dtype).numpy(), "counts": counts.numpy()})
    for got, tensor in zip(found, (wanted["of_counts"], *slopes), strict=True):
        # The slopes of numbers near a pole, which are rounded; PyTorch's float64 trigamma is off by 5e-10.
        tolerance = 1e-4 if got.dtype == np.float32 else 1e-8
        np.testing.assert_allclose(got, tensor.detach().numpy(), rtol=tolerance, atol=tolerance)


def test_slopes_of_sinc_near_0() -> None:
    """By their series; PyTorch's are rounding errors of up to 1e-4, and 0 below 1e-19."""
    x = torch.tensor([1e-42, 1e-30, 1e-19, 1e-10, 1e-5, 1e-3, 2.9e-3, 3.3e-3, -0.5, 0.0])

    def loss(model: nn.Linear, x: Tensor) -> Tensor:
        return torch.sinc(model.weight[0] * x).sum()

    model = nn.Linear(len(x), 1, bias=False)
    nn.init.ones_(model.weight)
    session = onnx_ops.InferenceSession(gradients(model, loss, (x,), check=False).model)
    (found,) = session.run(["grad.weight"], {"weight": model.weight.detach().numpy(), "x": x.numpy()})
    angle = math.pi * x.double().numpy()
    series = -(angle**2) / 3 * (1 - angle**2 / 10 * (1 - angle**2 / 28))
    wide = np.where(angle == 0, 1.0, angle)
    wanted = np.where(np.abs(angle) < 0.1, series, np.cos(wide) - np.sin(wide) / wide)
    np.testing.assert_allclose(found[0], wanted, rtol=3e-3, atol=1e-44)


def test_digits_where_pytorch_has_fewer() -> None:
    x = torch.tensor([1.0, 0.5, 0.25, -0.5], dtype=torch.float64)
    capture = gradients(
        nn.Linear(1, 1).double(),
        lambda m, x: {"loss": m.weight.sum()} | {f"psi{n}": torch.polygamma(n, x) for n in range(3)},
        (x,),
        check=False,
    )
    got = onnx_ops.InferenceSession(capture.model).run(["psi0", "psi1", "psi2"], capture.state | {"x": x.numpy()})
    catalan, zeta3 = 0.91596559417721901505, 1.20205690315959428540
    log2, pi = math.log(2), math.pi
    exact = (
        [-EULER, -EULER - 2 * log2, -EULER - pi / 2 - 3 * log2, 2 - EULER - 2 * log2],
        [pi**2 / 6, pi**2 / 2, pi**2 + 8 * catalan, pi**2 / 2 + 4],
        [-2 * zeta3, -14 * zeta3, -2 * pi**3 - 56 * zeta3, 16 - 14 * zeta3],
    )
    for array, wanted in zip(got, exact, strict=True):
        np.testing.assert_allclose(array, wanted, rtol=2e-15, atol=4e-16)


@pytest.mark.full
def test_distributions() -> None:
    """Log-probabilities and entropies, with gradients with respect to parameters and samples."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        first, second = (model(x).tanh() + 1.5).chunk(2, -1)
        part = torch.sigmoid(model(x))[..., :2]
        share = torch.softmax(model(x), -1)
        gamma, beta, dirichlet = Gamma(first, second), Beta(first, second), Dirichlet(torch.cat([first, second], -1))
        student, mises = StudentT(first + 2, second), VonMises(first, second)
        terms = [gamma.log_prob(part), beta.log_prob(part), dirichlet.log_prob(share), student.log_prob(part)]
        terms += [mises.log_prob(part), gamma.entropy(), beta.entropy(), dirichlet.entropy(), student.entropy()]
        terms += [special.ndtri(part), special.erfcx(first), special.i1e(second), special.log_ndtr(-first)]
        terms += [torch.mvlgamma(first + 3, 2)]
        return sum(((k + 1) * term.sum() for k, term in enumerate(terms)), torch.zeros((), dtype=x.dtype))

    torch.manual_seed(0)
    compared(nn.Linear(3, 4), loss, [torch.randn(4, 3), torch.randn(7, 3)], {0: Dim("N")})
