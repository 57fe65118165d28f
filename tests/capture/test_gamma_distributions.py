"""Draws from gamma, Dirichlet and von Mises distributions, and gradients, compared with PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from captures import gradients
from torch import Tensor, distributions, nn
from torch.export import Dim

import onnx_ops
from onnx_ops.torch.operators.gamma_distributions import _dirichlet_grad, _standard_gamma_grad

SIZE = 4000
ALPHAS = torch.tensor([0.1, 1.0, 20.0])


def test_gradients_at_fixed_numbers() -> None:
    """In all parts of the plane of numbers and parameters, in each of which another approximation holds."""
    torch.manual_seed(0)
    alpha = torch.exp(torch.linspace(-4, 5, 60, dtype=torch.float64)).repeat_interleave(60)
    x = torch._standard_gamma(alpha)
    torch.testing.assert_close(_standard_gamma_grad(alpha, x), torch._standard_gamma_grad(alpha, x), rtol=1e-9, atol=0)
    pairs = torch.stack([alpha, alpha.view(60, 60).T.flatten()], 1)
    x, total = torch._sample_dirichlet(pairs), pairs.sum(-1, keepdim=True).expand_as(pairs)
    wanted = torch._dirichlet_grad(x, pairs, total)
    torch.testing.assert_close(_dirichlet_grad(x, pairs, total), wanted, rtol=1e-9, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments_of_draws(dtype: torch.dtype) -> None:
    """Means and variances, within 5 standard deviations."""

    def loss(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
        alpha = x.exp().expand(SIZE, 3)
        drawn = {"gamma": torch._standard_gamma(alpha), "shares": torch._sample_dirichlet(alpha)}
        return {"loss": sum(map(torch.mean, drawn.values())) * model.weight.sum()} | drawn

    capture = gradients(nn.Linear(1, 1, dtype=dtype), loss, (ALPHAS.to(dtype).log(),), check=False)
    session = onnx_ops.InferenceSession(capture.model)
    gamma, shares = session.run(["gamma", "shares"], capture.state | {"x": ALPHAS.to(dtype).log().numpy()})
    alphas = ALPHAS.double().numpy()
    mean = alphas / alphas.sum()
    variance = mean * (1 - mean) / (alphas.sum() + 1)
    kurtosis = 3 + 6 / alphas
    assert (np.abs(gamma.mean(0) - alphas) < 5 * np.sqrt(alphas / SIZE)).all()
    assert (np.abs(gamma.var(0) / alphas - 1) < 5 * np.sqrt((kurtosis - 1) / SIZE)).all()
    assert (np.abs(shares.mean(0) - mean) < 5 * np.sqrt(variance / SIZE)).all()
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-6)
    assert gamma.dtype == shares.dtype == np.zeros(0, str(dtype).removeprefix("torch.")).dtype


def test_angles() -> None:
    """The mean of the cosine, I1(k) / I0(k), within 5 standard deviations; of a dynamic number of samples."""

    def loss(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
        drawn = distributions.VonMises(x[:, 0], x[:, 1]).sample()
        return {"loss": (model(x)[:, 0] * drawn).mean(), "drawn": drawn}

    concentrations = torch.tensor([0.1, 1.0, 30.0])
    x = torch.stack([torch.full((3 * SIZE // 10,), 0.5), concentrations.repeat(SIZE // 10)], 1)
    capture = gradients(nn.Linear(2, 1), loss, (x[:6],), dynamic_shapes=({0: Dim("N")},))
    (drawn,) = onnx_ops.InferenceSession(capture.model).run(["drawn"], capture.state | {"x": x.numpy()})
    cosines = np.cos(drawn.reshape(-1, 3) - 0.5)
    mean = (torch.special.i1e(concentrations) / torch.special.i0e(concentrations)).numpy()
    assert (np.abs(cosines.mean(0) - mean) < 5 * cosines.std(0) / np.sqrt(SIZE // 10)).all()
    assert (np.abs(np.sin(drawn.reshape(-1, 3) - 0.5).mean(0)) < 5 / np.sqrt(SIZE // 10)).all()


def test_reparametrized_samples_of_a_dynamic_batch() -> None:
    """The gradient of a mean of samples is that of the mean, within 5 standard deviations."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        shapes = nn.functional.softplus(model(x))
        gamma, beta = distributions.Gamma(shapes[:, 0], 2.0), distributions.Beta(shapes[:, 1], 3.0)
        return gamma.rsample().mean() + 10 * beta.rsample().mean()

    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    capture = gradients(model, loss, (torch.randn(3, 2),), dynamic_shapes=({0: Dim("N")},), check=False)
    x = torch.ones(SIZE, 2)
    (got,) = onnx_ops.InferenceSession(capture.model).run(["grad.bias"], capture.state | {"x": x.numpy()})
    shapes = nn.functional.softplus(model(x[:1]))[0]
    wanted = torch.autograd.grad(shapes[0] / 2 + 10 * shapes[1] / (shapes[1] + 3), model.bias)[0]
    np.testing.assert_allclose(got, wanted, rtol=0.03)
