"""SciPy's linear assignment of tensors, by which detectors match predictions and targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from captures import gradients, training_step
from scipy import optimize
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from onnx_ops import StepError, Trainer


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 4), (4, 1), (3, 5), (5, 3), (6, 6), (20, 7), (0, 3), (3, 0)])
def test_assignments(rows: int, columns: int, maximize: bool) -> None:
    """Of costs of both signs, each with its own best columns."""

    def loss(model: nn.Linear, cost: Tensor) -> dict[str, Tensor]:
        row, column = linear_sum_assignment(cost.cpu(), maximize)
        rows, columns = torch.as_tensor(row, dtype=torch.int64), torch.as_tensor(column, dtype=torch.int64)
        return {"loss": model.weight.sum() * cost[rows, columns].sum(), "rows": rows, "columns": columns}

    generator = torch.Generator().manual_seed(0)
    costs = [torch.randn(rows, columns, generator=generator) for _ in range(10)]
    trainer = Trainer(gradients(nn.Linear(1, 1), loss, (costs[0],)))
    for cost in costs:
        found = trainer.step(cost=cost.numpy())
        for name, wanted in zip(("rows", "columns"), linear_sum_assignment(cost, maximize), strict=True):
            np.testing.assert_array_equal(found[name], wanted, err_msg=name)


@pytest.mark.parametrize("of_costs", [Tensor.cpu, lambda costs: costs.detach().cpu().numpy()], ids=["tensor", "array"])
def test_results_are_made_tensors_as_arrays_are(of_costs: Callable[[Tensor], Any]) -> None:
    """As in diffusion models that assign noise to samples (Li et al. 2024)."""

    def loss(model: nn.Linear, x: Tensor, noise: Tensor) -> Tensor:
        _, columns = linear_sum_assignment(of_costs(torch.cdist(x, noise)))
        assert torch.from_numpy(np.arange(3))[1] == 1
        return (model(x) - noise[torch.from_numpy(columns).to(x.device)]).square().mean()

    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(4, 4)
    x, noise = torch.randn(2, 9, 4, generator=generator)
    found = Trainer(gradients(model, loss, (x, noise))).step(x=x.numpy(), noise=noise.numpy())
    np.testing.assert_allclose(found["loss"], loss(model, x, noise).item(), rtol=1e-5)


class Detector(nn.Module):
    """Boxes and classes of a fixed number of objects, as of DETR (Carion et al. 2020)."""

    def __init__(self, objects: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 7 * objects)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        boxes, classes = self.layer(x).unflatten(-1, (-1, 7)).split([4, 3], -1)
        return boxes.sigmoid(), classes


def matched(model: nn.Module, x: Tensor, boxes: Tensor, labels: Tensor) -> Tensor:
    found, classes = model(x)
    with torch.no_grad():
        cost = torch.cdist(found, boxes) - classes.softmax(-1)[torch.arange(len(x))[:, None], :, labels].mT
        matches = [optimize.linear_sum_assignment(each) for each in cost.cpu()]
    total = x.new_zeros(())
    for i, (rows, columns) in enumerate(matches):
        chosen, targets = torch.as_tensor(rows), torch.as_tensor(columns)
        total = total + nn.functional.cross_entropy(classes[i, chosen], labels[i, targets])
        total = total + (found[i, chosen] - boxes[i, targets]).abs().sum()
    return total


def test_a_detector_is_trained() -> None:
    """Ten steps, in which the matches change, next to PyTorch's."""
    torch.manual_seed(0)
    model, generator = Detector(6), np.random.default_rng(0)

    def batch() -> tuple[Tensor, ...]:
        x, boxes = generator.normal(size=(3, 4)), generator.random((3, 2, 4))
        return torch.tensor(x).float(), torch.tensor(boxes).float(), torch.tensor(generator.integers(3, size=(3, 2)))

    batches = [batch() for _ in range(10)]
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    trainer = Trainer(training_step(model, matched, batches[0], optimizer))
    for each in batches:
        got = trainer.step(**{name: t.numpy() for name, t in zip(("x", "boxes", "labels"), each, strict=True)})["loss"]
        optimizer.zero_grad()
        loss = matched(model, *each)
        loss.backward()
        optimizer.step()
        assert got == pytest.approx(loss.item(), rel=1e-4)


def test_costs_that_are_not_finite() -> None:
    """SciPy refuses NaN."""

    def loss(model: nn.Linear, cost: Tensor) -> Tensor:
        rows, columns = linear_sum_assignment(cost)
        return model.weight.sum() * cost[torch.as_tensor(rows), torch.as_tensor(columns)].sum()

    cost = torch.arange(6.0).reshape(2, 3)
    trainer = Trainer(gradients(nn.Linear(1, 1), loss, (cost,)))
    cost[1, 2] = torch.nan
    with pytest.raises(StepError, match=r"linear_sum_assignment that are not finite"):
        trainer.step(cost=cost.numpy())
    with pytest.raises(ValueError, match=r"expected a matrix \(2-D array\)"):
        gradients(nn.Linear(1, 1), loss, (cost[None],))
