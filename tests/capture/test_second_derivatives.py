"""Gradients of gradients, as of gradient penalties, of layers and losses with a backward pass of their own."""

from __future__ import annotations

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


MODELS = LAYERS | {"losses": Losses()}


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
