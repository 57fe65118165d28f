"""What the ops around the Kullback-Leibler divergence share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from tests.ops._shared import with_torch
from tests.ops._shared.arrays import BROADCASTS, FLOAT32, FLOATS, INF, INTO, NAN, Shape, normal, text_of, uniform
from tests.ops._shared.losses import MEAN, NONE, SUM
from tests.ops._shared.record import Array, Call, Choice, DType, Refusal

# Shapes of grad_output (empty for a reduction), self and target.
FORMS: dict[str, tuple[Shape, Shape, Shape]] = {
    "same": ((), (2, 3), (2, 3)),
    "row": ((3, 1), (20,), (3, 20)),
    "column": ((3, 20), (3, 1), (3, 20)),
    "target_row": ((20,), (3, 20), (20,)),
    "crossed": ((3, 1), (3, 1), (20,)),
    "scalar": ((), (), (7,)),
    "scalars": ((), (), ()),
}


def operands(shapes: tuple[Shape, Shape, Shape], choice: Choice) -> dict[str, Array | None]:
    """self near the target, some targets below 0 where they are no logarithms."""
    grad, own, target = shapes
    low = -4.0 if choice.attributes["log_target"] else 0.01
    made: dict[str, Array | None] = {
        "self": normal(own, choice.dtype("self"), "self"),
        "target": uniform(target, choice.dtype("target"), "target", low=low, high=1.0),
    }
    if "grad_output" in choice.dtypes:
        made = {"grad_output": normal(grad, choice.dtype("grad_output"), "grad")} | made
    return made


def shapes(op: str, gradient: bool) -> Iterator[Call]:
    """Every way to broadcast, empty tensors included."""

    def call(label: str, grad: Shape, own: Shape, target: Shape, reduction: int, static: bool) -> Call:
        kinds = dict.fromkeys(("grad_output", "self", "target") if gradient else ("self", "target"), FLOAT32)
        made = operands((grad, own, target), Choice(kinds, {"log_target": 0}, None))
        return Call(op, made, {"reduction": reduction}, label=label, static=static)

    for number, (own, target) in enumerate(BROADCASTS):
        for reduction in (number % 4, (number + 2) % 4):
            yield call(text_of(own, target, reduction), (), own, target, reduction, static=reduction < 2)
    if gradient:
        for grad, space in INTO:
            yield call(f"grad{grad}-{space}".replace(" ", ""), grad, space, space, MEAN, static=False)


def refusals(plain: Call, gradient: bool) -> Iterator[Refusal]:
    """Shapes that do not fit each other; the plain call's are (2, 3)."""

    def wrong(name: str, shape: Shape, *words: str, by_rank: bool = False) -> Refusal:
        zeros = np.zeros(shape, np.float32)
        words = (f"'{name}'", str(shape), "expected", *words)
        return Refusal(f"{name}_of_{'x'.join(map(str, shape))}", words, {name: zeros}, by_rank=by_rank)

    yield wrong("target", (2, 4), "'self'", "(2, 3)")
    yield wrong("target", (3, 1, 2), "'self'", "(2, 3)")
    if gradient:
        yield wrong("grad_output", (2, 4), "'self' and 'target'", "(2, 3)")
        yield wrong("grad_output", (3, 3), "(2, 3)")
        yield wrong("grad_output", (1, 2, 3), "(2, 3)", by_rank=True)  # broadcasts with S, but not to it
        yield wrong("grad_output", (0, 3), "(2, 3)")


def special_pairs(dtype: DType, *more: float) -> tuple[Array, Array]:
    """Every pair of special values."""
    values = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, *more]
    with np.errstate(over="ignore"):
        first, second = (np.array(v, dtype) for v in zip(*itertools.product(values, repeat=2), strict=True))
    return first, second


def one_extreme(op: str, gradient: bool, log_target: int, values: tuple[float, ...]) -> Iterator[Call]:
    """A single target that is far from all others, which lie around it in long rows."""
    for dtype, value in itertools.product(FLOATS[:3], values):
        low, high = (-4.0, 1.0) if log_target else (0.01, 1.0)
        target = uniform((1200,), dtype, "ordinary", low=low, high=high)
        target[700] = value
        inputs: dict[str, Array | None] = {"self": normal((1200,), dtype, "self"), "target": target}
        if gradient:
            inputs = {"grad_output": np.full((), 3.0, dtype)} | inputs
        settings = {"reduction": SUM if gradient else NONE, "log_target": log_target}
        yield Call(op, inputs, settings, label=f"one_target_of_{value}-{dtype.name}-{log_target}")


def large(op: str, gradient: bool, dtype: DType, summed: str) -> Iterator[Call]:
    """Maps and sums in every layout, of 216,611 elements, a multiple of no block."""
    space = (53, 61, 67)
    x, q = normal(space, dtype, "x"), uniform(space, dtype, "y", low=0.01)
    one = np.ones((), dtype)
    head = {"grad_output": one} if gradient else {}
    if gradient:
        yield Call(
            op, {"grad_output": normal(space, dtype, "g"), "self": x, "target": q}, {"reduction": 0}, label="map"
        )
        layouts: list[Shape] = [(), (67,), (61, 1), (53, 1, 1), (1, 61, 1), (53, 1, 67), (53, 61, 1)]
        for number, own in enumerate(layouts):
            small = {summed: uniform(own, dtype, "small", low=0.01)}
            call = Call(op, {**head, "self": x, "target": q, **small}, {"reduction": number % 4}, label=f"sum{own}")
            yield call
    else:
        yield Call(op, {"self": x, "target": q}, {"reduction": 0}, label="map")
        yield Call(op, {"self": x, "target": q}, {"reduction": SUM}, label="sum")
        yield Call(op, {"self": x[:, :1], "target": q[0]}, {"reduction": MEAN}, label="broadcast_mean")
    yield Call(op, {**head, "self": x, "target": x}, {"log_target": 1}, label="log_target")


def torch_loss(torch: ModuleType, call: Call, this: Any, target: Any, reduction: str) -> Any:
    """The loss that a call is about, in torch."""
    if this.shape != target.shape:
        this, target = torch.broadcast_tensors(this, target)
    log_target = bool(call.attributes.get("log_target", 0))
    return torch.nn.functional.kl_div(this, target, reduction=reduction, log_target=log_target)


def torch_backward(torch: ModuleType, call: Call, by: str) -> Callable[[], Any]:
    """Autograd's gradient by an input."""
    named = {name: with_torch.tensor(torch, array) for name, array in call.given.items()}
    this, target = named["self"], named["target"]
    return with_torch.backward(
        torch,
        lambda reduction: torch_loss(torch, call, this, target, reduction),
        named[by],
        named["grad_output"],
        call.attributes.get("reduction", MEAN),
        np.broadcast_shapes(tuple(this.shape), tuple(target.shape)),
    )
