"""What the ops around binary cross-entropy with logits share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy, with_torch
from tests.ops._shared.arrays import FLOAT32, INF, INTO, NAN, Shape, normal, uniform
from tests.ops._shared.losses import MEAN, NONE, SUM
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.record import Call, Choice, DType, Input, Refusal

INPUTS = {"self": Input(), "target": Input(), "weight": Input(optional=True), "pos_weight": Input(optional=True)}
OPERANDS = {"self": accuracy.LOGIT, "target": accuracy.PROBABILITY}
WEIGHTS = {"weight": accuracy.FACTOR, "pos_weight": accuracy.POSITIVE}

# Shapes of self and target, and those that broadcast to it: of grad_output, weight and pos_weight.
FORMS: dict[str, tuple[Shape, Shape, Shape, Shape]] = {
    "plain": ((2, 3), (), (3,), (3,)),
    "same": ((7, 20), (7, 20), (7, 20), (7, 20)),
    "rows": ((3, 20), (3, 1), (20,), (3, 1)),
    "columns": ((3, 20), (20,), (3, 1), ()),
    "single": ((1, 1), (1,), (1, 1), ()),
    "scalars": ((), (), (), ()),
}


def operands(form: tuple[Shape, Shape, Shape, Shape], choice: Choice) -> dict[str, Array | None]:
    """Logits of moderate size, labels between 0 and 1, positive weights."""
    shape, grad, weight, pos_weight = form
    made: dict[str, Array | None] = {}
    if "grad_output" in choice.dtypes:
        made["grad_output"] = normal(grad, choice.dtype("grad_output"), "grad")
    made["self"] = normal(shape, choice.dtype("self"), "self", scale=3.0)
    made["target"] = uniform(shape, choice.dtype("target"), "target")
    for name, own, high in (("weight", weight, 2.0), ("pos_weight", pos_weight, 3.0)):
        kind = choice.dtypes[name]
        made[name] = None if kind is None else uniform(own, kind, name, low=0.5, high=high)
    return made


def widened(
    self: ArrayLike,
    target: ArrayLike,
    weight: ArrayLike | None = None,
    pos_weight: ArrayLike | None = None,
    *,
    dtype: Reals,
) -> tuple[Array, Array, Array, Array]:
    """The inputs in a wide dtype; weights that are left out are 1."""
    x, y = real(self, dtype), real(target, dtype)
    w, p = (np.ones((), dtype) if array is None else real(array, dtype) for array in (weight, pos_weight))
    return x, y, w, p


def minus_magnitude(call: Call, dtype: Reals) -> Array:
    return -np.abs(real(call.given["self"], dtype))


def shapes(op: str, gradient: bool) -> Iterator[Call]:
    """Every way to broadcast to self, one input at a time; empty tensors."""
    names = ("grad_output", "weight", "pos_weight") if gradient else ("weight", "pos_weight")
    for number, (name, (own, shape)) in enumerate(itertools.product(names, INTO)):
        form = [shape, (), (), ()]
        form[1 + ("grad_output", "weight", "pos_weight").index(name)] = own
        kinds: dict[str, DType | None] = {"self": FLOAT32, "target": FLOAT32, "weight": None, "pos_weight": None}
        kinds |= {name: FLOAT32} | ({"grad_output": FLOAT32} if gradient else {})
        inputs = operands(tuple(form), Choice(kinds, {}, None))  # type: ignore[arg-type]
        label = f"{name}{own}-{shape}".replace(" ", "")
        yield Call(op, inputs, {"reduction": number % 3}, label=label, static=name == "weight")
    for number, shape in enumerate([(0,), (0, 3), (2, 0), (1, 0, 1)]):
        kinds = dict.fromkeys(("self", "target", "weight", "pos_weight"), FLOAT32)
        kinds |= {"grad_output": FLOAT32} if gradient else {}
        for reduction in (NONE, MEAN, SUM):
            form = (shape, (1,), shape if number % 2 else (1,), ())
            inputs = operands(form, Choice(kinds, {}, None))
            yield Call(op, inputs, {"reduction": reduction}, label=f"empty_{shape}_{reduction}".replace(" ", ""))


def special_values(op: str, gradient: bool) -> Iterator[Call]:
    """In one input at a time, against logits on both sides and labels in and outside [0, 1]."""
    pairs = itertools.product([-7.0, -1.0, 0.0, 2.0, 7.0], [0.0, 0.5, 1.0, 3.0])
    x, y = (np.array(v, np.float32) for v in zip(*pairs, strict=True))
    usual = {"grad_output": np.full(x.shape, 1.5, np.float32)} if gradient else {}
    usual |= {"self": x, "target": y, "weight": np.full(x.shape, 2.0, np.float32)}
    usual |= {"pos_weight": np.full(x.shape, 0.75, np.float32)}
    for name, value in itertools.product(usual, [NAN, INF, -INF]):
        inputs = {**usual, name: np.full(x.shape, value, np.float32)}
        yield Call(op, inputs, {"reduction": NONE}, label=f"{name}_{value}")


def extreme_logits(op: str, dtype: DType, gradient: bool) -> Iterator[Call]:
    """As large and as small as the dtype allows: no overflow on the way, NaN only from NaN."""
    large = {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028235e38, "float64": 1.7976931348623157e308}
    tiny = {"float16": 6e-8, "bfloat16": 9.2e-41, "float32": 1.5e-45, "float64": 5e-324}
    edges = [0.0, tiny[dtype.name], 1e-7, 1.0, 11.0, 16.6, 17.4, 88.7, 88.8, 103.9, 709.7, 745.0]
    edges += [large[dtype.name], INF]
    with np.errstate(over="ignore"):
        pairs = itertools.product([*edges, *(-e for e in edges), NAN], [0.0, 0.25, 1.0])
        x, y = (np.array(v, dtype) for v in zip(*pairs, strict=True))
    for weighted, pos_weighted in itertools.product((False, True), repeat=2):
        inputs = {"grad_output": np.ones((), dtype)} if gradient else {}
        inputs |= {"self": x, "target": y}
        inputs |= {"weight": np.array(0.5, dtype)} if weighted else {}
        inputs |= {"pos_weight": np.array(3.0, dtype)} if pos_weighted else {}
        label = f"extreme_logits-{dtype.name}-{weighted:d}{pos_weighted:d}"
        yield Call(op, inputs, {"reduction": NONE}, label=label)


def refusals(plain: Call, gradient: bool) -> Iterator[Refusal]:
    """Shapes that do not fit; the plain call's self is (2, 3)."""

    def wrong(name: str, shape: Shape, by_rank: bool = False) -> Refusal:
        text = "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
        words = (f"'{name}'", text, "expected", "'self'", "(2, 3)")
        label = f"{name}_of_{'x'.join(map(str, shape))}"
        return Refusal(label, words, {name: np.zeros(shape, np.float32)}, by_rank=by_rank)

    yield wrong("target", (3,), by_rank=True)
    yield wrong("target", (2, 1))  # would broadcast; the same shape is asked for
    for name in ("grad_output", "weight", "pos_weight") if gradient else ("weight", "pos_weight"):
        yield wrong(name, (2,))
        yield wrong(name, (4, 2, 3), by_rank=True)
        yield wrong(name, (1, 2, 3), by_rank=True)


