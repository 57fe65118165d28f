"""Sparse matrices in models and losses, with dynamic numbers of nodes and edges, beside PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from captures import gradients
from torch import Tensor, nn
from torch.export import Dim

import onnx_ops
from onnx_ops.torch import CaptureError

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{text}")  # of PyTorch
    for text in ("Sparse invariant checks are implicitly disabled", "Sparse CSR tensor support is in beta")
]

OFF = {torch.float32: 2e-5, torch.float64: 1e-12}
"""Relative to the largest entry: sums of some ten terms in another order."""


class Network(nn.Module):
    """A graph convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))
        self.scale = nn.Parameter(torch.tensor(0.7))


def graph(nodes: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Edges (2, E) in the order of rows, some of them twice, their values, and features of the nodes."""
    edges = (torch.rand(nodes, nodes) < 0.6).nonzero().repeat_interleave(2, 0)[::3].t().contiguous()
    return edges, torch.randn(edges.shape[1], dtype=dtype), torch.randn(nodes, 3, dtype=dtype)


def products(model: Network, edges: Tensor, values: Tensor, x: Tensor) -> Tensor:
    def matrix() -> Tensor:  # anew for each part, as PyTorch cannot add up all kinds of gradients of one
        return torch.sparse_coo_tensor(edges, values * model.scale, (x.shape[0], x.shape[0]))

    y = x @ model.weight
    starts = torch._convert_indices_from_coo_to_csr(edges[0], x.shape[0])
    rows = torch.sparse_csr_tensor(starts, edges[1], values, (x.shape[0], x.shape[0]))
    parts = [
        torch.sparse.mm(matrix(), y),
        matrix().t() @ y,
        (y.t() @ matrix()).t(),
        torch.sparse.addmm(y, matrix().coalesce(), y, beta=0.5, alpha=2.0),
        (rows * 2) @ y[:, :1],
        torch.sparse.mm(torch.sparse.softmax(matrix(), 1), y),
        torch.sparse.mm(torch.sparse.log_softmax(matrix(), 0), y),
        (matrix() + matrix().transpose(0, 1) / 3) @ y,
        matrix().to_dense() @ y,
        matrix().coalesce().values().sin().sum() * y,
    ]
    return sum((part.sin().mean() for part in parts), start=torch.zeros(()))


PLACES, ENTRIES = torch.tensor([[0, 1, 1, 3], [2, 0, 1, 3]]), torch.tensor([1.0, -2.0, 0.5, 3.0])
CONSTANT = torch.sparse_coo_tensor(PLACES, ENTRIES, (4, 4), check_invariants=True)


def constants(model: Network, edges: Tensor, values: Tensor, x: Tensor) -> Tensor:
    """Of a matrix that is no input, and of one that is made of a dense one."""
    matrix, y = CONSTANT.to(x.dtype), x @ model.weight
    made = (x @ x.t()).relu().to_sparse()
    parts = [torch.mm(matrix * model.scale, y), matrix.to_dense() @ y, matrix.coalesce().to_sparse_csr() @ y, made @ y]
    return sum((part.sin().mean() for part in parts), start=values.sum() * 0 + torch.sparse.sum(matrix))


def pooled(model: Network, edges: Tensor, values: Tensor, x: Tensor) -> Tensor:
    """Products of sparse matrices, and rows and columns of one, as in graph U-Nets and ASAPooling.

    PyTorch has no gradients of index_select, nor of products of CSC matrices.
    """
    size = x.shape[0], x.shape[0]
    starts = torch._convert_indices_from_coo_to_csr(edges[0], x.shape[0])
    pairs = torch.sparse_coo_tensor(edges, values * model.scale, size)
    rows = torch.sparse_csr_tensor(starts, edges[1], values.detach(), size)
    kept = torch.topk(x[:, 0], 2).indices
    chosen = pairs.detach().index_select(1, torch.cat([kept, kept[:1]])).to_sparse_csr()
    coarse = chosen.t().to_sparse_csr() @ (rows @ chosen)
    of_rows = torch.repeat_interleave(torch.arange(3), coarse.crow_indices().diff())
    terms = torch.where(of_rows < coarse.col_indices(), 1.5, 0.5) * coarse.values().cos()
    fewer = pairs.detach().index_select(0, kept).coalesce()
    turned = (rows.t().values().exp() * rows.t().row_indices()).sum() + (rows.t().ccol_indices()[1:] * x[:, 1]).sum()
    twice = ((pairs @ pairs).coalesce().values().sin().sum(), (fewer @ x).sin().sum(), (x @ model.weight).sum())
    return terms.sum() + turned + sum(twice)


@pytest.mark.parametrize(
    ("loss", "dtype"),
    [
        (products, torch.float32),
        (pooled, torch.float32),
        (constants, torch.float64),
        pytest.param(products, torch.float64, marks=pytest.mark.full),
        pytest.param(constants, torch.float32, marks=pytest.mark.full),
    ],
)
def test_gradients_are_those_of_pytorch(loss: Callable[..., Tensor], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    dynamic = ({1: Dim("edges")}, {0: Dim("edges")}, {0: Dim("nodes")}) if loss is not constants else None
    model = Network().to(dtype)
    example = edges, values, x = graph(4, dtype)
    values.requires_grad_(), x.requires_grad_()
    session = None
    for nodes in (4, 9, 3) if dynamic else (4,):
        batch = example if nodes == 4 else graph(nodes, dtype)
        edges, values, x = (tensor.requires_grad_(tensor.is_floating_point()) for tensor in batch)
        value = loss(model, edges, values, x)
        wanted = value, *torch.autograd.grad(value, [values, x, model.weight, model.scale])
        if session is None:
            capture = gradients(model, loss, example, dynamic_shapes=dynamic)
            session = onnx_ops.InferenceSession(capture.model)
        given = {"edges": edges, "values": values, "x": x}
        names = {value.name for value in session.get_inputs()}
        feeds = {name: tensor.detach().numpy() for name, tensor in given.items() if name in names}
        outputs = ["loss", "grad.values", "grad.x", "grad.weight", "grad.scale"]
        for array, tensor in zip(session.run(outputs, capture.state | feeds), wanted, strict=True):
            truth = tensor.detach().numpy()
            np.testing.assert_allclose(array, truth, rtol=0, atol=OFF[dtype] * max(np.abs(truth).max(), 1))


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (
            lambda model, x: torch.sparse.mm(CONSTANT.to_sparse_csr(), x, "amax").sum() * model.scale,
            "sparse matrices with reduce=",
        ),
        (lambda model, x: (CONSTANT * x).sum() * model.scale, "product of a sparse matrix with elements of another"),
        (lambda model, x: torch.sparse.sum(CONSTANT * model.scale, 1).to_dense().sum(), "sum of a sparse matrix along"),
        (
            lambda model, x: (CONSTANT * model.scale).pow(2).to_dense().sum(),
            "pow of a sparse matrix cannot",
        ),
    ],
)
def test_refusals(loss: Callable[..., Tensor], said: str) -> None:
    with pytest.raises(CaptureError, match=said):
        gradients(Network(), loss, (torch.randn(4, 4),))
