"""Captured steps can be cut at their gradients, so that workers share them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from engines import options
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from onnx_ops import Trainer
from onnx_ops.torch import training_step
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


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("clip", [None, 0.5])
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
        trainer = Trainer(capture, options(), communicator=communicator)
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