def large(op: str, gradient: bool, dtype: DType) -> Iterator[Call]:
    """216,611 elements, a multiple of no block."""
    shape = (53, 61, 67)
    x, y = normal(shape, dtype, "x"), uniform(shape, dtype, "y")
    head = {"grad_output": normal(shape, dtype, "g")} if gradient else {}
    one = {"grad_output": np.ones((), dtype)} if gradient else {}
    weights = {"weight": y[:, :1].copy(), "pos_weight": y[0].copy()}
    yield Call(op, {**head, "self": x, "target": y, **weights}, {"reduction": NONE}, label="map")
    yield Call(op, {**one, "self": x, "target": y}, {"reduction": SUM}, label="sum")
    yield Call(op, {**one, "self": x, "target": y, **weights}, {"reduction": MEAN}, label="mean")


def benchmark(op: str, gradient: bool, weighted: bool = False) -> Callable[[int, DType], Call]:
    """100 classes."""

    def make(elements: int, dtype: DType) -> Call:
        matrix = (elements // 100, 100)
        inputs: dict[str, Array | None] = {"grad_output": np.ones((), dtype)} if gradient else {}
        inputs |= {"self": normal(matrix, dtype, "self"), "target": uniform(matrix, dtype, "target")}
        inputs |= {"pos_weight": uniform((100,), dtype, "pos_weight")} if weighted else {}
        return Call(op, inputs, {"reduction": MEAN})

    return make


def torch_loss(torch: ModuleType, call: Call, arguments: Mapping[str, Any], reduction: str) -> Any:
    """The loss that a call is about, in torch."""
    return torch.nn.functional.binary_cross_entropy_with_logits(
        arguments["self"],
        arguments["target"],
        arguments.get("weight"),
        reduction=reduction,
        pos_weight=arguments.get("pos_weight"),
    )


def torch_backward(torch: ModuleType, call: Call, by: str) -> Callable[[], Any]:
    """Autograd's gradient by an input."""
    arguments = torch_arguments(torch, call)
    return with_torch.backward(
        torch,
        lambda reduction: torch_loss(torch, call, arguments, reduction),
        arguments[by],
        arguments["grad_output"],
        call.attributes.get("reduction", MEAN),
        call.given["self"].shape,
    )


def torch_arguments(torch: ModuleType, call: Call) -> dict[str, Any]:
    return {name: with_torch.tensor(torch, array) for name, array in call.given.items()}
