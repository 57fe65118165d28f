"""Quotients and remainders of integers: those of PyTorch, and steps that are refused where it raises an error."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import pytest
import torch
from captures import gradients
from torch import Tensor, nn
from torch.export import Dim

from onnx_ops import StepError, Trainer

ROWS = {0: Dim("rows")}


QUOTIENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "floored": lambda a, b: a // b,
    "remainder": lambda a, b: a % b,
    "truncated": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "rest": lambda a, b: torch.fmod(a, b),
    "written": lambda a, b: a.clone().floor_divide_(b),
    "of a number": lambda a, b: 100 // b + torch.remainder(-100, b),
    "by numbers": lambda a, b: a // -3 + a % -7 + torch.fmod(a, 5) + a // -1,
    "by one": lambda a, b: a // b[:1],
}


def trainer(names: Collection[str], dtype: torch.dtype) -> Trainer:
    example = torch.tensor([7, 5, 3, 1], dtype=dtype), torch.tensor([2, 3, 1, 4], dtype=dtype)

    def loss(model: nn.Linear, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        return {"loss": model.weight.sum()} | {name: QUOTIENTS[name](a, b) for name in names}

    return Trainer(gradients(nn.Linear(1, 1), loss, example, dynamic_shapes=(ROWS, ROWS)))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_quotients_and_remainders(dtype: torch.dtype) -> None:
    step, limits = trainer(QUOTIENTS, dtype), torch.iinfo(dtype)
    a = torch.tensor([7, -7, 8, -8, limits.max, limits.min + 1, 0, 5]).to(dtype)
    b = torch.tensor([2, 3, -3, -5, 7, -6, -1, 4]).to(dtype)
    found = step.step(a=a.numpy(), b=b.numpy())
    for name, quotient in QUOTIENTS.items():
        wanted = quotient(a, b).numpy()
        assert found[name].dtype == wanted.dtype, name
        np.testing.assert_array_equal(found[name], wanted, err_msg=name)
    if limits.min:  # PyTorch ends the process, or not, depending on dtype and machine
        a, b = (np.array([number], wanted.dtype) for number in (limits.min, -1))
        found = step.step(a=a, b=b)
        assert (found["floored"], found["truncated"]) == (limits.min, limits.min)
        assert (found["remainder"], found["rest"]) == (0, 0)


@pytest.mark.parametrize("name", ["floored", "remainder", "truncated", "rest", "written", "of a number"])
def test_a_divisor_of_0_is_refused(name: str) -> None:
    step = trainer([name], torch.int64)
    with pytest.raises(StepError, match="the number of divisors that are 0"):
        step.step(a=np.array([3, 4]), b=np.array([2, 0]))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        QUOTIENTS[name](torch.tensor([3, 4]), torch.tensor([2, 0]))


def test_a_number_of_the_data_that_is_0_is_no_divisor() -> None:
    """As in Python; sizes are none for no rows."""

    def loss(model: nn.Linear, a: Tensor, b: Tensor) -> Tensor:
        whole = int(a.max()) // int(b.max()) + 5 % int(b.max())
        return (model.weight * whole).sum()

    step = Trainer(gradients(nn.Linear(1, 1), loss, (torch.tensor([7, 5]), torch.tensor([2, 3]))))
    with pytest.raises(StepError, match="reads 0 from tensors"):
        step.step(a=np.array([3, 4]), b=np.array([-2, 0]))
