"""ReLU and threshold in captured graphs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from captures import gradients
from torch import Tensor, nn
from torch.nn import functional

import onnx_ops


class Above(nn.Module):
    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.threshold = threshold

    def forward(self, x: Tensor) -> Tensor:
        return functional.threshold(functional.relu(x * self.scale), self.threshold, 7.0).sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_boundary_has_no_gradient(dtype: torch.dtype) -> None:
    """Which is 0.1 in the dtype of the tensor, not in that of an attribute."""
    x = torch.tensor([-1.0, 0.0, 0.1, torch.nan, 3.0], dtype=dtype)
    x = torch.cat([x, torch.nextafter(x, torch.full_like(x, 9.0))]).requires_grad_()
    network = Above(0.1).to(dtype)
    model = gradients(network, lambda m, x: m(x), (x,), check=False).model
    kept = [node for node in model.graph.node if node.op_type == "ThresholdBackward"]
    assert len(kept) == (2 if dtype is torch.float32 else 1)  # 0.1 of a double is none of a float
    (wanted,) = torch.autograd.grad(network(x), x)
    feeds = {"x": x.detach().numpy(), "scale": network.scale.detach().numpy()}
    session = onnx_ops.InferenceSession(model)
    (got,) = session.run(["grad.x"], {i.name: feeds[i.name] for i in session.get_inputs()})
    np.testing.assert_array_equal(got, wanted.numpy())
