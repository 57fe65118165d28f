"""FusedSgd: a step of stochastic gradient descent for one parameter."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy
from tests.ops._shared.arrays import FLOAT32, FLOAT64, FLOATS, INF, NAN, Shape, normal
from tests.ops._shared.numbers import Array, Reals, real
from tests.ops._shared.optimizer_steps import FORMS, Step, of_wrong_shapes, torch_call, torch_timed
from tests.ops._shared.record import (
    MISSING,
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
    limits,
)

OP = "FusedSgd"
SETTINGS = {"lr": 0.01, "weight_decay": 0.1, "momentum": 0.9, "dampening": 0.25}
NAMES = ("param", "grad", "lr", "momentum_buffer", "weight_decay", "momentum", "dampening")
OPTIONAL = NAMES[3:]


def _given(inputs: tuple[ArrayLike | None, ...], maximize: int, dtype: Reals) -> dict[str, Any]:
    named = {name: None if array is None else real(array, dtype) for name, array in zip(NAMES, inputs, strict=True)}
    for name in SETTINGS:
        named[name] = dtype(0) if named[name] is None else named[name].reshape(())  # type: ignore[operator,union-attr]
    if maximize:
        named["grad"] = -named["grad"]  # type: ignore[operator]
    return named


def oracle(
    *inputs: ArrayLike | None, nesterov: int = 0, maximize: int = 0, dtype: Reals = np.float64
) -> tuple[Array, ...]:
    """The algorithm in the documentation of torch.optim.SGD, after its first step; NaN for a buffer not there."""
    n = _given(inputs, maximize, dtype)
    with np.errstate(all="ignore"):
        g, b = n["grad"], np.full_like(n["grad"], np.nan)
        if inputs[NAMES.index("weight_decay")] is not None:
            g = g + n["weight_decay"] * n["param"]
        if n["momentum_buffer"] is not None:
            b = n["momentum"] * n["momentum_buffer"] + (1 - n["dampening"]) * g
            g = g + n["momentum"] * b if nesterov else b
        return np.asarray(n["param"] - n["lr"] * g, dtype), np.asarray(b, dtype)


def largest_terms(
    *inputs: ArrayLike | None, nesterov: int = 0, maximize: int = 0, dtype: Reals = np.float64
) -> tuple[Array, ...]:
    """The largest term of the sums of each output."""
    n = _given(inputs, maximize, dtype)
    with np.errstate(all="ignore"):
        terms = np.maximum(np.abs(n["grad"]), np.abs(n["weight_decay"] * n["param"]))
        buffer = terms
        if n["momentum_buffer"] is not None:
            buffer = np.maximum(np.abs(n["momentum"] * n["momentum_buffer"]), np.abs(1 - n["dampening"]) * terms)
            terms = np.maximum(terms, n["momentum"] * buffer) if nesterov else buffer
        return np.maximum(np.abs(n["param"]), n["lr"] * terms), buffer


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array | float:
    """A few roundings of each term, which is computed in float32, but for float64."""
    eps = 2.0**-53 if dtype == FLOAT64 else 2.0**-24
    var, buffer = largest_terms(*(call.inputs.get(name) for name in NAMES), **call.attributes)
    off = 8 * (var if output == "param_out" else buffer)
    return np.where(np.isfinite(off), eps * off, 0.0)


def inputs(
    shape: Shape, dtype: DType, scalars: DType = FLOAT64, *, without: tuple[str, ...] = (), **settings: float
) -> dict[str, Array | None]:
    numbers = {name: np.array(value, scalars) for name, value in (SETTINGS | settings).items()}
    tensors = {name: normal(shape, dtype, name) for name in ("param", "grad", "momentum_buffer")}
    return {name: None if name in without else (tensors | numbers)[name] for name in NAMES}


def make(choice: Choice) -> dict[str, Array | None]:
    without = tuple(name for name in OPTIONAL if choice.dtypes[name] is None)
    made = inputs(choice.form, choice.dtype("param"), choice.dtype("lr"), without=without)
    if len(choice.form) == 1:
        made |= {name: number.reshape(1) for name in SETTINGS if (number := made[name]) is not None}
    return made


WITHOUT = ("param_out",)
IN_PLACE = {"param_out": "param", "momentum_buffer_out": "momentum_buffer"}


def calls() -> Iterator[Call]:
    for dtype in FLOATS:
        special = np.array([NAN, INF, -INF, 0.0, -0.0, 1.0, 1e-4, 3.0]).astype(dtype)
        call = Call(OP, inputs((8,), dtype))
        for name in ("param", "grad", "momentum_buffer"):
            yield call.but({name: special}, f"{name}_special-{dtype.name}")
            if name != "momentum_buffer":
                plain = Call(OP, inputs((8,), dtype, without=OPTIONAL), outputs=WITHOUT)
                yield plain.but({name: special}, f"plain_{name}_special-{dtype.name}")
        for name in SETTINGS:
            yield Call(OP, inputs((8,), dtype, **{name: 0.0}), {"nesterov": 1}, label=f"{name}_0-{dtype.name}")
        yield Call(OP, inputs((5,), dtype), outputs=WITHOUT, label=f"buffer_not_wanted-{dtype.name}")
    yield Call(OP, inputs((5, 1001), FLOAT32), label="tasks")
    yield Call(OP, inputs((2, 3), FLOAT32), label="known_shapes", static=True)


def worked(dtype: DType) -> Iterator[Worked]:
    param, grad = np.array([1.0, -2.0, 0.0], dtype), np.array([2.0, -8.0, 0.5], dtype)
    tensors = {"param": param, "grad": grad}
    call = Call(OP, {**inputs((3,), dtype, without=OPTIONAL, lr=0.5), **tensors}, outputs=WITHOUT, label="by_hand")
    yield Worked(call, {"param_out": [0.0, 2.0, -0.25]})
    yield Worked(Call(OP, call.inputs, {"maximize": 1}, WITHOUT, "upward"), {"param_out": [2.0, -6.0, 0.25]})
    decayed = call.but({"weight_decay": np.array(0.5)}, "decayed")
    yield Worked(decayed, {"param_out": [-0.25, 2.5, -0.25]})
    numbers = {"lr": 0.5, "weight_decay": 0.5, "momentum": 0.5, "dampening": 0.75}
    given = {**inputs((3,), dtype, **numbers), **tensors, "momentum_buffer": np.array([3.0, 0.0, -1.0], dtype)}
    buffer = [2.125, -2.25, -0.375]
    yield Worked(
        Call(OP, given, label="momentum"), {"param_out": [-0.0625, -0.875, 0.1875], "momentum_buffer_out": buffer}
    )
    ahead = {"param_out": [-0.78125, 3.0625, -0.15625], "momentum_buffer_out": buffer}
    yield Worked(Call(OP, given, {"nesterov": 1}, label="nesterov"), ahead)


def refusals(plain: Call) -> Iterator[Refusal]:
    yield from of_wrong_shapes(plain, ("grad", "momentum_buffer"), SETTINGS)
    words = ("'momentum_buffer'", "'momentum_buffer_out'")
    yield Refusal("no_momentum", words, dict.fromkeys(OPTIONAL), status=MISSING)
    for name, needed, change in (
        ("momentum", "momentum_buffer", {"momentum_buffer": None, "dampening": None}),
        ("momentum_buffer", "momentum", {"momentum": None}),
        ("dampening", "momentum_buffer", {"momentum_buffer": None, "momentum": None}),
    ):
        words = (f"'{name}'", f"'{needed}'", "missing")
        yield Refusal(f"{name}_alone", words, change, status=MISSING, outputs=WITHOUT)


def large(dtype: DType) -> Iterator[Call]:
    yield Call(OP, inputs((300, 101), dtype), label="blocks")
    yield Call(OP, inputs((300, 101), dtype, without=OPTIONAL), outputs=WITHOUT, label="plain_blocks")


def torch_in_place(torch: ModuleType, call: Call) -> Step | None:
    """torch's step of one parameter, which changes the tensors of a call that it is given."""
    numbers = {
        name: 0.0 if call.inputs.get(name) is None else float(np.asarray(call.inputs[name]).reshape(()))
        for name in SETTINGS
    }
    with_momentum = call.inputs.get("momentum_buffer") is not None
    # torch's kernel for 16-bit dtypes stores only the last elements of the parameter; with a momentum of 0 no kernel
    # stores the buffer.
    if call.dtype("param").itemsize == 2 or (with_momentum and numbers["momentum"] == 0):
        return None

    def step(tensors: list[Any]) -> Any:
        named = dict(zip(call.inputs, tensors, strict=True))
        param, buffer = named["param"], [named["momentum_buffer"]] if with_momentum else []
        torch._fused_sgd_(
            [param], [named["grad"]], buffer, **numbers, is_first_step=False,
            nesterov=bool(call.attributes.get("nesterov", 0)) and with_momentum,
            maximize=bool(call.attributes.get("maximize", 0)),
        )  # fmt: skip
        return (param, *buffer) if len(buffer) and call.outputs != WITHOUT else param

    return step


