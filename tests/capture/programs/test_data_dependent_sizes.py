"""Sizes that depend on data: captured steps against PyTorch where a mask selects all, some, one or none of the rows."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from captures import gradients
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from onnx_ops import InferenceSession, StepError, Trainer

ROWS = {0: Dim("rows")}
CLASSES = 4


def masked(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    """Masked language modeling: the loss of the rows with a label."""
    kept = labels != 0
    return functional.cross_entropy(model(x)[kept], labels[kept], reduction="sum") + model(x).pow(2).sum()


def selected(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    rows = (labels > 1).nonzero().flatten()
    chosen = model(x[rows])
    return chosen.pow(2).sum() + torch.masked_select(x, (labels == 1)[:, None]).exp().sum() * model.bias[0]


def experts(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    """A mixture of experts, with one matrix for each label."""
    out = torch.zeros_like(x)
    for expert in range(CLASSES):
        (rows,) = torch.where(labels == expert)
        out.index_add_(0, rows, torch.tanh(x[rows] * model.weight[expert]))
    return model(out).pow(2).sum()


def distinct(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    """The mean of the rows of each label that occurs."""
    values, places, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    sums = torch.zeros(values.shape[0], CLASSES).index_add(0, places, model(x))
    return (sums / counts[:, None]).pow(2).sum()


def distinct_three_times(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    values, places = torch.unique(labels, return_inverse=True)
    others, counts = torch.unique(labels, return_counts=True)
    sums = (model(x).sum(1) * places).sum() + (others * counts).sum() * values.exp().sum() * model.bias[0]
    return sums * len(torch.unique(labels))


def distinct_halves(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    """Of numbers that are computed in float32."""
    values, places = torch.unique(labels.half(), return_inverse=True)
    return (model(x) * places[:, None]).sum() * values.float().exp().sum() + labels.bfloat16().nonzero().sum()


def as_long_as_the_largest(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    """A size read from a tensor, as the number of nodes of a graph."""
    size = labels.max().item() + 1
    return torch.zeros(size, 5).index_add(0, labels, x).matmul(model.weight.T).pow(2).mean()


def as_wide_as_the_largest(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    """Classes that are counted by the largest label."""
    each = functional.one_hot(labels)
    return (model(x)[:, : each.shape[1]] * each).exp().sum() / each.sum(0).max()


def of_graphs(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    """A target for each graph of a batch; labels are the graphs of nodes. PyTorch's losses compare its size."""
    size = int(labels.max()) + 1
    sums = model(torch.zeros(size, 5).index_add(0, labels, x)).mean(1)
    target = torch.arange(float(CLASSES))[: labels.amax() + 1]
    errors = functional.mse_loss(sums, target) + functional.l1_loss(sums[:, None], target[:, None])
    return errors + functional.binary_cross_entropy_with_logits(sums, torch.tanh(target))


