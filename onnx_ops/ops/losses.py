"""The attribute `reduction` of losses, and the kernels of losses: terms, or sums of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onnx import TensorProto
from onnx.defs import OpSchema

from onnx_ops.core.call import Call
from onnx_ops.core.reduction import Reduction
from onnx_ops.core.schema import attribute
from onnx_ops.core.space import IndexSpace
from onnx_ops.core.types import NARROW, Shape, TensorType
from onnx_ops.loops.loop import Core, Kept, Loop, Sums
from onnx_ops.ops.computing import computing_type


def reduction_choices(reductions: Iterable[Reduction]) -> dict[int, str]:
    """The values that the attribute `reduction` can have."""
    return {int(reduction): reduction.name.lower() for reduction in reductions}


def reduction_attribute(reductions: Iterable[Reduction]) -> OpSchema.Attribute:
    """The attribute `reduction`."""
    choices = ", ".join(f"{number} {word}" for number, word in reduction_choices(reductions).items())
    return attribute("reduction", int(Reduction.MEAN), f"{choices}.")


def loss_type(call: Call, dtype: int | None, space: Shape | None) -> TensorType:
    """The type of a loss: of the shape of its terms without reduction, else a scalar."""
    return TensorType(dtype, space if call.attributes["reduction"] == Reduction.NONE else ())


def has_narrow_inputs(call: Call) -> bool:
    """Whether all inputs have 16 bits."""
    return all(call.dtype(name) in NARROW for name in call.inputs if call.present(name))


@dataclass(frozen=True)
class LossCores:
    """The cores of a loss.

    Attributes:
        terms: terms in float64.
        float32_terms: terms in float32.
        total: sum of the terms, for float32 results.
        narrow_total: sum of the terms, for 16-bit results.
        is_float32: whether `float32_terms` are accurate enough for float32 results, not only for 16-bit results.
    """

    terms: Core
    float32_terms: Core
    total: Core
    narrow_total: Core
    is_float32: bool = False


def loss_kernel(call: Call, space: IndexSpace, cores: LossCores, parameters: tuple[float, ...] = ()) -> Loop:
    """The kernel of a loss: its terms, or their sum over the divisor."""
    reduction, narrow = Reduction(call.attributes["reduction"]), has_narrow_inputs(call)
    if reduction is Reduction.NONE:
        compute = computing_type(call, light=narrow or cores.is_float32)
        in_float32 = compute != TensorProto.DOUBLE and (narrow or cores.is_float32)
        return Loop(space, compute, cores.float32_terms if in_float32 else cores.terms, parameters=parameters)
    compute = computing_type(call, light=narrow)
    total: Core | None = cores.narrow_total if narrow else cores.total
    if compute == TensorProto.DOUBLE:  # reassociated sums are accurate to the last bit in float32, but not in double
        total = None
    sums = Sums(cores.terms, compute, Kept.NOTHING, totals=total)
    return Loop(space, compute, sums=sums, divisor=reduction.divisor, parameters=parameters)
