"""Shifts of integers by tensors: by more bits than there are, and by less than 0, as in PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from captures import gradients
from torch import Tensor, nn

from onnx_ops import Trainer


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
def test_shifts_by_tensors(dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    numbers = torch.tensor([limits.max, limits.min, 5, 77, -3]).to(dtype)[:, None]
    shifts = torch.tensor([0, 1, 3, limits.bits - 1, limits.bits, limits.bits + 1, -1]).to(dtype)

    def loss(model: nn.Linear, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        return {"loss": model.weight.sum(), "left": a << b, "right": a >> b}

    found = Trainer(gradients(nn.Linear(1, 1), loss, (numbers, shifts))).step(a=numbers.numpy(), b=shifts.numpy())
    for name, wanted in loss(nn.Linear(1, 1), numbers, shifts).items():
        if name != "loss":
            assert found[name].dtype == wanted.numpy().dtype
            np.testing.assert_array_equal(found[name], wanted.numpy(), err_msg=name)
