"""Random numbers as functions of a seed, which is an input of the graph: dropout, and draws from distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from onnx_ops.torch.base.custom_ops import domain_ops
from onnx_ops.torch.base.nodes import Value, aclnn, double, op
from onnx_ops.torch.base.table import decomposes, draws, rewrites, translates

aten = torch.ops.aten
Shape = Sequence[Any]

BITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}
"""Bits of the significand of each dtype."""


class Generator:
    """Draws the random numbers of a step from one seed, different ones for each operator.

    Attributes:
        seed: a scalar of int64; each step has another.
        used: the number of draws.
    """

    def __init__(self, seed: Tensor) -> None:
        self.seed = seed
        self.used = 0

    def kept(self, shape: Shape, dropped: float) -> Tensor:
        """Booleans that are False with probability `dropped`."""
        return self._dropout(torch.ones(shape), dropped)[1]

    def dropped(self, input: Tensor, p: float) -> tuple[Tensor, Tensor]:
        """The input after dropout, and its mask."""
        if input.dtype is torch.float64:  # the node scales by a float
            mask = self.kept(input.shape, p)
            return input * mask * torch.tensor(1 / (1 - p), dtype=input.dtype), mask
        return self._dropout(input, p)

    def uniform(self, shape: Shape, dtype: torch.dtype) -> Tensor:
        """Uniform on [0, 1)."""
        return domain_ops.InplaceUniform(torch.zeros(shape, dtype=dtype), self.seed, offset=self._next())

    def normal(self, shape: Shape, dtype: torch.dtype) -> Tensor:
        """Standard normal."""
        return domain_ops.InplaceNormal(torch.zeros(shape, dtype=dtype), self.seed, offset=self._next())

    def _next(self) -> int:
        self.used += 1
        return self.used - 1

    def _dropout(self, input: Tensor, p: float) -> tuple[Tensor, Tensor]:
        return domain_ops.DropoutV3(input, self.seed, p=p, offset=self._next())


def _default(dtype: torch.dtype | None) -> torch.dtype:
    return torch.get_default_dtype() if dtype is None else dtype


@draws(aten.native_dropout.default)
def _native_dropout(random: Generator, input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if p == 1:  # PyTorch draws nothing then
        return torch.zeros_like(input), torch.zeros_like(input, dtype=torch.bool)
    return random.dropped(input, p)


@translates(aten.native_dropout_backward.default)
def _native_dropout_backward(grad: Value, mask: Value, scale: float) -> Value:
    if grad.dtype is ir.DataType.DOUBLE:  # the attribute of the node is a float32
        return op.Where(mask, op.Mul(grad, double(scale)), double(0.0))
    return aclnn.DropoutBackward(grad, mask, scale=scale)


@rewrites("DropoutV3")
def _mask_alone(node: ir.Node) -> None:
    """A dropout recomputed for its mask takes the gradient as input, so that what it dropped need not be recomputed.

    The mask depends on the shape of the input alone. With one use of it, the gradient does not depend on it.
    """
    (dropped, _), (output, mask) = node.inputs, node.outputs
    if output.uses() or output.is_graph_output() or mask.is_graph_output() or len(mask.uses()) != 1:
        return
    ((user, _),) = mask.uses()
    gradient = user.inputs[0]
    if user.op_type != "DropoutBackward" or dropped is None or gradient is None or user.graph is not node.graph:
        return
    if dropped.shape is None or None in dropped.shape or gradient.shape != dropped.shape:  # None: an unknown size
        return
    node.replace_input_with(0, gradient)
    user.prepend(node)


@draws(aten.bernoulli.p)
def _bernoulli_p(random: Generator, input: Tensor, p: float = 0.5, **rest: Any) -> Tensor:
    return random.kept(input.shape, 1 - p).to(input.dtype)


@draws(aten.bernoulli_.float)
def _bernoulli_p_(random: Generator, input: Tensor, p: float = 0.5, **rest: Any) -> Tensor:
    return input.copy_(random.kept(input.shape, 1 - p))


@draws(aten.bernoulli.default)
def _bernoulli(random: Generator, input: Tensor, **rest: Any) -> Tensor:
    return (random.uniform(input.shape, input.dtype) < input).to(input.dtype)


@draws(aten.bernoulli_.Tensor)
def _bernoulli_(random: Generator, input: Tensor, p: Tensor, **rest: Any) -> Tensor:
    return input.copy_(random.uniform(input.shape, p.dtype) < p)


@draws(aten.rand.default, aten.rand.generator)
def _rand(random: Generator, size: Shape, *, dtype: torch.dtype | None = None, **rest: Any) -> Tensor:
    return random.uniform(size, _default(dtype))


@draws(aten.rand_like.default, aten.rand_like.generator)
def _rand_like(random: Generator, input: Tensor, *, dtype: torch.dtype | None = None, **rest: Any) -> Tensor:
    return random.uniform(input.shape, input.dtype if dtype is None else dtype)


@draws(aten.uniform_.default)
def _uniform_(random: Generator, input: Tensor, low: float = 0.0, high: float = 1.0, **rest: Any) -> Tensor:
    low, high = rest.get("from", low), rest.get("to", high)
    return input.copy_(low + (high - low) * random.uniform(input.shape, input.dtype))


@draws(aten.randn.default, aten.randn.generator)
def _randn(random: Generator, size: Shape, *, dtype: torch.dtype | None = None, **rest: Any) -> Tensor:
    return random.normal(size, _default(dtype))


@draws(aten.randn_like.default, aten.randn_like.generator)
def _randn_like(random: Generator, input: Tensor, *, dtype: torch.dtype | None = None, **rest: Any) -> Tensor:
    return random.normal(input.shape, input.dtype if dtype is None else dtype)


@draws(aten.normal_.default)
def _normal_(random: Generator, input: Tensor, mean: float = 0.0, std: float = 1.0, **rest: Any) -> Tensor:
    return input.copy_(mean + std * random.normal(input.shape, input.dtype))


@draws(aten.normal.float_float)
def _normal(
    random: Generator, mean: float, std: float, size: Shape, *, dtype: torch.dtype | None = None, **rest: Any
) -> Tensor:
    return mean + std * random.normal(size, _default(dtype))


@draws(aten.normal.Tensor_float, aten.normal.float_Tensor, aten.normal.Tensor_Tensor)
def _normal_of_tensors(random: Generator, mean: Tensor | float, std: Tensor | float = 1.0, **rest: Any) -> Tensor:
    given = [value for value in (mean, std) if isinstance(value, Tensor)]
    return mean + std * random.normal(torch.broadcast_shapes(*(value.shape for value in given)), given[0].dtype)


@draws(aten.exponential_.default)
def _exponential_(random: Generator, input: Tensor, lambd: float = 1.0, **rest: Any) -> Tensor:
    return input.copy_(-torch.log(1 - random.uniform(input.shape, input.dtype)) / lambd)


@draws(aten.log_normal_.default)
def _log_normal_(random: Generator, input: Tensor, mean: float = 1.0, std: float = 2.0, **rest: Any) -> Tensor:
    return input.copy_(torch.exp(mean + std * random.normal(input.shape, input.dtype)))


@draws(aten.cauchy_.default)
def _cauchy_(random: Generator, input: Tensor, median: float = 0.0, sigma: float = 1.0, **rest: Any) -> Tensor:
    turn = torch.tensor([math.pi], dtype=torch.promote_types(input.dtype, torch.float32))
    return input.copy_(median + sigma * torch.tan(turn * (random.uniform(input.shape, turn.dtype) - 0.5)))


@draws(aten.geometric_.default)
def _geometric_(random: Generator, input: Tensor, p: float, **rest: Any) -> Tensor:
    trials = torch.log(1 - random.uniform(input.shape, torch.float64)) / torch.log1p(torch.tensor([-p]).double())
    return input.copy_(trials.ceil().clamp(min=1))


@draws(aten.multinomial.default)
def _multinomial(random: Generator, input: Tensor, num_samples: int, replacement: bool = False, **rest: Any) -> Tensor:
    """Without replacement the largest quotients of weights and exponential numbers (Efraimidis and Spirakis, 2006)."""
    if replacement:
        sums = input.double().cumsum(-1)
        total = sums.amax(-1, keepdim=True)  # a slice of a size that depends on data would not broadcast
        numbers = random.uniform((*input.shape[:-1], num_samples), torch.float64) * total
        return torch.searchsorted(sums, numbers, right=True).clamp(max=input.shape[-1] - 1)
    times = -torch.log(1 - random.uniform(input.shape, torch.float64))
    smallest = torch.finfo(torch.float64).tiny  # so that a weight of 0 is not divided by 0
    return (input.double() / times.clamp(min=smallest)).topk(num_samples, -1).indices


@draws(aten.randint.low, aten.randint.low_generator)
def _randint(
    random: Generator, low: int, high: int, size: Shape, *, dtype: torch.dtype | None = torch.int64, **rest: Any
) -> Tensor:
    numbers = low + torch.floor(random.uniform(size, torch.float64) * (high - low))
    return numbers.to(torch.int64 if dtype is None else dtype)


@draws(aten.randint.default, aten.randint.generator)
def _randint_from_0(random: Generator, high: int, size: Shape, **rest: Any) -> Tensor:
    return _randint(random, 0, high, size, **rest)


@draws(aten.randint_like.low_dtype)
def _randint_like(
    random: Generator, input: Tensor, low: int, high: int, *, dtype: torch.dtype | None = None, **rest: Any
) -> Tensor:
    return _randint(random, low, high, input.shape, dtype=input.dtype if dtype is None else dtype)


@draws(aten.randint_like.default)
def _randint_like_from_0(random: Generator, input: Tensor, high: int, **rest: Any) -> Tensor:
    return _randint_like(random, input, 0, high, **rest)


@draws(aten.randperm.default, aten.randperm.generator)
def _randperm(random: Generator, n: int, *, dtype: torch.dtype | None = torch.int64, **rest: Any) -> Tensor:
    order = torch.argsort(random.uniform((n,), torch.float64))
    return order if dtype is None else order.to(dtype)


@draws(aten.random_.default, aten.random_.to, getattr(aten.random_, "from"))
def _random_(random: Generator, input: Tensor, *bounds: Any, **rest: Any) -> Tensor:
    """From 0 to before `bounds`, or between them; without an end to the largest integer up to which all are exact."""
    low, end = (0, *bounds) if len(bounds) == 1 else bounds or (0, None)
    dtype = input.dtype
    most = 2 ** BITS[dtype] if dtype.is_floating_point else min(torch.iinfo(dtype).max, 2**53 - 1)
    high = most + 1 if end is None else end
    return input.copy_(_randint(random, low, high, input.shape, dtype=torch.float64))


@draws(aten.rrelu_with_noise_.default)
def _rrelu_(random: Generator, self: Tensor, noise: Tensor, *args: Any, **rest: Any) -> Tensor:
    return self.copy_(_rrelu(random, self, noise, *args, **rest))


@draws(aten.rrelu_with_noise.default)
def _rrelu(
    random: Generator,
    self: Tensor,
    noise: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """With another slope for each negative number, which PyTorch returns in `noise` for the backward pass."""
    slopes = lower + (upper - lower) * random.uniform(self.shape, self.dtype)
    return self * noise.copy_(torch.where(self <= 0, slopes, 1.0))


@decomposes(aten.rrelu_with_noise.default)
def _rrelu_in_evaluation(
    self: Tensor, noise: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, *rest: Any, **options: Any
) -> Tensor:
    return aten.leaky_relu.default(self, (lower + upper) / 2)


@decomposes(aten.rrelu_with_noise_.default)
def _rrelu_in_evaluation_(self: Tensor, *args: Any, **options: Any) -> Tensor:
    return self.copy_(_rrelu_in_evaluation(self, *args, **options))
