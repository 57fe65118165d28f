"""DepthwiseConv2DBackpropFilter: what each element of a filter has met, times the gradients of the places."""

from __future__ import annotations

import math
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
    Form,
    Numbers,
    benchmarks,
    counts_of,
    torch_backward,
    with_defaults,
    wrong_windows,
)
from tests.ops._shared.numbers import Array, Reals, exact_sum, real
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

OP = "DepthwiseConv2DBackpropFilter"


@dataclass(frozen=True)
class Setting(Settings):
    """The attributes of a convolution."""

    NAMES = ("filter_size", "strides", "pads", "dilations")

    filter_size: Numbers
    strides: Numbers = ()
    pads: Numbers = ()
    dilations: Numbers = ()


SETTINGS = (
    Setting((3, 3), (), (1, 1, 1, 1)),
    Setting((3, 2), (2, 1), (1, 0, 0, 2), (1, 2)),
    Setting((1, 4), (1, 3)),
    Setting((3,), (2,), (1, 1), (2,)),
    Setting((2, 3, 2), (1, 2, 1), (1, 0, 1, 0, 1, 1), (1, 1, 2)),
)


def _gathered(
    gather: Callable[[Array], Any],
    input: ArrayLike,
    out_backprop: ArrayLike,
    filter_size: Numbers = (),
    strides: Numbers = (),
    pads: Numbers = (),
    dilations: Numbers = (),
    *,
    dtype: Reals = np.float64,
) -> Array:
    """What `gather` makes of the products (count,) for each element of each filter."""
    x, grad = real(input, dtype), real(out_backprop, dtype)
    rank, filters = len(filter_size), grad.shape[1]
    strides, pads, dilations = with_defaults(rank, strides, pads, dilations)
    x = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    out = np.zeros((filters, 1, *filter_size), dtype)
    for f in range(filters):
        channel = x[:, f // (filters // x.shape[1])]
        for element in np.ndindex(*filter_size):
            met = channel
            for axis, (e, count) in enumerate(zip(element, grad.shape[2:], strict=True)):
                where = [e * dilations[axis] + i * strides[axis] for i in range(count)]
                met = np.take(met, where, axis=axis + 1)
            with np.errstate(all="ignore"):
                out[(f, 0, *element)] = gather((met * grad[:, f]).reshape(-1))
    return out


def oracle(*inputs: ArrayLike, **settings: Any) -> Array:
    """One sum of products for each element of each filter."""
    return _gathered(lambda products: exact_sum(products[None], (1,))[0], *inputs, **settings)


def largest_terms(*inputs: ArrayLike, **settings: Any) -> Array:
    """The largest product of each sum."""
    return _gathered(lambda products: np.abs(products).max(initial=0.0), *inputs, **settings)


def sums_of_sizes(input: ArrayLike, out_backprop: ArrayLike, **attributes: Any) -> Array:
    """The sum of the sizes of all products of each sum, without infinities."""
    x, grad = (np.nan_to_num(np.abs(real(a)), posinf=0.0) for a in (input, out_backprop))
    return oracle(x, grad, **attributes)


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array:
    """What sums one after the other may be off by: a rounding for each term, of a size up to that of the whole sum.

    Kernels add up each row of places, up to 64, and the rows; from there on in float64, or all of it where an input has
    that. Portable bodies leave the order to MatMul.
    """
    shape = call.given["out_backprop"].shape
    in_double = FLOAT64 in (call.dtype("input"), call.dtype("out_backprop"))
    everything = shape[0] * math.prod(shape[2:])
    added = everything if portable or in_double else min(shape[-1], 64) + math.prod(shape[2:-1])
    sizes = sums_of_sizes(**call.given, **call.attributes)
    return np.asarray(sizes * (added + 2) * 2.0 ** (-53 if in_double else -24))


def operands(form: Form, setting: Setting, own: DType, grad: DType) -> dict[str, Array | None]:
    lengths = tuple(range(form.size, form.size + len(setting.filter_size)))
    counts = counts_of(lengths, *setting.values)
    return {
        "input": normal((form.samples, form.channels, *lengths), own, "x"),
        "out_backprop": normal((form.samples, form.channels * form.filters, *counts), grad, "g"),
    }


def make(choice: Choice) -> dict[str, Array | None]:
    setting = Setting(*(choice.attributes[name] for name in Setting.NAMES))
    return operands(choice.form, setting, choice.dtype("input"), choice.dtype("out_backprop"))


def calls() -> Iterator[Call]:
    plain = SETTINGS[0]
    for number, setting in enumerate(SETTINGS):
        given = operands(FORMS["few"], setting, FLOAT32, FLOAT32)
        yield Call(OP, given, setting.attributes, label=f"setting_{number}", static=number % 2 == 0)
    # Longer and higher than what the kernel looks at at a time, and a filter that sees more than that.
    for label, lengths, setting in (
        ("long", (2, 150), plain),
        ("high", (90, 40), Setting((3, 3), (2, 1), (1, 1, 1, 1))),
        ("deep", (14, 15, 16), Setting((3, 3, 3), (), (1,) * 6)),
        ("line", (5000,), Setting((5,), (2,), (2, 2))),
        ("far", (50, 60), Setting((3, 3), (), (), (24, 28))),
        ("largest", (4, 4), Setting((2, 1), (2**31 - 1, 2), (), (3, 2**31 - 1))),
    ):
        x = normal((1, 2, *lengths), FLOAT32, "x")
        grad = normal((1, 2, *counts_of(lengths, *setting.values)), FLOAT32, "g")
        yield Call(OP, {"input": x, "out_backprop": grad}, setting.attributes, label=label)
    for label, lead in (("no_samples", (0, 2)), ("no_channels", (2, 0))):
        empty = {"input": np.zeros((*lead, 4, 5), np.float32), "out_backprop": np.zeros((*lead, 4, 5), np.float32)}
        yield Call(OP, empty, plain.attributes, label=label)
    all_padding = {"input": np.zeros((2, 3, 0, 4), np.float32), "out_backprop": normal((2, 3, 2, 3), FLOAT32, "g")}
    yield Call(OP, all_padding, {"filter_size": (1, 2), "pads": (1, 0, 1, 0)}, label="nothing_but_padding")
    for value in (NAN, INF, -INF):
        for name, place in (("input", (1, 1, 0, 2)), ("out_backprop", (1, 1, 0, 2)), ("input", (0, 0, 3, 3))):
            special = with_value(operands(FORMS["few"], plain, FLOAT32, FLOAT32), name, place, value)
            yield Call(OP, special, plain.attributes, label=f"{value}_in_{name}_at_{place[2]}")


def worked(dtype: DType) -> Iterator[Worked]:
    x = np.arange(1, 7, dtype=np.float64).reshape(1, 1, 2, 3).astype(dtype)
    grad = np.array([[[[1.0, 10.0]]]]).astype(dtype)
    given: dict[str, Array | None] = {"input": x, "out_backprop": grad}
    yield Worked(Call(OP, given, {"filter_size": (2, 2)}, label="plain"), {"filter_grad": [[[[21, 32], [54, 65]]]]})
    # 0 1 2 3 0 along the padded row; two places, two apart, of elements that are two apart.
    padded = {"input": x[:, :, 0], "out_backprop": grad[:, :, 0]}
    apart = {"filter_size": (2,), "strides": (2,), "pads": (1, 1), "dilations": (2,)}
    yield Worked(Call(OP, padded, apart, label="padded"), {"filter_grad": [[[20, 2]]]})
    # Two filters of one channel, over two samples: 1*1 + 2*4 and 3*1 + 5*4.
    twice = {"input": np.array([[[1.0]], [[4.0]]], dtype), "out_backprop": np.array([[[1], [3]], [[2], [5]]], dtype)}
    yield Worked(Call(OP, twice, {"filter_size": (1,)}, label="multiplied"), {"filter_grad": [[[9]], [[23]]]})


def refusals(plain: Call) -> Iterator[Refusal]:
    """The plain call: three samples of two channels of 6 by 7, filters of 3 by 3."""
    grad = plain.given["out_backprop"]
    for label, axis, wrong in (("samples", 0, "(2, 2, 4, 5)"), ("places", 2, "(3, 2, 3, 5)")):
        less = np.delete(grad, 0, axis)
        yield Refusal(label, ("'out_backprop'", wrong, "'input'"), {"out_backprop": less})
    three = np.concatenate([grad, grad[:, :1]], axis=1)
    yield Refusal("filters", ("'out_backprop'", "(3, 3, 4, 5)", "multiple of the 2"), {"out_backprop": three})
    none = {"out_backprop": grad[:, :0]}
    yield Refusal("no_filters", ("'out_backprop'", "(3, 0, 4, 5)", "multiple of the 2"), none)
    yield Refusal("too_large", ("'input'", "(3, 2, 6, 7)", "axis 3"), attributes={"filter_size": (1, 8)})
    for name in plain.given:
        flat = {name: np.zeros((2, 3, 4), np.float32)}
        yield Refusal(f"{name}_of_rank_3", (f"'{name}'", "(2, 3, 4)", "4 dimensions"), flat, by_rank=True)
    for name, value, words in (
        ("filter_size", (), "1 to 3"),
        ("filter_size", (1, 1, 1, 1), "1 to 3"),
        ("filter_size", (3, 0), "at least 1"),
    ):
        label = f"{name}_{value}".replace(" ", "")
        yield Refusal(label, (f"'{name}'", f" {value},", words), attributes={name: value})
    yield from wrong_windows()


def large(dtype: DType) -> Iterator[Call]:
    """Several tasks, of filters and of samples."""
    for form in (Form(70, 3, 1, 24), Form(9, 35, 1, 20)):
        given = operands(form, SETTINGS[0], dtype, dtype)
        yield Call(OP, given, SETTINGS[0].attributes, label=f"channels_{form.channels}")


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any] | None:
    x, grad = with_torch.tensors(torch, call)
    weights = torch.zeros((grad.shape[1], 1, *call.attributes["filter_size"]), dtype=x.dtype)
    return torch_backward(torch, call, x, weights, grad, by=1)


def benchmark(shape: Shape, dtype: DType, strides: Numbers = (), width: int = 3) -> Call:
    setting = Setting((width, width), strides, (width // 2,) * 4)
    counts = counts_of(shape[2:], *setting.values)
    given = {"input": normal(shape, dtype, "x"), "out_backprop": normal((*shape[:2], *counts), dtype, "g")}
    return Call(OP, given, setting.attributes)


RECORD = Record(
    OP,
    inputs={"input": Input(), "out_backprop": Input()},
    outputs={"filter_grad": like("input", limits=SUM_LIMITS, portable_limits=SUM_LIMITS)},
    attributes={
        "filter_size": Attribute((3, 3), (), required=True),
        **{name: Attribute((), ()) for name in Setting.NAMES[1:]},
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
    large=large,
    torch=torch_call,
    documented=("CANN", "filter_size", "padded", "(N, C, H, W)", "(N, C*M, I, J)", "NaN"),
    benchmarks=benchmarks(benchmark),
    accuracies=(accuracy.of_calls(benchmark, (4, 32, 28, 28)),),
)
