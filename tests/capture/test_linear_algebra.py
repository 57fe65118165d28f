"""Factorizations, linear equations, inverses and determinants within a step, compared with PyTorch's in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from captures import compared, gradients, training_step
from torch import Tensor, linalg, nn
from torch.distributions import LowRankMultivariateNormal, MultivariateNormal
from torch.export import Dim

import onnx_ops
from onnx_ops import StepError, Trainer


def general(y: Tensor) -> Tensor:
    """Matrices that are not symmetric, whose elimination swaps rows."""
    return y.sin() + torch.eye(y.shape[-1], dtype=y.dtype).flip(0) * 3


def positive(y: Tensor) -> Tensor:
    return y @ y.mT + torch.eye(y.shape[-2], dtype=y.dtype)


def loss_of(function: Callable[[Tensor], list[Tensor]]) -> Callable[[nn.Module, Tensor], Tensor]:
    """A loss in which each element of the results of a function has another gradient."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return sum((part.sin().sum() for part in function(model(x))), torch.zeros((), dtype=x.dtype))

    return loss


def factorizations(y: Tensor) -> list[Tensor]:
    spd, matrix = positive(y), general(y)
    lower = linalg.cholesky(spd)
    factors, pivots = linalg.lu_factor(matrix)
    return [
        lower,
        linalg.cholesky(spd, upper=True),
        linalg.cholesky_ex(spd + y.triu(1)).L,  # the upper triangle is not read
        torch.cholesky_solve(y, lower),
        torch.cholesky_inverse(lower.mT, upper=True),
        factors,
        linalg.lu_solve(factors, pivots, y),
        linalg.lu_solve(factors, pivots, y[:1], left=False, adjoint=True),
        *linalg.lu(matrix[..., :4]),
        *linalg.lu(matrix[..., :4, :]),
    ]


def equations(y: Tensor) -> list[Tensor]:
    matrix = general(y)  # its determinant is about 3**6, with a rounding error that its sine would have as a whole
    return [
        linalg.solve(matrix, y),
        linalg.solve(matrix.mT, y, left=False),
        linalg.solve(matrix[0], y),
        linalg.solve(matrix, y[..., 0]),
        linalg.solve_ex(matrix, y[:1]).result,
        linalg.solve_triangular(matrix.flip(0, 1), y, upper=True),
        linalg.solve_triangular(matrix.flip(1), y, upper=False, left=False),
        linalg.solve_triangular(y, y[:1], upper=False, unitriangular=True),
        torch.triangular_solve(y, matrix.flip(1), transpose=True).solution,
        linalg.inv(matrix),
        linalg.inv_ex(matrix.mT).inverse,
        linalg.matrix_power(matrix, -2),
        linalg.det(matrix / 3),
        linalg.det(matrix.mT / 3),
        *linalg.slogdet(matrix),
        torch.logdet(positive(y)),
    ]


def orthogonal(y: Tensor) -> list[Tensor]:
    tall, wide = y[..., :4], y[..., :4, :]
    scales = torch.tensor([0.0, 0.01, 1.0, 8.0], dtype=y.dtype)[:, None, None, None]
    return [
        *linalg.qr(tall),
        *linalg.qr(wide[..., :4, :]),
        linalg.qr(wide.detach(), mode="r").R,
        *linalg.qr(y, mode="complete"),
        linalg.qr(tall.detach(), mode="complete").Q,
        *linalg.qr(y.detach() * torch.eye(6, dtype=y.dtype)),  # no column is reflected
        linalg.householder_product(tall, y[..., 0, :3].sigmoid()),
        *torch.geqrf(tall.detach()),
        linalg.matrix_exp(scales * y.tanh() / 6),  # of each scale another number of squares
        linalg.matrix_exp((y - y.mT)[0]),
        linalg.matrix_exp(y[..., :1, :1]),
    ]


