"""torch.autocast and 16-bit tensors: operators compute in float32 and round, as PyTorch's CPU kernels do.

Captures compare their numbers with PyTorch's before they return.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
import torch.nn.functional as F
from captures import gradients, training_step
from cases import names_with
from torch import Tensor, nn

import onnx_ops
from onnx_ops.torch import CaptureError

NARROW = (torch.bfloat16, torch.float16)
dtypes = pytest.mark.parametrize("dtype", NARROW, ids=str)

MOVEMENTS = ("Concat", "Gather", "Identity", "Reshape", "ScatterElements", "ScatterND", "Slice", "Split", "Transpose")
SIXTEEN_BITS = {*MOVEMENTS, "Cast", "Shape", "Squeeze", "Unsqueeze"}
"""Standard operators with 16-bit kernels in all supported versions of onnxruntime."""


def autocast(dtype: torch.dtype) -> Callable[..., Any]:
    """The mean square of a model's output, which is computed under autocast."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=dtype):
            output = model(x)
        return output.float().square().mean()

    return loss


def narrow_operators(model: onnx.ModelProto) -> set[str]:
    """The standard operators that have 16-bit inputs or outputs."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*inferred.value_info, *inferred.input, *inferred.output)}
    types |= {tensor.name: tensor.data_type for tensor in inferred.initializer}
    narrow = (onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT16)
    return {
        node.op_type
        for node in model.graph.node
        if not node.domain and any(types.get(name) in narrow for name in (*node.input, *node.output))
    }


class Pointwise(nn.Module):
    """Operators whose results in float32 are the same on all machines, with views between them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 24).reshape(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight.to(torch.get_autocast_dtype("cpu"))
        y = (x.to(w.dtype) * w).relu() + w / 3
        y = y.t().reshape(3, 8) * 1.1 - 0.3
        z = torch.where(y > 0.1, y * y, -y)
        z[:, 1:3] += 0.01
        z[0] = z[1, :1]
        z.unsqueeze_(0).transpose_(1, 2).squeeze_(0).t_()
        return torch.cat([z, z.abs().sqrt()])[:, ::2] / y.expand(2, 3, 8).reshape(6, 8)[:, ::2].clamp(min=0.5)


@pytest.mark.parametrize("dtype", names_with(full=[torch.float16], names=NARROW), ids=str)
def test_each_operator_rounds(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = Pointwise(), torch.randn(4, 6, requires_grad=True)

    def loss(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", dtype=dtype):
            result = model(x)
        return result.float().square().mean(), result.float()

    capture = gradients(model, loss, (x,))
    assert narrow_operators(capture.model) <= SIXTEEN_BITS
    error, result = loss(model, x)
    expected = (result, *torch.autograd.grad(error, (model.weight, x)))
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"):
        options = ort.SessionOptions()
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
        session = onnx_ops.InferenceSession(capture.model, options)
        got = session.run(["output.1", "grad.weight", "grad.x"], {**capture.state, "x": x.detach().numpy()})
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_array_equal(one, other.detach().float().numpy(), err_msg=level)


@pytest.mark.parametrize(
    "write",
    [
        lambda y: y.diagonal().mul_(2),
        lambda y: y.unfold(1, 2, 2)[:, 0].fill_(0.5),
        lambda y: y.as_strided((2, 2), (6, 1)).copy_(torch.ones(())),
    ],
)
def test_writes_to_views_that_are_copies_are_refused(write: Callable[[Tensor], Tensor]) -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x).sin()
        write(y)
        return y.float().square().mean()

    model, x = nn.Linear(4, 6).bfloat16(), torch.ones(3, 4, dtype=torch.bfloat16)
    with pytest.raises(CaptureError, match=r"writes to a view of a 16-bit tensor at \S*test_mixed_precision\.py, line"):
        gradients(model, loss, (x,), check=False)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.linear = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear(self.lstm(x)[0])
        return result


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 3)), (4, 6)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        (2, 3, 6, 6),
    ),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True), (2, 5, 8)),
    "recurrent": (Recurrent, (2, 3, 4)),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=[] if dtype is NARROW[number % 2] else pytest.mark.full)
        for number, name in enumerate(MODELS)
        for dtype in NARROW
    ],
    ids=str,
)
def test_models_under_autocast(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model, x = make(), torch.randn(shape)
    capture = training_step(model, autocast(dtype), (x,), torch.optim.AdamW(model.parameters()))
    assert "Cast" in narrow_operators(capture.model) <= SIXTEEN_BITS
    for parameter in dict(model.named_parameters()):
        assert capture.state[parameter].dtype == np.float32
    trainer = onnx_ops.Trainer(capture)
    losses = [float(trainer.step(x=x.numpy())["loss"]) for _ in range(20)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "criterion",
    [
        lambda x, t: F.cross_entropy(x, t),
        lambda x, t: F.kl_div(x.log_softmax(-1), F.one_hot(t, 3).float(), reduction="batchmean"),
        lambda x, t: F.binary_cross_entropy_with_logits(x, F.one_hot(t, 3).to(x.dtype)),
        lambda x, t: F.mse_loss(x, F.one_hot(t, 3).to(x.dtype)),
        lambda x, t: F.multi_margin_loss(x, t),
    ],
    ids=["cross_entropy", "kl_div", "binary_cross_entropy_with_logits", "mse_loss", "multi_margin_loss"],
)
def test_losses_within_autocast_are_float32(criterion: Callable[[Tensor, Tensor], Tensor]) -> None:
    def loss(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = criterion(model(x), target)
        assert result.dtype is torch.float32
        return result

    torch.manual_seed(0)
    gradients(nn.Linear(4, 3), loss, (torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0])))


@dtypes
def test_parameters_of_16_bits(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to(dtype)
    x = torch.randn(4, 6, dtype=dtype)
    capture = training_step(model, lambda m, x: m(x).square().mean(), (x,), torch.optim.SGD(model.parameters(), 0.1))
    assert narrow_operators(capture.model) <= SIXTEEN_BITS


def test_autocast_around_the_capture_is_refused() -> None:
    model = nn.Linear(3, 3)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(CaptureError, match=r"torch\.autocast surrounds the capture.*put it into the loss"),
    ):
        gradients(model, lambda m, x: m(x).sum(), (torch.ones(2, 3),))


def test_loss_scaling_is_that_of_grad_scaler() -> None:
    """Over many steps, some of which overflow. Parameters differ by rounding, which Adam scales to its rate."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            output = model(x)
        return output.float().square().mean()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=5)
    batches = [torch.randn(4, 6) for _ in range(25)]
    batches[12] *= 1e4  # the loss itself overflows
    capture = training_step(model, loss, (batches[0],), optimizer, grad_scaler=scaler)
    trainer = onnx_ops.Trainer(capture)
    scales = []
    for x in batches:
        before = trainer.state_dict()
        trainer.step(x=x.numpy())
        after = trainer.state_dict()
        scaler.scale(loss(model, x)).backward()
        scaler.step(optimizer)
        old = scaler.get_scale()
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
        assert after["grad_scaler.scale"] == scales[-1]
        assert after["grad_scaler.growth_tracker"] == scaler.state_dict()["_growth_tracker"]
        if scales[-1] < old:  # skipped
            assert all(np.array_equal(after[n], before[n]) for n in before if not n.startswith("grad_scaler."))
        for name, parameter in model.named_parameters():
            np.testing.assert_allclose(after[name], parameter.detach().numpy(), rtol=0, atol=2e-3, err_msg=name)
    steps = list(itertools.pairwise(scales))
    assert any(one < other for one, other in steps)
    assert any(one > other for one, other in steps)
