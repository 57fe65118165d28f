"""Captured steps can be cut at their gradients, and where batch norm needs all samples, so that workers share them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from backends import kernel_options
from captures import training_step
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from onnx_ops import Trainer
from scripts.trainings.threads import ThreadCommunicator, together


class Model(nn.Module):
    """Parameters with one gradient for several, a constant gradient, none; views and transposes of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
        self.flat, self.turned = nn.Parameter(torch.randn(16)), nn.Parameter(torch.randn(3, 4))
        self.constant, self.unused = nn.Parameter(torch.randn(3)), nn.Parameter(torch.ones(2))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = self.mean * 0.5 + x.mean(0) * 0.5
        hidden = torch.relu((x + self.first + self.second) @ self.flat.view(4, 4))
        return hidden @ self.turned.T


def loss(model: Model, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
    value = functional.cross_entropy(model(x), labels) + model.constant.sum()
    (slope,) = torch.autograd.grad(value, model.first, create_graph=True)
    return {"loss": value, "slope": slope}


@pytest.mark.parametrize(
    ("optimizer", "clip"),
    [
        (torch.optim.SGD, None),
        (torch.optim.AdamW, 0.5),
        pytest.param(torch.optim.SGD, 0.5, marks=pytest.mark.full),
        pytest.param(torch.optim.AdamW, None, marks=pytest.mark.full),
    ],
)
def test_workers_share_a_captured_step(optimizer: type[torch.optim.Optimizer], clip: float | None) -> None:
    torch.manual_seed(0)
    model = Model()
    rows = {0: Dim("rows")}
    capture = training_step(
        model,
        loss,
        (torch.randn(6, 4), torch.randint(3, (6,))),
        optimizer(model.parameters(), lr=0.05),
        dynamic_shapes=(rows, rows),
        clip_grad_norm=clip,
    )
    made = {name for node in capture.model.graph.node for name in node.output}
    gradients = {name for name in made if name.startswith("grad.")}
    assert gradients == {f"grad.{name}" for name in ("first", "second", "flat", "turned", "constant")}
    assert {entry.domain for entry in capture.model.opset_import} <= {"", "aclnn"}
    onnx.checker.check_model(capture.model)

    rng = np.random.default_rng(0)
    batches = [{"x": rng.normal(size=(7, 4)).astype(np.float32), "labels": rng.integers(3, size=7)} for _ in range(20)]

    def work(communicator: ThreadCommunicator | None) -> tuple[list[float], dict[str, np.ndarray]]:
        trainer = Trainer(capture, kernel_options(), communicator=communicator)
        own = slice(None) if communicator is None else slice(*[(0, 2), (2, 2), (2, 7)][communicator.rank])
        losses = [float(trainer.step(**{n: a[own] for n, a in batch.items()})["loss"]) for batch in batches]
        return losses, trainer.state_dict()

    losses, state = work(None)
    for shared, other in together(3, work):
        # Twenty steps of sums that are rounded in another order.
        np.testing.assert_allclose(shared, losses, rtol=1e-5, atol=1e-5)
        for name, array in state.items():
            difference = np.abs(other[name].astype(np.float64) - array.astype(np.float64)).max()
            assert difference <= 1e-5 * max(1, np.abs(array).max()), name


class Norms(nn.Module):
    """Two batch norms side by side, one of them without running values; one behind them, and one not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3), nn.Conv2d(1, 4, 3)
        self.first_norm = nn.BatchNorm2d(4, momentum=None)
        self.second_norm = nn.BatchNorm2d(4, affine=False, track_running_stats=False)
        self.norm = nn.BatchNorm1d(16, momentum=0.3, eps=1e-3)
        self.frozen = nn.BatchNorm1d(16).eval()

    def forward(self, x: Tensor) -> Tensor:
        both = torch.tanh(self.first_norm(self.first(x))) + self.second_norm(self.second(x))
        return self.norm(torch.tanh(both).flatten(1)) + self.frozen(both.flatten(1))


def mean_square(model: Norms, x: Tensor) -> dict[str, Tensor]:
    result = model(x)
    return {"loss": (result - x.flatten(1)).square().mean(), "result": result}


@pytest.mark.parametrize(
    ("dtype", "allowed", "fixed"),
    [
        pytest.param(torch.float32, 1e-5, False, marks=pytest.mark.full),
        pytest.param(torch.float32, 1e-5, True, marks=pytest.mark.full),
        (torch.float64, 1e-13, False),
    ],
    ids=str,
)
def test_workers_share_batch_norm(dtype: torch.dtype, allowed: float, fixed: bool) -> None:
    """They make the steps of one with the whole batch, but for sums in another order: losses, running values, all."""
    torch.manual_seed(0)
    model = Norms().to(dtype)

    def captured(rows: int, shapes: object = None) -> onnx.ModelProto:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        return training_step(
            model, mean_square, (torch.randn(rows, 1, 4, 4, dtype=dtype),), optimizer, dynamic_shapes=shapes
        )

    whole = captured(6, ({0: Dim("rows")},))
    shared = captured(3) if fixed else whole
    cuts = [(0, 3), (3, 6)] if fixed else [(0, 1), (1, 1), (1, 6)]
    rng, numbers = np.random.default_rng(0), str(dtype).removeprefix("torch.")
    batches = [(rng.normal(size=(6, 1, 4, 4)) * rng.uniform(1, 3, (6, 1, 1, 1))).astype(numbers) for _ in range(10)]

    def work(communicator: ThreadCommunicator) -> tuple[list[dict[str, np.ndarray]], dict[str, np.ndarray], int]:
        trainer = Trainer(shared, kernel_options(), communicator=communicator, synchronize_batch_norm=True)
        own, before = slice(*cuts[communicator.rank]), communicator.messages
        reported = [trainer.step(**({"x": x[own]} if own.start < own.stop else {})) for x in batches]
        return reported, trainer.state_dict(), communicator.messages - before

    alone = Trainer(whole, kernel_options())
    expected = [alone.step(x=x) for x in batches]
    done = together(len(cuts), work)
    for reported, state, messages in done:
        np.testing.assert_allclose([r["loss"] for r in reported], [e["loss"] for e in expected], rtol=allowed)
        assert messages == 5 * len(batches), "the norms side by side share their messages"
        for name, array in alone.state_dict().items():
            np.testing.assert_allclose(state[name], array, rtol=allowed, atol=allowed, err_msg=name)
    for number, result in enumerate(expected):
        parts = [reported[number]["result"] for reported, _, _ in done if "result" in reported[number]]
        np.testing.assert_allclose(np.concatenate(parts), result["result"], rtol=allowed, atol=10 * allowed)