def spectral(y: Tensor) -> list[Tensor]:
    """Functions of eigenvectors and singular vectors that do not depend on their signs."""
    tall, wide = y[..., :4], y[..., :4, :]
    values, vectors = linalg.eigh(y + y.mT)
    left, singular, right = linalg.svd(tall, full_matrices=False)
    left_of_wide, _, right_of_wide = linalg.svd(wide)
    rank = linalg.matrix_rank(y, atol=1.0)[:, None, None]
    return [
        values,
        (vectors * values.tanh().unsqueeze(-2)) @ vectors.mT,
        linalg.eigvalsh(y, UPLO="U"),
        (left * singular.log1p().unsqueeze(-2)) @ right,
        linalg.svdvals(y.flatten(1, 1) * y[..., :1]),
        left_of_wide @ right_of_wide[..., :4, :],
        torch.svd(wide, compute_uv=False).S,
        linalg.pinv(tall, rtol=0.3),
        linalg.pinv(y @ y.mT + y.triu(1), hermitian=True, atol=0.5),
        linalg.lstsq(tall, y).solution,
        linalg.lstsq(wide, y[..., :4, 0]).solution,
        *linalg.lstsq(tall, y[:1], driver="gels")[:2],
        linalg.lstsq(tall, y, rcond=0.4, driver="gelss").singular_values.detach(),
        linalg.lstsq(tall, y, driver="gelsd").residuals,
        linalg.matrix_norm(y.movedim(0, 2), 2, dim=(0, 1), keepdim=True),
        linalg.norm(y, -2, dim=(1, 2)),
        linalg.matrix_norm(y, "nuc"),
        linalg.matrix_norm(y, float("inf")),
        linalg.cond(tall),
        rank * y,
        torch.ormqr(y[..., :4].detach(), y[..., 0, :4].sigmoid(), y, transpose=True),
    ]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated")
@pytest.mark.parametrize("function", [factorizations, equations, orthogonal, spectral])
def test_functions(function: Callable[[Tensor], list[Tensor]]) -> None:
    torch.manual_seed(0)
    examples = [torch.randn(2, 6, 6), torch.randn(5, 6, 6)]
    compared(nn.Linear(6, 6), loss_of(function), examples, {0: Dim("N")})


