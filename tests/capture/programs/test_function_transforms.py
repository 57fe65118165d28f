"""Losses with derivatives of torch.func, several steps beside PyTorch with other batch sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from captures import training_step
from torch import Tensor, nn
from torch.export import Dim
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vmap
from torch.nn import functional

import onnx_ops

SCALE = torch.tensor([0.5])


class Solution(nn.Module):
    """u(x, t) as a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def heat_equation(model: nn.Module, x: Tensor) -> Tensor:
    """The residual u_t - laplace(u), and the Laplacian by forward over reverse mode again."""

    def u(place: Tensor, t: Tensor) -> Tensor:
        return model(torch.cat([place, t * SCALE]))[0]

    def residual(row: Tensor) -> Tensor:
        second = hessian(u)(row[:2], row[2:])
        return grad(u, argnums=1)(row[:2], row[2:]).sum() - second.diagonal().sum()

    def laplacian(row: Tensor) -> Tensor:
        gradient = grad(lambda given: model(given)[0])
        return vmap(lambda v: jvp(gradient, (row,), (v,))[1] @ v)(torch.eye(3)).sum()

    return vmap(residual)(x).square().mean() + vmap(laplacian)(x).square().mean()


def jacobians(model: nn.Module, x: Tensor) -> Tensor:
    """Of the batch as a whole, which have as many rows as there are samples."""
    whole = jacrev(lambda given: model(given).sin())(x)
    both = jacfwd(lambda a, b: model(a * b.sin()), argnums=(0, 1))(x, 2 * x)
    return (whole.square().sum() + both[0].sin().sum() + both[1].square().sum()) / len(x)


def derivatives(model: nn.Module, x: Tensor) -> Tensor:
    """Reverse over forward mode, derivatives with respect to parameters for each sample, tangents of parameters."""
    parameters = dict(model.named_parameters())
    curvature = vmap(jacrev(jacfwd(lambda row: model(row).sum())))(x)
    kernel = vmap(jacrev(lambda given, row: functional_call(model, given, (row,))), (None, 0))(parameters, x)
    _, tangent = jvp(
        lambda given: functional_call(model, given, (x,)), (parameters,), ({n: p.cos() for n, p in parameters.items()},)
    )
    made = [curvature, *kernel.values(), tangent]
    return sum((tensor.square().sum() for tensor in made), start=torch.zeros(())) / len(x)


def of_autograd(model: nn.Module, x: Tensor) -> Tensor:
    """By the vmap that torch.autograd has of its own, one of whose results is None."""
    x, unused = x.clone().requires_grad_(), torch.ones(2, requires_grad=True)
    rows = model.layers[:2](x)
    units = torch.eye(8)[:, None].expand(8, *rows.shape)
    slopes, none = torch.autograd.grad(
        rows, (x, unused), units, create_graph=True, is_grads_batched=True, allow_unused=True
    )
    assert none is None
    whole = torch.autograd.functional.jacobian(lambda given: model(given).sin(), x, create_graph=True, vectorize=True)
    return (slopes.square().sum() + whole.square().sum()) / len(x)


def diagonals(model: nn.Module, x: Tensor) -> Tensor:
    products = model(x) @ model(x * 2).T
    for offset in (-1, 0, 2):
        products.diagonal(offset).copy_(x[: products.diagonal(offset).shape[0], 0])
    return products.square().mean()


