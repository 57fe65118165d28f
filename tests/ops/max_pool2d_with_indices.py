"""MaxPool2dWithIndices: the maxima of windows, and their places."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, max_pool, with_torch
from tests.ops._shared.arrays import FLOAT32, FLOATS, INF, NAN, Shape, normal
from tests.ops._shared.max_pool import MODES, SETTINGS, Numbers, Setting
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import (
    Attribute,
    Benchmark,
    Call,
    Choice,
    DType,
    Input,
    Output,
    Record,
    Refusal,
    Worked,
    like,
    limits,
)

OP = "MaxPool2dWithIndices"
PLACES = np.dtype(np.int64)


def oracle(
    self: ArrayLike,
    kernel_size: Numbers,
    stride: Numbers = (),
    padding: Numbers = (),
    dilation: Numbers = (),
    ceil_mode: int = 0,
    *,
    dtype: Reals = np.float64,
) -> tuple[Array, Array]:
    """The greatest element of each window, and its place in the plane."""
    out, indices = max_pool.pooled(real(self, dtype), Setting(kernel_size, stride, padding, dilation, ceil_mode))
    return out, indices.astype(dtype)


FORMS: dict[str, tuple[Shape, int]] = {
    "batch": ((2, 3), 5),
    "image": ((2,), 6),
    "one": ((1, 1), 7),
    "wide": ((1, 2), 19),
}


def make(choice: Choice) -> dict[str, Array | None]:
    lead, size = choice.form
    return {"self": max_pool.input_of(lead, size, len(choice.attributes["kernel_size"]), choice.dtype("self"))}


def calls() -> Iterator[Call]:
    for number, setting in enumerate(SETTINGS):
        x = max_pool.input_of((2, 2), 9, len(setting.kernel_size), FLOAT32)
        yield Call(OP, {"self": x}, setting.attributes, label=f"setting_{number}", static=True)
        for shape in ((0, 3), (2, 0)):
            empty = np.zeros((*shape, *x.shape[2:]), np.float32)
            yield Call(OP, {"self": empty}, setting.attributes, label=f"no_planes_{shape[0]}_{number}")
        for label, values in (("nan", [NAN]), ("least", [-INF]), ("all", [NAN, INF, -INF, 0.0, -0.0])):
            special = max_pool.input_of((2, 2), 9, len(setting.kernel_size), FLOAT32, label)
            special[:, 1] = -INF
            special[0].flat[:: 3 + len(values)] = np.resize(values, special[0].flat[:: 3 + len(values)].size)
            yield Call(OP, {"self": special}, setting.attributes, label=f"{label}_{number}")
    for kernel, stride, padding, dilation, ceil_mode in (
        ((5, 5), (1, 1), (2, 2), (), 0),  # every window reaches beyond
        ((2, 2), (3, 3), (), (), 1),  # elements between windows, and a last window that would begin beyond the end
        ((1, 1), (4, 3), (), (), 1),
        ((3, 3), (1, 2), (3, 2), (3, 2), 0),
        ((4, 4), (2, 2), (2, 2), (), 1),
        ((2, 3), (5, 7), (1, 1), (), 1),
        ((2, 1), (2**31 - 1, 2), (), (3, 2**31 - 1), 1),
        ((10, 12), (4, 5), (), (), 1),  # larger than the input
        ((4, 7), (3, 4), (1, 3), (3, 2), 1),
    ):
        setting = Setting(kernel, stride, padding, dilation, ceil_mode)
        for size in (7, 8, 9, 10):
            x = max_pool.input_of((1, 2), size, 2, FLOAT32)
            yield Call(OP, {"self": x}, setting.attributes, label=f"{setting.values}-{size}".replace(" ", ""))
    for dtype in FLOATS:
        x = normal((1, 2, 33, 150), dtype, "wide")
        yield Call(OP, {"self": x}, SETTINGS[1].attributes, label=f"wide_{dtype.name}")


def worked(dtype: DType) -> Iterator[Worked]:
    def call(label: str, x: list[list[float]], **attributes: Any) -> Call:
        return Call(OP, {"self": np.array([[x]]).astype(dtype)}, attributes, label=label)

    x = [[1.0, 3.0, 2.0, 0.0], [3.0, 0.0, -1.0, 4.0], [NAN, 5.0, 7.0, 7.0], [6.0, NAN, 7.0, 1.0]]
    expected = {"out": [[[[3, 4], [NAN, 7]]]], "indices": [[[[1, 7], [13, 10]]]]}
    yield Worked(call("by_hand", x, kernel_size=(2, 2)), expected)
    row = [[2.0, 9.0, 1.0, 9.0, -3.0]]
    expected = {"out": [[[[9, 9, 9]]]], "indices": [[[[1, 1, 3]]]]}
    yield Worked(call("padded", row, kernel_size=(1, 3), stride=(1, 2), padding=(0, 1)), expected)
    yield Worked(call("ceil", row, kernel_size=(1, 3), ceil_mode=1), {"out": [[[[9, 9]]]], "indices": [[[[1, 3]]]]})
    short = {"out": [[[[9]]]], "indices": [[[[1]]]]}
    yield Worked(call("partial", [row[0][:2]], kernel_size=(1, 3), ceil_mode=1), short)
    yield Worked(call("dilated", row, kernel_size=(1, 2), stride=(1, 1), dilation=(1, 4)), {"out": [[[[2]]]]})
    lowest = {"out": [[[[-INF, -INF]]]], "indices": [[[[0, 2]]]]}
    yield Worked(call("least", [[-INF] * 4], kernel_size=(1, 2)), lowest)


def refusals(plain: Call) -> Iterator[Refusal]:
    for shape in ((2, 3), (2, 3, 4, 5, 6)):
        words = ("'self'", str(shape), "3 or 4 dimensions")
        yield Refusal(f"rank_{len(shape)}", words, {"self": np.zeros(shape, np.float32)}, by_rank=True)
    for shape in ((2, 3, 1, 6), (2, 3, 5, 1), (2, 3, 0, 5)):
        axis = 3 if shape[3] == 1 else 2
        words = ("'self'", str(shape), f"axis {axis}")
        yield Refusal("shape_" + "x".join(map(str, shape)), words, {"self": np.zeros(shape, np.float32)})
    hole = {"kernel_size": (2, 2), "dilation": (1, 3), "padding": (0, 1)}
    words = ("'self'", "(2, 3, 5, 2)", "axis 3", "every window")
    yield Refusal("window_without_elements", words, {"self": np.zeros((2, 3, 5, 2), np.float32)}, hole)
    beyond = {"kernel_size": (2, 4), "stride": (2, 1), "ceil_mode": 1}
    words = ("'self'", "(2, 3, 1, 3)", "axis 3", "every window")
    yield Refusal("window_beyond_its_stride", words, {"self": np.zeros((2, 3, 1, 3), np.float32)}, beyond)
    yield Refusal("no_kernel_sizes", ("'kernel_size'", "()", "1 to 3"), attributes={"kernel_size": ()})
    yield from max_pool.wrong_attributes({})


def large(dtype: DType) -> Iterator[Call]:
    yield Call(OP, {"self": normal((3, 41, 21, 22), dtype, "x")}, SETTINGS[1].attributes, label="many_planes")
    yield Call(OP, {"self": normal((2, 120, 121), dtype, "x")}, SETTINGS[0].attributes, label="large_planes")


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any] | None:
    setting = {**Setting((2, 2)).attributes, **call.attributes}
    (x,) = with_torch.tensors(torch, call)
    spatial = len(setting["kernel_size"])
    functions = {2: torch.ops.aten.max_pool2d_with_indices, 3: torch.ops.aten.max_pool3d_with_indices}
    if spatial not in functions:
        return None
    kernel, stride = setting["kernel_size"], setting["stride"] or setting["kernel_size"]
    padding, dilation = setting["padding"] or (0,) * spatial, setting["dilation"] or (1,) * spatial
    return functools.partial(functions[spatial], x, kernel, stride, padding, dilation, bool(setting["ceil_mode"]))


SIZES = {
    "8x16x28x28": (8, 16, 28, 28),
    "32x64x28x28": (32, 64, 28, 28),
    "32x64x56x56": (32, 64, 56, 56),
}


def benchmark(shape: Shape, dtype: DType, setting: Setting = SETTINGS[0]) -> Call:
    return Call(OP, {"self": normal(shape, dtype, "x")}, setting.attributes)


def overlapping(shape: Shape, dtype: DType) -> Call:
    return benchmark(shape, dtype, SETTINGS[1])


COPIED = limits(0, single=0, double=0)
RECORD = Record(
    OP,
    inputs={"self": Input()},
    outputs={
        "out": like("self", limits=COPIED, portable_limits=COPIED),
        "indices": Output(lambda call: PLACES, dtypes=(PLACES,)),
    },
    attributes={
        "kernel_size": Attribute((2, 2), (), required=True),
        **{name: Attribute((), ()) for name in Setting.NAMES[1:-1]},
        "ceil_mode": MODES,
    },
    joint={Setting.NAMES: [setting.values for setting in SETTINGS]},
    oracle=oracle,
    make=make,
    forms=FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=large,
    torch=torch_call,
    documented=(f"aclnn{OP}", "indices", "kernel_size", "NaN", "ceil_mode", "(N, C, H, W)"),
    benchmarks=(Benchmark(benchmark, SIZES), Benchmark(overlapping, SIZES, "windows that overlap")),
    accuracies=(accuracy.of_calls(overlapping, (2, 8, 28, 28)),),
)
