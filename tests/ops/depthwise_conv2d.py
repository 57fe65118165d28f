"""DepthwiseConv2D: each filter times what it sees of its channel, at all places."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, with_torch
from tests.ops._shared.arrays import FLOAT32, FLOAT64, INF, NAN, Shape, normal
from tests.ops._shared.depthwise_convolution import (
    FORMS,
    Numbers,
    benchmarks,
    counts_of,
    with_defaults,
    wrong_windows,
)
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import (
    SUM_LIMITS,
    Attribute,
    Call,
    Choice,
    DType,
    Input,
    Record,
    Refusal,
    Worked,
    like,
    with_value,
)
from tests.ops._shared.settings import Settings

OP = "DepthwiseConv2D"


@dataclass(frozen=True)
class Setting(Settings):
    """The attributes of a convolution, and the size of its filters."""

    NAMES = ("strides", "pads", "dilations")

    filter_size: Numbers
    strides: Numbers = ()
    pads: Numbers = ()
    dilations: Numbers = ()


PLAIN = Setting((3, 2))
SETTINGS = (
    Setting((3, 3), (), (1, 1, 1, 1)),
    Setting((3, 2), (2, 1), (1, 0, 0, 2), (1, 2)),
    Setting((1, 4), (1, 3)),
    Setting((3,), (2,), (1, 1), (2,)),
    Setting((2, 3, 2), (1, 2, 1), (1, 0, 1, 0, 1, 1), (1, 1, 2)),
)


def _gathered(
    gather: np.ufunc,
    input: ArrayLike,
    filter: ArrayLike,
    bias: ArrayLike | None = None,
    strides: Numbers = (),
    pads: Numbers = (),
    dilations: Numbers = (),
    *,
    dtype: Reals = np.float64,
) -> Array:
    """What `gather` makes of the products for each place: of 0 and the first one, of that and the second, and so on,
    and of the bias at last."""
    x, weights = real(input, dtype), real(filter, dtype)
    filters, filter_size = weights.shape[0], weights.shape[2:]
    rank = len(filter_size)
    counts = counts_of(x.shape[2:], filter_size, strides, pads, dilations)
    strides, pads, dilations = with_defaults(rank, strides, pads, dilations)
    x = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    out = np.zeros((x.shape[0], filters, *counts), dtype)
    for f in range(filters):
        channel = x[:, f // (filters // x.shape[1])]
        for element in np.ndindex(*filter_size):
            places = (
                [e * d + i * s for i in range(count)]
                for e, d, s, count in zip(element, dilations, strides, counts, strict=True)
            )
            with np.errstate(all="ignore"):
                seen = channel[np.ix_(range(x.shape[0]), *places)]
                out[:, f] = gather(out[:, f], weights[(f, 0, *element)] * seen)
        if bias is not None:
            with np.errstate(all="ignore"):
                out[:, f] = gather(out[:, f], real(bias, dtype)[f])
    return out


def oracle(*inputs: ArrayLike, **settings: Any) -> Array:
    """The sum of the products of a filter at each place, and of its bias."""
    return _gathered(np.add, *inputs, **settings)


def _sizes(array: ArrayLike | None) -> Array | None:
    return None if array is None else np.nan_to_num(np.abs(real(array)), posinf=0.0)


def largest_terms(input: ArrayLike, filter: ArrayLike, bias: ArrayLike | None = None, **settings: Any) -> Array:
    """The largest of these terms."""
    given = (None if array is None else np.abs(real(array)) for array in (input, filter, bias))
    return _gathered(np.maximum, *given, **settings)


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array:
    """What sums one after the other may be off by: a rounding for each term, of a size up to that of the whole sum."""
    added = call.given["filter"][0].size if len(call.given["filter"]) else 0
    in_double = FLOAT64 in map(call.dtype, call.given)
    sizes = oracle(**{name: _sizes(array) for name, array in call.given.items()}, **call.attributes)
    return np.asarray(sizes * (added + 2) * 2.0 ** (-53 if in_double else -24))


def operands(
    samples: int, channels: int, filters: int, lengths: Shape, filter_size: Shape, *dtypes: DType | None
) -> dict[str, Array | None]:
    """Inputs of these dtypes; None: left out."""
    shapes = {
        "input": (samples, channels, *lengths),
        "filter": (channels * filters, 1, *filter_size),
        "bias": (channels * filters,),
    }
    return {
        name: None if dtype is None else normal(shape, dtype, name)
        for (name, shape), dtype in zip(shapes.items(), dtypes, strict=True)
    }


def make(choice: Choice) -> dict[str, Array | None]:
    values = tuple(choice.attributes[name] for name in Setting.NAMES)
    (setting,) = (setting for setting in (PLAIN, *SETTINGS) if setting.values == values)
    form, rank = choice.form, len(setting.filter_size)
    dtypes = (choice.dtypes[name] for name in ("input", "filter", "bias"))
    lengths = tuple(range(form.size, form.size + rank))
    return operands(form.samples, form.channels, form.filters, lengths, setting.filter_size, *dtypes)


def calls() -> Iterator[Call]:
    single = (FLOAT32,) * 3
    for number, setting in enumerate(SETTINGS):
        lengths = tuple(range(6, 6 + len(setting.filter_size)))
        given = operands(3, 2, 1, lengths, setting.filter_size, *single)
        yield Call(OP, given, setting.attributes, label=f"setting_{number}", static=number % 2 == 0)
    # Longer and higher than what the kernel looks at at a time, and a filter that sees more than that.
    for label, lengths, setting in (
        ("long", (2, 150), SETTINGS[0]),
        ("high", (90, 70), Setting((3, 3), (2, 1), (1, 1, 1, 1))),
        ("apart", (120, 290), Setting((2, 2), (2, 3))),
        ("deep", (14, 15, 16), Setting((3, 3, 3), (), (1,) * 6)),
        ("line", (5000,), Setting((5,), (2,), (2, 2))),
        ("far", (50, 60), Setting((3, 3), (), (), (24, 28))),
        ("largest", (4, 4), Setting((2, 1), (2**31 - 1, 2), (), (3, 2**31 - 1))),
    ):
        given = operands(1, 2, 1, lengths, setting.filter_size, *single)
        yield Call(OP, given, setting.attributes, label=label)
    plain = SETTINGS[0]
    for label, samples, channels in (("no_samples", 0, 2), ("no_channels", 2, 0)):
        empty = operands(samples, channels, 1, (4, 5), plain.filter_size, *single)
        yield Call(OP, empty, plain.attributes, label=label)
    all_padding = operands(2, 3, 1, (0, 4), (1, 2), *single)
    yield Call(OP, all_padding, {"pads": (1, 0, 1, 0)}, label="nothing_but_padding")
    without_bias = operands(3, 2, 1, (6, 7), plain.filter_size, FLOAT32, FLOAT32, None)
    yield Call(OP, without_bias, plain.attributes, label="without_bias")
    for value in (NAN, INF, -INF):
        places: dict[str, tuple[int, ...]] = {"input": (1, 1, 0, 2), "filter": (1, 0, 0, 1), "bias": (1,)}
        for name, place in places.items():
            special = with_value(operands(3, 2, 1, (6, 7), plain.filter_size, *single), name, place, value)
            yield Call(OP, special, plain.attributes, label=f"{value}_in_{name}")


def worked(dtype: DType) -> Iterator[Worked]:
    x = np.arange(1, 7, dtype=np.float64).reshape(1, 1, 2, 3).astype(dtype)
    weights = np.arange(1, 5, dtype=np.float64).reshape(1, 1, 2, 2).astype(dtype)
    yield Worked(Call(OP, {"input": x, "filter": weights}, label="plain"), {"output": [[[[37, 47]]]]})
    # 0 1 2 3 0 along the padded row; two places, two apart, of elements that are two apart: 2*2 and 1*2, and 1.
    padded = {"input": x[:, :, 0], "filter": weights[:, :, 0], "bias": np.array([1], dtype)}
    apart = {"strides": (2,), "pads": (1, 1), "dilations": (2,)}
    yield Worked(Call(OP, padded, apart, label="padded"), {"output": [[[5, 3]]]})
    # Two filters of one channel, over two samples.
    twice = {"input": np.array([[[1.0]], [[4.0]]], dtype), "filter": np.array([[[2]], [[3]]], dtype)}
    twice["bias"] = np.array([10, 20], dtype)
    yield Worked(Call(OP, twice, label="multiplied"), {"output": [[[12], [23]], [[18], [32]]]})


def refusals(plain: Call) -> Iterator[Refusal]:
    """The plain call: three samples of two channels of 6 by 7, filters of 3 by 2."""
    x, weights, bias = (plain.given[name] for name in ("input", "filter", "bias"))
    three, wide = np.concatenate([weights, weights[:1]]), np.concatenate([weights, weights], axis=1)
    yield Refusal(
        "filters", ("'filter'", "(3, 1, 3, 2)", "multiple of the 2"), {"filter": three, "bias": np.zeros(3, np.float32)}
    )
    yield Refusal("filters_of_two_channels", ("'filter'", "(2, 2, 3, 2)", "one channel"), {"filter": wide})
    yield Refusal("no_elements", ("'filter'", "(2, 1, 3, 0)", "at least 1"), {"filter": weights[..., :0]})
    yield Refusal("too_small", ("'input'", "(3, 2, 2, 7)", "axis 2"), {"input": x[:, :, :2]})
    yield Refusal("more_biases", ("'bias'", "(3,)", "(2,)"), {"bias": np.zeros(3, np.float32)})
    yield Refusal("bias_of_rank_2", ("'bias'", "(1, 2)", "(2,)"), {"bias": bias[None]}, by_rank=True)
    flat = {"filter": weights[0]}
    yield Refusal("filter_of_rank_3", ("'filter'", "(1, 3, 2)", "4 dimensions"), flat, by_rank=True)
    for shape in ((2, 3), (1,) * 6):
        text = str(shape).replace(" ", "")
        yield Refusal(
            f"input_{text}", ("'input'", str(shape), "3 to 5"), {"input": np.zeros(shape, np.float32)}, by_rank=True
        )
    yield from wrong_windows()


def large(dtype: DType) -> Iterator[Call]:
    """Several tasks, of filters and of samples."""
    for samples, channels in ((70, 3), (9, 35)):
        given = operands(samples, channels, 1, (22, 21), (3, 3), dtype, dtype, dtype)
        yield Call(OP, given, SETTINGS[0].attributes, label=f"channels_{channels}")


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any] | None:
    x, weights, bias = with_torch.tensors(torch, call)
    rank = x.ndim - 2
    strides, pads, dilations = with_defaults(rank, *(call.attributes.get(name, ()) for name in Setting.NAMES))
    dtypes = {tensor.dtype for tensor in (x, weights, bias) if tensor is not None}
    if len(dtypes) > 1 or pads[:rank] != pads[rank:]:
        return None
    window = strides, pads[:rank], dilations, False, (0,) * rank, x.shape[1]
    return functools.partial(torch.ops.aten.convolution, x, weights, bias, *window)


def benchmark(shape: Shape, dtype: DType, strides: Numbers = (), width: int = 3) -> Call:
    given = operands(*shape[:2], 1, shape[2:], (width, width), dtype, dtype, None)
    return Call(OP, given, Setting((width, width), strides, (width // 2,) * 4).attributes)


RECORD = Record(
    OP,
    inputs={"input": Input(), "filter": Input(), "bias": Input(optional=True)},
    outputs={"output": like("input", limits=SUM_LIMITS, portable_limits=SUM_LIMITS)},
    attributes={name: Attribute((), ()) for name in Setting.NAMES},
    joint={Setting.NAMES: [setting.values for setting in SETTINGS]},
    oracle=oracle,
    terms=largest_terms,
    slack=slack,
    make=make,
    forms=FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=large,
    torch=torch_call,
    documented=("CANN", "bias", "padded", "(N, C, H, W)", "(N, C*M, I, J)", "NaN"),
    benchmarks=benchmarks(benchmark),
    accuracies=(accuracy.of_calls(benchmark, (2, 8, 28, 28)),),
)