def of_each_sample(model: nn.Module, x: Tensor) -> Tensor:
    """Gradients of each sample with respect to parameters, of functions with rules of their own, in float64."""
    weight, scale, x = model.layers[0].weight.double(), model.layers[2].weight[0].double(), x.double()

    def choices(hidden: Tensor, row: Tensor) -> Tensor:
        order = row.argsort()
        table = torch.outer(row, hidden)
        rows = table.index_select(0, order[:2]) * hidden.index_select(-1, torch.tensor([1, 1, 0])).sum()
        placed = torch.zeros(8).double().scatter(0, order, row.exp()).scatter_add(0, order * 0 + 2, hidden[:3])
        picked = table.gather(-1, (order[:, None] + torch.arange(2)).clamp(max=2)) + row.sum().gather(0, order[0] * 0)
        crossed = torch.linalg.cross(hidden[:3], row) * table[:, 0].scatter(0, order[:1], 0.5)
        crossed = crossed + table[:, 1].index_fill(0, order[1:], 0.5) + table.index_fill(-1, order[0], 2)[:, 2]
        return (
            rows.sum()
            + (placed * hidden).sum()
            + picked.square().sum()
            + crossed.sum()
            + hidden.sort().values[2:4].sum()
        )

    def loss(weight: Tensor, scale: Tensor, row: Tensor) -> Tensor:
        hidden = functional.gelu(weight @ row)
        grouped = functional.group_norm(hidden[None], 2, scale, scale)
        label = (row[:1] > 0).long() + 1
        entropy = functional.cross_entropy(grouped, label, torch.linspace(0.5, 1.5, 8).double(), reduction="sum")
        binary = functional.binary_cross_entropy_with_logits(hidden, (grouped[0] > 0).double())
        return choices(hidden, row) + entropy + binary

    def normalized(row: Tensor) -> Tensor:  # PyTorch's second derivatives of layer_norm within vmap are wrong
        return functional.layer_norm(weight @ row, (8,), scale, 0.1 * scale).sin().mean()

    slopes, values = vmap(grad_and_value(loss, argnums=(0, 1, 2)), (None, None, 0))(weight, scale, x)
    made = (*slopes, values, vmap(normalized)(x))
    return sum(((1 + tensor.sin()).mean() for tensor in made), start=torch.zeros(()))


def filtered(model: nn.Module, x: Tensor) -> Tensor:
    """Convolutions with filters that all samples share, and with their own; linear systems of each sample."""
    first, last = model.layers[0].weight, model.layers[2].weight[None]
    filters, bias = first[:4, None], first[4:, 0]

    def of_row(row: Tensor) -> Tensor:
        shared = functional.conv1d(last * row.sum(), filters, bias, padding=1)
        own = functional.conv1d(last, filters * row, bias * row[0], stride=2)
        back = functional.conv_transpose1d(shared, filters * row.mean(), stride=2)
        matrix = 3 * torch.eye(3) + first[:3] * row
        solved = torch.linalg.solve(matrix, row), torch.linalg.solve(3 * torch.eye(3) + first[:3], matrix)
        return sum((part.sin().mean() for part in (shared, own, back, *solved)), torch.zeros(()))

    return vmap(of_row)(x).square().mean()


def images_of(model: nn.Module, x: Tensor) -> Tensor:
    """An image (2, 8, 7) of each row, in float64."""
    weight = model.layers[0].weight.double()
    planes = (x.double() @ weight.T)[:, :, None] * weight.flatten()[:7]
    return torch.stack([planes, planes.sin() + x[:, :1, None]], 1)


def of_each_image(model: nn.Module, x: Tensor) -> Tensor:
    """Gradients of each sample with respect to the weights of a small CNN."""
    last, filters = model.layers[0].weight.double(), model.layers[2].weight.reshape(2, 1, 2, 2).double()

    def network(filters: Tensor, last: Tensor, image: Tensor) -> Tensor:
        hidden = functional.conv2d(image[None], filters, last[0, :2], stride=2, padding=1, groups=2)
        hidden = functional.batch_norm(hidden, last[1, :2].detach(), last[2, :2].detach().square(), last[3, :2])
        hidden = functional.max_pool2d(functional.relu(hidden), 2)
        back = functional.conv_transpose2d(hidden, filters, stride=2, output_padding=1)
        return functional.cross_entropy(hidden.flatten(1) @ last, torch.tensor([1])) + back.sin().mean()

    slopes = vmap(grad(network, argnums=(0, 1)), (None, None, 0))(filters, last, images_of(model, x))
    return sum(((1 + slope.sin()).mean() for slope in slopes), start=torch.zeros(()))


def of_sequences(model: nn.Module, x: Tensor) -> Tensor:
    """A step of meta-learning: the gradient of a layer on a batch of sequences, and a directional derivative of it."""
    layer, rows = model.layers[0], torch.stack([x, x.sin()], 1)
    slopes = grad(lambda own: functional_call(layer, own, (rows,)).tanh().mean())(dict(layer.named_parameters()))
    _, tangent = jvp(lambda z: layer(z).tanh(), (rows,), (torch.ones_like(rows),))
    return sum((slope.square().sum() for slope in slopes.values()), start=tangent.square().mean())


