"""ConvolutionBackward: the gradients of a convolution with respect to its input, its kernels and its bias."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, with_torch
from tests.ops._shared.arrays import FLOAT32, FLOAT64
from tests.ops._shared.convolution import (
    AROUND,
    FEW,
    FIRST,
    FORMS,
    HALVED,
    HALVING,
    LAYERS,
    PLAIN,
    SETTINGS,
    Layer,
    Setting,
    calls_of,
    chosen,
    judged,
    large,
    meetings,
    operands,
    picked,
    shaped,
    with_defaults,
)
from tests.ops._shared.convolution import refusals as shared_refusals
from tests.ops._shared.depthwise_convolution import Numbers
from tests.ops._shared.numbers import Array, Reals, exact_sums, largest, real
from tests.ops._shared.record import (
    SUM_LIMITS,
    Attribute,
    Benchmark,
    Call,
    Choice,
    DType,
    Input,
    Record,
    Refusal,
    Worked,
    kept_by_call,
    like,
    with_value,
)

OP = "ConvolutionBackward"
PLACES = {"grad_output": (1, 1, 0, 0), "input": (0, 1, 3, 3), "weight": (1, 0, 0, 2)}
"""Of special values."""
GRADIENTS = ("grad_input", "grad_weight", "grad_bias")


def _gathered(
    gather: Callable[[Array], Array],
    grad_output: ArrayLike,
    input: ArrayLike,
    weight: ArrayLike,
    stride: Numbers = (),
    padding: Numbers = (),
    dilation: Numbers = (),
    groups: int = 1,
    *,
    dtype: Reals = np.float64,
) -> tuple[Array, Array, Array]:
    """What `gather` makes, along the last axis, of the products (..., count) of each element of each gradient."""
    grad, x, own = real(grad_output, dtype), real(input, dtype), real(weight, dtype)
    samples, outputs, inputs = x.shape[0], own.shape[0] // groups, own.shape[1]
    by_input, by_weight = np.zeros_like(x), np.zeros_like(own)
    with np.errstate(all="ignore"):
        of_place: dict[Numbers, list[tuple[Numbers, Numbers]]] = {}
        for element in np.ndindex(*own.shape[2:]):
            pairs = meetings(element, grad.shape[2:], x.shape[2:], stride, padding, dilation)
            for window, place in pairs:
                of_place.setdefault(place, []).append((window, element))
            of_grad = picked(grad, [w for w, _ in pairs]).reshape(samples, groups, outputs, 1, len(pairs))
            of_x = picked(x, [q for _, q in pairs]).reshape(samples, groups, 1, inputs, len(pairs))
            products = np.moveaxis(of_grad * of_x, 0, 3)
            by_weight[(..., *element)] = gather(products.reshape(*own.shape[:2], samples * len(pairs)))
        for place, seen in of_place.items():
            of_grad = picked(grad, [w for w, _ in seen]).reshape(samples, groups, outputs, 1, len(seen))
            of_own = picked(own, [e for _, e in seen]).reshape(groups, outputs, inputs, len(seen))
            products = np.moveaxis(of_grad * of_own, 2, 3)
            by_input[(..., *place)] = gather(products.reshape(*x.shape[:2], outputs * len(seen)))
        by_bias = gather(np.moveaxis(grad, 1, 0).reshape(grad.shape[1], samples * math.prod(grad.shape[2:])))
    return by_input, by_weight, by_bias


def oracle(*inputs: ArrayLike, **settings: Any) -> tuple[Array, ...]:
    """One sum of products for each element."""
    return _gathered(exact_sums, *inputs, **settings)


def largest_terms(*inputs: ArrayLike, **settings: Any) -> tuple[Array, ...]:
    """The largest product of each sum."""
    return _gathered(largest, *inputs, **settings)


@kept_by_call
def _sizes(call: Call) -> tuple[Array, ...]:
    """The sums of the sizes of all products."""
    sizes = {name: np.nan_to_num(np.abs(real(a)), posinf=0.0) for name, a in call.given.items()}
    return _gathered(functools.partial(np.sum, axis=-1), *sizes.values(), **call.attributes)


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array | float:
    """What sums one after the other may be off by: a rounding for each term, of a size up to that of the whole sum.

    The gradient of the bias is added up in float64.
    """
    in_double = call.dtype("input") == FLOAT64
    if output == "grad_bias" and not portable and not in_double:
        return 0.0
    sums = _sizes(call)[GRADIENTS.index(output)]
    grad, weight = call.given["grad_output"].shape, call.given["weight"].shape
    windows = grad[0] * math.prod(grad[2:])
    added = weight[0] * math.prod(weight[2:]) if output == "grad_input" else windows
    return np.asarray(sums * (added + 2) * 2.0 ** (-53 if in_double else -24))


def make(choice: Choice) -> dict[str, Array | None]:
    return chosen(PLACES, choice, choice.dtype("grad_output"))


def calls() -> Iterator[Call]:
    yield from calls_of(OP, PLACES)
    plain = operands(PLACES, FEW, PLAIN, FLOAT32)
    for count in (1, 2):
        for outputs_of in itertools.combinations(GRADIENTS, count):
            yield Call(OP, plain, outputs=outputs_of, label="+".join(outputs_of))
    # Elements of padded lines are zeros, which must not be multiplied with infinite numbers.
    padded = Setting((1, 7), (), (0, 3))
    infinite = with_value(shaped(PLACES, (1, 8, 1, 9), 260, padded, FLOAT32), "grad_output", (0, 130, 0, 1), np.inf)
    yield Call(OP, infinite, padded.attributes, label="infinite_beside_padding")


def worked(dtype: DType) -> Iterator[Worked]:
    given: dict[str, Array | None] = {
        "grad_output": np.array([[[[1.0, 10.0]]]], dtype),
        "input": np.arange(1, 7, dtype=np.float64).reshape(1, 1, 2, 3).astype(dtype),
        "weight": np.arange(1, 5, dtype=np.float64).reshape(1, 1, 2, 2).astype(dtype),
    }
    expected = {
        "grad_input": [[[[1, 12, 20], [3, 34, 40]]]],
        "grad_weight": [[[[21, 32], [54, 65]]]],
        "grad_bias": [11],
    }
    yield Worked(Call(OP, given, label="plain"), expected)
    # 0 1 2 3 0 along the padded row; two windows, two apart, of elements that are two apart.
    apart = {"stride": (2,), "padding": (1,), "dilation": (2,)}
    row: dict[str, Array | None] = {
        "grad_output": np.array([[[1.0, 10.0]]], dtype),
        "input": np.array([[[1.0, 2.0, 3.0]]], dtype),
        "weight": np.array([[[5.0, 7.0]]], dtype),
    }
    padded = {"grad_input": [[[0, 57, 0]]], "grad_weight": [[[20, 2]]], "grad_bias": [11]}
    yield Worked(Call(OP, row, apart, label="padded"), padded)
    # Two groups of one channel.
    pairs = {
        name: np.array(numbers, dtype)
        for name, numbers in {
            "grad_output": [[[2.0], [3.0]]],
            "input": [[[5.0], [7.0]]],
            "weight": [[[1.0]], [[4.0]]],
        }.items()
    }
    products = {"grad_input": [[[2], [12]]], "grad_weight": [[[10]], [[21]]], "grad_bias": [2, 3]}
    yield Worked(Call(OP, pairs, {"groups": 2}, label="groups"), products)


def refusals(plain: Call) -> Iterator[Refusal]:
    """The plain call: two samples of two channels of 6 by 7, kernels of 3 by 3."""
    grad = plain.given["grad_output"]
    for label, axis, wrong in (
        ("samples", 0, "(1, 4, 4, 5)"),
        ("outputs", 1, "(2, 3, 4, 5)"),
        ("windows", 2, "(2, 4, 3, 5)"),
    ):
        yield Refusal(label, ("'grad_output'", wrong, "(2, 4, 4, 5)"), {"grad_output": np.delete(grad, 0, axis)})
    yield from shared_refusals(plain.given)


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any] | None:
    grad, x, weight = with_torch.tensors(torch, call)
    rank = x.dim() - 2
    given = with_defaults(rank, *(call.attributes.get(name, ()) for name in Setting.NAMES[:3]))
    wanted = [name in (call.outputs or GRADIENTS) for name in GRADIENTS]
    window = *given, False, (0,) * rank, call.attributes.get("groups", 1)
    backward = functools.partial(
        torch.ops.aten.convolution_backward, grad, x, weight, [weight.shape[0]], *window, wanted
    )

    def run() -> Any:
        found = [gradient for gradient, want in zip(backward(), wanted, strict=True) if want]
        return found[0] if len(found) == 1 else tuple(found)

    return run


def benchmark(layer: Layer, dtype: DType, setting: Setting = AROUND) -> Call:
    given = shaped(PLACES, layer.shape, layer.outputs, setting, dtype)
    return Call(OP, given, setting.attributes, ("grad_input", "grad_weight"))


def halving(layer: Layer, dtype: DType) -> Call:
    return benchmark(layer, dtype, HALVING)


def first_layer(layer: Layer, dtype: DType) -> Call:
    call = benchmark(layer, dtype)
    return Call(OP, call.inputs, call.attributes, ("grad_weight", "grad_bias"))


RECORD = Record(
    OP,
    inputs={name: Input(variable="T") for name in PLACES},
    outputs={
        name: like("grad_output", optional=True, limits=SUM_LIMITS, portable_limits=SUM_LIMITS) for name in GRADIENTS
    },
    attributes={
        **{name: Attribute((), ()) for name in Setting.NAMES[:3]},
        "groups": Attribute(1, ()),
    },
    joint={Setting.NAMES: [setting.values for setting in SETTINGS]},
    oracle=oracle,
    terms=largest_terms,
    slack=slack,
    make=make,
    forms=FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=lambda dtype: large(OP, PLACES, dtype),
    torch=torch_call,
    documented=(f"aclnn{OP}", "grad_output", "stride[0]", "(N, C, H, W)", "groups", "NaN"),
    benchmarks=(
        Benchmark(benchmark, LAYERS),
        Benchmark(halving, HALVED, "strides of two"),
        Benchmark(first_layer, FIRST, "first layers"),
    ),
    accuracies=(accuracy.Accuracy(lambda dtype: judged(OP, PLACES, dtype)),),
)
