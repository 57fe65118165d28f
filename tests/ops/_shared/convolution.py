"""What a convolution and its gradients share: settings, numbers of windows, what windows meet, layers, and refusals."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tests.ops._shared.arrays import FLOAT32, INF, NAN, Shape, normal
from tests.ops._shared.depthwise_convolution import Numbers, places
from tests.ops._shared.numbers import Array
from tests.ops._shared.record import Call, Choice, DType, Refusal, with_value
from tests.ops._shared.settings import Settings

SPECIAL = (NAN, INF, -INF)


@dataclass(frozen=True)
class Setting(Settings):
    """The attributes of a convolution, and the size of its kernels."""

    NAMES = ("stride", "padding", "dilation", "groups")

    kernel: Numbers
    stride: Numbers = ()
    padding: Numbers = ()
    dilation: Numbers = ()
    groups: int = 1


PLAIN = Setting((3, 3))
AROUND = Setting((3, 3), (), (1, 1))
HALVING = Setting((3, 3), (2, 2), (1, 1))
SETTINGS = (
    PLAIN,
    Setting((3, 2), (2, 1), (1, 2), (1, 2)),
    Setting((1, 4), (1, 3), (0, 2), (), 2),
    Setting((3,), (2,), (1,), (2,)),
    Setting((2, 3, 2), (1, 2, 1), (1, 0, 1), (1, 1, 2), 2),
)


def with_defaults(rank: int, stride: Numbers, padding: Numbers, dilation: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Attributes for so many spatial axes; those that are empty are at their defaults."""
    return stride or (1,) * rank, padding or (0,) * rank, dilation or (1,) * rank


def counts_of(lengths: Shape, setting: Setting) -> Shape:
    """The number of windows along each axis."""
    given = with_defaults(len(lengths), setting.stride, setting.padding, setting.dilation)
    axes = zip(lengths, setting.kernel, *given, strict=True)
    return tuple(places(n, k, s, p, p, d) for n, k, s, p, d in axes)


def meetings(
    element: Numbers, counts: Shape, lengths: Shape, stride: Numbers, padding: Numbers, dilation: Numbers
) -> list[tuple[Numbers, Numbers]]:
    """The windows in which an element of the kernel meets an element of the input, and which one."""
    given = with_defaults(len(element), stride, padding, dilation)
    along = [
        [(i, i * s + e * d - p) for i in range(count) if 0 <= i * s + e * d - p < length]
        for e, count, length, s, p, d in zip(element, counts, lengths, *given, strict=True)
    ]
    return [(tuple(i for i, _ in met), tuple(at for _, at in met)) for met in itertools.product(*along)]


def picked(array: Array, at: Sequence[Numbers]) -> Array:
    """The elements of an array (N, C, *spatial) at some places, (N, C, len(at))."""
    return array[(slice(None), slice(None), *np.reshape(at, (len(at), array.ndim - 2)).astype(np.intp).T)]


@dataclass(frozen=True)
class Form:
    """Samples, channels of input and output in each of two groups, and the first spatial size."""

    samples: int
    inputs: int
    outputs: int
    size: int


FEW = Form(2, 1, 2, 6)
FORMS = {
    "few": FEW,
    "one_sample": Form(1, 2, 1, 5),
    "more_than_lanes": Form(1, 9, 17, 3),
    "many_samples": Form(11, 1, 1, 4),
}

