"""MaxPool2dWithIndicesBackward: gradients of windows go where their maxima were."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, max_pool, with_torch
from tests.ops._shared.arrays import FLOAT32, FLOAT64, INF, NAN, Shape, normal, rng
from tests.ops._shared.max_pool import MODES, SETTINGS, Numbers, Setting
from tests.ops._shared.numbers import Array, Reals, exact_sum, real
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

OP = "MaxPool2dWithIndicesBackward"
WHOLE = (np.dtype(np.int64), np.dtype(np.int32))


def _gathered(grad: Array, shape: Shape, indices: Array, spatial: int, gather: Callable[[Array], Any]) -> Array:
    """What `gather` makes of the gradients that each element gets, 0 of none; whatever kind of indices it is."""
    plane, planes = math.prod(shape[len(shape) - spatial :]), math.prod(shape[: len(shape) - spatial])
    out = np.zeros((planes, plane), grad.dtype)
    for p in range(planes):
        g, places = grad.reshape(planes, -1)[p], indices.reshape(planes, -1)[p] % plane
        for place in set(places.tolist()):
            out[p, place] = gather(g[places == place])
    return out.reshape(shape)


def oracle(
    grad_output: ArrayLike,
    self: ArrayLike,
    indices: ArrayLike,
    kernel_size: Numbers = (),
    *,
    dtype: Reals = np.float64,
    **windows: Any,
) -> Array:
    """An element gets the sum of grad_output over the windows whose index it is."""
    grad = real(grad_output, dtype)
    if grad.size == 0:
        return np.zeros(np.shape(self), dtype)
    spatial = len(kernel_size) or 2
    return _gathered(grad, np.shape(self), np.asarray(indices), spatial, lambda own: exact_sum(own[None], (1,))[0])


def terms(
    grad_output: ArrayLike,
    self: ArrayLike,
    indices: ArrayLike,
    kernel_size: Numbers = (),
    *,
    dtype: Reals = np.float64,
    **windows: Any,
) -> Array:
    """The largest of the gradients that each element gets."""
    grad = np.abs(real(grad_output, dtype))
    if grad.size == 0:
        return np.zeros(np.shape(self), dtype)
    return _gathered(grad, np.shape(self), np.asarray(indices), len(kernel_size) or 2, np.max)


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array | float:
    """As many terms as there are windows over an element, 12 at most; in float64 if an operand is, else float32."""
    in_double = FLOAT64 in (dtype, call.dtype("grad_output"))
    sizes = np.nan_to_num(terms(**call.given, **call.attributes), posinf=0.0)
    return np.asarray(sizes * 12**2 * 2.0 ** (-53 if in_double else -24))


@dataclass(frozen=True)
class Form:
    """Axes before the spatial ones, the first spatial size, and whether indices are those of the whole tensor."""

    lead: Shape
    size: int
    whole: bool


FORMS = {
    "batch": Form((2, 3), 5, False),
    "batch_whole": Form((2, 3), 5, True),
    "image": Form((2,), 6, False),
    "one": Form((1, 1), 7, True),
}


def operands(form: Form, setting: Setting, grad: DType, own: DType, kind: DType) -> dict[str, Array | None]:
    spatial = len(setting.kernel_size) or 2
    x = max_pool.input_of(form.lead, form.size, spatial, own)
    if setting.kernel_size:
        _, indices = max_pool.pooled(x, setting)
    else:  # as adaptive pools have them: any number of windows
        indices = rng("windows", form.lead).integers(0, form.size * (form.size + 1), (*form.lead, 3, 2))
    if form.whole:
        indices = max_pool.in_whole_tensor(indices, x.shape, spatial)
    return {"grad_output": normal(indices.shape, grad, "g"), "self": x, "indices": indices.astype(kind)}


def make(choice: Choice) -> dict[str, Array | None]:
    setting = Setting(*(choice.attributes[name] for name in Setting.NAMES))
    return operands(choice.form, setting, *map(choice.dtype, ("grad_output", "self", "indices")))


def calls() -> Iterator[Call]:
    single, int64 = FLOAT32, WHOLE[0]
    for number, setting in enumerate(SETTINGS):
        given = operands(FORMS["batch"], setting, single, single, int64)
        yield Call(OP, given, setting.attributes, label=f"setting_{number}", static=number % 2 == 0)
    shapes = {f"no_planes_{lead}".replace(" ", ""): ((*lead, 2, 2), (*lead, 4, 5)) for lead in ((0, 3), (2, 0), (0,))}
    shapes |= {"no_windows": ((2, 3, 0, 2), (2, 3, 4, 5)), "no_elements": ((2, 3, 1, 0), (2, 3, 4, 0))}
    for label, (windows, shape) in shapes.items():
        given = {"grad_output": np.zeros(windows, np.float32), "self": np.zeros(shape, np.float32)}
        yield Call(OP, {**given, "indices": np.zeros(windows, np.int64)}, label=label)
    for value in (NAN, INF, -INF):
        special = operands(FORMS["batch"], SETTINGS[1], single, single, int64)
        assert special["grad_output"] is not None
        special["grad_output"][1, 2, 0, :2] = value
        yield Call(OP, special, SETTINGS[1].attributes, label=f"{value}")
    wide = operands(Form((1, 1), 150, False), Setting((3, 3), (2, 2)), single, single, int64)
    yield Call(OP, wide, label="wide_plane")  # more numbers than a task takes else


def worked(dtype: DType) -> Iterator[Worked]:
    """Two images of one channel; windows of two by two, one apart."""
    grad = np.array([[[[1.0, 2.0], [4.0, 8.0]]], [[[1.0, 2.0], [4.0, 8.0]]]], dtype)
    x = np.zeros((2, 1, 3, 3), dtype)
    for label, shift in (("plane", 0), ("whole", 9)):
        for kind in WHOLE:
            indices = np.array([[[[4, 4], [4, 4]]], [[[1 + shift, 1 + shift], [3 + shift, 5 + shift]]]], kind)
            inputs: dict[str, Array | None] = {"grad_output": grad, "self": x, "indices": indices}
            expected = [[[[0, 0, 0], [0, 15, 0], [0, 0, 0]]], [[[0, 3, 0], [4, 0, 8], [0, 0, 0]]]]
            for attributes in ({}, {"kernel_size": (2, 2), "stride": (1, 1)}):
                yield Worked(Call(OP, inputs, attributes, label=f"{label}_{kind}"), {"out": expected})


def refusals(plain: Call) -> Iterator[Refusal]:
    indices, grad = plain.given["indices"], plain.given["grad_output"]
    plane = 5 * 6
    for value in (-1, plane, 5 * plane - 1, 6 * plane, 2**40, -(2**63)):
        wrong = indices.copy()
        wrong[1, 2, 0, 1] = value if value != 5 * plane - 1 else 4 * plane  # that of another plane
        words = ("'indices'", f" {wrong[1, 2, 0, 1]} ", "(1, 2, 0, 1)", f"[0, {plane})", f"[{5 * plane}, {6 * plane})")
        yield Refusal(f"index_{value}", words, {"indices": wrong}, by_values=True)
    yield Refusal(
        "planes", ("'grad_output'", "(2, 4, 3, 2)", "'self'"), {"grad_output": np.ones((2, 4, 3, 2), np.float32)}
    )
    yield Refusal("windows", ("'indices'", "(2, 3, 2, 2)", "'grad_output'"), {"indices": indices[:, :, :2]})
    known = {"kernel_size": (2, 2)}
    windows = {"grad_output": grad, "indices": indices}
    yield Refusal("windows_of_self", ("'grad_output'", "(2, 3, 3, 2)", "(2, 3, 2, 3)"), windows, known)
    for name in plain.given:
        flat = {name: np.zeros((2, 3), plain.dtype(name))}
        yield Refusal(f"{name}_of_rank_2", (f"'{name}'", "(2, 3)", "expected"), flat, by_rank=True)
    yield from max_pool.wrong_attributes(known)


def large(dtype: DType) -> Iterator[Call]:
    for form in (Form((3, 41), 21, False), Form((2,), 120, True)):
        given = operands(form, SETTINGS[1], dtype, dtype, WHOLE[0])
        yield Call(OP, given, SETTINGS[1].attributes, label=f"size_{form.size}")


def torch_call(torch: ModuleType, call: Call) -> Callable[[], Any] | None:
    setting = {**Setting(()).attributes, **call.attributes}
    grad, x, indices = with_torch.tensors(torch, call)
    spatial = len(setting["kernel_size"])
    functions = {2: torch.ops.aten.max_pool2d_with_indices_backward, 3: torch.ops.aten.max_pool3d_with_indices_backward}
    if spatial not in functions or (indices >= math.prod(x.shape[-spatial:])).any():
        return None
    kernel, stride = setting["kernel_size"], setting["stride"] or setting["kernel_size"]
    padding, dilation = setting["padding"] or (0,) * spatial, setting["dilation"] or (1,) * spatial
    rest = (kernel, stride, padding, dilation, bool(setting["ceil_mode"]), indices.long())
    return functools.partial(functions[spatial], grad, x, *rest)


SIZES = {
    "8x16x28x28": (8, 16, 28, 28),
    "32x64x28x28": (32, 64, 28, 28),
    "32x64x56x56": (32, 64, 56, 56),
}


def benchmark(shape: Shape, dtype: DType, setting: Setting = SETTINGS[0]) -> Call:
    """Any element of a window in place of the greatest."""
    starts = [np.array(own) for own, _, _ in max_pool.axes_of(setting, shape[2:])]
    windows = (*shape[:2], *(own.size for own in starts))
    draw = rng("place", shape, setting)
    rows, columns = (
        np.clip(own + draw.integers(0, kernel, windows), 0, size - 1)
        for own, kernel, size in zip((starts[0][:, None], starts[1]), setting.kernel_size, shape[2:], strict=True)
    )
    given = {"grad_output": normal(windows, dtype, "g"), "self": normal(shape, dtype, "x")}
    return Call(OP, {**given, "indices": rows * shape[3] + columns}, setting.attributes)


def overlapping(shape: Shape, dtype: DType) -> Call:
    return benchmark(shape, dtype, SETTINGS[1])


RECORD = Record(
    OP,
    inputs={"grad_output": Input(), "self": Input(), "indices": Input(WHOLE)},
    outputs={"out": like("self", limits=SUM_LIMITS, portable_limits=SUM_LIMITS)},
    attributes={name: Attribute((), ()) for name in Setting.NAMES[:-1]} | {"ceil_mode": MODES},
    joint={Setting.NAMES: [Setting(()).values, *(setting.values for setting in SETTINGS)]},
    oracle=oracle,
    terms=terms,
    slack=slack,
    make=make,
    forms=FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=large,
    torch=torch_call,
    documented=(f"aclnn{OP}", "indices", "kernel_size", "overlap", "(N, C, H, W)", "adaptive"),
    unread=("self",),
    benchmarks=(Benchmark(benchmark, SIZES), Benchmark(overlapping, SIZES, "windows that overlap")),
    accuracies=(accuracy.of_calls(overlapping, (2, 8, 28, 28)),),
)
