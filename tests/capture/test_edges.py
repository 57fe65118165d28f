"""Values and gradients where elements are equal, at bounds, NaN or infinite, compared one by one with PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from captures import gradients
from torch import Tensor, nn

import onnx_ops

NAN, INF = float("nan"), float("inf")
TIES = torch.tensor([[1.0, 2.0, 2.0, 0.0, 1.0, 2.0], [0.0] * 6, [3.0, -1.0, 3.0, -1.0, 3.0, -1.0]])
GAPS = torch.tensor([[1.0, NAN, 2.0, -INF, INF, 2.0], [NAN, NAN, 0.0, 1.0, 0.5, 1.0], [3.0, -1.0, 2.5, -0.5, 7.0, 4.0]])
SPREAD = torch.tensor([[-25.0, -20.0, -16.5, 3.0, -5.0, 9.0], [-1000.0, -200.0, 5.0, 6.0, -INF, -INF]])
SMALL = torch.tensor([1e-8, -1e-8, 3e-5, -2e-3, 0.0, -0.9])
ZEROS, OTHERS = torch.tensor([0.0, -0.0, 0.0, -0.0, 1.0, -1.0]), torch.tensor([1.0, 1.0, -1.0, -1.0, -0.0, 0.0])
TARGETS = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0])
LARGE = torch.tensor([2**53 + 1, 2**60 + 3, 2**63 - 1, -(2**63), -5, 2**62 + 7])
TENTHS = 0.1 * torch.arange(-9.0, 30.0)

NUMBER, INDEX, SORTED = torch.tensor(0.7), torch.tensor([0]), torch.tensor([0.1, 0.5, 0.9])


def segments(x: Tensor, reduce: str, initial: float | None = None) -> Tensor:
    first = x[0].detach().long()[:2] + torch.tensor([1, 0])  # 2, 0 and 4 of 6 rows
    lengths = torch.cat([first, 6 - first.sum()[None]])
    return torch.segment_reduce(x, reduce, lengths=lengths, initial=initial)


Function = Callable[[Tensor], Tensor | tuple[Tensor, ...]]

CASES: dict[str, tuple[Tensor, Function]] = {
    "relu6": (TIES, F.relu6),
    "hardtanh": (TIES, F.hardtanh),
    "fmax": (TIES, lambda x: torch.fmax(x, x * 1)),
    "fmin": (TIES, lambda x: torch.fmin(x * x, x)),
    "median": (TIES, torch.median),
    "stable sort": (TIES, lambda x: x.sort(dim=1, descending=True, stable=True)),
    "sort of booleans": (TIES, lambda x: ((x > 0).sort(1)[1], x)),
    "sign": (TIES, lambda x: torch.sgn(x) + x),
    "selected": (
        TENTHS.view(13, 3).sin(),
        lambda x: (
            *(part for k in (1, 6, 7, 8, 13) for part in x.kthvalue(k, 0)),
            *x.kthvalue(2, keepdim=True),
            *x[:12].median(0),
            x[:, 0].median(),
        ),
    ),
    "median of NaN": (GAPS, torch.median),
    "medians of NaN": (GAPS, lambda x: x.median(1)),
    "nanmedian": (GAPS, lambda x: (x.nanmedian(), *x.nanmedian(1), *x.nanmedian(0))),
    "max of NaN": (GAPS, torch.max),
    "maxima of NaN": (GAPS, lambda x: (*x.max(0), *x.max(1, keepdim=True))),
    "minima of NaN": (GAPS, lambda x: (*x.min(0), *x.min(1))),
    "amax of NaN": (GAPS, lambda x: (x.amax((0, 1)), x.amax(1), x.amin(0))),
    "places of NaN": (GAPS, lambda x: (x.argmax(), x.argmin(1), x.argmax(0, keepdim=True), x.argmin(keepdim=True), x)),
    "cummax of NaN": (GAPS, lambda x: (*x.cummax(1), *x.cummin(0))),
    "relu6 of NaN": (GAPS, F.relu6),
    "logcumsumexp": (SPREAD, lambda x: x.logcumsumexp(1)),
    "logcumsumexp of a long axis": (SPREAD, lambda x: x.repeat(1, 12).logcumsumexp(1)),
    "remainder": (SPREAD[:1], lambda x: (x.remainder(0.3), x.remainder(-7), x.remainder(torch.tensor(INF)))),
    "binary cross entropy": (SPREAD[0], lambda x: F.binary_cross_entropy(x.sigmoid(), TARGETS, reduction="none")),
    "multi margin": (TIES, lambda x: F.multi_margin_loss(x, torch.tensor([2, 0, 1]), reduction="none")),
    "labels' margin": (TIES, lambda x: F.multilabel_margin_loss(x, torch.tensor([[1, 3, -1, 0, 0, 0]] * 3))),
    "soft margin": (SMALL, lambda x: 1e8 * F.soft_margin_loss(x + 17, torch.ones(6), reduction="none")),
    "logarithms near 1": (SMALL, lambda x: (1e8 * x.log1p(), 1e8 * x.expm1())),
    "angles of signed zeros": (ZEROS, lambda x: (torch.atan2(x, OTHERS), torch.atan2(OTHERS, x))),
    "norm of a matrix that keeps its dimensions": (TIES, lambda x: torch.linalg.vector_norm(x, 3, keepdim=True)),
    "logarithms of sums": (SPREAD, lambda x: (1e8 * torch.logaddexp(x, x * 0), 1e8 * torch.logaddexp2(x, x * 0))),
    "extremes of a number": (NUMBER, lambda x: (*x.max(0), x.amin(0, keepdim=True), *torch.aminmax(x, dim=0))),
    "order of a number": (NUMBER, lambda x: (*x.sort(0), *x.topk(1), *x.kthvalue(1, 0), *x.median(0), *x.mode(0))),
    "sums of a number": (NUMBER, lambda x: (x.logsumexp(0), x.norm(2, 0), x.cumprod(0), x.prod(), x.all(0), x.mean(0))),
    "elements of a number": (
        NUMBER,
        lambda x: (x.gather(0, INDEX), x.scatter_add(0, INDEX[0], x * x), x.index_add(0, INDEX[0], x), x.nonzero()),
    ),
    "softmax of a number": (NUMBER, lambda x: (x.log_softmax(0), F.normalize(x, dim=0), x.argwhere())),
    "places of a number": (NUMBER, lambda x: (torch.searchsorted(SORTED, x), torch.bucketize(0.5, SORTED), x)),
    "modes": (TIES, lambda x: (*x.mode(1), *x.mode(0, keepdim=True))),
    "runs": (TIES, lambda x: (*torch.unique_consecutive(x.detach(), True, True), x)),
    "runs of rows": (TIES[[0, 0, 1]], lambda x: (*torch.unique_consecutive(x.detach(), True, True, dim=0), x)),
    "runs of large integers": (TIES, lambda x: (torch.unique_consecutive((x > 0) * (2**31 - 1)), x)),
    "histogram": (TIES, lambda x: (x.histc(4), x[1].histc(3), x)),
    "nothing": (TIES, lambda x: (torch.cat([x[:, :0], x[:, :0].long()], 1), torch.cat([x[0, :0], x[1:1]]), x)),
    "combinations": (TIES, lambda x: (torch.combinations(x[0], 3), torch.combinations(x[2, :3], 2, True))),
    "repeats": (TIES, lambda x: torch.repeat_interleave(x, (x[:, 5] + 1).long().clamp(max=2), 0, output_size=3)),
    "least norm": (TIES[::2, :3], lambda x: torch.linalg.lstsq(x, x[:, :1])[:2]),
    "sums of segments": (TIES.mT, lambda x: (segments(x, "sum"), segments(x, "prod", 2.0), segments(x, "mean"))),
    "extremes of segments": (TIES.mT, lambda x: (segments(x, "max"), segments(x, "min"))),
    "reductions by default": (
        SPREAD[:1],
        lambda x: (torch.kl_div(x, TARGETS), torch.binary_cross_entropy_with_logits(x, TARGETS.expand(1, 6)), x),
    ),
    "CTC without a reduction": (
        TIES.view(3, 2, 3),
        lambda x: torch.ctc_loss(
            x.log_softmax(-1), torch.tensor([[1], [2]]), torch.tensor([3, 2]), torch.tensor([1, 1])
        ),
    ),
    "angles of sums of zeros": (
        -ZEROS.abs(),
        lambda x: (
            torch.atan2(ZEROS[0], (x.detach() * ZEROS[0]).sum()),
            torch.atan2((x.detach()[:4] * ZEROS[4]).view(2, 2).mean(1), -(x.detach()[:4] * 1).view(2, 2).sum(1)),
            torch.stack([x.detach()[:2].sum(), x.detach()[2:4].sum()]).atan2(ZEROS[:2].sum()),
            x,
        ),
    ),
    "any and all of some and of none": (
        TIES,
        lambda x: (
            *((y > 2).any() for y in (x, x[:1], x[:0])),
            *((y > 2).any(0) for y in (x, x[:0])),
            (x > 2).any(1, keepdim=True),
            x.any((0, 1)),
            x.any(dim=None, keepdim=True),
            *((y > 2).all() for y in (x, x[:0])),
            (x[:0] > 2).all(0),
            x,
        ),
    ),
    "choices of booleans": (
        TIES,
        lambda x: (
            torch.where(x > 1, x > 2, x < 0),
            (x > 1).masked_fill(x > 2, False),
            (x > 1).masked_fill_(x == 0, torch.tensor(True)),
            x,
        ),
    ),
    "choices of short integers": (
        TIES,
        lambda x: (
            torch.where(x > 1, x.short(), -x.short()),
            x.short().masked_fill(x > 1, -7),
            x.to(torch.int8).masked_fill(x > 1, 5),
            x,
        ),
    ),
    "sums of large integers": (
        TIES,
        lambda x: (
            *(((x > 0) * LARGE).sum(axes, keepdim) for axes in (0, 1, (0, 1), None) for keepdim in (False, True)),
            (x > 0).mul(LARGE).view(3, 2, 3).sum((0, 2)),
            (x > 0).mul(LARGE).sum(0, dtype=torch.int32),
            (x > 0).int().mul(2**31 - 1).sum(1),
            (x[:0] > 0).mul(LARGE).sum(0),
            x,
        ),
    ),
    "counts": (
        TIES,
        lambda x: (
            *((x > 1).sum(axes, keepdim) for axes in (0, 1, (0, 1), None) for keepdim in (False, True)),
            *((x > 1).sum(0, dtype=dtype) for dtype in (torch.int32, torch.float64, torch.float16)),
            (x[:0] > 1).sum(0),
            (x[0, 0] > 0).sum(),
            x,
        ),
    ),
    "products of short integers": (
        TIES,
        lambda x: (x.int().mul(100).cumprod(1), x.bool().cumprod(0), x.short().prod(1, dtype=torch.int16), x),
    ),
    "diagonals beside infinities": (
        GAPS,
        lambda x: (
            *(x.diagonal(offset) for offset in (-3, -2, -1, 0, 1, 4, 6)),
            x.view(3, 2, 3).diagonal(1, -1, 0),
            torch.diagonal_copy(x > 1, -1),
            x.diag(2),
        ),
    ),
    "diagonals of large integers": (TIES, lambda x: ((x > 0).mul(LARGE).diagonal(1), x)),
    "errors that are masked": (
        GAPS,
        lambda x: torch.where(x.isfinite(), (x - 2).abs(), 0) + F.l1_loss(x, 2 * x.detach()),
    ),
    "errors of NaN": (GAPS, lambda x: (F.smooth_l1_loss(x, TIES, beta=0.5, reduction="none"), F.huber_loss(x, TIES))),
    "bounded errors": (
        GAPS,
        lambda x: (
            F.huber_loss(x, 2 * TIES, delta=0.5, reduction="none"),
            F.huber_loss(x[2], TIES[1], delta=3.0),
            F.smooth_l1_loss(x, TIES, beta=0.0, reduction="none"),
            F.smooth_l1_loss(TIES[2], x[2], beta=4.0, reduction="sum"),
        ),
    ),
    "copies of infinities": (
        GAPS,
        lambda x: (
            F.interpolate(x[None], scale_factor=2),
            F.interpolate(x[None, None], scale_factor=(2, 3), mode="nearest-exact"),
            F.interpolate(x.view(1, 1, 3, 2, 3), size=(3, 4, 9)),
            F.interpolate(x[None], size=6),
        ),
    ),
    "shrunk": (GAPS, lambda x: (F.softshrink(x), F.softshrink(x, 2.0))),
    "powers by other operators": (
        torch.cat([GAPS[0], ZEROS, TENTHS]),
        lambda x: (x**0.5, x**-0.5, x**-1, x**-2.0, x**4),
    ),
    "by exponentials": (
        torch.cat([GAPS[0], SMALL, TENTHS, 30 * TENTHS]),
        lambda x: (x.sinh(), x.tan(), x.expm1(), F.logsigmoid(x)),  # whose derivatives are all positive
    ),
    "cosh": (torch.cat([GAPS[0], SMALL, TENTHS, 30 * TENTHS]), torch.cosh),
    "by logarithms": (torch.cat([GAPS[0], SMALL, TENTHS]), lambda x: (x.atanh(), x.log1p())),
    "numbers by integers": (TIES, lambda x: (7 // (2 * x.long() - 3), 9 // (x > 1).byte().add(2), x)),
    "quotients of floats, rounded down": (
        TENTHS,
        lambda x: (
            *(torch.div(x.detach(), y, rounding_mode="floor") for y in (0.1, -0.1, INF, 0.0, x.detach().flip(0))),
            x.detach() // 0.1,
            x,
        ),
    ),
    "quotients of large integers": (
        TIES,
        lambda x: (
            *(
                torch.div((x > 0) * LARGE, y, rounding_mode=mode)
                for y in (7, -3, LARGE[4])
                for mode in ("floor", "trunc")
            ),
            x,
        ),
    ),
    "bounds beside infinities": (
        GAPS,
        lambda x: (x.clamp_min(0.5), x.clamp_max(0.5), x.clamp_min(ZEROS[4]), x.clamp_max(ZEROS[4]), x.clamp(max=1)),
    ),
    "distances of NaN": (GAPS, lambda x: (torch.cdist(x, x[2:]), torch.cdist(x, x[2:], 3.0))),
    "logits of NaN": (GAPS, lambda x: (x.detach().logit(0.1), x)),
    "products without a term": (
        TIES,
        lambda x: (torch.baddbmm(GAPS[:, None], x[:, None, :1], x[:, None], beta=0, alpha=2), x),
    ),
    "sigmoids of integers": (TIES, lambda x: (x.long().sigmoid(), x)),
    "log of a sigmoid": (SPREAD[0], lambda x: (x.sigmoid().log(), x * x.sigmoid())),
}


class Cases(nn.Module):
    """All cases side by side, each on a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.ParameterList([nn.Parameter(x.clone()) for x, _ in CASES.values()])

    def results(self) -> list[tuple[Tensor, ...]]:
        found = (function(x) for x, (_, function) in zip(self.inputs, CASES.values(), strict=True))
        return [result if isinstance(result, tuple) else (result,) for result in found]


