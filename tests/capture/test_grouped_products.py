"""torch.nn.functional.grouped_mm, compared with PyTorch's and with the products of the groups in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from captures import gradients
from torch import Tensor, nn
from torch.export import Dim

import onnx_ops
from onnx_ops.torch.operators.grouped_products import domain_ops


class Experts(nn.Module):
    """A mixture of experts as transformers computes it: rows sorted by expert, one product for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.weight = nn.Parameter(torch.randn(4, 8, 12))

    def forward(self, x: Tensor) -> Tensor:
        share, expert = self.gate(x).softmax(-1).topk(2)
        order = expert.flatten().argsort()
        ends = torch.histc(expert.flatten().float(), bins=4, min=0, max=3).cumsum(0, dtype=torch.int32)
        rows = F.grouped_mm(x[order // 2], self.weight, offs=ends)
        return torch.zeros(x.shape[0], 12).index_add(0, order // 2, rows * share.flatten()[order, None])


def test_a_mixture_of_experts() -> None:
    """With experts that get no row, at other numbers of rows."""
    torch.manual_seed(0)
    model = Experts()
    capture = gradients(model, lambda m, x: m(x).sin().sum(), (torch.randn(6, 8),), dynamic_shapes=({0: Dim("N")},))
    session = onnx_ops.InferenceSession(capture.model)
    for count in (6, 1, 9):
        x = torch.randn(count, 8)
        wanted = torch.autograd.grad(model(x).sin().sum(), [model.weight, model.gate.weight])
        got = session.run(["grad.weight", "grad.gate.weight"], capture.state | {"x": x.numpy()})
        for array, tensor in zip(got, wanted, strict=True):
            np.testing.assert_allclose(array, tensor.numpy(), rtol=0, atol=1e-5 * float(tensor.abs().max()))


class Forms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Parameter(torch.randn(3, 4, 8)), nn.Parameter(torch.randn(3, 8, 4))

    def forward(self, x: Tensor) -> list[Tensor]:
        ends = torch.tensor([2, 2, 8], dtype=torch.int32)  # PyTorch's gradient has any numbers after the last group
        rows = F.grouped_mm(x, self.one, offs=ends)
        matrices = F.grouped_mm(x.t(), rows, offs=ends)
        columns = torch._grouped_mm(self.other, x.t().contiguous(), offs=ends)
        return [rows, matrices, columns, F.grouped_mm(self.one, self.other)]


def test_all_forms() -> None:
    torch.manual_seed(0)
    gradients(Forms(), lambda m, x: sum(part.sin().sum() for part in m(x)), (torch.randn(8, 4).requires_grad_(),))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_as_operators_of_pytorch(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    rows = torch.randn(6, 3, dtype=dtype, requires_grad=True)
    matrices = torch.randn(3, 3, 2, dtype=dtype, requires_grad=True)
    found = domain_ops.grouped_rows(rows, matrices, ends)
    wanted = torch.cat([rows[:2] @ matrices[0], rows[2:5] @ matrices[2], torch.zeros(1, 2)])
    torch.testing.assert_close(found, wanted, check_dtype=False)
    if dtype is torch.float64:
        assert torch.autograd.gradcheck(lambda *args: domain_ops.grouped_rows(*args, ends), (rows, matrices))
        right = torch.randn(6, 2, dtype=dtype, requires_grad=True)
        assert torch.autograd.gradcheck(lambda *args: domain_ops.grouped_matrices(*args, ends), (rows, right))
