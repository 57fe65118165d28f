"""Averages of weights as part of a step, compared with torch.optim.swa_utils.AveragedModel."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from captures import training_step
from cases import names_with
from torch import Tensor, nn
from torch.optim.swa_utils import (
    AveragedModel,
    get_ema_avg_fn,
    get_ema_multi_avg_fn,
    get_swa_avg_fn,
    get_swa_multi_avg_fn,
)

import onnx_ops
from onnx_ops.torch import CaptureError, load_into_torch, state_from_torch


def network() -> nn.Module:
    """With buffers of floats and integers, a frozen parameter, and a tied one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 4))
    model[3].weight = model[0].weight
    model[3].bias.requires_grad_(False)
    return model.double()


def loss(model: nn.Module, x: Tensor) -> Tensor:
    output: Tensor = model(x)
    return (output - 1).square().mean()


def warming_up(average: Tensor, current: Tensor, count: Tensor) -> Tensor:
    decay = torch.clamp((1 + count) / (10 + count), max=0.5)
    return average + (1 - decay) * (current - average)


def halves(averages: Any, current: Any, count: Any) -> None:
    torch._foreach_mul_(averages, 0.5)
    torch._foreach_add_(averages, current, alpha=0.5)


AVERAGES: dict[str, Callable[[nn.Module], AveragedModel]] = {
    "SWA": AveragedModel,
    "SWA of one": lambda model: AveragedModel(model, avg_fn=get_swa_avg_fn(), use_buffers=True),
    "SWA of several": lambda model: AveragedModel(model, multi_avg_fn=get_swa_multi_avg_fn()),
    "EMA": lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.7)),
    "EMA of one": lambda model: AveragedModel(model, avg_fn=get_ema_avg_fn(0.7)),
    "EMA of buffers": lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.7), use_buffers=True),
    "own of one": lambda model: AveragedModel(model, avg_fn=warming_up),
    "own of several": lambda model: AveragedModel(model, multi_avg_fn=halves),
}


@pytest.mark.parametrize(
    "kind", names_with(full=["SWA of one", "SWA of several", "EMA", "EMA of one", "own of one"], names=AVERAGES)
)
def test_averages_of_ten_steps(kind: str) -> None:
    model = network()
    averaged = AVERAGES[kind](model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.5)
    batches = torch.randn(12, 8, 4, dtype=torch.float64)

    def stepped(batch: Tensor) -> None:
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
        averaged.update_parameters(model)

    if kind == "EMA of buffers":  # resumed
        stepped(batches[0])
    capture = training_step(model, loss, (batches[0],), optimizer, averaged=averaged)
    trainer = onnx_ops.Trainer(capture)
    for batch in batches:
        stepped(batch)
        trainer.step(x=batch.numpy())
    state = trainer.state_dict()
    twin, other = network(), AVERAGES[kind](network())
    load_into_torch(state, twin, averaged=other)
    for (name, got), wanted in zip(other.state_dict().items(), averaged.state_dict().values(), strict=True):
        assert got.dtype == wanted.dtype
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12, msg=name)
    empty = {name: np.zeros_like(array) for name, array in state.items()}
    for name, array in state_from_torch(empty, twin, averaged=other).items():
        if not name.startswith("learning_rate"):
            np.testing.assert_array_equal(array, state[name], err_msg=name)


def test_averages_are_exported(tmp_path: Path) -> None:
    """In evaluation mode, with averaged buffers; accumulated batches are one step."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    averaged = AVERAGES["EMA"](model)
    averaged.n_averaged.fill_(1)  # the average begins with the initial weights
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    batches = torch.randn(6, 8, 4)
    capture = training_step(model, loss, (batches[0],), optimizer, averaged=averaged, inference=True)
    trainer = onnx_ops.Trainer(capture)
    for one, other in batches.reshape(3, 2, 8, 4):
        trainer.accumulate(x=one.numpy())
        trainer.step(x=other.numpy())
        optimizer.zero_grad()
        ((loss(model, one) + loss(model, other)) / 2).backward()
        optimizer.step()
        averaged.update_parameters(model)
    for name, network in (("averaged.onnx", averaged), ("last.onnx", model)):
        trainer.export(tmp_path / name, averaged=name == "averaged.onnx")
        (got,) = ort.InferenceSession(tmp_path / name).run(None, {"input": batches[0].numpy()})
        np.testing.assert_allclose(got, network(batches[0]).detach(), rtol=0, atol=1e-5)
    assert trainer.state_dict()["averaged.n_averaged"] == 4


def test_what_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    x = torch.randn(8, 4)

    def refused(averaged: Any, said: str) -> None:
        with pytest.raises(CaptureError, match=said):
            training_step(model, loss, (x,), optimizer, averaged=averaged)

    refused(copy.deepcopy(model), "`averaged` is Linear, expected a torch.optim.swa_utils.AveragedModel")
    refused(AveragedModel(nn.Linear(4, 3)), "not of the model that is captured: they differ in 'weight'")
    refused(AveragedModel(nn.Linear(4, 4, bias=False)), "they differ in 'bias'")
    refused(AveragedModel(model, avg_fn=lambda average, current, count: current[0]), "avg_fn returns shape")

    capture = training_step(model, loss, (x,), optimizer, inference=True, check=False)
    with pytest.raises(onnx_ops.StepError, match="the step has no averages of weights"):
        onnx_ops.Trainer(capture).export(tmp_path / "averaged.onnx", averaged=True)
    with pytest.raises(CaptureError, match=r"the state lacks 'averaged\.weight'|the state lacks 'averaged"):
        load_into_torch(capture.state, model, averaged=AveragedModel(model))
