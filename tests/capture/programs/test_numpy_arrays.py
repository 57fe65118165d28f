"""NumPy's functions of dynamic sizes and of numbers that depend on data, in a loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from onnx_ops import StepError, Trainer
from onnx_ops.torch import gradients

ROWS, TIME = Dim("rows"), Dim("time", min=2)
SHAPES = ({0: ROWS, 1: TIME},)


def causal_mask(model: nn.Module, x: Tensor) -> Tensor:
    future = np.triu(np.ones((x.size(0), x.size(1), x.size(1))), k=1).astype("uint8")
    hidden = model(x)
    scores = (hidden @ hidden.mT).masked_fill(torch.from_numpy(future) != 0, -1e9)
    return scores.softmax(-1).square().sum()


def positions(model: nn.Module, x: Tensor) -> Tensor:
    places = np.tile(np.arange(1, x.shape[1] + 1), [len(x), 1])
    weights = torch.tensor(np.linspace(0.0, 1.0, len(x)), dtype=x.dtype)
    return (weights[:, None] * torch.as_tensor(places) * model(x).sum(-1)).square().mean()


def dtypes(model: nn.Module, x: Tensor) -> Tensor:
    steps = np.arange(x.shape[1], dtype=np.float32).reshape(1, -1)
    chosen = np.zeros((len(x), x.shape[1]), dtype=bool)
    chosen[:, 1:] = True
    hidden = model(x)
    counts = (hidden.detach().numpy() > 0).astype(np.int64).sum(-1)
    assert steps.dtype == np.float32
    return (hidden.sum(-1) * torch.from_numpy(steps * counts) * torch.from_numpy(chosen)).mean()


def reported_arrays(model: nn.Module, x: Tensor) -> Tensor:
    hidden = model(x)
    seen = {"hidden": hidden.detach().numpy(), "mean": hidden.detach().numpy().mean()}
    return hidden.square().mean() + 0 * len(seen)


def weights_by_numpy(model: nn.Module, x: Tensor) -> Tensor:
    hidden = model(x)
    targets = np.exp(-np.abs(hidden.detach().numpy()))
    targets[targets < 0.5] = 0.5
    targets = targets / np.maximum(targets.sum(axis=-1, keepdims=True), 1e-3)
    return -(torch.from_numpy(targets) * hidden.log_softmax(-1)).sum(-1).mean()


def types_of_sizes(model: nn.Module, x: Tensor) -> Tensor:
    """As scripts of PyTorch 0.4 make tensors; a torch.Size is the shape of what is made."""
    counts = torch.Tensor([len(x), 3.5]).sum() + torch.LongTensor([[x.shape[1]], [2]]).sum()
    ones = torch.FloatTensor(x.size()).fill_(1.0) + torch.Tensor(len(x), x.shape[1], 4).fill_(1.0)
    halves = torch.Tensor(np.full((len(x), 1, 1), 0.5))
    assert isinstance(counts, torch.FloatTensor)
    assert not isinstance(torch.LongTensor([len(x)]), torch.FloatTensor)
    return (model(x) * counts * ones.type(torch.FloatTensor) * halves).square().mean()


def types_of_numbers(model: nn.Module, x: Tensor) -> Tensor:
    hidden = model(x)
    largest = hidden.detach().amax((1, 2))
    means = [largest.mean().item(), 2 * largest.min().item()]
    weights = torch.FloatTensor(means).sum() * torch.Tensor(largest.numpy())
    signs = torch.LongTensor((largest.numpy() > 0.5).astype(np.int64)) + torch.LongTensor(
        [(largest > 0.5).sum().item()]
    )
    return (hidden.mean((1, 2)) * weights * signs * torch.FloatTensor([largest.max(), 1.0]).sum()).mean()


@pytest.mark.parametrize(
    "loss", [causal_mask, positions, dtypes, reported_arrays, weights_by_numpy, types_of_sizes, types_of_numbers]
)
def test_arrays(loss) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    trainer = Trainer(gradients(model, loss, (torch.randn(3, 5, 4),), dynamic_shapes=SHAPES))
    for shape in ((3, 5, 4), (30, 7, 4)):
        x = torch.randn(shape)
        found = trainer.step(x=x.numpy())
        model.zero_grad()
        wanted = loss(model, x)
        wanted.backward()
        np.testing.assert_allclose(found["loss"], wanted.item(), rtol=1e-5)
        assert model.weight.grad is not None
        np.testing.assert_allclose(found["grad.weight"], model.weight.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_branches_on_numbers_of_arrays() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).sum() * (2.0 if x.numpy().mean() > 0 else 1.0)

    torch.manual_seed(0)
    x = torch.rand(20, 4)
    trainer = Trainer(gradients(nn.Linear(4, 1), loss, (x,), specialize=True))
    trainer.step(x=0.5 * x.numpy())
    with pytest.raises(StepError, match=r"test_numpy_arrays\.py"):
        trainer.step(x=-x.numpy())


def test_arrays_that_only_the_example_has() -> None:
    """Functions that PyTorch has none for, of a constant, in a loss whose data are read too."""
    constant = torch.linspace(0, 1, 100)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        counts, _ = np.histogram(constant.numpy(), 4)
        return model(x).sum() * float(counts[0]) * (2.0 if x.max() > 0 else 1.0)

    gradients(nn.Linear(4, 1), loss, (torch.rand(3, 4),), specialize=True)
