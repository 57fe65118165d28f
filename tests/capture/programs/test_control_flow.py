"""torch.cond, torch.while_loop, scan, associative_scan and map give what branches and loops of Python give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from captures import gradients, training_step
from torch import Tensor, nn
from torch._higher_order_ops import associative_scan, scan
from torch._higher_order_ops.map import map as torch_map
from torch.export import Dim

import onnx_ops
from onnx_ops.torch import CaptureError

NAMES = ("a", "b", "c")


class Model(nn.Module):
    """Of parameters (3,)."""

    def __init__(self, function: Callable[[Model, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.tensor([0.4, 0.7, 1.2]) * scale) for scale in (1, 2, 3))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def loss(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean()


def compared(function: Callable[..., Tensor], oracle: Callable[..., Tensor], batches: list[Tensor], rows: Any) -> None:
    """Loss and gradients of a capture with the first batch are those of the oracle at all; None counts as 0."""
    capture = gradients(Model(function), loss, (batches[0],), dynamic_shapes=({0: rows},) if rows else None)
    session = onnx_ops.InferenceSession(capture.model)
    for x in batches:
        model = Model(oracle)
        value = loss(model, x)
        wanted = torch.autograd.grad(value, [*model.parameters()], allow_unused=True, materialize_grads=True)
        given = [name for name in NAMES if f"grad.{name}" in {output.name for output in capture.model.graph.output}]
        got = session.run(["loss", *(f"grad.{name}" for name in given)], capture.state | {"x": x.numpy()})
        expected = [value.detach(), *(wanted[NAMES.index(name)] for name in given)]
        for name, array, tensor in zip(("loss", *given), got, expected, strict=True):
            # Float32 rounding of at most five products.
            np.testing.assert_allclose(array, tensor.numpy(), rtol=2e-5, atol=1e-7, err_msg=name)


POSITIVE = torch.linspace(0.1, 2, 12).reshape(4, 3)
BATCHES = [POSITIVE, -POSITIVE[:1], -POSITIVE, POSITIVE[1:]]


def branch(model: Model, x: Tensor) -> Tensor:
    """The logarithm has an infinite gradient at 0, and is NaN below."""
    if x.sum() > 0:
        return (x * model.a).log() + (x.relu() * model.b).sqrt()
    return x * model.c if x.mean() > -0.5 else x + model.c


def cond(model: Model, x: Tensor) -> Tensor:
    def below(x: Tensor) -> Tensor:
        return torch.cond(x.mean() > -0.5, lambda x: x * model.c, lambda x: x + model.c, (x,))

    def above(x: Tensor) -> Tensor:
        return (x * model.a).log() + (x.relu() * model.b).sqrt()

    return torch.cond(x.sum() > 0, above, below, (x,))


def test_cond() -> None:
    compared(cond, branch, BATCHES, Dim("rows"))


def test_cond_on_a_dynamic_size() -> None:
    def function(model: Model, x: Tensor) -> Tensor:
        return torch.cond(x.shape[0] > 3, lambda x: x * model.a, lambda x: x + model.a, (x,))

    compared(function, lambda model, x: x * model.a if x.shape[0] > 3 else x + model.a, BATCHES, Dim("rows"))


def test_tensors_with_gradients_in_one_branch_on_a_size() -> None:
    """PyTorch's optimizers leave parameters without a gradient as they are: the size would decide what is trained."""

    def function(model: Model, x: Tensor) -> Tensor:
        return torch.cond(x.shape[0] > 3, lambda x: x * model.a, lambda x: x * model.b, (x,))

    with pytest.raises(CaptureError, match=r"is 4 or more \(at \S*test_control_flow\.py, line \d+\)"):
        gradients(Model(function), loss, (POSITIVE,), dynamic_shapes=({0: Dim("rows")},))


