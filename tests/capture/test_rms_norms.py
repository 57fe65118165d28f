"""Normalizations by the root mean square in captured steps, compared with PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from captures import compared, gradients
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

import onnx_ops
import onnx_ops.torch
from onnx_ops.torch.capture import Capture

WIDTH = 6
Form = Callable[[Tensor, Tensor], Tensor]


def count(captured: Capture, op_type: str) -> int:
    return sum(node.op_type == op_type for node in captured.model.graph.node)


def llama(x: Tensor, weight: Tensor) -> Tensor:
    """transformers' LlamaRMSNorm, and T5LayerNorm."""
    values = x.to(torch.promote_types(x.dtype, torch.float32))
    values = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * values.to(x.dtype)


def gemma(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3) * (1 + weight)


def by_root(x: Tensor, weight: Tensor) -> Tensor:
    return (1 / torch.sqrt(1e-5 + x.square().mean(dim=2, keepdim=True))) * x * weight


def of_torch(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, (WIDTH,), weight, 1e-6)


def without_weight(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, (WIDTH,), eps=1e-6) + weight


def of_two_axes(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, (5, WIDTH), weight.expand(5, WIDTH) + torch.arange(5.0).reshape(5, 1), 1e-6)


def twice(x: Tensor, weight: Tensor) -> Tensor:
    return llama(llama(x, weight) + x, weight)


FORMS: list[Form] = [llama, gemma, of_torch, without_weight, of_two_axes, twice]


class Normalized(nn.Module):
    """Between linear layers, and added to its own input."""

    def __init__(self, form: Form, requires_grad: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.form, self.first = form, nn.Linear(WIDTH, WIDTH)
        self.weight = nn.Parameter(torch.randn(WIDTH), requires_grad=requires_grad)
        self.last = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.last(self.form(hidden, self.weight) + hidden.sin())


def loss(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) * torch.linspace(-1, 2, 3, dtype=x.dtype)).square().mean()


def rows(batch: int) -> Tensor:
    return torch.randn(batch, 5, WIDTH, generator=torch.Generator().manual_seed(batch)) * 3 + 1


@pytest.mark.parametrize("form", FORMS)
def test_by_op(form: Form) -> None:
    captured = compared(Normalized(form), loss, [rows(3), rows(1), rows(7)], {0: Dim("N")})
    norms = 2 if form is twice else 1
    assert (count(captured, "RmsNorm"), count(captured, "RmsNormGrad")) == (norms, norms)
    assert not any(count(captured, op_type) for op_type in ("Reciprocal", "Sqrt"))


def test_inverse_of_a_root() -> None:
    captured = compared(Normalized(by_root), loss, [rows(3)], {})
    assert (count(captured, "RmsNorm"), count(captured, "RmsNormGrad")) == (1, 1)
    assert not any(count(captured, op_type) for op_type in ("Reciprocal", "Sqrt"))


def test_many_rows() -> None:
    """Sums over rows that are split."""
    captured = compared(Normalized(llama), loss, [rows(64)], {})
    assert count(captured, "RmsNormGrad") == 1
    assert sum(node.op_type == "ReduceSum" for node in captured.model.graph.node) == 4  # two for each bias


@pytest.mark.parametrize("form", [llama, of_torch])
def test_frozen_weight(form: Form) -> None:
    captured = gradients(Normalized(form, requires_grad=False), loss, (rows(3),))
    assert [len(node.output) for node in captured.model.graph.node if node.op_type == "RmsNormGrad"] == [1]
    session = onnx_ops.InferenceSession(captured.model)
    model = Normalized(form, requires_grad=False)
    for batch in (rows(3), rows(3) * 1e-4):
        (got,) = session.run(["grad.first.weight"], captured.state | {"x": batch.numpy()})
        (wanted,) = torch.autograd.grad(loss(model.double(), batch.double()), [model.first.weight])
        np.testing.assert_allclose(got, wanted.numpy(), rtol=0, atol=1e-5 * float(wanted.abs().max()))