def test_matrices_of_dynamic_size() -> None:
    """Those of one block and of several have the pivots of LAPACK, and its factors up to rounding."""

    def loss(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
        y = model(x)
        matrix = torch.cos(40 * y @ y.roll(1, -1).mT)
        factors, pivots, _ = linalg.lu_factor_ex(matrix.detach())
        spd = positive(y)
        value = linalg.slogdet(spd).logabsdet.sum() + linalg.solve(spd, y.sin()).cos().sum()
        return {"loss": value + linalg.cholesky(spd).sin().sum(), "factors": factors, "pivots": pivots}

    torch.manual_seed(0)
    model = nn.Linear(7, 7).double()
    examples = [torch.randn(2, n, 7).double() for n in (40, 5, 32, 97)]
    # The batches of a check repeat rows, and pivots of singular matrices depend on rounding.
    capture = gradients(model, loss, (examples[0],), dynamic_shapes=({1: Dim("n")},), check=False)
    session = onnx_ops.InferenceSession(capture.model)
    names = ["loss", "factors", "pivots", "grad.weight", "grad.bias"]
    for x in examples:
        outputs = loss(model, x)
        wanted = torch.autograd.grad(outputs["loss"], list(model.parameters()))
        got = dict(zip(names, session.run(names, capture.state | {"x": x.numpy()}), strict=True))
        np.testing.assert_array_equal(got["pivots"], outputs["pivots"].numpy())
        # Rounding, times condition numbers up to 1e4.
        np.testing.assert_allclose(got["factors"], outputs["factors"].numpy(), rtol=0, atol=1e-10)
        np.testing.assert_allclose(got["loss"], outputs["loss"].detach().numpy(), rtol=1e-12)
        for name, tensor in zip(names[3:], wanted, strict=True):
            np.testing.assert_allclose(got[name], tensor.numpy(), rtol=0, atol=1e-11 * float(tensor.abs().max()))
    x = examples[-1].clone()
    x[1, 60] = torch.nan  # a pivot that is NaN
    factors = session.run(["factors"], capture.state | {"x": x.numpy()})[0]
    assert np.isfinite(factors[0]).all()
    assert np.isnan(factors[1, -1, -1])


def test_norms_of_more_rows_than_columns_or_fewer() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        rows = model(x)
        return rows.norm("nuc") + linalg.cond(rows)

    torch.manual_seed(0)
    compared(nn.Linear(4, 4), loss, [torch.randn(n, 4) for n in (3, 6, 2)], {0: Dim("N")})


SPECTRA = (
    lambda n: np.logspace(0, -8, n),
    lambda n: np.where(np.arange(n) % 3, 1e-30, 0),
    lambda n: 1 + np.arange(n) // 3,  # each three times
    lambda n: np.eye(n)[0] * 1e30,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_eigenvectors_and_singular_vectors(dtype: torch.dtype) -> None:
    """Those of matrices of dynamic size, up to signs: what they are defined by."""

    def loss(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
        y = x + model.bias
        values, vectors = linalg.eigh(y)
        left, singular, right = linalg.svd(y.flip(-1))
        value = values.cos().sum() + (vectors.square()[..., 0, :] * values).sum()
        return {"loss": value, "values": values, "vectors": vectors, "left": left, "singular": singular, "right": right}

    model, generator = nn.Linear(1, 1).to(dtype), np.random.default_rng(0)
    nn.init.zeros_(model.bias)
    model.weight.requires_grad_(False)
    example, axes = torch.randn(2, 6, 6, dtype=dtype), {1: Dim("n"), 2: Dim("n")}
    capture = gradients(model, loss, (example + example.mT,), dynamic_shapes=(axes,), check=False)
    session = onnx_ops.InferenceSession(capture.model)
    names = ["values", "vectors", "left", "singular", "right", "grad.bias"]
    matrices = [np.ones((2, 100, 100))]  # what is left of parallel columns would vanish
    for n, spectrum in [(n, spectrum) for n in (2, 5, 24) for spectrum in SPECTRA]:
        basis = np.linalg.qr(generator.normal(size=(2, n, n)))[0]
        matrices.append((basis * spectrum(n)) @ np.swapaxes(basis, -1, -2))
    for matrix in matrices:
        n, lower = matrix.shape[-1], np.tril(matrix).astype(example.numpy().dtype)
        x = lower + np.swapaxes(np.tril(lower, -1), -1, -2)
        found = session.run(names[:-1], capture.state | {"x": x})
        values, vectors, left, singular, right = (array.astype(np.float64) for array in found)
        assert (np.diff(values) >= 0).all()
        assert (np.diff(singular) <= 0).all()
        largest = np.abs(singular).max()
        values, singular, scaled = values / largest, singular / largest, x.astype(np.float64) / largest
        # In float32 what float64 is rounded to; in float64 the errors of up to 10 sweeps of rotations.
        allowed = np.finfo(x.dtype).eps * (2 if dtype is torch.float32 else 20 + n)
        for basis in (vectors, left, right):
            np.testing.assert_allclose(np.swapaxes(basis, -1, -2) @ basis, np.eye(n) + 0 * basis, rtol=0, atol=allowed)
        np.testing.assert_allclose(scaled @ vectors, vectors * values[:, None], rtol=0, atol=allowed)
        np.testing.assert_allclose((left * singular[:, None]) @ right, scaled[..., ::-1], rtol=0, atol=allowed)
        np.testing.assert_allclose(values, np.linalg.eigvalsh(scaled), rtol=0, atol=allowed)
    # Gradients of eigenvectors whose eigenvalues are equal are NaN in PyTorch.
    grad = session.run(names[-1:], capture.state | {"x": np.stack([np.eye(3, dtype=x.dtype)] * 2)})[0]
    assert np.isnan(grad).all()


class Gaussian(nn.Module):
    """A normal distribution whose covariance is a parameter plus what the batch adds to it."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.randn(4))
        self.root = nn.Parameter(torch.eye(4) + 0.1 * torch.randn(4, 4))


def negative_log_likelihood(model: Gaussian, x: Tensor, noise: Tensor) -> dict[str, Tensor]:
    covariance = model.root @ model.root.mT + noise[:, None, None] * torch.eye(4)
    whole = MultivariateNormal(model.mean, covariance)
    low = LowRankMultivariateNormal(model.mean, model.root[:, :2], torch.ones(4))
    value = -whole.log_prob(x).mean() - low.log_prob(x).mean() - whole.entropy().mean() / 9
    return {"loss": value, "inverse": linalg.inv(covariance)}


def batch(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    return torch.randn(rows, 4), torch.rand(rows)


def test_what_cannot_be_factorized_is_refused_before_the_state_changes() -> None:
    torch.manual_seed(0)
    model, rows = Gaussian(), {0: Dim("rows")}
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    capture = training_step(
        model, negative_log_likelihood, batch(4, 0), optimizer, dynamic_shapes=(rows, rows), clip_grad_norm=1.0
    )
    trainer, twin = Trainer(capture), copy.deepcopy(model)
    own = torch.optim.SGD(twin.parameters(), 0.05, momentum=0.9)
    for seed in range(1, 5):
        given = batch(3 + seed, seed)
        reported = trainer.step(x=given[0].numpy(), noise=given[1].numpy())
        own.zero_grad()
        outputs = negative_log_likelihood(twin, *given)
        outputs["loss"].backward()
        nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
        own.step()
        for name in ("loss", "inverse"):
            np.testing.assert_allclose(reported[name], outputs[name].detach().numpy(), rtol=1e-4, atol=1e-5)
    before = trainer.state_dict()
    x, noise = batch(5, 9)
    noise[3] = -9.0  # this covariance is not positive definite
    for wrong in (-9.0, torch.nan):
        noise[3] = wrong
        with pytest.raises(StepError, match=r"MultivariateNormal\(model.*info of linalg\.cholesky"):
            trainer.step(x=x.numpy(), noise=noise.numpy())
    after = trainer.state_dict()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_singular_matrices_are_refused_where_pytorch_raises_an_error() -> None:
    """The determinant, whose gradient PyTorch has too, is 0."""

    def loss(model: nn.Module, x: Tensor, given: Tensor, other: Tensor) -> dict[str, Tensor]:
        matrix = x * model.weight
        return {
            "loss": linalg.solve(given, matrix).sum() + linalg.matrix_norm(other * model.weight, "nuc"),
            "det": linalg.det(matrix),
            "info": linalg.inv_ex(matrix).info,
        }

    model = nn.Linear(3, 3)
    nn.init.ones_(model.weight)
    regular, singular = torch.tensor([[0.0, 1, 2], [4, 0, 1], [2, 2, 2]]), torch.arange(9.0).view(3, 3) // 3
    capture = training_step(model, loss, (regular, regular, regular), torch.optim.SGD(model.parameters(), 0.0))
    trainer = Trainer(capture)
    reported = trainer.step(x=singular.numpy(), given=regular.numpy(), other=regular.numpy())
    assert reported["det"] == 0
    assert reported["info"] == linalg.inv_ex(singular).info
    with pytest.raises(StepError, match=r"linalg\.solve\(given.*info of torch\.linalg\.solve"):
        trainer.step(x=regular.numpy(), given=singular.numpy(), other=regular.numpy())
    other = regular.numpy().copy()
    other[1, 2] = np.nan
    with pytest.raises(StepError, match=r"matrix_norm\(other.*info of linalg\.svd"):
        trainer.step(x=regular.numpy(), given=regular.numpy(), other=other)
