"""Dynamic axes that may have no elements."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from captures import compared_at, gradients, training_step
from torch import Tensor, nn
from torch.export import Dim

import onnx_ops
from onnx_ops import StepError, Trainer
from onnx_ops.torch import CaptureError

Loss = Callable[[nn.Module, Tensor], Tensor]


MEANS: dict[str, Loss] = {
    "of all": lambda model, x: model(x).mean(),
    "along the axis": lambda model, x: model(x).mean(1).sum() + model(x).mean(dim=(1, 2)).sum(),
    "losses": lambda model, x: F.mse_loss(model(x), x) + F.smooth_l1_loss(model(x), x) + F.huber_loss(model(x), x),
    "deviations": lambda model, x: model(x).std(1).sum() + model(x).var(),
    "pool": lambda model, x: F.adaptive_avg_pool1d(model(x).mT, 1).sum(),
    "covariances": lambda model, x: torch.cov(model(x)[0].mT).sum(),
}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0")
@pytest.mark.parametrize("name", MEANS)
def test_means_of_no_elements(name: str) -> None:
    """NaN, for which onnxruntime's ReduceMean is 0."""
    model, example = nn.Linear(3, 3), torch.randn(4, 5, 3)
    step = gradients(model, MEANS[name], (example,), dynamic_shapes=({0: Dim("N"), 1: Dim("time")},), inference=False)
    trainer = Trainer(step, check_finite=False)
    for size in (0, 4):
        x = torch.randn(2, size, 3)
        wanted = MEANS[name](model, x).detach()
        np.testing.assert_allclose(trainer.step(x=x.numpy())["loss"], wanted, rtol=1e-5)
        assert wanted.isnan() == (size == 0)


def test_slices_from_the_end_that_may_be_empty() -> None:
    """PyTorch takes -0 for the start."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x)[:, 4 - x.shape[1] :] * torch.arange(8)).square().mean()

    with pytest.raises(CaptureError, match="right only where it is 5 or more"):
        compared_at(nn.Linear(8, 8), loss, [(4, 7, 8)], Dim("B"), Dim("T"))
    compared_at(nn.Linear(8, 8), loss, [(4, 7, 8), (2, 5, 8), (3, 8, 8)], Dim("B"), Dim("T", min=5, max=8))


@pytest.mark.parametrize(
    ("function", "least"),
    [
        (lambda y: y.square().sum(1), 0),
        (lambda y: y.diff(dim=1).sum(1), 1),  # whose gradient has the size -1 in a graph
        (lambda y: F.interpolate(y.mT, scale_factor=2).mean(2), 1),  # PyTorch takes no line without elements
    ],
)
def test_axes_without_elements(function: Callable[[Tensor], Tensor], least: int) -> None:
    """They are refused where the graph is not right for them, before the state changes, or PyTorch refuses them."""
    model = nn.Linear(3, 2)
    shapes = ({0: Dim("samples"), 1: Dim("time")},)
    step = training_step(
        model,
        lambda m, x: function(m(x)).square().mean(),
        (torch.randn(2, 4, 3),),
        torch.optim.SGD(model.parameters(), 0.1),
        dynamic_shapes=shapes,
    )
    trainer = Trainer(step)
    if least:
        with pytest.raises(StepError, match="with time >= 1"):
            trainer.step(x=np.zeros((2, 0, 3), np.float32))
    else:
        trainer.step(x=np.zeros((2, 0, 3), np.float32))
    trainer.step(x=np.ones((2, 1, 3), np.float32))


@pytest.mark.filterwarnings(r"ignore:var\(\). degrees of freedom")
def test_means_of_what_may_be_empty() -> None:
    """NaN, as in PyTorch; onnxruntime's ReduceMean of no elements is 0."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        mask = x[:, 0] > 0
        chosen, wanted = y[mask], x[mask][:, :2]
        losses = [F.mse_loss(chosen, wanted), F.huber_loss(chosen, wanted), F.smooth_l1_loss(chosen, wanted)]
        means = [chosen.mean(0).sum(), chosen.mean(), chosen[:, 0].mean(), y[2:-1].mean(), chosen.var(0).sum()]
        return torch.stack([*losses, *means])

    model, x = nn.Linear(5, 2), torch.randn(6, 5)
    x[:, 0] = torch.tensor([1.0, -1, 1, 1, -1, 1])

    def total(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        found = loss(model, x)
        return found.nan_to_num().sum(), found

    capture = gradients(model, total, (x,), dynamic_shapes=({0: Dim("N", min=3)},))
    session = onnx_ops.InferenceSession(capture.model)
    (alone := x.clone())[1:, 0] = -1
    for batch in (x, alone, -x.abs(), x[:3]):
        (got,) = session.run(["output.1"], capture.state | {"x": batch.numpy()})
        np.testing.assert_allclose(got, loss(model, batch).detach().numpy(), rtol=2e-6)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_layers_without_features_on_a_dynamic_axis() -> None:
    """As of a width divided by 16: the numbers of a Reshape with a 0 among them do not tell the dynamic size."""
    torch.manual_seed(0)
    model, rows = nn.Sequential(nn.Linear(3, 0), nn.LeakyReLU(), nn.Linear(0, 4)), torch.randn(5, 2, 3)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x).permute(2, 0, 1) - x.mean()).square().sum() + model[0](x).permute(2, 1, 0).sum()

    trainer = Trainer(gradients(model, loss, (rows,), dynamic_shapes=({0: Dim("N")},)))
    for x in (rows, rows[:3]):
        found = trainer.step(x=x.numpy())["loss"]
        np.testing.assert_allclose(found, loss(model, x).detach(), rtol=1e-5)
