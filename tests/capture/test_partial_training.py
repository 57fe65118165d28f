"""Steps that train some of a model's parameters: the others are inputs without gradient, state or next value."""

from __future__ import annotations

import copy
from collections import Counter

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

import onnx_ops
from onnx_ops.torch import CaptureError, training_step

TRAINED = ("middle.weight", "middle.bias")


class Partial(nn.Module):
    """A layer between frozen ones, two of which are tied, with batch norm in evaluation mode before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.features = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.middle = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight
        with torch.no_grad():
            self.norm.running_mean.uniform_(-1, 1)
            self.norm.running_var.uniform_(0.5, 2)

    def train(self, mode: bool = True) -> Partial:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, tokens: Tensor) -> Tensor:
        features = functional.relu(self.norm(self.features(self.embedding(tokens).mean(1))))
        return self.head(torch.tanh(self.middle(features)))


def loss(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(model(tokens), labels)


def partial(frozen_by: str) -> tuple[Partial, torch.optim.Optimizer]:
    """The model and its optimizer; parameters are frozen by `requires_grad`, or by omission from the optimizer."""
    torch.manual_seed(0)
    model = Partial().train()
    if frozen_by == "optimizer":
        return model, torch.optim.AdamW(model.middle.parameters(), 1e-2)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in TRAINED)
    return model, torch.optim.AdamW(model.parameters(), 1e-2)


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [(torch.randint(11, (8, 5)), torch.randint(11, (8,))) for _ in range(count)]


def sizes(model: onnx.ModelProto, names: list[str]) -> int:
    inputs = {value.name: value.type.tensor_type.shape.dim for value in model.graph.input}
    return sum(int(np.prod([dim.dim_value for dim in inputs[name]], dtype=int)) for name in names)


@pytest.mark.parametrize(
    ("frozen_by", "clip"),
    [
        ("requires_grad", None),
        ("optimizer", 0.1),
        pytest.param("requires_grad", 0.1, marks=pytest.mark.full),
        pytest.param("optimizer", None, marks=pytest.mark.full),
    ],
)
def test_frozen_parameters(frozen_by: str, clip: float | None) -> None:
    model, optimizer = partial(frozen_by)
    steps = batches(10)
    rows = {0: Dim("rows")}
    capture = training_step(model, loss, steps[0], optimizer, clip_grad_norm=clip, dynamic_shapes=(rows, rows))

    step = onnx_ops.Step.of(capture.model)
    parameters = list(dict(model.named_parameters()))
    assert step.names(onnx_ops.InputRole.PARAMETER) == parameters
    assert step.tied == {"head.weight": "embedding.weight"}
    state = [f"optimizer.{key}.{name}" for name in TRAINED for key in ("exp_avg", "exp_avg_sq")]
    assert step.names(onnx_ops.InputRole.OPTIMIZER) == ["optimizer.step", *state]
    outputs = {value.name for value in capture.model.graph.output}
    assert outputs == {"loss", *(f"next.{name}" for name in (*TRAINED, "optimizer.step", *state))}
    assert sizes(capture.model, list(step.roles)) == (
        sum(parameter.numel() for parameter in model.parameters())
        + 2 * sum(parameter.numel() for parameter in model.middle.parameters())
        + sum(buffer.numel() for buffer in model.buffers())
        + 2  # optimizer.step, learning_rate
    )

    # Products of matrices: three layers forward, the gradients of the head's input and of the trained weight.
    kinds = Counter(node.op_type for node in capture.model.graph.node)
    assert kinds["Gemm"] + kinds["MatMul"] == 3 + 2
    assert not {kind for kind in kinds if "Embedding" in kind or kind.startswith("BatchNorm")} - {"BatchNormalization"}

    trainer = onnx_ops.Trainer(capture)
    twin = copy.deepcopy(model)
    updated = [twin.middle.weight, twin.middle.bias]
    other = torch.optim.AdamW(updated, 1e-2)
    for tokens, labels in steps:
        wanted = loss(twin, tokens, labels)
        twin.zero_grad()
        wanted.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(updated, clip)
        other.step()
        got = trainer.step(tokens=tokens.numpy(), labels=labels.numpy())
        np.testing.assert_allclose(got["loss"], wanted.detach(), rtol=1e-5)
    weights, expected = trainer.weights(), twin.state_dict()
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        if name in TRAINED:
            np.testing.assert_allclose(weights[name], tensor, rtol=1e-4, atol=1e-5, err_msg=name)
        else:
            np.testing.assert_array_equal(weights[name], tensor, err_msg=name)


def test_parameters_that_the_loss_freezes() -> None:
    """As those of batch norms in fine-tuning: not even the weight decay changes them."""

    def frozen(model: nn.Sequential, x: Tensor) -> Tensor:
        model[0].weight.requires_grad = False
        return model(x).square().mean()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.5)
    trainer = onnx_ops.Trainer(training_step(model, frozen, (torch.randn(4, 3),), optimizer, inference=False))
    x = torch.randn(4, 3)
    trainer.step(x=x.numpy())
    frozen(model, x).backward()
    optimizer.step()
    for name, array in trainer.weights().items():
        np.testing.assert_allclose(array, model.get_parameter(name).detach(), rtol=1e-5, err_msg=name)


def test_parameters_that_the_first_call_makes_are_refused() -> None:
    """A graph had other random numbers for them in each step."""

    class Lazy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if not hasattr(self, "last"):
                self.last = nn.Linear(2, 2)
            return self.last(super().forward(x))

    model = Lazy(3, 2)
    with pytest.raises(CaptureError, match=r"adds the parameter 'last.weight' to the model, .* call the model once"):
        training_step(model, lambda m, x: m(x).mean(), (torch.randn(4, 3),), torch.optim.SGD(model.parameters(), 0.1))
