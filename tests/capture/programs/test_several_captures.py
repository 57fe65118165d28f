"""Captures that share a state, beside PyTorch: the two steps of a GAN, a warm-up; and losses in evaluation mode."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from captures import training_step
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

import onnx_ops
from onnx_ops import StepError, Trainer
from onnx_ops.torch import Capture, load_into_torch

BATCH = {0: Dim("N")}


def close(got: Any, wanted: Tensor, what: str = "") -> None:
    np.testing.assert_allclose(got, wanted.detach(), rtol=2e-4, atol=2e-6, err_msg=what)


# --- a GAN ------------------------------------------------------------------------------------------------------------


class Gan(nn.Module):
    """Without a bias before the batch norm: its gradient is rounding, of which Adam takes the sign."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.generator = nn.Sequential(nn.Linear(3, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 4))
        self.discriminator = nn.Sequential(nn.Linear(4, 6), nn.SiLU(), nn.Linear(6, 1))


def fooled(gan: Gan, noise: Tensor) -> Tensor:
    logits = gan.discriminator(gan.generator(noise))
    return functional.binary_cross_entropy_with_logits(logits, torch.ones_like(logits))


def told_apart(gan: Gan, noise: Tensor, real: Tensor) -> dict[str, Tensor]:
    with torch.no_grad():
        made = gan.generator(noise)
    ours, theirs = gan.discriminator(made), gan.discriminator(real)
    loss = functional.binary_cross_entropy_with_logits(theirs, torch.ones_like(theirs))
    return {"loss": loss + functional.binary_cross_entropy_with_logits(ours, torch.zeros_like(ours)), "ours": ours}


def optimizers(gan: Gan) -> dict[str, torch.optim.Optimizer]:
    return {
        "generator": torch.optim.Adam(gan.generator.parameters(), lr=0.02, betas=(0.5, 0.9)),
        "discriminator": torch.optim.AdamW(gan.discriminator.parameters(), lr=0.01),
    }


def gan_batch(number: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(number)
    count = 3 + number % 4
    return {
        "noise": torch.randn(count, 3, generator=generator),
        "real": 1 + torch.randn(count, 4, generator=generator) / 2,
    }


@pytest.fixture(scope="module")
def gan_steps() -> dict[str, Capture]:
    gan, batch = Gan(), gan_batch(0)
    both = optimizers(gan)
    shapes = (BATCH, BATCH)
    return {
        "generator": training_step(gan, fooled, (batch["noise"],), both["generator"], dynamic_shapes=shapes[:1]),
        "discriminator": training_step(
            gan, told_apart, tuple(batch.values()), both["discriminator"], dynamic_shapes=shapes
        ),
    }


def train(trainer: Trainer, first: int, last: int) -> list[float]:
    """Steps of discriminator and generator in turns."""
    losses = []
    for number in range(first, last):
        batch = {name: tensor.numpy() for name, tensor in gan_batch(number).items()}
        losses.append(float(trainer["discriminator"].step(**batch)["loss"]))
        losses.append(float(trainer["generator"].step(noise=batch["noise"])["loss"]))
    return losses


def train_eagerly(gan: Gan, both: dict[str, torch.optim.Optimizer], count: int) -> list[float]:
    losses = []
    for number in range(count):
        batch = gan_batch(number)
        for name, loss_of in (
            ("discriminator", lambda batch=batch: told_apart(gan, **batch)["loss"]),
            ("generator", lambda batch=batch: fooled(gan, batch["noise"])),
        ):
            both[name].zero_grad()
            loss = loss_of()
            loss.backward()
            both[name].step()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("keep_previous", [False, True])
def test_a_gan_beside_eager(gan_steps: dict[str, Capture], keep_previous: bool) -> None:
    gan = Gan()
    both = optimizers(gan)
    trainer = Trainer(gan_steps, keep_previous=keep_previous)
    np.testing.assert_allclose(train(trainer, 0, 10), train_eagerly(gan, both, 10), rtol=1e-4)
    for name, tensor in gan.state_dict().items():
        close(trainer.weights()[name], tensor, name)
    assert trainer.state_dict()["discriminator.optimizer.step"] == 10
    # optimizers of PyTorch get the state of their steps
    other = Gan()
    theirs = optimizers(other)
    for name, optimizer in theirs.items():
        load_into_torch(trainer[name].state_dict(), other, optimizer)
        wanted = both[name].state_dict()["state"]
        for number, ours in optimizer.state_dict()["state"].items():
            for key, tensor in wanted[number].items():
                close(ours[key], tensor, key)


def test_a_gan_is_resumed_from_files(gan_steps: dict[str, Capture], tmp_path: Path) -> None:
    """From step files that have the same start values, and one checkpoint, with the same bits."""
    files = {name: tmp_path / f"{name}.onnx" for name in gan_steps}
    for name, step in gan_steps.items():
        step.save(files[name])
    trainer = Trainer(files)
    train(trainer, 0, 2)
    trainer.save(tmp_path / "gan.safetensors")
    losses = train(trainer, 2, 5)
    again = Trainer(gan_steps)
    again.load(tmp_path / "gan.safetensors")
    assert train(again, 2, 5) == losses
    found = again.state_dict()
    assert all(array.tobytes() == found[name].tobytes() for name, array in trainer.state_dict().items())


# --- a head first, then the whole model -------------------------------------------------------------------------------


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.backbone = nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh())
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