def converted(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    """The same by Python's int(), and a number by its float(), as in PyTorch Geometric."""
    size = int(labels.max()) + 1
    assert isinstance(size, int)
    assert not isinstance(size, float)
    sums = torch.zeros(size, 5).index_add(0, labels, x)
    return sums.matmul(model.weight.T).pow(2).mean() * float(x.abs().max()) + int(2.5) + int("3", 4)


def bounded(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    """Bounds of which one is an integer and the other a number in a tensor, as those of quantized values."""
    hidden = model(x)
    return hidden.clamp(0, x.abs().mean()).pow(2).sum() + hidden.clamp(-x.abs().mean().item(), 1).sum()


def written(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    hidden = model(x)
    changed = hidden.clone()
    changed[labels == 2] = -hidden[labels == 2]
    changed[labels == 1] = 0.5
    return (changed * torch.arange(1.0, CLASSES + 1)).exp().sum()


def at_numbers(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    """Indices and ends of slices that are numbers in tensors; parts are views."""
    hidden = model(x)
    label, last = labels[0], labels[-1].item()
    table = torch.zeros(len(x), CLASSES, CLASSES)
    table[:, label] = hidden
    table[labels > 0, last, label - CLASSES] = 0.5
    table[..., label : last + 1, 1:].mul_(2)
    part = table[1, label]
    part += model.weight[label, :CLASSES]
    return (table * torch.arange(1.0, CLASSES + 1)).exp().sum() + hidden[last - 1].sum() * model.bias[label]


def at_lists_of_numbers(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    """As UDOP marks the places that text has taken."""
    hidden = model(x)
    places = torch.stack([labels % 2, labels], 1)
    rows, columns = zip(*places[[0, -1]], strict=True)
    table = hidden + 0.0
    table[rows, columns] = 0.5
    nested = [[labels[0], labels[-1]], [1, labels[1]]]
    return (table * hidden[:, nested].exp().sum((1, 2))[:, None]).sum() + hidden[rows, columns].square().sum()


def beside_masks(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    """Masks and other indices together: the logits of labels, and targets of a detector."""
    hidden, kept = model(x), labels > 0
    targets = torch.zeros(len(x), 2, CLASSES)
    targets[kept, :, labels[kept]] = hidden[kept, :2]
    targets[torch.stack([kept, ~kept], 1), labels.max()] += 0.5
    return hidden[kept, labels[kept]].square().sum() + (targets * x[:, None, :CLASSES]).exp().sum()


def in_order(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    """Operators whose code in PyTorch does something else for sizes of 0 or 1, and computes the same."""
    rows = model(x)[labels >= labels[0]]
    alike = functional.cosine_similarity(rows[:, None], rows[None], dim=-1)
    attended = functional.scaled_dot_product_attention(rows[None], rows[None], rows[None])
    sums = (rows.cumsum(0) * rows.roll(1, 0)).sum() + rows.diff(dim=0).exp().sum() + rows.logsumexp(0).sum()
    return sums + alike.exp().sum() + attended.pow(2).sum()


@functools.cache
def divided(size: int, rows: int) -> tuple[int, int]:
    return rows, size // rows


def shaped_by_a_cache(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    """As einops does, which goes without its cache for sizes that are no keys."""
    chosen = model(x).masked_select(labels[:, None] >= 0)
    sizes = chosen.shape[0], len(x)
    try:
        shape = divided(*sizes)
    except TypeError:
        shape = divided.__wrapped__(*sizes)
    return chosen.reshape(shape).exp().cumsum(1).log().sum()


def along_rows(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    """For these PyTorch's own code, of functions or of their gradients, asks whether there is a row."""
    rows = model(x)[labels != 0]
    similar = functional.cosine_similarity(rows, rows.detach().roll(1, 1), dim=1)
    weights = torch.linspace(0, 1, len(rows))[:, None]
    margins = rows.logsumexp(0).clamp(min=-9) + rows.logcumsumexp(0).sum(0)
    return (rows.cumsum(0) ** 2).sum() + margins.sum() + (rows * weights).sum() + similar.sum() + model(x).sum()


def deviations(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    rows = model(x)[labels == 2]
    return rows.std(0).sum() + rows.std() + model(x).sum()


def beside_others(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    """Of no rows a product is 1, and the other results are empty, or 0 for queries that see no rows."""
    rows = model(x)[labels == 2]
    moved = rows.roll(1, 0) * rows.roll((-2, 1), (0, 1)) * rows.roll(3) + rows.roll(-len(rows), 0)
    steps = rows.diff(dim=0).exp().sum() + rows.diff(n=2, dim=0, append=rows.exp()).square().sum()
    products = rows.prod(0).square().sum() + rows.prod() + rows.cumprod(0).exp().sum()
    queries = model(x)[None]
    seen = functional.scaled_dot_product_attention(queries, rows[None], rows[None])
    attended = functional.scaled_dot_product_attention(rows[None], rows[None], rows[None], is_causal=True)
    return moved.square().sum() + steps + products + seen.exp().sum() + attended.sum() + model.bias.sum()


def normalized_and_integrated(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    """Norms of samples and integrals along rows; of no rows they are empty or 0."""
    rows = model(x)[labels == 2]
    weights, images = model.bias, rows[:, :, None] * torch.arange(1.0, 4)
    normal = functional.group_norm(images, 2, weights, weights).exp().sum()
    normal = normal + functional.instance_norm(images).exp().sum() + weights.sum()
    times = rows[:, 0].square().cumsum(0)
    areas = torch.trapezoid(rows, times, dim=0).exp().sum() + torch.trapz(rows.T, dx=0.3).sum()
    return normal + areas + torch.cumulative_trapezoid(rows.square(), dim=0).sum()


def mean_losses(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    """NaN of no rows."""
    rows = model(x)[labels == 2]
    chances = functional.binary_cross_entropy(rows.sigmoid(), torch.full_like(rows, 0.3))
    return chances + functional.soft_margin_loss(rows, rows.detach().sign())


def products_of_sizes(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    rows = model(x)[labels == 2]
    blocks = torch.block_diag(rows, x, x[0], torch.tensor(3)).square() * torch.kron(rows, x).sum().exp()
    return blocks.sum() + torch.kron(model.bias, rows).square().sum() + model.bias.sum()


def divided_by_numbers(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    """By integers that are read from data, in Python and in tensors of any signs."""
    largest = int(labels.max()) + 1
    places = torch.arange(len(x)) - 3
    parts = places // largest + places % -largest + torch.fmod(places, labels - 4) + 9 // (2 * labels - 5)
    return model(x).exp().sum() * (12 // largest + 7 % largest) + (parts[:, None] * model(x)).sum()


def padded(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    """To multiples, as of patches, whose number is a rounded quotient of floats."""
    size = int(labels.max()) + 1
    out = torch.zeros(())
    for padded in (math.floor((size + 1) / 2) * 2, math.ceil(size / 3) * 3, int((size + 3) / 4) * 4):
        out = out + torch.ones(padded, 5).index_add(0, labels, x).matmul(model.weight.T).pow(2).mean()
    return out


def transformed(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    rows = model(x)[labels == 2]
    spectra = torch.fft.rfft(rows, dim=1).abs().sum() + torch.fft.ifft(rows).abs().square().sum()
    return spectra + torch.fft.irfft(torch.complex(rows, rows)).exp().sum() + model.bias.sum()


LOSSES = [
    along_rows,
    beside_others,
    divided_by_numbers,
    mean_losses,
    normalized_and_integrated,
    padded,
    products_of_sizes,
    deviations,
    masked,
    selected,
    experts,
    distinct,
    distinct_three_times,
    distinct_halves,
    as_long_as_the_largest,
    as_wide_as_the_largest,
    of_graphs,
    converted,
    bounded,
    written,
    at_numbers,
    at_lists_of_numbers,
    beside_masks,
    in_order,
    shaped_by_a_cache,
]
try:
    torch.fft.rfft(torch.empty(0, 2))
    TRANSFORMS_NO_ROWS = True
    LOSSES.append(transformed)
except RuntimeError:  # before version 2.15
    TRANSFORMS_NO_ROWS = False
LABELS = [[0, 1, 2, 3, 2, 1], [0, 0, 0], [1, 2], [3, 3, 3, 3], [0, 0, 1, 0], [2, 0, 0, 0, 0], [1, 1]]


@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0")
@pytest.mark.parametrize("loss", LOSSES)
def test_sizes_that_depend_on_data(loss: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    model = nn.Linear(5, CLASSES)
    example = torch.randn(6, 5), torch.tensor(LABELS[0])
    capture = gradients(model, loss, example, dynamic_shapes=(ROWS, ROWS))
    session = InferenceSession(capture.model)
    state = {name: array for name, array in capture.state.items() if name in ("weight", "bias")}
    inputs = {value.name for value in session.get_inputs()}
    for labels in LABELS:
        x, y = torch.randn(len(labels), 5), torch.tensor(labels)
        model.zero_grad()
        value = loss(model, x, y)
        value.backward()
        given = {"x": x.numpy(), "labels": y.numpy()} | state
        names = [output.name for output in session.get_outputs()]
        found = dict(zip(names, session.run(None, {k: a for k, a in given.items() if k in inputs}), strict=True))
        assert found.get("condition.holds", np.ones(1)).all()
        # Sums of float32 in another order.
        np.testing.assert_allclose(found["loss"], value.detach().numpy(), rtol=1e-5)
        for name, parameter in model.named_parameters():
            if f"grad.{name}" in found and parameter.grad is not None:
                np.testing.assert_allclose(found[f"grad.{name}"], parameter.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_a_size_that_must_be_a_multiple_of_a_dynamic_one() -> None:
    """Which bounds the dynamic one by that part of the largest integer."""

    def twice(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
        rows = (labels > 1).nonzero()
        assert len(rows) == 2 * len(x)
        return (model(x) * rows[: len(x), 1:]).sum()

    torch.manual_seed(0)
    model = nn.Linear(5, CLASSES)
    example = torch.randn(3, 5), torch.tensor([[1, 2, 3, 0], [2, 0, 1, 2], [3, 3, 0, 0]])
    capture = gradients(model, twice, example, dynamic_shapes=(ROWS, ROWS), specialize=True)
    trainer = Trainer(capture)
    x, labels = torch.randn(2, 5), torch.tensor([[2, 1, 0, 3], [0, 2, 2, 1]])
    loss = trainer.step(x=x.numpy(), labels=labels.numpy())["loss"]
    np.testing.assert_allclose(loss, twice(model, x, labels).detach(), rtol=1e-5)
    with pytest.raises(StepError, match=r"test_data_dependent_sizes\.py, line \d+ .*reads 3, 2 from tensors"):
        trainer.step(x=x.numpy(), labels=np.array([[2, 1, 0, 3], [0, 2, 1, 1]]))


def test_a_condition_on_a_multiple_of_a_dimension() -> None:
    """As in contrastive losses of pairs, of the similarities of each row to the others."""

    def similarities(model: nn.Linear, x: Tensor) -> Tensor:
        rows = model(x)
        others = ~torch.eye(len(rows), dtype=torch.bool)
        return (rows @ rows.T)[others].view(len(rows), -1).logsumexp(1).mean()

    torch.manual_seed(0)
    model = nn.Linear(5, CLASSES)
    dynamic = ({0: 2 * Dim("pairs")},)
    trainer = Trainer(gradients(model, similarities, (torch.randn(4, 5),), dynamic_shapes=dynamic, inference=False))
    for rows in (2, 6):
        x = torch.randn(rows, 5)
        np.testing.assert_allclose(trainer.step(x=x.numpy())["loss"], similarities(model, x).detach(), rtol=1e-5)


def test_a_size_that_must_be_another_one_is_a_condition() -> None:
    """A single row would broadcast, with another gradient than that of the graph."""

    def pairs(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
        return (x[labels == 1] * x[labels == 2]).sum() + model(x).sum()

    capture = gradients(nn.Linear(5, CLASSES), pairs, (torch.randn(4, 5), torch.tensor([1, 1, 2, 2])))
    trainer = Trainer(capture)
    trainer.step(x=np.ones((4, 5), np.float32), labels=np.array([2, 2, 1, 1]))
    with pytest.raises(StepError, match=r"test_data_dependent_sizes\.py, line \d+ .*reads 1, 3 from tensors"):
        trainer.step(x=np.ones((4, 5), np.float32), labels=np.array([2, 2, 2, 1]))


@pytest.mark.parametrize(
    ("rank", "settings"),
    [
        (1, {"mode": "nearest", "scale_factor": 2}),
        (1, {"mode": "linear", "scale_factor": 1.7, "recompute_scale_factor": True}),
        (2, {"mode": "bicubic", "scale_factor": 2.0, "align_corners": True}),
        (2, {"mode": "bilinear", "scale_factor": 0.6, "antialias": True}),
        (3, {"mode": "nearest-exact", "scale_factor": 1.5}),
        (3, {"mode": "trilinear", "size": 3}),
    ],
)
def test_resizing_along_selected_rows(rank: int, settings: dict[str, Any]) -> None:
    """No rows are refused, for which PyTorch raises an error."""

    def resized(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
        rows = model(x)[labels == 1]
        image = rows.reshape(1, 1, -1, *[1, CLASSES][3 - rank :]) if rank > 1 else rows.T[None]
        return functional.interpolate(image, **settings).square().sum() + model.bias.sum()

    torch.manual_seed(0)
    model = nn.Linear(5, CLASSES)
    capture = gradients(model, resized, (torch.randn(4, 5), torch.tensor([1, 1, 2, 1])), dynamic_shapes=(ROWS, ROWS))
    trainer = Trainer(capture)
    for labels in ([1, 1, 1, 1, 1], [2, 1, 0, 1], [0, 1, 1, 1, 1, 1, 1]):
        x, y = torch.randn(len(labels), 5), torch.tensor(labels)
        found = trainer.step(x=x.numpy(), labels=y.numpy())
        np.testing.assert_allclose(found["loss"], resized(model, x, y).detach(), rtol=1e-5)
    with pytest.raises(StepError, match="reads 0 from tensors"):
        trainer.step(x=np.ones((2, 5), np.float32), labels=np.array([2, 2]))


def test_one_row_for_which_batch_norm_fails_is_refused() -> None:
    """As in PyTorch, which raises a ValueError; a variance of one row is 0."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, CLASSES), nn.BatchNorm1d(CLASSES))

    def normalized(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        return model(x[labels == 1]).exp().sum()

    capture = gradients(model, normalized, (torch.randn(4, 5), torch.tensor([1, 1, 2, 1])), inference=False)
    trainer = Trainer(capture)
    x = torch.randn(4, 5)
    loss = trainer.step(x=x.numpy(), labels=np.array([2, 1, 1, 2]))["loss"]
    model[1].reset_running_stats()
    np.testing.assert_allclose(loss, normalized(model, x, torch.tensor([2, 1, 1, 2])).detach(), rtol=1e-5)
    with pytest.raises(StepError, match=r"reads 1 from tensors\. The step is valid only for Ne\(a number, 1\)"):
        trainer.step(x=x.numpy(), labels=np.array([2, 1, 2, 2]))


EXTREMES: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda rows: rows.max(),
    "min": lambda rows: rows.min(),
    "max along rows": lambda rows: rows.max(0).values.sum(),
    "argmin": lambda rows: rows[rows[:, 0].argmin()].sum(),
    "nanmedian along rows": lambda rows: rows.nanmedian(0).values.sum(),
    "quantile": lambda rows: rows.quantile(0.3),
}
if not TRANSFORMS_NO_ROWS:
    EXTREMES["transform"] = lambda rows: torch.fft.rfft(rows, dim=1).abs().sum()


@pytest.mark.parametrize("name", EXTREMES)
def test_no_rows_for_which_pytorch_raises_an_error_are_refused(name: str) -> None:
    """The number of rows, and that of rows but one, of which one sample has none."""

    def loss(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        return EXTREMES[name](model(x)[labels == 1]) + EXTREMES[name](model(x)[1:])

    torch.manual_seed(0)
    model = nn.Linear(5, CLASSES)
    capture = gradients(model, loss, (torch.randn(4, 5), torch.tensor([1, 1, 2, 1])), dynamic_shapes=(ROWS, ROWS))
    trainer = Trainer(capture, check_finite=False)
    x, labels = torch.randn(3, 5), torch.tensor([2, 1, 0])
    found = trainer.step(x=x.numpy(), labels=labels.numpy())["loss"]
    np.testing.assert_allclose(found, loss(model, x, labels).detach(), rtol=1e-5)
    with pytest.raises(StepError, match=r"test_data_dependent_sizes\.py, line \d+ .*reads 0 from tensors"):
        trainer.step(x=x.numpy(), labels=np.array([2, 2, 0]))
    with pytest.raises(StepError, match="rows >= 2"):
        trainer.step(x=np.ones((1, 5), np.float32), labels=np.array([1]))


@pytest.mark.parametrize("example", [[2, 0, 0, 1], [2, 2, 0, 2]])
def test_pairs_of_no_rows(example: list[int]) -> None:
    """PyTorch's gradient of their distances, which the capture is compared with, would end the process."""

    def loss(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        rows = model(x)[labels == 2]
        return functional.pdist(rows[labels[labels == 2] > len(example)]).sum() + functional.pdist(rows).exp().sum()

    torch.manual_seed(0)
    model = nn.Linear(5, CLASSES)
    capture = gradients(model, loss, (torch.randn(4, 5), torch.tensor(example)))
    trainer = Trainer(capture)
    x = torch.randn(4, 5)
    for labels in ([2, 2, 0, 2], [0, 2, 0, 0], [0, 0, 0, 0]):
        rows = model(x)[torch.tensor(labels) == 2].detach()
        wanted = sum(float((a - b).norm().exp()) for i, a in enumerate(rows) for b in rows[:i])
        found = trainer.step(x=x.numpy(), labels=np.array(labels))
        np.testing.assert_allclose(found["loss"], wanted, rtol=1e-5)


def test_a_median_of_no_elements_that_are_numbers() -> None:
    def loss(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        return model(x)[labels == 2].nanmedian()

    model = nn.Linear(5, CLASSES)
    capture = gradients(model, loss, (torch.randn(4, 5), torch.tensor([2, 2, 0, 1])))
    trainer = Trainer(capture, check_finite=False)
    x = torch.randn(4, 5)
    for labels in ([2, 2, 0, 2], [0, 0, 0, 0]):
        found = trainer.step(x=x.numpy(), labels=np.array(labels))["loss"]
        np.testing.assert_allclose(found, loss(model, x, torch.tensor(labels)).detach(), rtol=1e-5)


@pytest.mark.parametrize(("offsets", "came"), [([0, 2, 6], "reads 6, 5"), ([1, 3], "reads 1")])
def test_bags_with_other_indices_than_there_are_are_refused(offsets: list[int], came: str) -> None:
    def loss(model: nn.Module, ids: Tensor, offsets: Tensor) -> Tensor:
        return model(ids, offsets).square().sum()

    model = nn.EmbeddingBag(6, 2)
    example = torch.arange(6), torch.tensor([0, 2, 4])
    trainer = Trainer(gradients(model, loss, example, dynamic_shapes=({0: Dim("ids")}, {0: Dim("bags")})))
    ids = torch.tensor([1, 5, 2, 0, 1])
    for starts in (torch.tensor([0, 0, 5]), torch.tensor([0])):
        found = trainer.step(ids=ids.numpy(), offsets=starts.numpy())["loss"]
        np.testing.assert_allclose(found, loss(model, ids, starts).detach(), rtol=1e-5)
    with pytest.raises(StepError, match=came):
        trainer.step(ids=ids.numpy(), offsets=np.array(offsets))


def test_grids_of_another_number_of_images_are_refused() -> None:
    def loss(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        theta = model(x)[labels == 1].reshape(-1, 2, 3)
        return functional.affine_grid(theta, [2, 1, 3, 3], align_corners=False).square().sum()

    trainer = Trainer(gradients(nn.Linear(5, 6), loss, (torch.randn(3, 5), torch.tensor([1, 0, 1]))))
    trainer.step(x=np.ones((3, 5), np.float32), labels=np.array([1, 1, 2]))
    with pytest.raises(StepError, match="reads 3 from tensors"):
        trainer.step(x=np.ones((3, 5), np.float32), labels=np.array([1, 1, 1]))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_another_number_of_channels_than_a_convolution_has_is_refused(rank: int) -> None:
    """Of an image without a batch, whose channels are rows."""

    def loss(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        return model(x[labels == 1]).square().sum()

    torch.manual_seed(0)
    model = [nn.Conv1d, nn.ConvTranspose2d, nn.Conv3d][rank - 1](2, 2, 2)
    trainer = Trainer(gradients(model, loss, (torch.randn(3, *[3] * rank), torch.tensor([1, 0, 1]))))
    x, labels = torch.randn(3, *[3] * rank), torch.tensor([1, 1, 2])
    found = trainer.step(x=x.numpy(), labels=labels.numpy())["loss"]
    np.testing.assert_allclose(found, loss(model, x, labels).detach(), rtol=1e-5)
    with pytest.raises(StepError, match=r"test_data_dependent_sizes\.py, line \d+ .*reads 3 from tensors"):
        trainer.step(x=x.numpy(), labels=np.array([1, 1, 1]))


def test_sizes_that_are_read_behind_a_branch_on_data() -> None:
    """As many sums as there are rows, which the trace can say only where int() of the largest place is no number."""

    def loss(model: nn.Module, x: Tensor, places: Tensor) -> Tensor:
        if places.min() < 0:
            raise ValueError("negative places")
        sums = torch.zeros(int(places.max()) + 1, 5).index_add(0, places, x)
        return (model(sums).sum(1) * x[:, 0].expand_as(sums[:, 0])).square().sum()

    torch.manual_seed(0)
    model = nn.Linear(5, CLASSES)
    example = torch.randn(4, 5), torch.tensor([2, 0, 3, 1])
    trainer = Trainer(gradients(model, loss, example, dynamic_shapes=(ROWS, ROWS), specialize=True))
    x, places = torch.randn(3, 5), torch.tensor([1, 1, 2])
    found = trainer.step(x=x.numpy(), places=places.numpy())["loss"]
    np.testing.assert_allclose(found, loss(model, x, places).detach(), rtol=1e-5)


def test_rows_padded_to_a_number_that_is_read() -> None:
    """Without a check the graph is not tried with sizes of 1, which its conditions on data do not decide."""

    def loss(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        count, width = int(labels.max()) + 1, int(torch.bincount(labels).max())
        flat = torch.zeros(count * width + 1, CLASSES)
        flat[labels * width] = model(x)
        return flat[: count * width].view(count, width, CLASSES).exp().sum()

    torch.manual_seed(0)
    model = nn.Linear(5, CLASSES)
    example = torch.randn(4, 5), torch.tensor([2, 0, 3, 1])
    trainer = Trainer(gradients(model, loss, example, dynamic_shapes=(ROWS, ROWS), check=False))
    x, labels = torch.randn(3, 5), torch.tensor([1, 2, 1])
    found = trainer.step(x=x.numpy(), labels=labels.numpy())["loss"]
    np.testing.assert_allclose(found, loss(model, x, labels).detach(), rtol=1e-5)


def test_draws_of_selected_rows() -> None:
    """By multinomial, more than there are, as miners of pairs do."""

    def drawn(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        (rows,) = torch.where(labels == 1)
        chosen = rows[torch.multinomial(torch.ones(len(rows)), 6, replacement=True)]
        return model(x).exp().sum() * labels[chosen].sum()

    torch.manual_seed(0)
    model = nn.Linear(5, CLASSES)
    example = torch.randn(4, 5), torch.tensor([1, 1, 2, 1])
    trainer = Trainer(gradients(model, drawn, example, dynamic_shapes=(ROWS, ROWS)))
    x = torch.randn(5, 5)
    for labels in ([0, 0, 1, 2, 0], [1, 1, 1, 0, 1]):
        loss = trainer.step(x=x.numpy(), labels=np.array(labels))["loss"]
        np.testing.assert_allclose(loss, drawn(model, x, torch.tensor(labels)).detach(), rtol=1e-5)
    with pytest.raises(StepError, match="reads 0 from tensors"):
        trainer.step(x=x.numpy(), labels=np.array([0, 0, 2, 2, 0]))
