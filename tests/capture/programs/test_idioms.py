"""Lines of code that published models have, in models as small as possible, compared with PyTorch.

Each capture compares its numbers with PyTorch's before it returns.
"""

from __future__ import annotations

import copy
import itertools
import logging
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from captures import compared, gradients
from torch import Tensor, distributions, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import Dim
from torch.nn import functional

import onnx_ops
from onnx_ops import InferenceSession, Trainer
from onnx_ops.torch import CaptureError


class Excited(nn.Module):
    """The squeeze-and-excitation block of EfficientNet."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.reduce, self.expand = nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 1)
        self.activation = nn.SiLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.expand(self.activation(self.reduce(self.pool(x)))).sigmoid()


def test_activations_in_place() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Mish(inplace=True), Excited())
    gradients(model, lambda model, x: model(x).square().sum(), (torch.randn(2, 3, 5, 5),), inference=True)


WEIGHTS = torch.tensor([0.0, 2.0, 1.0])


class Integrated(nn.Module):
    """An integrator of differential equations, and class weights as losses of segmentations have them."""

    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Linear(3, 3)
        self.order = torch.tensor([2, 0, 1])  # no buffer

    def forward(self, x: Tensor) -> Tensor:
        times = torch.linspace(0, 1, 3)
        assert not times[0] > times[1]
        assert (times[1:] > times[:-1]).all()
        for before, after in itertools.pairwise(times):
            x = x + (after - before) * self.field(x).tanh()
        steps = torch.ones(2, dtype=torch.int64)
        steps[0] += 1
        chosen = (WEIGHTS != 0).nonzero().flatten()
        scale = sum(WEIGHTS.tolist()) * int(steps[0]) * float(np.asarray(times).sum() + WEIGHTS.numpy().max())
        return scale * x[:, self.order][:, chosen] if torch.equal(WEIGHTS, WEIGHTS.clone()) else x


def test_constants_may_be_branched_on() -> None:
    gradients(Integrated(), lambda model, x: model(x).square().sum(), (torch.ones(2, 3),), inference=True)


def masked(model: nn.Module, x: Tensor) -> Tensor:
    """A mask as Transformer-XL makes it, and tensors that have the shapes of a parameter and of an argument."""
    mask = torch.triu(x.new_ones(3, 3), diagonal=1).bool()
    assert mask.any().item()
    assert not torch.zeros_like(model.bias).any()
    levels = x.new_full((4,), 2.5)
    levels[1:] *= 2
    known = [levels.sum(), torch.full_like(model.weight, fill_value=3.7, dtype=torch.int64).sum(), x.new_zeros(2).sum()]
    scores = model(x).masked_fill(mask, -1.0)
    return (scores * sum(number.item() for number in (*known, x.exp().sum()))).square().sum()


def test_filled_tensors_may_be_branched_on() -> None:
    model, x = nn.Linear(3, 3), torch.ones(3, 3)
    capture = gradients(model, masked, (x,))
    other = torch.tensor([[0.0, 1.0, 2.0], [-1.0, 0.5, 0.0], [3.0, 0.0, -2.0]])
    wanted = masked(model, other)
    (slope,) = torch.autograd.grad(wanted, [model.weight])
    got = Trainer(capture).step(x=other.numpy())
    np.testing.assert_allclose(got["loss"], wanted.item(), rtol=1e-5)
    np.testing.assert_allclose(got["grad.weight"], slope.numpy(), rtol=1e-4)


def test_filled_tensors_that_data_are_written_to() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        written = x.new_zeros(3)
        written[1] = x.sum()
        return model(x).sum() * (2 if written.sum() > 0 else 3)

    with pytest.raises(CaptureError, match="specialize=True"):
        gradients(nn.Linear(3, 3), loss, (torch.ones(3, 3),))


class Router(nn.Module):
    """A layer that is converted in each call, as the routers of mixtures of experts are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.layer = self.layer.to(x.dtype)
        return self.layer.float()(x).softmax(-1)


def test_a_layer_that_is_converted_in_each_call() -> None:
    model = Router()
    parameters = list(model.parameters())
    gradients(model, lambda model, x: model(x).square().sum(), (torch.ones(2, 3),))
    assert all(now is before for now, before in zip(model.parameters(), parameters, strict=True))


