"""Common divisors of integers, and mantissas, exponents and neighbours of floating numbers: PyTorch's, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from captures import gradients
from torch import Tensor, nn
from torch.export import Dim

from onnx_ops import Trainer

ROWS = {0: Dim("rows")}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.uint8])
def test_common_divisors_and_multiples(dtype: torch.dtype) -> None:
    def loss(model: nn.Linear, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        found = {
            "gcd": torch.gcd(a, b),
            "lcm": a.lcm(b),
            "broadcast": torch.gcd(a, b[:1]),
            "in place": b.clone().gcd_(a),
        }
        return {"loss": model.weight.sum()} | found

    example = torch.tensor([12, 7, 0], dtype=dtype), torch.tensor([18, 21, 0], dtype=dtype)
    step = Trainer(gradients(nn.Linear(1, 1), loss, example, dynamic_shapes=(ROWS, ROWS)))
    largest = torch.iinfo(dtype).max
    a = torch.tensor([89, 0, 60, -48 if dtype.is_signed else 48, largest, 5]).to(dtype)
    b = torch.tensor([55, 9, 90, 36, largest - 1, 0]).to(dtype)
    found = step.step(a=a.numpy(), b=b.numpy())
    for name, wanted in loss(nn.Linear(1, 1), a, b).items():
        if name != "loss":
            assert found[name].dtype == wanted.numpy().dtype
            np.testing.assert_array_equal(found[name], wanted, err_msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mantissas_exponents_and_neighbours(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    smallest = limits.smallest_normal * limits.eps

    def loss(model: nn.Module, x: Tensor, towards: Tensor) -> dict[str, Tensor]:
        mantissa, exponent = torch.frexp(x)
        found = {"mantissa": mantissa, "exponent": exponent, "next": torch.nextafter(x.detach(), towards)}
        found |= {"isinf": x.isinf(), "isposinf": torch.isposinf(x), "isneginf": torch.isneginf(x)}
        return {"loss": x.frexp().mantissa.nansum() + model(x.new_zeros(1, 1)).sum()} | found

    model = nn.Linear(1, 1, dtype=dtype)
    example = torch.tensor([0.3, -8.0], dtype=dtype, requires_grad=True), torch.tensor([1.0, 0.0], dtype=dtype)
    capture = gradients(model, loss, example, dynamic_shapes=(ROWS, ROWS))
    trainer = Trainer(capture, check_finite=False)
    edges = [0.0, torch.inf, torch.nan, smallest, limits.smallest_normal, limits.max]
    special = [*edges, 1.0, 0.75, 1e-3, 8.0, 3e20]
    numbers = torch.tensor([*special, *(-number for number in special)], dtype=dtype)
    x, towards = (each.flatten() for each in torch.meshgrid(numbers, numbers, indexing="ij"))
    x.requires_grad_()
    wanted = loss(model, x, towards)
    found = trainer.step(x=x.detach().numpy(), towards=towards.numpy())
    for name in wanted.keys() - {"loss"}:
        assert found[name].dtype == wanted[name].detach().numpy().dtype
        np.testing.assert_array_equal(found[name], wanted[name].detach(), err_msg=name)