SHAPES: tuple[tuple[str, Shape, int, Setting], ...] = (
    ("long", (1, 2, 300), 3, Setting((5,), (2,), (2,))),
    ("many_windows", (1, 1, 2, 2100), 1, Setting((1, 3), (), (0, 1))),
    ("high", (1, 1, 70, 36), 1, Setting((3, 3), (2, 1), (1, 1))),
    ("far_apart", (1, 1, 9, 150), 2, Setting((1, 2), (5, 70), (0, 1))),
    ("farther_than_long", (2, 2, 4, 4), 2, Setting((2, 1), (2**31 - 1, 2), (), (3, 2**31 - 1))),
    ("pointwise", (2, 5, 3, 3), 3, Setting((1, 1))),
    ("pointwise_in_parts", (2, 10, 3, 470), 18, Setting((1, 1), (), (), (), 2)),
    ("wide_volumes", (2, 2, 3, 5, 23), 18, Setting((2, 3, 3), (1, 2, 1), (1, 1, 1), (), 2)),
    ("wide_groups", (2, 6, 5, 70), 12, Setting((3, 2), (2, 3), (1, 1), (), 3)),
    ("wide_but_seldom_met", (1, 1, 7, 60), 2, Setting((1, 5), (3, 3), (0, 2))),
    ("phases_in_groups", (2, 4, 7, 26), 6, Setting((3, 5), (2, 3), (1, 2), (), 2)),
    ("more_phases_than_rows", (1, 3, 9, 40), 2, Setting((4, 4), (4, 4))),
    ("deep_and_wide", (2, 1, 3, 6, 23), 3, Setting((2, 2, 3), (1, 2, 1), (1, 0, 1))),
    ("apart_and_wide", (9, 1, 11, 70), 3, Setting((3, 2), (3, 1), (2, 3), (2, 3))),
    ("seldom_met", (1, 2, 2, 2), 2, Setting((3, 3), (3, 3), (2, 2), (2, 2))),
    ("no_samples", (0, 2, 4, 5), 2, PLAIN),
    ("no_channels", (2, 0, 4, 5), 2, PLAIN),
    ("no_outputs", (2, 2, 4, 5), 0, PLAIN),
    ("nothing_but_padding", (2, 2, 0, 4), 2, Setting((1, 2), (), (1, 0))),
)
"""Shapes of inputs, and numbers of outputs, by label."""
LARGE: tuple[tuple[str, Shape, int, Setting], ...] = (
    ("several_tasks_of_products", (3, 19, 14, 13), 21, Setting((3, 3), (2, 1), (1, 1))),
    ("several_tasks_of_planes", (5, 1, 43, 41), 3, Setting((3, 3), (2, 1), (1, 1))),
    ("first_layer", (3, 3, 15, 17), 40, Setting((5, 7), (2, 2), (2, 3))),
    ("last_layer", (1, 40, 9, 6), 3, Setting((3, 3), (), (1, 1))),
    ("many_channels", (1, 136, 3), 130, Setting((2,), (), (1,))),
    ("eight_channels_of_groups", (2, 16, 9, 8), 6, Setting((3, 3), (1, 2), (1, 2), (), 2)),
)


