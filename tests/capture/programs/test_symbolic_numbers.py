"""Functions of PyTorch whose arguments are numbers that are read from tensors, and functions of dynamic sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from captures import compared, gradients
from torch import Tensor, nn
from torch.export import Dim

from onnx_ops import InferenceSession

Function = Callable[[Tensor, float], Tensor]
SQUARE = torch.tensor([[0.3, -1.2, 0.7], [2.0, 0.4, -0.6], [-0.1, 0.9, 1.1]])
FIRST = torch.zeros(3, 1, dtype=torch.int64)

SUMS: dict[str, Function] = {
    "add": lambda x, n: torch.add(x, x * x, alpha=n),
    "add_": lambda x, n: (x * 1).add_(x * x, alpha=n),
    "sub": lambda x, n: x.sub(x * x, alpha=n),
    "rsub": lambda x, n: torch.rsub(x, x * x, alpha=n),
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "addcdiv_": lambda x, n: (x * 1).addcdiv_(x, x.exp(), value=n),
    "lerp": lambda x, n: torch.lerp(x, x * x, n),
    "addmm": lambda x, n: torch.addmm(x, x, SQUARE, beta=n, alpha=n),
    "addmv": lambda x, n: torch.addmv(x[:, 0], x, SQUARE[0], beta=n, alpha=1 - n),
    "addr": lambda x, n: torch.addr(SQUARE, x[0], x[1], beta=n, alpha=n),
    "baddbmm": lambda x, n: torch.baddbmm(x[None], x[None], SQUARE[None], beta=n, alpha=n),
    "addbmm": lambda x, n: torch.addbmm(x, x[None], SQUARE[None], beta=n, alpha=n),
    "index_add": lambda x, n: x.index_add(1, FIRST[:1, 0], x[:, :1], alpha=n),
    "pow": lambda x, n: x.abs() ** n,
    "pow of a number": lambda x, n: n**x,
    "pow_": lambda x, n: (x.abs() + 1).pow_(n),
    "pow of integers": lambda x, n: x * torch.arange(1, 4) ** n,
    "float_power": lambda x, n: torch.float_power(x.abs(), n).float(),
    "xlogy": lambda x, n: torch.xlogy(x, n) + torch.xlogy(n, x.abs()),
    "copysign": lambda x, n: torch.copysign(x, -n),
}
ACTIVATIONS: dict[str, Function] = {
    "leaky_relu": F.leaky_relu,
    "leaky_relu_": lambda x, n: F.leaky_relu_(x * 1, n),
    "leaky_relu in place": lambda x, n: nn.LeakyReLU(n, inplace=True)(x * 1),
    "elu": F.elu,
    "celu": F.celu,
    "softplus": F.softplus,
    "softplus, threshold": lambda x, n: F.softplus(x, 1.0, n),
    "hardtanh": lambda x, n: F.hardtanh(x, -n, n),
    "threshold": lambda x, n: F.threshold(x, n, -n),
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "attention": lambda x, n: F.scaled_dot_product_attention(x[None], x[None], x[None], scale=n),
    "dropout": lambda x, n: F.dropout(x, n / 1e9),
}
OTHERS: dict[str, Function] = {
    "huber_loss": lambda x, n: F.huber_loss(x, x * x, delta=n),
    "smooth_l1_loss": lambda x, n: F.smooth_l1_loss(x, x * x, reduction="none", beta=n),
    "margin_ranking_loss": lambda x, n: F.margin_ranking_loss(x, x * x, torch.ones_like(x), n),
    "hinge_embedding_loss": lambda x, n: F.hinge_embedding_loss(x, SQUARE.sign(), n),
    "cosine_embedding_loss": lambda x, n: F.cosine_embedding_loss(x, SQUARE, torch.tensor([-1, 1, -1]), n / 2),
    "triplet_margin_loss": lambda x, n: F.triplet_margin_loss(x, SQUARE, SQUARE + 1, n, swap=True),
    "label_smoothing": lambda x, n: F.cross_entropy(
        x, torch.arange(3), SQUARE[1].abs(), ignore_index=1, label_smoothing=n
    ),
    "logit": lambda x, n: torch.logit(x.sigmoid(), n),
    "nan_to_num": lambda x, n: torch.nan_to_num(torch.where(x > 0, x, np.nan), n) + torch.nan_to_num(x / 0, 0, n, -n),
    "scatter": lambda x, n: x.scatter(1, FIRST, n),
    "pad": lambda x, n: F.pad(x, (1, -1, 0, 2), value=n),
    "isclose": lambda x, n: x * torch.isclose(x, SQUARE, atol=n),
    "quantile": lambda x, n: x.quantile(n, dim=1) + torch.where(x > 0, x, np.nan).nanquantile(n).nan_to_num(),
    "clamp": lambda x, n: x.clamp(-n, n) + x.clamp_min(n) + x.clamp(max=n),
    "uniform": lambda x, n: x + 1e-9 * (x * 0).detach().uniform_(-n, n),
    "normal": lambda x, n: x + 1e-9 * torch.normal(0.0, n, (3, 3)) + 1e-9 * (x * 0).detach().normal_(n, n),
    "exponential": lambda x, n: x + 1e-9 * (x * 0).detach().exponential_(n),
}


@pytest.mark.parametrize("functions", [SUMS, ACTIVATIONS, OTHERS], ids=["sums", "activations", "others"])
def test_arguments_that_are_numbers_of_the_data(functions: dict[str, Function]) -> None:
    def loss(model: nn.Linear, x: Tensor, slope: Tensor) -> dict[str, Tensor]:
        found = {name: function(model.weight * x, slope.item() / 2) for name, function in functions.items()}
        total = sum(((part * SQUARE[0, 0]).sum() for part in found.values()), model.weight.sum())
        return {"loss": total} | found

    torch.manual_seed(0)
    model = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(1 + SQUARE / 9)
    capture = gradients(model, loss, (SQUARE, torch.tensor(0.8)))
    session = InferenceSession(capture.model)
    names = [value.name for value in session.get_outputs()]
    inputs = {value.name for value in session.get_inputs()}
    for number in (0.8, 0.3):
        x = torch.randn(3, 3)
        wanted = loss(model, x, torch.tensor(number))
        (wanted["grad.weight"],) = torch.autograd.grad(wanted["loss"], model.weight)
        given = capture.state | {"x": x.numpy(), "slope": np.array(number, np.float32)}
        found = dict(zip(names, session.run(names, {k: a for k, a in given.items() if k in inputs}), strict=True))
        for name, tensor in wanted.items():
            # Sums and powers in float32, in another order.
            np.testing.assert_allclose(found[name], tensor.detach(), rtol=2e-5, atol=2e-5, err_msg=name)


def test_arguments_that_are_dynamic_sizes() -> None:
    """Of which a factor is not taken for 1, and another than that of the example for none."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        hidden = model(x)
        powers = hidden.abs() ** (len(x) / 4) + hidden ** len(x)
        return (torch.add(hidden, powers, alpha=len(x)) + F.leaky_relu(hidden, 1 / len(x))).mean()

    torch.manual_seed(0)
    compared(nn.Linear(3, 2), loss, [torch.randn(rows, 3) for rows in (3, 1, 5)], {0: Dim("rows")})


def test_dynamic_sizes_in_place() -> None:
    """Also of functions that PyTorch traces with symbols itself."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        hidden = model(x).clone()
        hidden.add_(len(x)).sub_(1 / len(x)).mul_(len(x)).div_(1 + len(x))
        return hidden.pow_(2).sum() + (torch.zeros((), dtype=torch.int64).add_(len(x)) * hidden).mean()

    torch.manual_seed(0)
    compared(nn.Linear(3, 2), loss, [torch.randn(rows, 3) for rows in (3, 1, 5)], {0: Dim("rows")})
