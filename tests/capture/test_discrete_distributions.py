"""Draws of counts and of slopes, by their exact distributions."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from captures import gradients
from torch import Tensor, nn

import onnx_ops

SIZE = 300
MEANS = [0.0, 0.4, 6.0, 14.0, 200.0]
TRIALS = [(1.0, 0.3), (30.0, 0.1), (30.0, 0.6), (400.0, 0.97), (9.0, 1.0)]


def deviation(drawn: np.ndarray, cumulative: np.ndarray) -> float:
    """Largest distance of the empirical cumulative distribution of counts to another one, times sqrt(number)."""
    found = (drawn[:, None] <= np.arange(len(cumulative))).mean(0)
    return float(np.abs(found - cumulative).max() * math.sqrt(len(drawn)))


def test_counts() -> None:
    """The Kolmogorov-Smirnov statistic, which is above 2.2 with a probability of 1.3e-4 at most."""

    def loss(model: nn.Module, means: Tensor, trials: Tensor) -> dict[str, Tensor]:
        n, p = trials.expand(SIZE, -1, -1).unbind(-1)
        rates = torch.distributions.Poisson(means.expand(SIZE, -1) * 1.0, validate_args=False)
        return {"loss": model.weight.sum(), "poisson": rates.sample(), "binomial": torch.binomial(n, p)}

    given = torch.tensor(MEANS), torch.tensor(TRIALS)
    capture = gradients(nn.Linear(1, 1), loss, given, check=False)
    session = onnx_ops.InferenceSession(capture.model)
    inputs = {value.name for value in session.get_inputs()}
    feeds = capture.state | {"means": given[0].numpy(), "trials": given[1].numpy()}
    poisson, binomial = session.run(["poisson", "binomial"], {k: a for k, a in feeds.items() if k in inputs})
    counts = np.arange(500)
    factorials = np.array([math.lgamma(k + 1) for k in counts])
    for mean, drawn in zip(MEANS, poisson.T, strict=True):
        density = np.exp(counts * math.log(mean) - mean - factorials) if mean else counts == 0
        assert deviation(drawn, np.cumsum(density)) < 2.2, mean
    for (n, p), drawn in zip(TRIALS, binomial.T, strict=True):
        density = np.array([math.comb(int(n), k) * p**k * (1 - p) ** (n - k) if k <= n else 0 for k in range(500)])
        assert deviation(drawn, np.cumsum(density)) < 2.2, (n, p)


def test_slopes_of_randomized_rectifiers() -> None:
    """Uniform between bounds, the same in the gradient as in the loss."""

    def loss(model: nn.Linear, x: Tensor) -> dict[str, Tensor]:
        hidden = x * model.weight[0, 0]
        found = F.rrelu(hidden, 0.2, 0.4, training=True) + nn.RReLU(0.2, 0.4, inplace=True)(hidden * 1)
        return {"loss": found.sum(), "found": found}

    x = torch.linspace(-1, 1, 801)
    model = nn.Linear(1, 1, bias=False)
    capture = gradients(model, loss, (x,), check=False)
    found, grad = onnx_ops.InferenceSession(capture.model).run(
        ["found", "grad.weight"], capture.state | {"x": x.numpy()}
    )
    weight = model.weight.item()
    slopes = (found / (x.numpy() * weight))[(x * weight).numpy() < 0]
    assert (slopes >= 0.4).all()
    assert (slopes <= 0.8).all()
    assert abs(slopes.mean() - 0.6) < 5 * 0.2 / math.sqrt(24 * len(slopes)) * math.sqrt(2)
    np.testing.assert_allclose(grad, found.sum() / weight, rtol=1e-4)


def test_random_numbers_in_place() -> None:
    def loss(model: nn.Linear, x: Tensor) -> dict[str, Tensor]:
        drawn = {"float": x.new_empty(2000).random_(), "short": torch.empty(2000, dtype=torch.int8).random_()}
        drawn |= {"between": x.new_empty(2000).random_(-2, 3), "below": torch.empty(2000).long().random_(4)}
        return {"loss": model.weight.sum()} | drawn

    capture = gradients(nn.Linear(1, 1), loss, (torch.ones(1),), check=False)
    session = onnx_ops.InferenceSession(capture.model)
    given = {value.name: capture.state.get(value.name, np.ones(1, np.float32)) for value in session.get_inputs()}
    whole, short, between, below = session.run(["float", "short", "between", "below"], given)
    assert 2**24 >= whole.max() > 2**23.9 > 2**20 > whole.min() >= 0
    assert (short.min(), short.max()) == (0, 127)
    assert set(between) == {-2, -1, 0, 1, 2}
    assert set(below) == {0, 1, 2, 3}
