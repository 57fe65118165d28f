"""Accumulated gradients against PyTorch's, in float64: sums of weighted gradients, and against one large batch."""

from __future__ import annotations

import copy
import ctypes
import gc
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from captures import training_step
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

import onnx_ops
from scripts.trainings.threads import ThreadCommunicator, together

ROWS = {0: Dim("rows")}
Batch = tuple[Tensor, Tensor]
# A dozen updates; sums of products in another order, of gradients of size 1.
TOLERANCE = 1e-11


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def normalized() -> nn.Module:
    """Batch norm with exponential and with cumulative averages, for which the number of batches counts."""
    first, last = nn.BatchNorm1d(8), nn.BatchNorm1d(8, momentum=None)
    # No biases before batch norm: their gradients are rounding errors, which AdamW enlarges.
    layers = nn.Linear(6, 8, bias=False), nn.Linear(8, 8, bias=False)
    return nn.Sequential(layers[0], first, nn.Tanh(), layers[1], last, nn.Linear(8, 3))


class Following(nn.Module):
    """A network with a momentum encoder, which it follows, in front of batch norm with cumulative averages.

    With `scales` the trained weight of the last layer is scaled down before each batch, by a factor that depends on a
    count of them.
    """

    count: Tensor

    def __init__(self, scales: bool) -> None:
        super().__init__()
        self.scales = scales
        self.layer, self.target = nn.Linear(6, 8, bias=False), nn.Linear(6, 8, bias=False).requires_grad_(False)
        self.norm, self.last = nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 3)
        self.register_buffer("count", torch.ones((), dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            if self.scales:
                self.last.weight.mul_(1 - 0.2 / self.count)
            self.count += 1
            self.target.weight.lerp_(self.layer.weight, 0.3)
        result: Tensor = self.last(self.norm(self.layer(x) + self.target(x)).tanh())
        return result


def loss(model: nn.Module, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
    logits = model(x)
    return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "SGD": lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.01),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), 0.01),
}
SHARES = [(4, 4), (5, 2, 3), (8,), (3, 2, 2, 4)]
"""The numbers of samples of the batches of an update; updates take turns."""


def groups(updates: int) -> list[list[Batch]]:
    torch.manual_seed(1)
    sizes = [SHARES[number % len(SHARES)] for number in range(updates)]
    return [[(torch.randn(n, 6).double(), torch.randint(3, (n,))) for n in shares] for shares in sizes]


def arrays(batch: Batch) -> dict[str, np.ndarray]:
    x, labels = batch
    return {"x": x.numpy(), "labels": labels.numpy()}


def whole(batches: Sequence[Batch]) -> Batch:
    return torch.cat([x for x, _ in batches]), torch.cat([labels for _, labels in batches])


def check_weights(trainer: onnx_ops.Trainer, model: nn.Module, tolerance: float = TOLERANCE) -> None:
    weights = trainer.weights()
    for name, tensor in model.state_dict().items():
        np.testing.assert_allclose(weights[name], tensor, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize(
    ("network", "optimizer", "clip", "keep_previous"),
    [
        pytest.param(plain, "SGD", None, False, marks=pytest.mark.full),
        pytest.param(plain, "AdamW", 0.05, False, marks=pytest.mark.full),
        (normalized, "SGD", 0.05, False),
        pytest.param(normalized, "AdamW", None, False, marks=pytest.mark.full),
        (normalized, "AdamW", 0.05, True),
    ],
)
def test_accumulated_batches(
    network: Callable[[], nn.Module], optimizer: str, clip: float | None, keep_previous: bool
) -> None:
    torch.manual_seed(0)
    model = network().double()
    steps = groups(12)
    capture = training_step(
        model,
        loss,
        steps[1][0],
        OPTIMIZERS[optimizer](model),
        dynamic_shapes=(ROWS, ROWS),
        clip_grad_norm=clip,
        check=False,
    )
    trainer = onnx_ops.Trainer(capture, keep_previous=keep_previous)
    twin = copy.deepcopy(model)
    updating = OPTIMIZERS[optimizer](twin)
    for batches in steps:
        samples = sum(len(labels) for _, labels in batches)
        updating.zero_grad()
        for number, batch in enumerate(batches):
            wanted = loss(twin, *batch)
            (wanted["loss"] * len(batch[1]) / samples).backward()
            last = number == len(batches) - 1
            got = (trainer.step if last else trainer.accumulate)(**arrays(batch))
            assert list(got) == ["loss", "logits"]
            np.testing.assert_allclose(got["loss"], wanted["loss"].detach(), rtol=1e-10)
            np.testing.assert_allclose(got["logits"], wanted["logits"].detach(), rtol=1e-9, atol=1e-11)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(twin.parameters(), clip)
        updating.step()
        check_weights(trainer, twin)


@pytest.mark.parametrize("keep_previous", [False, True])
@pytest.mark.parametrize("is_last_in_step", [True, False])
def test_state_that_changes_with_each_batch(is_last_in_step: bool, keep_previous: bool) -> None:
    """Parameters that the loss changes too; an update without a batch changes no more than those with a gradient."""
    torch.manual_seed(0)
    model = Following(scales=True).double()
    twin, steps = copy.deepcopy(model), groups(3)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, 0.1)
    step = training_step(model, loss, steps[0][0], optimizer, dynamic_shapes=(ROWS, ROWS), inference=False)
    trainer = onnx_ops.Trainer(step, keep_previous=keep_previous)
    updating = torch.optim.SGD([parameter for parameter in twin.parameters() if parameter.requires_grad], 0.1)
    for batches in steps:
        samples = sum(len(labels) for _, labels in batches)
        updating.zero_grad()
        for number, batch in enumerate(batches):
            (loss(twin, *batch)["loss"] * len(batch[1]) / samples).backward()
            last = is_last_in_step and number == len(batches) - 1
            (trainer.step if last else trainer.accumulate)(**arrays(batch))
        if not is_last_in_step:
            trainer.step()
        updating.step()
        check_weights(trainer, twin)


