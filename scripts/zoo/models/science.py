"""Flows, processes, operators and equations: nflows, FrEIA, gpytorch, neuraloperator, torchdiffeq, e3nn, entmax."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from scripts.zoo.entries import Case, Models
from scripts.zoo.losses import normal, squared_error

NFLOWS = Models("nflows")
FREIA = Models("FrEIA")
GPYTORCH = Models("gpytorch")
NEURALOP = Models("neuraloperator")
TORCHDIFFEQ = Models("torchdiffeq")
E3NN = Models("e3nn")
ENTMAX = Models("entmax")


# --- nflows ----------------------------------------------------------------------------------------------------------


def _likelihood(model: nn.Module, inputs: Tensor) -> Tensor:
    return -model.log_prob(inputs).mean()


@NFLOWS("Masked autoregressive flow")
def maf() -> Case:
    from nflows.distributions import StandardNormal
    from nflows.flows import Flow
    from nflows.transforms import CompositeTransform, MaskedAffineAutoregressiveTransform, ReversePermutation

    steps = [
        MaskedAffineAutoregressiveTransform(4, 8),
        ReversePermutation(4),
        MaskedAffineAutoregressiveTransform(4, 8),
    ]
    return Case(Flow(CompositeTransform(steps), StandardNormal([4])), _likelihood, normal((4,)))


@NFLOWS("RealNVP")
def realnvp() -> Case:
    from nflows.flows import SimpleRealNVP

    return Case(SimpleRealNVP(4, 8, 2, 1), _likelihood, normal((4,)))


@NFLOWS("Neural spline flow")
def spline() -> Case:
    from nflows.distributions import StandardNormal
    from nflows.flows import Flow
    from nflows.transforms import MaskedPiecewiseRationalQuadraticAutoregressiveTransform

    transform = MaskedPiecewiseRationalQuadraticAutoregressiveTransform(
        4, 8, num_bins=4, tails="linear", tail_bound=3.0
    )
    return Case(Flow(transform, StandardNormal([4])), _likelihood, normal((4,)))


# --- FrEIA -----------------------------------------------------------------------------------------------------------


@FREIA("Coupling blocks")
def coupling() -> Case:
    from FrEIA.framework import SequenceINN
    from FrEIA.modules import AllInOneBlock

    model = SequenceINN(4)
    for _ in range(2):
        model.append(
            AllInOneBlock,
            subnet_constructor=lambda before, after: nn.Sequential(
                nn.Linear(before, 8), nn.ReLU(), nn.Linear(8, after)
            ),
        )

    def loss(model: nn.Module, inputs: Tensor) -> Tensor:
        latent, log_determinant = model(inputs)
        return (latent.square().sum(1) / 2 - log_determinant).mean()

    return Case(model, loss, normal((4,)))


# --- gpytorch --------------------------------------------------------------------------------------------------------


@GPYTORCH("Deep kernel features, Gaussian likelihood")
def kernel() -> Case:
    from gpytorch.kernels import RBFKernel, ScaleKernel

    class Kernel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
            self.kernel = ScaleKernel(RBFKernel())

        def forward(self, inputs: Tensor) -> Tensor:
            features = self.features(inputs)
            return self.kernel(features).to_dense()

    def loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        similar = model(inputs)
        smooth = similar @ targets / similar.sum(1)
        return functional.mse_loss(smooth, targets)

    return Case(Kernel(), loss, lambda n: (torch.randn(n, 3), torch.randn(n)))


@GPYTORCH("Exact process, marginal likelihood")
def exact_process() -> Case:
    import gpytorch

    class Process(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5))
            self.noise = nn.Parameter(torch.zeros(()))

        def forward(self, inputs: Tensor) -> Tensor:
            return self.kernel(inputs).to_dense() + self.noise.exp() * torch.eye(inputs.shape[0], dtype=inputs.dtype)

    def loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        factor = torch.linalg.cholesky(model(inputs))
        solved = torch.linalg.solve_triangular(factor, targets.unsqueeze(1), upper=False)
        return solved.square().sum() / 2 + factor.diagonal().log().sum()

    return Case(Process(), loss, lambda n: (torch.randn(n, 3), torch.randn(n)))


@GPYTORCH("Exact process, the package's own likelihood")
def exact_marginal() -> Case:
    import gpytorch

    class Process(gpytorch.models.ExactGP):
        def __init__(self, inputs: Tensor, targets: Tensor, likelihood: nn.Module) -> None:
            super().__init__(inputs, targets, likelihood)
            self.mean, self.kernel = gpytorch.means.ConstantMean(), gpytorch.kernels.RBFKernel()

        def forward(self, inputs: Tensor) -> object:
            return gpytorch.distributions.MultivariateNormal(self.mean(inputs), self.kernel(inputs))

    inputs, targets = torch.linspace(0, 1, 6).unsqueeze(1), torch.linspace(0, 6, 6).sin()
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Process(inputs, targets, likelihood)
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)

    def loss(model: nn.Module, targets: Tensor) -> Tensor:
        return -marginal(model(inputs.to(targets.dtype)), targets)

    return Case(model, loss, lambda n: (torch.randn(6),), ({},))


# --- neuraloperator --------------------------------------------------------------------------------------------------


@NEURALOP("Fourier neural operator")
def fno() -> Case:
    from neuralop.models import FNO

    model = FNO(n_modes=(4, 4), in_channels=1, out_channels=1, hidden_channels=8, n_layers=2)
    return Case(model, squared_error, normal((1, 12, 12), (1, 12, 12)))


@NEURALOP("Tensorized Fourier neural operator")
def tfno() -> Case:
    from neuralop.models import TFNO

    model = TFNO(n_modes=(4, 4), in_channels=1, out_channels=1, hidden_channels=8, n_layers=2, rank=0.5)
    return Case(model, squared_error, normal((1, 12, 12), (1, 12, 12)))


# --- torchdiffeq -----------------------------------------------------------------------------------------------------


class _Field(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, time: Tensor, state: Tensor) -> Tensor:
        return self.layers(state)


def _ode(method: str) -> Case:
    from torchdiffeq import odeint

    def loss(model: nn.Module, start: Tensor, target: Tensor) -> Tensor:
        times = torch.linspace(0, 1, 5, dtype=start.dtype)
        return functional.mse_loss(odeint(model, start, times, method=method)[-1], target)

    return Case(_Field(), loss, normal((2,), (2,)))


@TORCHDIFFEQ("Neural ODE, Runge-Kutta of order 4")
def rk4() -> Case:
    return _ode("rk4")


@TORCHDIFFEQ("Neural ODE, adaptive Dormand-Prince", workaround="a method with fixed steps, such as rk4")
def dopri5() -> Case:
    return _ode("dopri5")


# --- e3nn ------------------------------------------------------------------------------------------------------------


@E3NN("Tensor product and gate")
def tensor_product() -> Case:
    from e3nn import o3

    class Equivariant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.product = o3.FullyConnectedTensorProduct("4x0e + 2x1o", "1x0e + 1x1o", "4x0e + 2x1o")
            self.linear = o3.Linear("4x0e + 2x1o", "1x1o")

        def forward(self, features: Tensor, positions: Tensor) -> Tensor:
            harmonics = o3.spherical_harmonics("1x0e + 1x1o", positions, normalize=True)
            return self.linear(self.product(features, harmonics))

    def loss(model: nn.Module, features: Tensor, positions: Tensor, forces: Tensor) -> Tensor:
        return functional.mse_loss(model(features, positions), forces)

    return Case(Equivariant(), loss, normal((10,), (3,), (3,)))


# --- entmax ----------------------------------------------------------------------------------------------------------


@ENTMAX("Sparsemax and 1.5-entmax losses")
def entmax() -> Case:
    from entmax import entmax15_loss, sparsemax_loss

    def loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        scores = model(inputs)
        return (entmax15_loss(scores, labels) + sparsemax_loss(scores, labels)).mean()

    return Case(nn.Linear(6, 5), loss, lambda n: (torch.randn(n, 6), torch.randint(5, (n,))))