def weighted(results: tuple[Tensor, ...]) -> Tensor:
    """The sum of the elements that have gradients, each with a weight of its own."""
    return sum((torch.linspace(0.5, 1.5, r.numel()).view_as(r) * r).sum() for r in results if r.requires_grad)


def loss(model: Cases, x: Tensor) -> dict[str, Tensor]:
    found = model.results()
    outputs = {f"{i}.{j}": part for i, results in enumerate(found) for j, part in enumerate(results)}
    return {"loss": sum(map(weighted, found)) + x.sum()} | outputs


@pytest.fixture(scope="module")
def captured() -> dict[str, np.ndarray]:
    capture = gradients(Cases(), loss, (torch.zeros(1),), check=False)
    session = onnx_ops.InferenceSession(capture.model)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, capture.state | {"x": np.zeros(1, np.float32)}), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_edges(name: str, captured: dict[str, np.ndarray]) -> None:
    i, model = list(CASES).index(name), Cases()
    results = model.results()[i]
    (gradient,) = torch.autograd.grad(weighted(results), model.inputs[i])
    pairs = [(captured[f"{i}.{j}"], result) for j, result in enumerate(results)]
    for got, wanted in (*pairs, (captured[f"grad.inputs.{i}"], gradient.clone())):
        assert (got.dtype, got.shape) == (wanted.detach().numpy().dtype, wanted.shape)
        if got.dtype.kind == "f":
            np.testing.assert_allclose(got, wanted.detach().numpy(), rtol=5e-5, atol=1e-6, equal_nan=True)
        else:
            np.testing.assert_array_equal(got, wanted.numpy())
