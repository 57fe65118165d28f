"""Gradients of gradients, as of gradient penalties, of layers and losses with a backward pass of their own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from captures import compared, gradients
from cases import names_with
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from onnx_ops.torch import CaptureError

LAYERS: dict[str, nn.Module] = {
    "LSTM": nn.LSTM(4, 3),
    "LSTM with projections": nn.LSTM(4, 3, bidirectional=True, proj_size=2),
    "GRU": nn.GRU(4, 3, bias=False),
    "RNN": nn.RNN(4, 3),
}


class Losses(nn.Module):
    """Losses of this domain, each with a weight in what it depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.scale
        target = x.sigmoid()
        logits = functional.binary_cross_entropy_with_logits
        return (
            functional.kl_div(y, target, reduction="batchmean")
            + torch.kl_div(y, target)
            + functional.kl_div(y, x, reduction="none", log_target=True).square().sum()
            + logits(y, target, reduction="sum")
            + logits(y, target, self.scale.detach(), pos_weight=2 * self.scale.detach())
            + functional.hardshrink(y).square().sum()
        )


class RunningSums(nn.Linear):
    """The logarithms of sums of exponentials along an axis that is combined in blocks of blocks."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).logcumsumexp(-1)


MODELS = LAYERS | {"losses": Losses(), "running sums": RunningSums(4, 70)}


def penalized(model: nn.Module, x: Tensor) -> Tensor:
    """Nothing that is trained is in the gradient with respect to what is differentiated."""
    x = x.detach().requires_grad_()
    results = model(x)
    value = (results[0] if isinstance(results, tuple) else results).sum()
    (gradient,) = torch.autograd.grad(value, x, create_graph=True)
    return value + gradient.square().sum()


@pytest.mark.parametrize("name", names_with(full=["LSTM", "RNN"], names=MODELS))
def test_gradient_penalties(name: str) -> None:
    model = MODELS[name]
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.uniform_(parameter, 0.2, 0.8)
    axis = 0 if isinstance(model, Losses) else 1
    shapes = ((3, 4), (5, 4)) if axis == 0 else ((2, 5, 4), (2, 3, 4))
    compared(model, penalized, [torch.randn(shape) for shape in shapes], {axis: Dim("rows")})


def evaluated(norm: nn.BatchNorm2d) -> nn.BatchNorm2d:
    """A batch norm with fixed statistics, which no call of `train` brings back."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    norm.train = lambda mode=True: norm  # type: ignore[assignment]
    norm.training = False
    return norm


IMAGES: dict[str, Callable[[], nn.Module]] = {
    "batch norm and groups": lambda: nn.Sequential(
        nn.Conv2d(4, 6, 3, groups=2, bias=False), nn.BatchNorm2d(6), nn.Softplus()
    ),
    "instance norm and transposed groups": lambda: nn.Sequential(
        nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=2, bias=False),
        nn.InstanceNorm2d(6, affine=True),
        nn.Tanh(),
    ),
    "evaluated batch norm": lambda: nn.Sequential(
        evaluated(nn.BatchNorm2d(4)), nn.SiLU(), nn.Conv2d(4, 2, 2, stride=2)
    ),
}


def penalized_by_all(model: nn.Module, x: Tensor) -> Tensor:
    """With the gradients with respect to images and parameters, each with a factor of its own."""
    x = x.detach().requires_grad_()
    value = model(x).square().sum()
    found = torch.autograd.grad(value, [x, *model.parameters()], create_graph=True)
    return value + sum(gradient.sin().mean() * i for i, gradient in enumerate(found, 1))


@pytest.mark.parametrize("name", IMAGES)
def test_gradient_penalties_of_a_dynamic_number_of_images(name: str) -> None:
    torch.manual_seed(0)
    compared(IMAGES[name](), penalized_by_all, [0.2 * torch.randn(n, 4, 5, 4) for n in (3, 5)], {0: Dim("images")})


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_over_a_dynamic_number_of_steps(name: str) -> None:
    """The gradient alone may be taken with create_graph=True; that of a gradient is refused."""

    def detached(model: nn.Module, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        value = model(x)[0].sum()
        (gradient,) = torch.autograd.grad(value, x, create_graph=True)
        return value * gradient.detach().square().sum()

    torch.manual_seed(0)
    time = {0: Dim("time")}
    compared(LAYERS[name], detached, [torch.randn(4, 2, 4), torch.randn(6, 2, 4)], time)
    with pytest.raises(CaptureError, match=rf"gradients of a layer {name} are differentiated again.*dynamic_shapes"):
        gradients(LAYERS[name], penalized, (torch.randn(4, 2, 4),), dynamic_shapes=(time,))
