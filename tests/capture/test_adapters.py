"""Low-rank adapters of a frozen model: modules with the names of peft's, and parametrizations of torch."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

import onnx_ops
from onnx_ops.torch import training_step

RANK = 2


class Adapted(nn.Module):
    """A linear layer with an adapter, named as peft.tuners.lora.Linear names its parts."""

    def __init__(self, base_layer: nn.Linear, adapter: str) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.adapter = adapter
        self.lora_A = nn.ModuleDict({adapter: nn.Linear(base_layer.in_features, RANK, bias=False)})
        self.lora_B = nn.ModuleDict({adapter: nn.Linear(RANK, base_layer.out_features, bias=False)})
        nn.init.zeros_(self.lora_B[adapter].weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + 2.0 * self.lora_B[self.adapter](self.lora_A[self.adapter](x))


class Wrapped(nn.Module):
    """Holds a model like peft.PeftModel, so that names begin with base_model.model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.base_model = nn.Module()
        self.base_model.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.base_model.model(x)


class LowRank(nn.Module):
    """The parametrization weight + B A."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        self.lora_A = nn.Parameter(torch.randn(RANK, inputs) / math.sqrt(inputs))
        self.lora_B = nn.Parameter(torch.zeros(outputs, RANK))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.lora_B @ self.lora_A


def base() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).requires_grad_(False)


def with_modules(adapter: str) -> nn.Module:
    model = base()
    for i in (0, 2):
        model[i] = Adapted(model[i], adapter)
    return Wrapped(model)


def with_parametrizations() -> nn.Module:
    model = base()
    for i in (0, 2):
        parametrize.register_parametrization(model[i], "weight", LowRank(model[i].weight))
    return model


def loss(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), labels)


def batches() -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(16, 6), torch.randint(3, (16,))) for _ in range(10)]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)


def filed(name: str, adapter: str) -> str:
    """The name of a parameter in the file of an adapter."""
    return name.replace(f".{adapter}.weight", ".weight")


@pytest.mark.parametrize("kind", ["modules", "modules of another name", "parametrizations"])
def test_adapters_are_trained_and_exchanged_with_pytorch(kind: str, tmp_path: Path) -> None:
    adapter = "other" if "other" in kind else "default"
    model = with_parametrizations() if kind == "parametrizations" else with_modules(adapter)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    steps = batches()
    capture = training_step(model, loss, steps[0], adamw(model))
    assert {value.name for value in capture.model.graph.output} == {
        "loss",
        "next.optimizer.step",
        *(f"next.{name}" for name in trained),
        *(f"next.optimizer.{key}.{name}" for name in trained for key in ("exp_avg", "exp_avg_sq")),
    }

    twin = copy.deepcopy(model)
    optimizer = adamw(twin)
    trainer = onnx_ops.Trainer(capture)
    for x, labels in steps:
        optimizer.zero_grad()
        wanted = loss(twin, x, labels)
        wanted.backward()
        optimizer.step()
        got = trainer.step(x=x.numpy(), labels=labels.numpy())
        np.testing.assert_allclose(got["loss"], wanted.detach(), rtol=1e-5)

    path = tmp_path / "adapter_model.safetensors"
    trainer.save_adapter(path, adapter)
    saved = safetensors.torch.load_file(path)
    assert set(saved) == {filed(name, adapter) for name in trained}
    expected = twin.state_dict()
    for name in trained:
        np.testing.assert_allclose(saved[filed(name, adapter)], expected[name], rtol=1e-3, atol=1e-5, err_msg=name)
    # Into a fresh model as PyTorch loads an adapter.
    keys = model.load_state_dict({name: saved[filed(name, adapter)] for name in trained}, strict=False)
    assert not keys.unexpected_keys
    trainer.export(tmp_path / "model.onnx")
    session = ort.InferenceSession(tmp_path / "model.onnx")
    (logits,) = session.run(None, {session.get_inputs()[0].name: steps[0][0].numpy()})
    np.testing.assert_allclose(logits, model(steps[0][0]).detach(), rtol=1e-4, atol=1e-5)

    # And into another trainer of the same base.
    other = onnx_ops.Trainer(capture)
    other.load_adapter(path, adapter)
    for name, array in other.weights().items():
        np.testing.assert_array_equal(array, trainer.weights()[name], err_msg=name)