def shaped(
    names: Container[str], shape: Shape, outputs: int, setting: Setting, dtype: DType
) -> dict[str, Array | None]:
    """The inputs of these names for an input of a shape, and so many channels of the output."""
    shapes = {
        "grad_output": (shape[0], outputs, *counts_of(shape[2:], setting)),
        "input": shape,
        "weight": (outputs, shape[1] // setting.groups, *setting.kernel),
        "bias": (outputs,),
    }
    return {name: normal(own, dtype, name) for name, own in shapes.items() if name in names}


def operands(names: Container[str], form: Form, setting: Setting, dtype: DType) -> dict[str, Array | None]:
    """Channels are those of two groups, whether the setting has one or two."""
    lengths = tuple(range(form.size, form.size + len(setting.kernel)))
    return shaped(names, (form.samples, 2 * form.inputs, *lengths), 2 * form.outputs, setting, dtype)


def chosen(names: Container[str], choice: Choice, dtype: DType) -> dict[str, Array | None]:
    attributes = {name: choice.attributes[name] for name in Setting.NAMES}
    found = [setting for setting in SETTINGS if setting.attributes == attributes]
    return operands(names, choice.form, found[0] if found else Setting((3, 3), **attributes), dtype)


@dataclass(frozen=True)
class Layer:
    """A layer of a network: samples, channels before and after, height and width."""

    samples: int
    inputs: int
    outputs: int
    size: int

    @property
    def shape(self) -> Shape:
        return self.samples, self.inputs, self.size, self.size


LAYERS = {
    "16x64x16x16": Layer(16, 64, 64, 16),
    "4x64x56x56": Layer(4, 64, 64, 56),
    "16x512x2x2": Layer(16, 512, 512, 2),
}
"""Of ResNet-18: the first layers on images of 64 by 64 and 224 by 224, the last ones on images of 64 by 64."""
FIRST = {"64x1x28x28": Layer(64, 1, 16, 28), "32x3x32x32": Layer(32, 3, 16, 32)}
"""First layers, of few input channels: the gradient with respect to the input is not wanted."""
HALVED = {name: LAYERS[name] for name in ("16x64x16x16", "4x64x56x56")}


def calls_of(op: str, places: Mapping[str, Shape]) -> Iterator[Call]:
    """Calls with each setting and shape, and with special values at a place of each input.

    Args:
        op: the op.
        places: by the names of its inputs.
    """
    for number, setting in enumerate(SETTINGS):
        given = operands(places, FEW, setting, FLOAT32)
        yield Call(op, given, setting.attributes, label=f"setting_{number}", static=number % 2 == 0)
    for label, shape, outputs, setting in SHAPES:
        yield Call(op, shaped(places, shape, outputs, setting, FLOAT32), setting.attributes, label=label)
    around = Setting((3, 3), (2, 1), (1, 1))
    few = operands(places, FEW, around, FLOAT32)
    wide = shaped(places, (2, 2, 6, 19), 4, around, FLOAT32)
    long = shaped(places, (2, 2, 9, 40), 3, around, FLOAT32)
    for value, (name, place) in itertools.product(SPECIAL, places.items()):
        for given, kind in ((few, ""), (wide, "wide_"), (long, "long_")):
            yield Call(op, with_value(given, name, place, value), around.attributes, label=f"{kind}{value}_in_{name}")


def large(op: str, names: Container[str], dtype: DType) -> Iterator[Call]:
    for label, shape, outputs, setting in LARGE:
        yield Call(op, shaped(names, shape, outputs, setting, dtype), setting.attributes, label=label)


def judged(op: str, names: Container[str], dtype: DType) -> Iterator[Call]:
    yield Call(op, shaped(names, (2, 16, 8, 8), 16, AROUND, dtype), AROUND.attributes)


def refusals(given: Mapping[str, Array]) -> Iterator[Refusal]:
    """Wrong shapes and attributes, of inputs of two samples of two channels of 6 by 7, and four kernels of 3 by 3."""
    x, weight = given["input"], given["weight"]
    yield Refusal("channels", ("'input'", "(2, 1, 6, 7)", "2 channels"), {"input": x[:, :1]})
    yield Refusal("uneven_groups", ("'weight'", "(4, 2, 3, 3)", "multiple of the 3"), attributes={"groups": 3})
    yield Refusal("groups", ("'input'", "(2, 2, 6, 7)", "4 channels"), attributes={"groups": 2})
    yield Refusal("empty_kernel", ("'weight'", "(4, 2, 0, 3)", "at least 1"), {"weight": weight[:, :, :0]})
    yield Refusal("too_large", ("'input'", "(2, 2, 6, 7)", "axis 3"), attributes={"dilation": (1, 4)})
    for name in [name for name in given if name != "bias"]:
        flat = {name: weight[:, :, 0]}
        yield Refusal(f"{name}_of_rank_3", ("'", "dimensions"), flat, by_rank=True)
    for name, value, words in (
        ("stride", (1,), "2 numbers"),
        ("stride", (0, 1), "at least 1"),
        ("padding", (1, 1, 1, 1), "2 numbers"),
        ("padding", (0, -1), "at least 0"),
        ("padding", (2**30, 0), "at most 268435456 elements"),
        ("dilation", (1, -1), "at least 1"),
        ("dilation", (2**63 - 1, 1), "at most 2147483647"),
    ):
        label = f"{name}_{value}".replace(" ", "")
        yield Refusal(label, (f"'{name}'", f" {value},", words), attributes={name: value})
    yield Refusal("no_groups", ("'groups'", " 0,", "at least 1"), attributes={"groups": 0})
