"""Constants that are 0 or 1 only once rounded to float32 have their effect in float64 graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from captures import gradients
from torch import Tensor, nn
from torch.export import Dim

import onnx_ops
import onnx_ops.torch

NEXT_TO_ONE, NEXT_TO_ZERO = 1 + 1e-9, 1e-46


class Scaled(nn.Module):
    """A linear layer whose output is scaled and shifted."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1, dtype=torch.float64)
        self.scale = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x) * self.scale).sin()


def test_losses() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        small = (y - y) + NEXT_TO_ZERO - 3 * NEXT_TO_ZERO
        return ((y * NEXT_TO_ONE).exp() / NEXT_TO_ONE - y.exp()).mean() / 1e-9 + (small.mean() / NEXT_TO_ZERO)

    torch.manual_seed(0)
    model, x = Scaled(), torch.randn(4, 3, dtype=torch.float64)
    capture = gradients(model, loss, (x,), dynamic_shapes=({0: torch.export.Dim("n")},))
    session = onnx_ops.InferenceSession(capture.model)
    for batch in (x, torch.randn(7, 3, dtype=torch.float64)):
        wanted = loss(model, batch).item()
        (got,) = session.run(["loss"], capture.state | {"x": batch.numpy()})
        np.testing.assert_allclose(got, wanted, rtol=1e-6)  # of differences of 1e-9, in float64


def test_numbers_read_from_tensors() -> None:
    """item() keeps the digits that a float32 has no place for."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x) * (1 + x.abs().sum().item() / 3)).sum()

    torch.manual_seed(0)
    model, x = Scaled(), torch.randn(4, 3, dtype=torch.float64)
    capture = gradients(model, loss, (x,))
    batch = torch.randn(4, 3, dtype=torch.float64)
    (got,) = onnx_ops.InferenceSession(capture.model).run(["loss"], capture.state | {"x": batch.numpy()})
    np.testing.assert_allclose(got, loss(model, batch).item(), rtol=1e-14)


def test_numbers_that_are_no_float32() -> None:
    def loss(model: nn.Linear, x: Tensor) -> dict[str, Tensor]:
        y = model(x)
        found = {
            "power": 0.8**y,
            "addmm": torch.addmm(y, x, x, beta=0.3, alpha=0.7),
            "addmv": torch.addmv(y[0], x, y[0], beta=0.3, alpha=0.7),
            "addr": torch.addr(y, x[0], y[0], beta=0.3, alpha=0.7),
            "addbmm": torch.addbmm(y, x[None], y[None], beta=0.3, alpha=0.7),
            "baddbmm": torch.baddbmm(y[None], x[None], y[None], beta=0.3, alpha=0.7),
            "renorm": y.renorm(1.7, 0, 0.9),
            "dist": torch.dist(y, x, 1.7),
            "xlog1py": torch.special.xlog1py(0.3, y.exp()),
        }
        return {"loss": sum(part.sum() for part in found.values())} | found

    torch.manual_seed(0)
    model, x = nn.Linear(3, 3).double(), torch.randn(3, 3, dtype=torch.float64)
    capture = gradients(model, loss, (x,))
    wanted = loss(model, x)
    names = list(wanted)
    got = onnx_ops.InferenceSession(capture.model).run(names, capture.state | {"x": x.numpy()})
    for name, array in zip(names, got, strict=True):
        np.testing.assert_allclose(array, wanted[name].detach(), rtol=1e-14, atol=1e-14, err_msg=name)


def test_powers_of_integers_have_the_default_dtype() -> None:
    def loss(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
        numbers = torch.arange(1, 5)
        found = {"roots": numbers**0.5, "powers": 1.1**numbers, "negative": numbers.copysign(-1.0)}
        return {"loss": model(x).sum()} | found

    torch.set_default_dtype(torch.float64)
    try:
        model, x = nn.Linear(2, 1), torch.randn(3, 2)
        capture = gradients(model, loss, (x,))
        wanted = loss(model, x)
    finally:
        torch.set_default_dtype(torch.float32)
    names = ["roots", "powers", "negative"]
    got = onnx_ops.InferenceSession(capture.model).run(names, capture.state | {"x": x.numpy()})
    for name, array in zip(names, got, strict=True):
        np.testing.assert_allclose(array, wanted[name], rtol=1e-15, err_msg=name)


class Defaults(nn.Module):
    """Tensors without a dtype have the default dtype of PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        made = torch.ones(4) + torch.zeros(4) + torch.full((4,), 1 / 3) + torch.linspace(0, 1 / 7, 4)
        rows = torch.ones(len(x), 1) + torch.zeros(len(x), 1) + torch.full((len(x), 1), 1 / 3)
        mixed = torch.eye(4) @ torch.arange(0.1, 0.5, 0.1) + torch.tensor(1 / 9) + torch.arange(4) / 3
        return x * (made + mixed + torch.randn(1) * 0) * rows * self.scale


def test_the_default_dtype() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        model, x = Defaults(), torch.randn(3, 4)
        capture = gradients(model, lambda model, x: model(x).sum(), (x,), dynamic_shapes=({0: Dim("N")},))
    finally:
        torch.set_default_dtype(torch.float32)
    (got,) = onnx_ops.InferenceSession(capture.model).run(["loss"], capture.state | {"x": x.numpy()})
    made = 4 / 3 + torch.arange(4, dtype=x.dtype) * (1 / 21 + 0.1 + 1 / 3) + 0.1 + 1 / 9
    np.testing.assert_allclose(got, (x * made * 4 / 3 * model.scale).sum().item(), rtol=1e-14)


def test_trained_parameters_of_an_export(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Scaled(), torch.randn(4, 3, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    capture = onnx_ops.torch.training_step(model, lambda model, x: model(x).mean(), (x,), optimizer)
    trainer = onnx_ops.Trainer(capture)
    path = tmp_path / "model.onnx"
    trainer.load_state_dict(trainer.state_dict() | {"scale": np.array([NEXT_TO_ONE])})
    trainer.export(path)
    (got,) = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x.numpy()})
    with torch.no_grad():
        unscaled = model(x).numpy()
        model.scale.fill_(NEXT_TO_ONE)
        wanted = model(x).numpy()
    assert np.abs(wanted - unscaled).max() > 1e-11
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-15)