def test_anomaly_detection() -> None:
    """It is on during a capture, and stays so; or the loss switches it on."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autograd.detect_anomaly(check_nan=True):
            (slope,) = torch.autograd.grad(model(x).exp().sum(), model.weight, create_graph=True)
        return slope.square().sum()

    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    gradients(model, loss, (x,))
    with torch.autograd.set_detect_anomaly(True):
        gradients(model, lambda model, x: model(x).exp().sum(), (x,))
        assert torch.is_anomaly_enabled()
        assert torch.is_anomaly_check_nan_enabled()
    assert not torch.is_anomaly_enabled()


def test_what_only_the_screen_shows() -> None:
    """Ranges of a profiler, as in DataParallel, and formatted numbers, also by `logging`."""
    shown: list[str] = []
    logger = logging.getLogger("losses")
    logger.addHandler(logging.NullHandler())
    logger.setLevel(logging.INFO)
    logger.addFilter(lambda record: bool(shown.append(record.getMessage())))

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with torch.profiler.record_function("forward"):
            value = model(x).square().mean()
        positive = (x > 0).sum()
        shown.append(f"{value:.3f} {value.item():.3f} {len(x):4d} {x.shape}")
        shown.append("%.3f %.3f %d/%d" % (value, value.item(), positive.item(), x.numel()))  # noqa: UP031
        shown.append("%.1f%%" % (100 * positive.item() / x.numel()) + " and %d" % positive)  # noqa: UP031
        logger.info("%.3f in %d rows", value.item(), len(x))
        return value

    x = torch.randn(4, 3)
    gradients(nn.DataParallel(nn.Linear(3, 2)), loss, (x,), dynamic_shapes=({0: torch.export.Dim("N")},))
    assert len(shown[0].split(".")[1].split()[0]) == 3
    value, _, share = shown[1].split()
    assert shown[3] == f"{value} in 4 rows"
    assert share == f"{shown[2].split()[-1]}/12"


def test_distributions_check_no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of PPO, with a spread that is learnt, and that of a variational autoencoder."""
    monkeypatch.setattr(distributions.Distribution, "_validate_args", True)  # torch.compile sets it to False

    def loss(model: nn.Module, x: Tensor, actions: Tensor, choices: Tensor) -> Tensor:
        mean, spread = model(x).chunk(2, -1)
        policy = distributions.Normal(mean, spread.exp())
        chosen = distributions.Categorical(logits=mean)
        prior = distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
        value = policy.log_prob(actions).sum(-1) + policy.entropy().sum(-1) + chosen.log_prob(choices)
        return distributions.kl_divergence(policy, prior).mean() - value.mean() + policy.rsample().mean()

    torch.manual_seed(0)
    gradients(nn.Linear(4, 6), loss, (torch.randn(5, 4), torch.randn(5, 3), torch.tensor([0, 2, 1, 1, 0])))
    assert distributions.Distribution._validate_args


COMPILED = torch.compile(functional.gelu, backend="eager")


def test_what_is_compiled_runs_as_it_is_written() -> None:
    layers = nn.Sequential(torch.compile(nn.Linear(4, 3), backend="eager"), nn.Linear(3, 2))
    layers[1].compile(backend="eager")
    model = torch.compile(layers, backend="eager")
    capture = onnx_ops.torch.gradients(model, lambda model, x: COMPILED(model(x)).sum(), (torch.ones(2, 4),))
    assert set(capture.state) == set(model.state_dict())
    assert capture.inference is not None
    assert capture.inference.graph.input[0].name == "input"


def summed(x: Tensor, index: Tensor, size: int) -> Tensor:
    return torch.zeros([size, x.shape[1]], dtype=x.dtype).index_add(0, index, x)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_functions_of_torchscript() -> None:
    """As in schnetpack, with a size that depends on data."""
    scripted = torch.jit.script(summed)

    def loss(model: nn.Module, x: Tensor, index: Tensor) -> Tensor:
        return scripted(model(x), index, int(index.max()) + 1).square().sum()

    rows = {0: Dim("rows")}
    example = torch.ones(3, 4), torch.tensor([0, 2, 2])
    gradients(nn.Linear(4, 3), loss, example, dynamic_shapes=(rows, rows))