class _Root(torch.autograd.Function):
    """A user's function that is given a parameter as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(root := x.sqrt())
        return root

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] / (2 * ctx.saved_tensors[0])


def test_user_functions_in_branches() -> None:
    """0 / 0 in the branch that is not taken is no gradient."""

    def function(model: Model, x: Tensor) -> Tensor:
        own = (model.a - 0.4).abs()  # its first element is 0
        return torch.cond(x.sum() > 0, lambda x: x * own, lambda x: x * _Root.apply(own), (x,))

    def oracle(model: Model, x: Tensor) -> Tensor:
        return x * (model.a - 0.4).abs()

    compared(function, oracle, [POSITIVE, POSITIVE[:2]], Dim("rows"))


def test_branches_that_write() -> None:
    def function(model: Model, x: Tensor) -> Tensor:
        count = torch.zeros(3)
        return torch.cond(x.sum() > 0, lambda x: x * model.a + count.add_(1), lambda x: x * model.a, (x,))

    with pytest.raises(CaptureError, match=r"torch\.cond at \S*test_control_flow\.py, line \d+ writes to a tensor"):
        gradients(Model(function), loss, (POSITIVE,))


def test_branches_of_other_shapes() -> None:
    def function(model: Model, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x * model.a, lambda x: model.a * 2, (x,))

    with pytest.raises(CaptureError, match=r"torch\.cond at \S*, line \d+ return .*\(4, 3\).*\(3,\).*the same dtypes"):
        gradients(Model(function), loss, (POSITIVE,))


def test_while_loop() -> None:
    def function(model: Model, x: Tensor) -> Tensor:
        _, x = torch.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * model.a + 1), (torch.tensor(0), x))
        _, x = torch.while_loop(lambda i, x: i < 0, lambda i, x: (i + 1, x * model.b), (torch.tensor(0), x))
        return x

    def oracle(model: Model, x: Tensor) -> Tensor:
        for _ in range(3):
            x = x * model.a + 1
        return x

    compared(function, oracle, BATCHES, Dim("rows"))


def test_what_does_not_run_has_a_gradient() -> None:
    """Weights decay in PyTorch too, as their gradients are 0 and not None."""

    def function(model: Model, x: Tensor) -> Tensor:
        _, x = torch.while_loop(lambda i, x: i < 0, lambda i, x: (i + 1, x * model.b), (torch.tensor(0), x))
        return torch.cond(x.sum() > 0, lambda x: x * model.a, lambda x: x + model.c, (x,))

    model = Model(function)
    capture = training_step(model, loss, (POSITIVE,), torch.optim.AdamW(model.parameters()))
    assert {f"optimizer.exp_avg.{name}" for name in NAMES} <= capture.state.keys()


def test_while_loop_on_data() -> None:
    """The loop reads its first condition twice: whether it runs at all, and whether it goes on."""

    def function(model: Model, x: Tensor) -> Tensor:
        return torch.while_loop(lambda x: x.sum() > 1, lambda x: (x * model.a / 2,), (x,))[0]

    with pytest.raises(CaptureError, match=r"decides by the numbers .* at \S*test_control_flow\.py, line \d+"):
        gradients(Model(function), loss, (POSITIVE,))
    capture = gradients(Model(function), loss, (POSITIVE,), specialize=True)
    names = ["loss", "grad.a", "condition.holds"]
    value, gradient, holds = onnx_ops.InferenceSession(capture.model).run(
        names, capture.state | {"x": POSITIVE.numpy()}
    )
    count = next(n for n in range(9) if (POSITIVE * (Model(function).a / 2) ** n).sum() <= 1)
    assert count > 1
    model = Model(lambda model, x: x * (model.a / 2) ** count)
    expected = loss(model, POSITIVE)
    assert holds.all()
    np.testing.assert_allclose(value, expected.detach().numpy(), rtol=2e-5)
    np.testing.assert_allclose(gradient, torch.autograd.grad(expected, model.a)[0].numpy(), rtol=2e-5)


def running(model: Model, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Carries and results of a recurrence along the last axis, from its end."""
    carry, carries, results = x[:, 0] * model.b[0], [], []
    for i in (2, 1, 0):
        before, carry = carry, (carry * model.a[0] + x[:, i]).tanh()
        carries.append(carry)
        results.insert(0, torch.stack([before, before * model.c[0]], -1))
    return carries, results


def test_scan() -> None:
    def function(model: Model, x: Tensor) -> Tensor:
        def combine(carry: dict[str, Tensor], row: list[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
            before = carry["h"]
            result = torch.stack([before, before * model.c[0]], -1)
            return {"h": (before * model.a[0] + row[0]).tanh()}, result

        carry, results = scan(combine, {"h": x[:, 0] * model.b[0]}, [x], dim=1, reverse=True)
        return torch.cat([carry["h"], results.flatten()])

    def oracle(model: Model, x: Tensor) -> Tensor:
        carries, results = running(model, x)
        return torch.cat([carries[-1], torch.stack(results, 1).flatten()])

    compared(function, oracle, BATCHES, Dim("rows"))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_associative_scan(count: int) -> None:
    """y[i] = a[i] * y[i - 1] + b[i]."""

    def rows(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
        wide = torch.cat([x, x], 1)[:, :count]
        return wide * model.a[0], wide + model.b[0]

    def function(model: Model, x: Tensor) -> Tensor:
        def combine(first: tuple[Tensor, ...], second: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
            return first[0] * second[0], first[1] * second[0] + second[1]

        return associative_scan(combine, rows(model, x), dim=1, combine_mode="generic")[1]

    def oracle(model: Model, x: Tensor) -> Tensor:
        factors, terms = rows(model, x)
        found = [terms[:, 0]]
        for i in range(1, count):
            found.append(factors[:, i] * found[-1] + terms[:, i])
        return torch.stack(found, 1)

    compared(function, oracle, BATCHES, Dim("rows"))


def test_map() -> None:
    def function(model: Model, x: Tensor) -> Tensor:
        return torch_map(lambda row, other: row[0] * model.a + other, (x,), model.b)

    compared(function, lambda model, x: x * model.a + model.b, [POSITIVE, -POSITIVE], None)


@pytest.mark.parametrize("function", [scan, torch_map])
def test_a_loop_over_a_dynamic_size(function: Any) -> None:
    def looped(model: Model, x: Tensor) -> Tensor:
        if function is scan:
            return scan(lambda carry, row: (carry + row, carry * row), model.a.clone(), x)[1]
        return torch_map(lambda row: row * model.a, x)

    with pytest.raises(CaptureError, match=r"makes the number 4 of it \(at \S*test_control_flow\.py, line \d+\)"):
        gradients(Model(looped), loss, (POSITIVE,), dynamic_shapes=({0: Dim("rows")},))