def with_momentum(elements: int, dtype: DType) -> Call:
    return Call(OP, inputs((elements,), dtype, without=("weight_decay", "dampening")))


def without_momentum(elements: int, dtype: DType) -> Call:
    return Call(OP, inputs((elements,), dtype, without=OPTIONAL), outputs=WITHOUT)


def judged(dtype: DType) -> Iterator[Call]:
    yield Call(OP, inputs((20_000,), dtype))


LIMITS = limits(single=1, double=1)
RECORD = Record(
    OP,
    inputs={name: Input(variable="TScalar" if name in SETTINGS else "T", optional=name in OPTIONAL) for name in NAMES},
    outputs={
        "param_out": like("param", limits=LIMITS, portable_limits=LIMITS),
        "momentum_buffer_out": like(
            "param", optional=True, needs="momentum_buffer", limits=LIMITS, portable_limits=LIMITS
        ),
    },
    attributes={"nesterov": Attribute(0, (0, 1), (-1, 2)), "maximize": Attribute(0, (0, 1), (-1, 2))},
    joint={
        NAMES: [
            (own, own, scalar, *rest)
            for own in FLOATS
            for scalar in FLOATS
            for rest in (
                (own, scalar, scalar, scalar),
                (own, None, scalar, None),
                (None, scalar, None, None),
                (None, None, None, None),
            )
        ]
    },
    oracle=oracle,
    terms=largest_terms,
    slack=slack,
    make=make,
    forms=FORMS,
    calls=calls,
    worked=worked,
    refusals=refusals,
    large=large,
    torch=torch_call(torch_in_place),
    documented=("aclnnFusedSgd", "Sutskever", "The first step of PyTorch", "nesterov"),
    benchmarks=(
        Benchmark(without_momentum, torch=torch_timed(torch_in_place)),
        Benchmark(
            without_momentum, note="in place", torch=torch_timed(torch_in_place), in_place={"param_out": "param"}
        ),
        Benchmark(with_momentum, note="momentum", torch=torch_timed(torch_in_place)),
        Benchmark(with_momentum, note="momentum in place", torch=torch_timed(torch_in_place), in_place=IN_PLACE),
    ),
    accuracies=(accuracy.Accuracy(judged),),
)
