"""Convolution: what each window meets, times the elements of a kernel, and a bias."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, convolution, with_torch
from tests.ops._shared.arrays import FLOAT32, FLOAT64
from tests.ops._shared.convolution import (
    AROUND,
    FIRST,
    FORMS,
    HALVED,
    HALVING,
    LAYERS,
    SETTINGS,
    Layer,
    Setting,
    chosen,
    counts_of,
    meetings,
    picked,
    shaped,
    with_defaults,
)
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
    like,
)

OP = "Convolution"
PLACES = {"input": (0, 1, 3, 3), "weight": (1, 0, 0, 2), "bias": (1,)}
"""Of special values."""
FACTORS = ("input", "weight")


def _gathered(
    gather: Callable[[Array], Array],
    input: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: Numbers = (),
    padding: Numbers = (),
    dilation: Numbers = (),
    groups: int = 1,
    *,
    dtype: Reals = np.float64,
) -> Array:
    """What `gather` makes, along the last axis, of the bias and the products (..., 1 + count) of each element."""
    x, own = real(input, dtype), real(weight, dtype)
    outputs, inputs = own.shape[0] // groups, own.shape[1]
    setting = Setting(own.shape[2:], stride, padding, dilation, groups)
    counts = counts_of(x.shape[2:], setting)
    column = np.zeros((own.shape[0], 1), dtype) if bias is None else real(bias, dtype)[:, None]
    out = np.empty((x.shape[0], own.shape[0], *counts), dtype)
    out[...] = gather(column).reshape(-1, *[1] * len(counts))
    seen: dict[Numbers, list[tuple[Numbers, Numbers]]] = {}
    for element in np.ndindex(*own.shape[2:]):
        for window, place in meetings(element, counts, x.shape[2:], stride, padding, dilation):
            seen.setdefault(window, []).append((place, element))
    with np.errstate(all="ignore"):
        for window, pairs in seen.items():
            of_x = picked(x, [q for q, _ in pairs]).reshape(x.shape[0], groups, 1, inputs * len(pairs))
            of_own = picked(own, [e for _, e in pairs]).reshape(groups, outputs, inputs * len(pairs))
            products = (of_x * of_own).reshape(*out.shape[:2], inputs * len(pairs))
            out[(..., *window)] = gather(np.concatenate([np.broadcast_to(column, (*out.shape[:2], 1)), products], -1))
    return out


def oracle(*inputs: ArrayLike, **settings: Any) -> Array:
    """One sum of products for each element."""
    return _gathered(exact_sums, *inputs, **settings)


def largest_terms(*inputs: ArrayLike, **settings: Any) -> Array:
    """The largest product of each sum."""
    return _gathered(largest, *inputs, **settings)


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array:
    """What sums one after the other may be off by: a rounding for each term, of a size up to that of the whole sum."""
    sizes = {name: np.nan_to_num(np.abs(real(a)), posinf=0.0) for name, a in call.given.items()}
    sums = _gathered(functools.partial(np.sum, axis=-1), *sizes.values(), **call.attributes)
    added = math.prod(call.given["weight"].shape[1:])
    return np.asarray(sums * (added + 2) * 2.0 ** (-53 if call.dtype("input") == FLOAT64 else -24))


def make(choice: Choice) -> dict[str, Array | None]:
    given = chosen(PLACES, choice, choice.dtype("input"))
    return {name: given[name] if dtype is not None else None for name, dtype in choice.dtypes.items()}


def worked(dtype: DType) -> Iterator[Worked]:
    x = np.arange(1, 7, dtype=np.float64).reshape(1, 1, 2, 3).astype(dtype)
    weight = np.arange(1, 5, dtype=np.float64).reshape(1, 1, 2, 2).astype(dtype)
    yield Worked(Call(OP, {"input": x, "weight": weight}, label="plain"), {"output": [[[[37, 47]]]]})
    biased: dict[str, Array | None] = {"input": x, "weight": weight, "bias": np.array([-7.0], dtype)}
    yield Worked(Call(OP, biased, label="biased"), {"output": [[[[30, 40]]]]})
    # 0 1 2 3 0 along the padded row; two windows, two apart, of elements that are two apart.
    row: dict[str, Array | None] = {"input": x[:, :, 0], "weight": np.array([[[5.0, 7.0]]], dtype)}
    apart = {"stride": (2,), "padding": (1,), "dilation": (2,)}
    yield Worked(Call(OP, row, apart, label="padded"), {"output": [[[14, 10]]]})
    pairs: dict[str, Array | None] = {
        "input": np.array([[[5.0], [7.0]]], dtype),
        "weight": np.array([[[1.0]], [[4.0]]], dtype),
    }
    pairs["bias"] = np.array([1.0, 2.0], dtype)
    yield Worked(Call(OP, pairs, {"groups": 2}, label="groups"), {"output": [[[6], [30]]]})


def refusals(plain: Call) -> Iterator[Refusal]:
    """The plain call: two samples of two channels of 6 by 7, four kernels of 3 by 3."""
    bias = plain.given["bias"]
    yield Refusal("more_biases", ("'bias'", "(5,)", "(4,)"), {"bias": np.append(bias, bias[:1])})
    yield Refusal("one_bias", ("'bias'", "(1,)", "(4,)"), {"bias": bias[:1]})
    yield Refusal("bias_of_rank_2", ("'bias'", "(1, 4)", "(4,)"), {"bias": bias[None]}, by_rank=True)
    yield from convolution.refusals(plain.given)


def calls() -> Iterator[Call]:
    yield from convolution.calls_of(OP, PLACES)
    for label, shape, outputs, setting in (*convolution.SHAPES, *convolution.LARGE):
        given = shaped(FACTORS, shape, outputs, setting, FLOAT32)
        yield Call(OP, given, setting.attributes, label=f"{label}_without_bias")


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any]:
    x, weight, bias = with_torch.tensors(torch, call)
    rank = x.dim() - 2
    given = with_defaults(rank, *(call.attributes.get(name, ()) for name in Setting.NAMES[:3]))
    window = *given, False, (0,) * rank, call.attributes.get("groups", 1)
    return functools.partial(torch.ops.aten.convolution, x, weight, bias, *window)


def benchmark(layer: Layer, dtype: DType, setting: Setting = AROUND) -> Call:
    return Call(OP, shaped(FACTORS, layer.shape, layer.outputs, setting, dtype), setting.attributes)


def halving(layer: Layer, dtype: DType) -> Call:
    return benchmark(layer, dtype, HALVING)


RECORD = Record(
    OP,
    inputs={name: Input(variable="T", optional=name not in FACTORS) for name in PLACES},
    outputs={"output": like("input", limits=SUM_LIMITS, portable_limits=SUM_LIMITS)},
    attributes={**{name: Attribute((), ()) for name in Setting.NAMES[:3]}, "groups": Attribute(1, ())},
    joint={Setting.NAMES: [setting.values for setting in SETTINGS]},
    oracle=oracle,
    terms=largest_terms,
    slack=slack,
    make=make,
    forms=FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=lambda dtype: convolution.large(OP, PLACES, dtype),
    torch=torch_call,
    documented=(f"aclnn{OP}", "stride[0]", "(N, C, H, W)", "groups", "bias", "NaN"),
    benchmarks=(
        Benchmark(benchmark, LAYERS),
        Benchmark(halving, HALVED, "strides of two"),
        Benchmark(benchmark, FIRST, "first layers"),
    ),
    accuracies=(accuracy.Accuracy(lambda dtype: convolution.judged(OP, FACTORS, dtype)),),
)