def test_arguments_with_the_names_of_numpy() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        hidden = model(x)
        lengths = torch.linalg.norm(hidden, axis=1, keepdims=True) + hidden.prod(axis=1, keepdims=True)
        return (lengths * torch.maximum(hidden, other=2 * hidden).cumsum(axis=1)).sum()

    gradients(nn.Linear(4, 3), loss, (torch.ones(2, 4),), dynamic_shapes=({0: Dim("rows")},))


def test_axes_of_other_sizes_are_not_squeezed() -> None:
    """As in the structural similarity of two images."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        made = model(x)
        return made.squeeze(0).squeeze(1).square().sum() + made.unsqueeze(1).squeeze((1, -1)).sum()

    gradients(nn.Linear(3, 3), loss, (torch.ones(4, 3),), dynamic_shapes=({0: Dim("N")},))


def test_scattered_from_a_part_of_the_source() -> None:
    """The index of losses of entmax is smaller than the source; a constant, as the gradient of PyTorch needs equals."""
    source = torch.linspace(-1, 1, 45).reshape(9, 5)

    def loss(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        made = model(x).softmax(1)
        index = torch.stack([labels, (labels + 1) % 3], 1)
        made = made.scatter_add(1, labels.unsqueeze(1), torch.full_like(made, -1.0))
        made = made + made.scatter_add(1, index, source) + made.scatter(1, index, source)
        return made.scatter_reduce(1, index, source, "sum").square().mean()

    torch.manual_seed(0)
    dims = {0: Dim("N", max=9)}
    gradients(nn.Linear(3, 3), loss, (torch.randn(4, 3), torch.tensor([0, 2, 1, 1])), dynamic_shapes=(dims, dims))


def test_diagonals_that_are_written() -> None:
    """The derivatives of torch.func write to the diagonal of a basis."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        made = model(x)
        total = torch.func.jacrev(torch.func.jacrev(lambda row: row.sin().sum()))(made[0]).square().sum()
        for offset in (-2, 0, 1):
            matrix = made * 1.5
            matrix.diagonal(offset).copy_(made[0, : matrix.diagonal(offset).shape[0]])
            total = total + matrix.square().sum()
        stack = made.expand(2, 7, 3).clone()
        stack.diagonal(0, 2, 0).mul_(made[:2, :2].t().reshape(2, 2)[0].sum())
        total = total + stack.square().sum() + (made * 2).fill_diagonal_(3.0, wrap=True).square().sum()
        return total + (made[:3] * 2).fill_diagonal_(0.5).square().sum()

    torch.manual_seed(0)
    gradients(nn.Linear(3, 3), loss, (torch.randn(7, 3),))


UNSEEN = torch.ones(5, 5, dtype=torch.bool).triu(1)


def contrasted(model: nn.Module, x: Tensor) -> Tensor:
    """Positive pairs on the diagonals of similarities, and the others by a mask of data-dependent size."""
    rows = model(torch.cat([x, x.cos()]))
    similar = torch.log_softmax(rows @ rows.T, 1)
    pairs = torch.cat([torch.diag(similar, len(x)), similar.diag(-len(x)), similar[1:].diag(len(x)).abs()])
    others = similar[~torch.eye(len(rows), dtype=torch.bool)].view(len(rows), -1)
    return others.exp().sum(1).log().mean() - pairs.mean()


def covered(model: nn.Module, x: Tensor) -> Tensor:
    """Covariances over the samples, and the divergence of normal distributions of each sample."""
    rows = model(x)
    normal, other = (
        distributions.MultivariateNormal(mean, scale_tril=torch.eye(4, dtype=x.dtype) + outer.tril(-1))
        for mean, outer in ((rows, rows.unsqueeze(2) * rows.unsqueeze(1)), (rows[0], rows[0].outer(rows[0])))
    )
    both = distributions.kl_divergence(normal, other).mean() + distributions.kl_divergence(other, other)
    correlations = torch.corrcoef(rows.T).sin().sum() + rows[:, 0].cov()
    return both + rows.T.cov().square().sum() + torch.cov(rows.T, correction=0).exp().mean() + correlations