def classified(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    logits = model(x)
    return {"loss": functional.cross_entropy(logits, y), "right": (logits.argmax(1) == y).float().mean()}


def samples(count: int, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(count, 4, generator=generator), "y": torch.randint(0, 3, (count,), generator=generator)}


def test_a_warm_up_and_evaluation_beside_eager(tmp_path: Path) -> None:
    model = Classifier()
    eager = copy.deepcopy(model)
    example = tuple(samples(6, 0).values())
    head = training_step(
        model, classified, example, torch.optim.SGD(model.head.parameters(), 0.5), dynamic_shapes=(BATCH, BATCH)
    )
    whole = training_step(
        model,
        classified,
        example,
        torch.optim.Adam(model.parameters(), 0.01),
        dynamic_shapes=(BATCH, BATCH),
        evaluation=True,
        inference=True,
    )
    whole.save(tmp_path / "whole.onnx")
    assert whole.evaluation is not None
    graph = whole.evaluation.graph
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    assert {name for node in graph.node for name in node.output} <= read
    assert {tensor.name for tensor in graph.initializer} <= read
    trainer = Trainer({"head": head, "whole": tmp_path / "whole.onnx"})
    optimizers = {
        "head": torch.optim.SGD(eager.head.parameters(), 0.5),
        "whole": torch.optim.Adam(eager.parameters(), 0.01),
    }
    held = samples(9, 100)
    arrays = {name: tensor.numpy() for name, tensor in held.items()}
    for number, name in enumerate(["head"] * 3 + ["whole"] * 4):
        batch = samples(5 + number, number)
        trainer[name].step(**{key: tensor.numpy() for key, tensor in batch.items()})
        optimizers[name].zero_grad()
        eager.zero_grad()
        classified(eager, **batch)["loss"].backward()
        optimizers[name].step()
        before = trainer.state_dict()
        got = trainer["whole"].evaluate(**arrays)
        (predicted,) = trainer["whole"].predict(x=arrays["x"]).values()
        eager.eval()
        expected = classified(eager, **held)
        assert list(got) == ["loss", "right"]
        for key, tensor in expected.items():
            close(got[key], tensor, key)
        close(predicted, eager(held["x"]))
        eager.train()
        in_train_mode = trainer["head"].evaluate("train", **arrays)
        close(in_train_mode["loss"], classified(copy.deepcopy(eager), **held)["loss"])
        after = trainer.state_dict()
        assert all(array.tobytes() == after[key].tobytes() for key, array in before.items()), "no state changes"
    for name, tensor in eager.state_dict().items():
        close(trainer.weights()[name], tensor, name)
    with pytest.raises(StepError, match="capture it with evaluation=True"):
        trainer["head"].evaluate(**arrays)


# --- evaluation -------------------------------------------------------------------------------------------------------


class Noisy(nn.Module):
    """Dropout in training; a scale, a buffer that is not in the state_dict, in evaluation mode only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layer = nn.Linear(4, 3)
        self.register_buffer("factor", torch.tensor([1.0, 2.0, 3.0]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.dropout(self.layer(x), 0.5, self.training)
        return y if self.training else y * self.factor


def noisy_loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    noise = torch.randn_like(batch["x"])
    y = model(batch["x"] + 0.1 * noise)
    return (y - batch["y"]).square().mean(), noise


def test_evaluation_with_random_numbers() -> None:
    """The loss draws those of the next step; the model of evaluation mode draws none of its own."""
    model = Noisy()
    batch = {"x": torch.randn(5, 4), "y": torch.randn(5, 3)}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = training_step(model, noisy_loss, (batch,), optimizer, evaluation=True)
    assert model.training
    trainer = Trainer(step)
    arrays = {f"batch.{name}": tensor.numpy() for name, tensor in batch.items()}
    for _ in range(2):
        loss, noise = trainer.evaluate(**arrays).values()
        weights = {name: torch.from_numpy(array) for name, array in trainer.weights().items()}
        y = functional.linear(
            batch["x"] + 0.1 * torch.from_numpy(noise), weights["layer.weight"], weights["layer.bias"]
        )
        close(loss, (y * model.factor - batch["y"]).square().mean())
        seed = int(trainer.state_dict()["seed"])
        assert trainer.step(**arrays)["output.1"].tobytes() == noise.tobytes()
        assert int(trainer.state_dict()["seed"]) == seed + 1


def test_an_evaluation_graph_of_a_file() -> None:
    """It has no weights of its own, no session before it is used, and is kept by `inline`."""
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), torch.randn(5, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = training_step(model, lambda m, x: m(x).square().mean(), (x,), optimizer, evaluation=True)
    assert step.evaluation is not None
    assert step.state.keys().isdisjoint(tensor.name for tensor in step.evaluation.graph.initializer)
    whole = onnx_ops.step_model(step.model, step.state, evaluation=step.evaluation)
    for given in (whole, onnx_ops.inline(whole)):
        trainer = Trainer(given)
        assert trainer.has_evaluation_graph
        assert not trainer._only()._forward
        close(trainer.evaluate(x=x.numpy())["loss"], model.eval()(x).square().mean())
        in_train_mode = trainer.evaluate("train", x=x.numpy())["loss"]
        assert trainer.step(x=x.numpy())["loss"].tobytes() == in_train_mode.tobytes()
