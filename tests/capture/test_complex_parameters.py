"""Complex parameters and buffers are state in pairs of real numbers, trained as PyTorch trains them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch
from captures import training_step
from torch import Tensor, nn
from torch.export import Dim
from torch.optim.swa_utils import AveragedModel

import onnx_ops
from onnx_ops.torch import CaptureError, load_into_torch, state_from_torch


class Spectral(nn.Module):
    """A layer of a Fourier neural operator, and a real one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 2, 3, dtype=torch.cfloat))
        self.bias = nn.Parameter(torch.randn((), dtype=torch.cfloat))
        self.register_buffer("phase", torch.polar(torch.ones(3), torch.arange(3.0)))
        self.register_buffer("seen", torch.zeros(3, dtype=torch.cfloat))
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        modes = torch.fft.rfft(self.linear(x))[..., :3] * self.phase
        if self.training:
            with torch.no_grad():
                self.seen.mul_(0.9).add_(0.01 * modes.sum((0, 1)))
        made = torch.einsum("bix,iox->box", modes, self.weight) + self.bias
        return torch.fft.irfft(made + self.seen.detach(), n=8)


def loss(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - x).square().mean()


def step_of_pytorch(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, clip: float | None = None) -> float:
    optimizer.zero_grad()
    value = loss(model, x)
    value.backward()
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return value.item()


Kind = Callable[..., torch.optim.Optimizer]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.Adam, {"lr": 0.02}),
        pytest.param(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}, marks=pytest.mark.full),
        *(
            pytest.param(kind, options, marks=pytest.mark.full)
            for kind, options in [
                (torch.optim.AdamW, {"lr": 0.02, "amsgrad": True}),
                (torch.optim.RMSprop, {"lr": 0.01, "centered": True, "momentum": 0.5}),
                (torch.optim.Rprop, {"lr": 0.01}),
                (torch.optim.Adagrad, {"lr": 0.05}),
                (torch.optim.Adadelta, {"lr": 0.5}),
                (torch.optim.Adamax, {"lr": 0.02}),
                (torch.optim.NAdam, {"lr": 0.02}),
                (torch.optim.RAdam, {"lr": 0.02}),
                (torch.optim.ASGD, {"lr": 0.02}),
            ]
        ),
    ],
)
def test_steps_and_state(kind: Kind, options: dict[str, float], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Spectral()
    averaged = AveragedModel(model)
    optimizer = kind(model.parameters(), **options)
    step_of_pytorch(model, optimizer, torch.randn(3, 2, 8), 0.5)  # the optimizer has state
    capture = training_step(
        model,
        loss,
        (torch.randn(3, 2, 8),),
        optimizer,
        dynamic_shapes=({0: Dim("N")},),
        clip_grad_norm=0.5,
        averaged=averaged,
        inference=True,
    )
    assert capture.state["weight"].shape == (2, 2, 3, 2)
    assert capture.state["bias"].shape == (2,)
    trainer = onnx_ops.Trainer(capture)
    for size in (3, 5, 2, 4):
        x = torch.randn(size, 2, 8)
        wanted = step_of_pytorch(model, optimizer, x, 0.5)
        averaged.update_parameters(model)
        np.testing.assert_allclose(trainer.step(x=x.numpy())["loss"], wanted, rtol=1e-5)
    state = trainer.state_dict()
    theirs = state_from_torch(state, model, optimizer, averaged)
    for name, array in theirs.items():
        np.testing.assert_allclose(state[name], array, rtol=1e-4, atol=2e-6, err_msg=name)
    assert np.array_equal(theirs["weight"], torch.view_as_real(model.weight.detach()).numpy())

    copied = Spectral()
    other, averages = kind(copied.parameters(), **options), AveragedModel(copied)
    step_of_pytorch(copied, other, x)
    load_into_torch(state, copied, other, averages)
    for key, value in optimizer.state[model.weight].items():
        if isinstance(value, Tensor):
            assert other.state[copied.weight][key].dtype is value.dtype, key
    for name, array in state_from_torch(state, copied, other, averages).items():
        np.testing.assert_array_equal(array, state[name], err_msg=name)

    trainer.save_weights(tmp_path / "weights.safetensors")
    trainer.load_weights(tmp_path / "weights.safetensors")
    trainer.save(tmp_path / "state.npz")
    trainer.load(tmp_path / "state.npz")
    trainer.export(tmp_path / "model.onnx")
    (got,) = ort.InferenceSession(tmp_path / "model.onnx").run(None, {"x": x.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(got, copy.deepcopy(copied).eval()(x).numpy(), rtol=0, atol=1e-5)


def test_optimizers_whose_updates_mix_elements_are_refused() -> None:
    model = nn.Linear(2, 2, bias=False, dtype=torch.cfloat)
    with pytest.raises(CaptureError, match=r"Muon has a complex parameter of shape \(2, 2\), expected real ones"):
        training_step(
            model,
            lambda model, x: model(x.to(torch.cfloat)).abs().mean(),
            (torch.randn(3, 2),),
            torch.optim.Muon(model.parameters()),
        )