class Scaled(nn.Module):
    """Of the batch, which has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(1, 2, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return llama(x, self.weight)[..., :3].sin()


class Table(nn.Module):
    """Of parameters: the gradients are results of the step as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.rows = nn.Parameter(torch.linspace(1, 2, WIDTH)), nn.Parameter(rows(1)[0])

    def forward(self, x: Tensor) -> Tensor:
        return llama(self.rows, self.weight)[:, :3] * x[..., :3]


@pytest.mark.parametrize("make", [Scaled, Table])
def test_of_inputs_of_the_step(make: Callable[[], nn.Module]) -> None:
    assert count(compared(make(), loss, [rows(3), rows(2)], {0: Dim("N")}), "RmsNormGrad") == 1


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        (of_torch, torch.float16),
        (llama, torch.bfloat16),
        pytest.param(llama, torch.float16, marks=pytest.mark.full),
        pytest.param(of_torch, torch.bfloat16, marks=pytest.mark.full),
    ],
)
def test_half_precision(form: Form, dtype: torch.dtype) -> None:
    """Computed in float32, the result rounded where the model rounds it."""
    model, x = Normalized(form).to(dtype), rows(3).to(dtype)
    captured = gradients(model, loss, (x,))
    assert (count(captured, "RmsNorm"), count(captured, "RmsNormGrad")) == (1, 1)


def detached(x: Tensor, weight: Tensor) -> Tensor:
    """The root mean square is a constant for the gradient."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True).detach() + 1e-6) * weight


def of_other_axis(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6) * weight


def of_other_power(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(4).mean(-1, keepdim=True) + 1e-6) * weight


def of_other_values(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt((x + 1).pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def by_sum(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6) * weight


def with_mean_of_squares(x: Tensor, weight: Tensor) -> Tensor:
    """Which is part of the result too."""
    mean = x.pow(2).mean(-1, keepdim=True)
    return x * torch.rsqrt(mean + 1e-6) * weight + mean


def with_inverse(x: Tensor, weight: Tensor) -> Tensor:
    inverse = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    return x * inverse * weight + inverse


def two_weights(x: Tensor, weight: Tensor) -> Tensor:
    return llama(x, weight).sin() + llama(x, weight * 2)


def by_weight_of_rows(x: Tensor, weight: Tensor) -> Tensor:
    """A scale for each row, and one for each element."""
    scale = torch.linspace(1, 3, 5).reshape(5, 1).to(x)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * scale * weight


OTHERS = (
    detached,
    of_other_axis,
    of_other_power,
    of_other_values,
    by_sum,
    with_mean_of_squares,
    with_inverse,
    two_weights,
)


@pytest.mark.parametrize("form", [*OTHERS, by_weight_of_rows])
def test_others(form: Form) -> None:
    captured = compared(Normalized(form), loss, [rows(3), rows(2)], {0: Dim("N")})
    norms = 1 if form is by_weight_of_rows else 0
    assert (count(captured, "RmsNorm"), count(captured, "RmsNormGrad")) == (norms, norms)


def test_special_values() -> None:
    """NaN and infinities come where PyTorch has them."""
    captured = gradients(Normalized(llama), loss, (rows(3),))
    session, names = onnx_ops.InferenceSession(captured.model), ["grad.weight", "grad.first.weight", "loss"]
    for value in (float("nan"), float("inf"), 0.0):
        model, x = Normalized(llama), rows(3)
        x[1] = value
        wanted = loss(model, x)
        expected = [*torch.autograd.grad(wanted, [model.weight, model.first.weight]), wanted.detach()]
        for name, got, tensor in zip(
            names, session.run(names, captured.state | {"x": x.numpy()}), expected, strict=True
        ):
            np.testing.assert_allclose(got, tensor.numpy(), rtol=1e-4, atol=1e-5, err_msg=f"{name} {value}")


def test_second_derivatives() -> None:
    """A penalty of the gradient by the input, as of a critic."""

    def penalty(model: nn.Module, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return (slope.norm(dim=-1) - 1).square().mean() + loss(model, x)

    compared(Normalized(llama), penalty, [rows(3), rows(2)], {0: Dim("N")})


def test_inference() -> None:
    """The graph without gradients has standard operators alone."""
    captured = onnx_ops.torch.gradients(Normalized(llama), loss, (rows(3),))
    assert captured.inference is not None
    assert not any(node.op_type == "RmsNorm" for node in captured.inference.graph.node)
