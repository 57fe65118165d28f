"""DepthwiseConv2DBackpropInput: the gradients of the places that an element was seen from, times what it met there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, with_torch
from tests.ops._shared.arrays import FLOAT32, FLOAT64, INF, NAN, Shape, normal
from tests.ops._shared.depthwise_convolution import (
    Numbers,
    benchmarks,
    counts_of,
    torch_backward,
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

OP = "DepthwiseConv2DBackpropInput"


@dataclass(frozen=True)
class Setting(Settings):
    """The attributes of a convolution, and the size of its filters."""

    NAMES = ("input_size", "strides", "pads", "dilations")

    filter_size: Numbers
    input_size: Numbers
    strides: Numbers = ()
    pads: Numbers = ()
    dilations: Numbers = ()

    @property
    def counts(self) -> Shape:
        return counts_of(self.input_size[1:], self.filter_size, *self.values[1:])


PLAIN = Setting((3, 2), (2, 6, 7))
SETTINGS = (
    Setting((3, 3), (3, 6, 5), (), (1, 1, 1, 1)),
    Setting((3, 2), (2, 7, 9), (2, 1), (1, 0, 0, 2), (1, 2)),
    Setting((1, 4), (19, 4, 9), (1, 3)),
    Setting((3,), (16, 8), (2,), (1, 1), (2,)),
    Setting((2, 3, 2), (1, 4, 5, 6), (1, 2, 1), (1, 0, 1, 0, 1, 1), (1, 1, 2)),
    Setting((2, 1), (2, 8, 7), (3, 2)),  # most elements are between the places
)


def _gathered(
    gather: np.ufunc,
    filter: ArrayLike,
    out_backprop: ArrayLike,
    input_size: Numbers = (),
    strides: Numbers = (),
    pads: Numbers = (),
    dilations: Numbers = (),
    *,
    dtype: Reals = np.float64,
) -> Array:
    """What `gather` makes of the products for each element: of 0 and the first one, of that and the second, and so on.

    One element of the filters after the other, and one line of the input after the other.
    """
    weights, grad = real(filter, dtype), real(out_backprop, dtype)
    rank, lengths = len(input_size) - 1, input_size[1:]
    samples, filters = grad.shape[:2]
    strides, pads, dilations = with_defaults(rank, strides, pads, dilations)
    margin = max(lengths) + max(pads) + max(d * (k - 1) for d, k in zip(dilations, weights.shape[2:], strict=True))
    padded = np.pad(grad, [(0, 0), (0, 0), *[(margin, margin)] * rank])
    out = np.zeros((samples, filters, *lengths), dtype)
    for element in np.ndindex(*weights.shape[2:]):
        # Of each axis the places of the input that have met the element, and from where.
        met: list[tuple[list[int], list[int]]] = []
        for h, s, p, d, e in zip(lengths, strides, pads[:rank], dilations, element, strict=True):
            pairs = [(i, divmod(i + p - d * e, s)) for i in range(h)]
            whole = [(i, n + margin) for i, (n, rest) in pairs if rest == 0]
            met.append(([i for i, _ in whole], [n for _, n in whole]))
        to = np.ix_(range(samples), range(filters), *(own for own, _ in met))
        source = np.ix_(range(samples), range(filters), *(places for _, places in met))
        factors = weights[(slice(None), 0, *element)].reshape(filters, *[1] * rank)
        with np.errstate(all="ignore"):
            out[to] = gather(out[to], factors * padded[source])
    with np.errstate(all="ignore"):
        each = out.reshape(samples, input_size[0], filters // input_size[0], *lengths)
        return np.asarray(gather.reduce(each, axis=2, initial=0.0))


def oracle(*inputs: ArrayLike, **settings: Any) -> Array:
    """The sum of the products that each element has a part in."""
    return _gathered(np.add, *inputs, **settings)


def largest_terms(filter: ArrayLike, out_backprop: ArrayLike, **settings: Any) -> Array:
    """The largest of these products."""
    return _gathered(np.maximum, np.abs(filter), np.abs(out_backprop), **settings)


def sums_of_sizes(filter: ArrayLike, out_backprop: ArrayLike, **attributes: Any) -> Array:
    """The sum of the sizes of these products, without infinities."""
    weights, grad = (np.nan_to_num(np.abs(real(a)), posinf=0.0) for a in (filter, out_backprop))
    return oracle(weights, grad, **attributes)


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array:
    """What sums one after the other may be off by: a rounding for each term, of a size up to that of the whole sum."""
    weights, in_double = call.given["filter"], FLOAT64 in (call.dtype("filter"), call.dtype("out_backprop"))
    added = weights.size // call.attributes["input_size"][0]
    sizes = sums_of_sizes(**call.given, **call.attributes)
    return np.asarray(sizes * (added + 1) * 2.0 ** (-53 if in_double else -24))


FORMS = {"plain": (3, 1), "multiplied": (2, 2), "many_samples": (18, 1), "three_each": (1, 3)}
"""Samples, and filters of each channel."""


def operands(form: tuple[int, int], setting: Setting, own: DType, grad: DType) -> dict[str, Array | None]:
    samples, each = form
    filters = each * setting.input_size[0]
    return {
        "filter": normal((filters, 1, *setting.filter_size), own, "w"),
        "out_backprop": normal((samples, filters, *setting.counts), grad, "g"),
    }


def make(choice: Choice) -> dict[str, Array | None]:
    values = tuple(choice.attributes[name] for name in Setting.NAMES)
    (setting,) = (setting for setting in (PLAIN, *SETTINGS) if setting.values == values)
    return operands(choice.form, setting, choice.dtype("filter"), choice.dtype("out_backprop"))


def calls() -> Iterator[Call]:
    for number, setting in enumerate(SETTINGS):
        given = operands(FORMS["multiplied"], setting, FLOAT32, FLOAT32)
        yield Call(OP, given, setting.attributes, label=f"setting_{number}", static=number % 2 == 0)
    # Longer and higher than what the kernel looks at at a time, and a filter that sees more than that.
    for label, setting in (
        ("long", Setting((3, 3), (2, 2, 150), (), (1, 1, 1, 1))),
        ("high", Setting((3, 3), (2, 90, 70), (2, 1), (1, 1, 1, 1))),
        ("apart", Setting((2, 2), (2, 120, 290), (2, 3))),
        ("deep", Setting((3, 3, 3), (2, 14, 15, 16), (), (1,) * 6)),
        ("line", Setting((5,), (2, 5000), (2,), (2, 2))),
        ("far", Setting((3, 3), (2, 50, 60), (), (), (24, 28))),
        ("all_padding", Setting((1, 2), (2, 1, 3), (4, 1), (5, 0, 9, 0))),
        ("largest", Setting((2, 1), (2, 4, 4), (2**31 - 1, 2), (), (3, 2**31 - 1))),
    ):
        yield Call(OP, operands((1, 1), setting, FLOAT32, FLOAT32), setting.attributes, label=label)
    none = operands((0, 1), SETTINGS[0], FLOAT32, FLOAT32)
    yield Call(OP, none, SETTINGS[0].attributes, label="no_samples")
    for value in (NAN, INF, -INF):
        for name, place in (("filter", (2, 0, 0, 1)), ("out_backprop", (1, 1, 0, 2))):
            special = with_value(operands(FORMS["plain"], SETTINGS[0], FLOAT32, FLOAT32), name, place, value)
            yield Call(OP, special, SETTINGS[0].attributes, label=f"{value}_in_{name}")


def worked(dtype: DType) -> Iterator[Worked]:
    weights = np.arange(1, 5, dtype=np.float64).reshape(1, 1, 2, 2).astype(dtype)
    grad = np.array([[[[1.0, 10.0]]]]).astype(dtype)
    given: dict[str, Array | None] = {"filter": weights, "out_backprop": grad}
    plain = Call(OP, given, {"input_size": (1, 2, 3)}, label="plain")
    yield Worked(plain, {"input_grad": [[[[1, 12, 20], [3, 34, 40]]]]})
    # Places -1 and 1 of a filter whose elements are two apart: 2 * 1 and 1 * 10 at 1, 2 * 10 at 3.
    apart = {"input_size": (1, 4), "strides": (2,), "pads": (1, 0), "dilations": (2,)}
    padded = {"filter": weights[:, :, 0], "out_backprop": grad[:, :, 0]}
    yield Worked(Call(OP, padded, apart, label="padded"), {"input_grad": [[[0, 12, 0, 20]]]})
    # Two filters of one channel: 2*1 + 3*4 and 2*5 + 3*6.
    twice = {"filter": np.array([[[2]], [[3]]], dtype), "out_backprop": np.array([[[1, 5], [4, 6]]], dtype)}
    yield Worked(Call(OP, twice, {"input_size": (1, 2)}, label="multiplied"), {"input_grad": [[[14, 28]]]})


def refusals(plain: Call) -> Iterator[Refusal]:
    """The plain call: three samples of two channels of 6 by 7, filters of 3 by 2."""
    grad, weights = plain.given["out_backprop"], plain.given["filter"]
    yield Refusal("places", ("'out_backprop'", "(3, 2, 3, 6)", "'filter'"), {"out_backprop": grad[:, :, 1:]})
    three = np.concatenate([grad, grad[:, :1]], axis=1)
    yield Refusal("filters", ("'out_backprop'", "(3, 3, 4, 6)", "multiple of the 2"), {"out_backprop": three})
    twice = np.concatenate([weights, weights])
    yield Refusal("other_filters", ("'out_backprop'", "(3, 2, 4, 6)", "'filter'"), {"filter": twice})
    wide = np.concatenate([weights, weights], axis=1)
    yield Refusal("filters_of_two_channels", ("'filter'", "(2, 2, 3, 2)", "one channel"), {"filter": wide})
    yield Refusal("no_elements", ("'filter'", "(2, 1, 3, 0)", "at least 1"), {"filter": weights[..., :0]})
    yield Refusal("too_large", ("'filter'", "(2, 1, 3, 2)", "(2, 2, 7)"), attributes={"input_size": (2, 2, 7)})
    for name in plain.given:
        flat = {name: np.zeros((2, 1, 4), np.float32)}
        yield Refusal(f"{name}_of_rank_3", (f"'{name}'", "(2, 1, 4)", "4 dimensions"), flat, by_rank=True)
    for value, words in (((2,), "2 to 4"), ((2, 1, 1, 1, 1), "2 to 4"), ((2, 6, 0), "at least 1")):
        label = f"input_size_{value}".replace(" ", "")
        yield Refusal(label, ("'input_size'", f" {value},", words), attributes={"input_size": value})
    yield from wrong_windows()


def large(dtype: DType) -> Iterator[Call]:
    """Several tasks, of channels and of samples."""
    for samples, channels in ((70, 3), (9, 35)):
        setting = Setting((3, 3), (channels, 22, 21), (), (1, 1, 1, 1))
        yield Call(OP, operands((samples, 1), setting, dtype, dtype), setting.attributes, label=f"channels_{channels}")


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any] | None:
    weights, grad = with_torch.tensors(torch, call)
    x = torch.zeros((grad.shape[0], *call.attributes["input_size"]), dtype=grad.dtype)
    return torch_backward(torch, call, x, weights, grad, by=0)


def benchmark(shape: Shape, dtype: DType, strides: Numbers = (), width: int = 3) -> Call:
    setting = Setting((width, width), shape[1:], strides, (width // 2,) * 4)
    return Call(OP, operands((shape[0], 1), setting, dtype, dtype), setting.attributes)


RECORD = Record(
    OP,
    inputs={"filter": Input(), "out_backprop": Input()},
    outputs={"input_grad": like("out_backprop", limits=SUM_LIMITS, portable_limits=SUM_LIMITS)},
    attributes={
        "input_size": Attribute(PLAIN.input_size, (), required=True),
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
    documented=("CANN", "input_size", "padded", "(N, C, H, W)", "(N, C*M, I, J)", "NaN"),
    benchmarks=benchmarks(benchmark),
    accuracies=(accuracy.of_calls(benchmark, (2, 8, 28, 28)),),
)