def limited(model: nn.Module, x: Tensor) -> Tensor:
    """Python's max and min of numbers in tensors, of which another one is the largest in each batch."""
    rows = model(x)
    count, total = (x > 0.5).sum(), rows.sum()
    largest = max([rows[0].sum(), rows[-1].sum(), 0.1 * total])
    return total.square() / max(count, 4) + min(total, 0.5, x.sum()) * largest + max(1, min(rows[1].sum(), 2))


def copied(model: nn.Module, x: Tensor) -> Tensor:
    """An update of a copy of the model, as in Reptile, which is called before the model itself."""
    fast = copy.deepcopy(model)
    slopes = torch.autograd.grad(fast(x).square().mean(), list(fast.parameters()))
    pairs = zip(model.parameters(), fast.parameters(), slopes, strict=True)
    return model(2 * x).mean() + sum(((p - q.detach() + 0.1 * slope) ** 2).sum() for p, q, slope in pairs)


@pytest.mark.parametrize("loss", [contrasted, covered, limited, copied])
def test_dynamic_numbers_of_samples(loss: Callable[[nn.Module, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    compared(nn.Linear(4, 4), loss, [torch.randn(n, 4) for n in (3, 5, 2)], {0: Dim("N")})


class Masked(nn.Module):
    """Attention with a mask that is no buffer, which nn.MultiheadAttention makes another of by a write in place."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        bias = torch.zeros_like(UNSEEN, dtype=x.dtype)
        bias[:2] += UNSEEN[1:3]
        return self.attention(x, x, x, attn_mask=UNSEEN)[0] + bias.masked_fill_(UNSEEN, -0.3)[:, :4]


def test_writes_to_tensors_made_of_constants() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 5, 4)
    gradients(Masked(), lambda m, x: m(x).square().mean(), (x,), dynamic_shapes=({0: Dim("N")},))


def rescaled(model: nn.Module, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
    labels[labels > 2] = -100
    x[:, 1:] *= 0.5
    return {"loss": nn.functional.cross_entropy(model(x.add_(1)), labels), "shifted": x}


def test_writes_to_arguments() -> None:
    """Labels that are to be ignored, and inputs that are rescaled; what is reported has the new values."""
    torch.manual_seed(0)
    model, example = nn.Linear(4, 4), (torch.randn(5, 4), torch.tensor([0, 3, 1, 2, 3]))
    capture = gradients(model, rescaled, example, dynamic_shapes=({0: Dim("N")}, {0: Dim("N")}))
    batch = {"x": torch.randn(2, 4), "labels": torch.tensor([3, 1])}
    got = onnx_ops.InferenceSession(capture.model).run(
        ["loss", "shifted"], capture.state | {name: tensor.numpy().copy() for name, tensor in batch.items()}
    )
    wanted = rescaled(model, **batch)
    for array, tensor in zip(got, wanted.values(), strict=True):
        np.testing.assert_allclose(array, tensor.detach().numpy(), rtol=1e-6)


KEPT = torch.tensor([True, False, True, False])
"""The elements of a sample that a coupling layer keeps."""
PAIRS = torch.tensor([[True, False], [True, True]])


def coupled(model: nn.Module, x: Tensor) -> Tensor:
    """Writes under masks of other axes than the first."""
    y = torch.zeros(size=x.shape, dtype=x.dtype)
    y[:, KEPT] = x[:, KEPT]
    y[:, ~KEPT] = model(x[:, KEPT]) + x[:, ~KEPT]
    squares = model(x[:, :2])[:, None].repeat(1, 2, 1)
    squares[:, PAIRS] = squares[:, PAIRS] ** 3
    rows = x[:, :, None] * model(x[:, :2])[:, None]
    rows[:, KEPT] += 2.0
    rows[:, KEPT] = rows[:, KEPT].sum(1, keepdim=True)
    rows[:, :, x[0, :2] > 0] = 3 * rows[:, :, x[0, :2] > 0]
    rows[:, x[0] > 9] = x[:, x[0] > 9][:, :, None]  # none
    return y.square().sum() + (squares * x[:, :1, None]).sum() + rows.square().sum()


def put(model: nn.Module, x: Tensor) -> Tensor:
    places, values = torch.tensor([1, -2, 3]), model(x[:, :2])[0].repeat(2)[:3]
    y = x.clone().put_(torch.tensor([0]), values[:1])
    return (x.put(places, values) + x.put(places - places, values, accumulate=True) * y).square().sum()


def pooled(model: nn.Module, x: Tensor) -> Tensor:
    image = model(x.reshape(-1, 2, 2)).repeat(1, 2, 2)
    values, places = nn.functional.adaptive_max_pool2d(image, 3, return_indices=True)
    return (values * places).sum()


@pytest.mark.parametrize("loss", [coupled, put, pooled])
def test_places_of_elements(loss: Callable[[nn.Module, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    compared(nn.Linear(2, 2), loss, [torch.randn(n, 4) for n in (3, 5)], {0: Dim("N")})


class Packed(nn.Module):
    """Attention, with a mask if the positions begin again, as transformers computes it.

    For a FakeTensor it does not read the positions, and uses a mask whose results differ from those without one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        restarts = (torch.arange(x.shape[1]).diff() != 1).cumsum(0)
        if not isinstance(restarts, torch._subclasses.FakeTensor) and restarts[-1] == 0:
            return functional.scaled_dot_product_attention(x, x, x)
        return functional.scaled_dot_product_attention(x, x, x, is_causal=True)


def test_models_that_ask_whether_they_are_traced() -> None:
    """The step is that of real tensors where the two ways differ."""
    torch.manual_seed(0)
    model, x = Packed(), torch.randn(2, 5, 4)
    captured = gradients(model, lambda model, x: model(x).square().mean(), (x,), dynamic_shapes=({0: Dim("rows")},))
    (loss,) = InferenceSession(captured.model).run(["loss"], captured.state | {"x": x.numpy()})
    assert loss == pytest.approx(model(x).square().mean().item(), rel=1e-6)
    assert torch._subclasses.FakeTensor is FakeTensor


class Landmarks(nn.Module):
    """Attention with few keys, whose mask, as that of transformers' Nystromformer, does not have its shape."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        padding = torch.ones(x.shape[:2], dtype=torch.bool)
        scores = x @ x[:, :2].mT
        if isinstance(padding, torch._subclasses.FakeTensor) or not padding.all():
            scores = scores.masked_fill(~padding[:, None, :].expand(-1, x.shape[1], -1), -math.inf)
        return scores.softmax(-1) @ x[:, :2]


def test_models_that_fail_where_they_are_traced() -> None:
    torch.manual_seed(0)
    model, x = Landmarks(), torch.randn(2, 5, 4)
    captured = gradients(model, lambda model, x: model(x).square().mean(), (x,))
    (loss,) = InferenceSession(captured.model).run(["loss"], captured.state | {"x": x.numpy()})
    assert loss == pytest.approx(model(x).square().mean().item(), rel=1e-6)
    with pytest.raises(CaptureError, match=r"decides by the numbers in a tensor .*specialize=True"):
        gradients(model, lambda model, x: model(x).square().mean(), (x,), dynamic_shapes=({0: Dim("rows")},))


class Coupling(nn.Module):
    """Of a flow: the elements under a mask, of which there are as many as a layer takes, change the others."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([True, False]))
        self.layers = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)])

    def forward(self, x: Tensor) -> Tensor:
        for layer, mask in zip(self.layers, (self.mask, ~self.mask), strict=True):
            kept, other = mask.nonzero().squeeze(-1), (~mask).nonzero().squeeze(-1)
            merged = x.new_empty(x.shape)
            merged[..., kept] = x[..., kept]
            merged[..., other] = x[..., other] + layer(x[..., kept]).tanh()
            x = merged
        return x


def test_couplings_of_two_features() -> None:
    """A size of 1 of the data meets one that the trace has found to be 1."""
    torch.manual_seed(0)
    compared(
        Coupling(), lambda model, x: model(x).square().mean(), [torch.randn(rows, 2) for rows in (4, 2)], {0: Dim("N")}
    )