@pytest.mark.parametrize("numbers", [(3, 2), (2, 2), (1, 3)], ids=str)
@pytest.mark.parametrize("is_last_in_step", [True, False])
def test_state_that_changes_with_each_batch_of_workers(is_last_in_step: bool, numbers: tuple[int, int]) -> None:
    """As often as with the worker that has most batches, and the same on all workers."""
    torch.manual_seed(0)
    model = Following(scales=True).double()
    model.norm = nn.Identity()
    model.register_buffer("batches", torch.tensor(0))

    def counting(model: Following, x: Tensor, labels: Tensor) -> Tensor:
        model.batches += 1
        return loss(model, x, labels)["loss"]

    twin, steps = copy.deepcopy(model), groups(2)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, 0.1)
    step = training_step(model, counting, steps[0][0], optimizer, dynamic_shapes=(ROWS, ROWS), inference=False)
    batch = steps[0][0]

    def work(communicator: ThreadCommunicator) -> dict[str, np.ndarray]:
        trainer = onnx_ops.Trainer(step, communicator=communicator)
        for _ in steps:
            for number in range(numbers[communicator.rank]):
                last = is_last_in_step and number == numbers[communicator.rank] - 1
                (trainer.step if last else trainer.accumulate)(**arrays(batch))
            if not is_last_in_step:
                trainer.step()
        return trainer.state_dict()

    # Worker k has batches 0, 1, ..., numbers[k] - 1, between which the momentum encoder changes.
    updating = torch.optim.SGD([parameter for parameter in twin.parameters() if parameter.requires_grad], 0.1)
    for _ in steps:
        updating.zero_grad()
        for number in range(max(numbers)):
            share = sum(number < own for own in numbers) / sum(numbers)
            (counting(twin, *batch) * share).backward()
        updating.step()
    for state in together(2, work):
        for name, expected in twin.state_dict().items():
            np.testing.assert_allclose(state[name], expected.numpy(), rtol=1e-10, err_msg=name)


class Stopping(nn.Module):
    """A linear layer that counts its batches, up to five."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        if self.count > 5:
            raise ValueError("more than five batches")
        result: Tensor = self.layer(x)
        return result


def test_updates_of_workers_that_fail_leave_their_state() -> None:
    """The sixth batch of worker 0 is refused in the update, which counts those of the others too."""
    batch = groups(1)[0][0]
    model = Stopping().double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = onnx_ops.torch.training_step(
        model, loss, batch, optimizer, dynamic_shapes=(ROWS, ROWS), inference=False, specialize=True
    )

    def work(communicator: ThreadCommunicator) -> list[int]:
        trainer = onnx_ops.Trainer(step, communicator=communicator)
        found = []
        for _ in range(5 if communicator.rank == 0 else 2):
            trainer.accumulate(**arrays(batch))
        for _ in range(2):
            before = trainer.state_dict()
            with pytest.raises(onnx_ops.StepError, match=r"raise|self\.count > 5"):
                trainer.step(**arrays(batch))
            after = trainer.state_dict()
            for name, array in before.items():
                np.testing.assert_array_equal(after[name], array, err_msg=name)
            found.append(int(after["count"]))
        trainer.step()
        return [*found, int(trainer.state_dict()["count"])]

    assert together(2, work) == [[5, 5, 5], [2, 2, 5]]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_accumulated_batches_are_one_large_batch(optimizer: str) -> None:
    torch.manual_seed(0)
    model = plain().double()
    steps = groups(12)
    capture = training_step(
        model,
        loss,
        steps[0][0],
        OPTIMIZERS[optimizer](model),
        dynamic_shapes=(ROWS, ROWS),
        clip_grad_norm=0.05,
        check=False,
    )
    trainer, other = onnx_ops.Trainer(capture), onnx_ops.Trainer(capture)
    for batches in steps:
        for batch in batches[:-1]:
            trainer.accumulate(**arrays(batch))
        trainer.step(**arrays(batches[-1]))
        other.step(**arrays(whole(batches)))
    state = other.state_dict()
    for name, array in trainer.state_dict().items():
        np.testing.assert_allclose(array, state[name], rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)


def resident() -> int:
    """Bytes of this process's own memory, without what is free."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_accumulation_needs_the_memory_of_the_parameters_once() -> None:
    """Gradients are added one by one; those of this network's twelve layers are not in memory together."""
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(12)))
    size = sum(parameter.numel() * 4 for parameter in model.parameters())
    x, labels = torch.randn(8, 1024), torch.randint(1024, (8,))
    optimizer = torch.optim.AdamW(model.parameters())
    trainer = onnx_ops.Trainer(training_step(model, loss, (x, labels), optimizer, clip_grad_norm=1.0, check=False))
    batch = arrays((x, labels))
    trainer.step(**batch)  # exp_avg and exp_avg_sq take no memory before
    before = resident()
    for _ in range(3):
        trainer.accumulate(**batch)
    between = resident()
    assert size < between - before < 1.4 * size
    trainer.step()
    # Clipping multiplies the mean of each gradient by a factor.
    assert resident() - between < 0.4 * size