def of_filters(model: nn.Module, x: Tensor) -> Tensor:
    """A step of meta-learning of filters, that is differentiated again: convolutions of sequences and of images."""
    first, last = model.layers[0].weight, model.layers[2].weight

    def forward(filters: Tensor, bias: Tensor, scale: Tensor) -> Tensor:
        rows = functional.conv1d((x * last.mean())[:, None], filters[:4, None], bias[:4], padding=1).sin()
        images = functional.conv_transpose2d(rows[:, :, None], filters[:4, :2, None, None], bias[:2] + scale, stride=2)
        return images.square().mean()

    given = first, model.layers[0].bias, last[0, 0]
    slopes = grad(forward, argnums=(0, 1, 2))(*given)
    return forward(*(tensor - 0.1 * slope for tensor, slope in zip(given, slopes, strict=True)))


def layers_of_images(model: nn.Module, x: Tensor) -> Tensor:
    weight, images = model.layers[0].weight.double(), images_of(model, x)
    functions = [
        lambda image: functional.max_pool1d(image[0], 3, 2),
        lambda image: functional.adaptive_max_pool2d(image, 3),
        lambda image: functional.lp_pool2d(image, 2, 2),
        lambda image: functional.pad(functional.pad(image, (1, 2, -1, 1), "circular"), (1, 1), "reflect"),
        lambda image: functional.avg_pool2d(image, 3, 2, 1),
        lambda image: functional.adaptive_avg_pool2d(image, 3),
        lambda image: functional.interpolate(image[None], size=(5, 9), mode="bilinear"),
        lambda image: functional.instance_norm(image[None]),
        lambda image: functional.unfold(image[None], 3),
        lambda image: functional.prelu(functional.glu(image[None], -2), weight[3, :2]),
        lambda image: functional.binary_cross_entropy(image.sigmoid(), image[0].sigmoid().detach().expand(2, 8, 7)),
        lambda image: functional.embedding((image[0] > 0).long(), image[1, :2]),
        lambda image: image[0].diagonal(1) * 2,
        lambda image: functional.triplet_margin_loss(*image.unbind(), image[0].sin()),
    ]
    values = [vmap(lambda image, f=f: f(image).sin().mean())(images) for f in functions]
    slopes = [vmap(grad(lambda image, f=f: f(image).sin().mean()))(images) for f in functions[:4]]
    return sum(((1 + tensor.sin()).mean() for tensor in (*values, *slopes)), start=torch.zeros(()))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of PyTorch, without a rule for a loss
@pytest.mark.parametrize(
    ("loss", "dynamic"),
    [
        (heat_equation, False),
        pytest.param(heat_equation, True, marks=pytest.mark.full),
        (jacobians, True),
        (of_autograd, True),
        pytest.param(derivatives, True, marks=pytest.mark.full),
        (diagonals, True),
        (of_each_sample, True),
        (filtered, True),
        (of_sequences, True),
        (of_filters, True),
        (of_each_image, True),
        pytest.param(layers_of_images, True, marks=pytest.mark.full),
    ],
)
def test_steps_are_those_of_pytorch(loss: Callable[..., Tensor], dynamic: bool) -> None:
    torch.manual_seed(0)
    model = Solution()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    capture = training_step(
        model, loss, (torch.randn(4, 3),), optimizer, dynamic_shapes=({0: Dim("N", min=4)},) if dynamic else None
    )
    trainer = onnx_ops.Trainer(capture)
    for size in (7, 4, 12, 5) if dynamic else (4, 4, 4):
        x = torch.randn(size, 3)
        got = trainer.step(x=x.numpy())["loss"]
        optimizer.zero_grad()
        wanted = loss(model, x)
        wanted.backward()
        optimizer.step()
        np.testing.assert_allclose(got, wanted.item(), rtol=2e-5)
    state = trainer.state_dict()
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(state[name], parameter.detach().numpy(), rtol=0, atol=1e-5, err_msg=name)
