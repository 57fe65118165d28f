"""Training steps compared with PyTorch: the optimizer's update, many steps, and state copied both ways."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from captures import training_step
from cases import names_with
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

import onnx_ops
from onnx_ops.torch import CaptureError, load_into_torch, optimizers, state_from_torch

BATCH = {0: Dim("N")}
STEPS = 100
# Differences after 100 steps between sums in two orders, in float32 and float64.
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10}

Make = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1),
    "SGD momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    "SGD nesterov": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD dampening": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, dampening=0.3, maximize=True),
    "Adam": lambda p: torch.optim.Adam(p, 1e-2),
    "Adam decay": lambda p: torch.optim.Adam(p, 1e-2, betas=(0.8, 0.95), weight_decay=0.1, eps=1e-6),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, 1e-2, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 1e-2),
    "AdamW amsgrad": lambda p: torch.optim.AdamW(p, 1e-2, amsgrad=True, weight_decay=0.2, maximize=True),
    "groups": lambda p: _groups(list(p)),
}


def _groups(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    first = {"params": parameters[:2], "lr": 0.02, "weight_decay": 0.0}
    return torch.optim.AdamW([first, {"params": parameters[2:], "betas": (0.7, 0.9)}], lr=0.005)


def network(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to(dtype)


def batches(dtype: torch.dtype, steps: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(8, 6).to(dtype), torch.rand(8, 3).softmax(1).to(dtype)) for _ in range(steps)]


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.kl_div(model(x).log_softmax(1), y, reduction="batchmean")


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor]) -> float:
    optimizer.zero_grad()
    value = loss(model, *batch)
    value.backward()
    optimizer.step()
    return value.item()


def check_weights(trainer: onnx_ops.Trainer, model: nn.Module, tolerance: float) -> None:
    got = trainer.weights()
    for name, wanted in model.state_dict().items():
        largest = float(wanted.abs().max())
        np.testing.assert_allclose(got[name], wanted.numpy(), rtol=0, atol=tolerance * largest, err_msg=name)


IN_FLOAT32 = ("AdamW amsgrad",)
"""Run in float32 by default; the others by `make test-full`."""
LIKE_OTHERS = ("SGD", "SGD momentum", "Adam", "Adam amsgrad", "AdamW", "AdamW amsgrad")
"""Covered by the other optimizers; run in float64 by `make test-full`."""


def marks(kind: str, dtype: torch.dtype) -> Any:
    enough = kind in IN_FLOAT32 if dtype is torch.float32 else kind not in LIKE_OTHERS
    return () if enough else pytest.mark.full


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [pytest.param(kind, dtype, marks=marks(kind, dtype)) for kind in OPTIMIZERS for dtype in TOLERANCES],
)
def test_a_hundred_steps(kind: str, dtype: torch.dtype) -> None:
    model = network(dtype)
    optimizer = OPTIMIZERS[kind](model.parameters())
    data = batches(dtype)
    capture = training_step(model, loss, data[0], optimizer, dynamic_shapes=(BATCH, BATCH))
    assert not [value.name for value in capture.model.graph.output if value.name.startswith("grad.")]
    trainer = onnx_ops.Trainer(capture)
    for batch in data:
        reported = trainer.step(x=batch[0].numpy(), y=batch[1].numpy())
        wanted = stepped(model, optimizer, batch)
        assert abs(float(reported["loss"]) - wanted) <= 10 * TOLERANCES[dtype] * abs(wanted)
    check_weights(trainer, model, TOLERANCES[dtype])


def test_adding_an_optimizer_as_contributing_says(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"^```python\n(.*?)^```", text.split("## Adding an optimizer")[1], re.DOTALL | re.MULTILINE)
    monkeypatch.setattr(optimizers, "RULES", dict(optimizers.RULES))
    exec(compile(source, "CONTRIBUTING.md", "exec"), vars(optimizers) | {})
    model = network(torch.float64)
    settings = {"lr_decay": 0.1, "weight_decay": 0.01, "initial_accumulator_value": 0.2, "maximize": True}
    optimizer = torch.optim.Adagrad(model.parameters(), 0.1, **settings)
    data = batches(torch.float64, 10)
    trainer = onnx_ops.Trainer(training_step(model, loss, data[0], optimizer, dynamic_shapes=(BATCH, BATCH)))
    for batch in data:
        trainer.step(x=batch[0].numpy(), y=batch[1].numpy())
        stepped(model, optimizer, batch)
    check_weights(trainer, model, TOLERANCES[torch.float64])


def test_gradients_are_clipped_as_torch_does() -> None:
    model = network(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    data = batches(torch.float32, 20)
    trainer = onnx_ops.Trainer(training_step(model, loss, data[0], optimizer, clip_grad_norm=0.1))
    norms = []
    for batch in data:
        trainer.step(x=batch[0].numpy(), y=batch[1].numpy())
        optimizer.zero_grad()
        loss(model, *batch).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)))
        optimizer.step()
    assert min(norms) < 0.1 < max(norms), "some are clipped, some are not"
    check_weights(trainer, model, 1e-5)


def test_an_unused_parameter_stays_without_state() -> None:
    model = nn.ModuleDict({"used": nn.Linear(6, 3), "unused": nn.Linear(2, 2)})
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.5)
    capture = training_step(model, lambda m, x, y: loss(m["used"], x, y), batches(torch.float32)[0], optimizer)
    assert "unused.weight" in capture.state
    assert not [name for name in capture.state if name.startswith("optimizer.") and "unused" in name]
    assert "next.unused.weight" not in [value.name for value in capture.model.graph.output]


def test_a_step_starts_from_the_state_of_the_optimizer() -> None:
    model = network(torch.float32)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    data = batches(torch.float32, 20)
    for batch in data[:10]:
        stepped(model, optimizer, batch)
    trainer = onnx_ops.Trainer(training_step(model, loss, data[0], optimizer))
    for batch in data[10:]:
        stepped(model, optimizer, batch)
        trainer.step(x=batch[0].numpy(), y=batch[1].numpy())
    check_weights(trainer, model, 1e-5)


@pytest.mark.parametrize("kind", names_with(full=["SGD dampening"], names=["SGD dampening", "Adam amsgrad", "groups"]))
def test_training_goes_from_torch_to_onnx_and_back(kind: str, tmp_path: Path) -> None:
    """Ten steps here, ten there, ten here again, as thirty in one place."""
    model = network(torch.float32)
    optimizer = OPTIMIZERS[kind](model.parameters())
    data = batches(torch.float32, 30)
    trainer = onnx_ops.Trainer(training_step(model, loss, data[0], optimizer))
    twin = copy.deepcopy(model)
    twin_optimizer = OPTIMIZERS[kind](twin.parameters())
    for batch in data[:10]:
        stepped(model, optimizer, batch)
    trainer.load_state_dict(state_from_torch(trainer.state_dict(), model, optimizer))
    for batch in data[10:20]:
        trainer.step(x=batch[0].numpy(), y=batch[1].numpy())
    load_into_torch(trainer.state_dict(), model, optimizer)
    for batch in data[20:]:
        stepped(model, optimizer, batch)
    for batch in data:
        stepped(twin, twin_optimizer, batch)
    for (name, got), wanted in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        assert float((got - wanted).abs().max()) <= 1e-5 * float(wanted.abs().max()), name


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"2.bias": np.zeros(7, np.float32)}, "'2.bias' has shape"),
        ({"optimizer.exp_avg.2.bias": np.zeros(7, np.float32)}, "'optimizer.exp_avg.2.bias' has shape"),
        ({"2.bias": None}, "lacks the parameter '2.bias'"),
        ({"learning_rate": None}, "lacks 'learning_rate'"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change: dict[str, np.ndarray | None], said: str) -> None:
    model = network(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    capture = training_step(model, loss, batches(torch.float32)[0], optimizer, check=False)
    state = {name: np.asarray(array + 1) for name, array in capture.state.items()} | change
    state = {name: array for name, array in state.items() if array is not None}
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(CaptureError, match=said):
        load_into_torch(state, model, optimizer)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert (optimizer.param_groups[0]["lr"], dict(optimizer.state)) == (0.5, {})
    if "learning_rate" not in state:
        with pytest.raises(CaptureError, match=said):
            state_from_torch(state, model, optimizer)


class Named(torch.optim.AdamW):
    """What libraries derive to set defaults."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, 1e-2, amsgrad=True)


class Halved(Named):
    def step(self, closure: Any = None) -> None:
        raise AssertionError


def test_subclasses_that_override_nothing_are_their_base() -> None:
    model = network(torch.float32)
    capture = training_step(model, loss, batches(torch.float32)[0], Named(model.parameters()))
    assert "optimizer.max_exp_avg_sq.0.weight" in capture.state


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda m: Halved(m.parameters()), "is a Halved, which has its own step in place of those of AdamW"),
        (lambda m: torch.optim.LBFGS(m.parameters()), "the optimizer is a LBFGS; what can be captured is Adam"),
        (lambda m: torch.optim.SGD(nn.Linear(2, 5).parameters()), "a parameter of shape (5, 2) that is none of the"),
    ],
)
def test_optimizers_that_are_refused(make: Any, said: str) -> None:
    model = network(torch.float32)
    with pytest.raises(CaptureError) as refused:
        training_step(model, loss, batches(torch.float32)[0], make(model))
    assert said in str(refused.value)
