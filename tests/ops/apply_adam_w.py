"""ApplyAdamW: a step of Adam or AdamW for one parameter."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared import accuracy
from tests.ops._shared.arrays import FLOAT32, FLOAT64, FLOATS, INF, NAN, Shape, normal, uniform
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

OP = "ApplyAdamW"
SETTINGS = {
    "beta1_power": 0.9**3,
    "beta2_power": 0.999**3,
    "lr": 0.01,
    "weight_decay": 0.1,
    "beta1": 0.9,
    "beta2": 0.999,
    "epsilon": 1e-8,
}
NAMES = ("var", "m", "v", *SETTINGS, "grad", "max_grad_norm")


def _given(inputs: tuple[ArrayLike | None, ...], maximize: int, dtype: Reals) -> dict[str, Any]:
    named = {name: None if array is None else real(array, dtype) for name, array in zip(NAMES, inputs, strict=True)}
    for name in SETTINGS:
        named[name] = named[name].reshape(())  # type: ignore[union-attr]
    if maximize:
        named["grad"] = -named["grad"]  # type: ignore[operator]
    return named


def oracle(*inputs: ArrayLike | None, maximize: int = 0, dtype: Reals = np.float64) -> tuple[Array, ...]:
    """Algorithm 2 of Loshchilov and Hutter, 2019; NaN for a maximum not there.

    Decay and the average of the gradients are in the form of PyTorch and of the schema, by which an infinite parameter
    stays infinite, and an infinite average becomes NaN.
    """
    n = _given(inputs, maximize, dtype)
    with np.errstate(all="ignore"):
        m = n["m"] + (1 - n["beta1"]) * (n["grad"] - n["m"])
        v = n["beta2"] * n["v"] + (1 - n["beta2"]) * n["grad"] ** 2
        most = v if n["max_grad_norm"] is None else np.maximum(n["max_grad_norm"], v)
        m_hat, v_hat = m / (1 - n["beta1_power"]), most / (1 - n["beta2_power"])
        var = (1 - n["lr"] * n["weight_decay"]) * n["var"] - n["lr"] * m_hat / (np.sqrt(v_hat) + n["epsilon"])
    missing = np.full_like(v, np.nan)
    return tuple(np.asarray(a, dtype) for a in (var, m, v, missing if n["max_grad_norm"] is None else most))


def slack(call: Call, output: str, dtype: DType, portable: bool) -> Array | float:
    """A few roundings of each term, which is computed in float32, but for float64."""
    eps = 2.0**-53 if dtype == FLOAT64 else 2.0**-24
    n = _given(tuple(call.inputs.get(name) for name in NAMES), 0, np.float64)
    with np.errstate(all="ignore"):
        var, _, v, most = oracle(*(call.inputs.get(name) for name in NAMES), **call.attributes)
        if output == "m_out":
            off = 4 * (np.abs(n["m"]) + np.abs(n["grad"]))
        elif output in ("v_out", "max_grad_norm_out"):
            off = 4 * np.abs(v)
        else:
            v_hat = (v if n["max_grad_norm"] is None else most) / (1 - n["beta2_power"])
            terms = (np.abs(n["m"]) + np.abs(n["grad"])) / (1 - n["beta1_power"])
            off = 4 * np.abs(n["var"]) + 8 * n["lr"] * terms / (np.sqrt(v_hat) + n["epsilon"])
        off = np.broadcast_to(off, var.shape)
        return np.where(np.isfinite(off), eps * off, 0.0)


def inputs(
    shape: Shape, dtype: DType, scalars: DType = FLOAT64, *, largest: bool = True, **settings: float
) -> dict[str, Array | None]:
    numbers = {name: np.array(value, scalars) for name, value in (SETTINGS | settings).items()}
    return {
        "var": normal(shape, dtype, "var"),
        "m": normal(shape, dtype, "m"),
        "v": uniform(shape, dtype, "v", low=0.1, high=2.0),
        **numbers,
        "grad": normal(shape, dtype, "grad"),
        "max_grad_norm": uniform(shape, dtype, "largest", low=0.1, high=2.0) if largest else None,
    }


def make(choice: Choice) -> dict[str, Array | None]:
    made = inputs(
        choice.form, choice.dtype("var"), choice.dtype("lr"), largest=choice.dtypes["max_grad_norm"] is not None
    )
    if len(choice.form) == 1:
        made |= {name: np.asarray(made[name]).reshape(1) for name in SETTINGS}
    return made


WITHOUT = ("var_out", "m_out", "v_out")


def calls() -> Iterator[Call]:
    for dtype in FLOATS:
        special = np.array([NAN, INF, -INF, 0.0, -0.0, 1.0, 1e-4, 3.0]).astype(dtype)
        call = Call(OP, inputs((8,), dtype))
        for name in ("var", "m", "v", "grad", "max_grad_norm"):
            yield call.but({name: np.abs(special) if name == "v" else special}, f"{name}_special-{dtype.name}")
        for name, value in (("lr", 0.0), ("weight_decay", 0.0), ("beta1", 0.0), ("beta2", 0.0), ("epsilon", 0.5)):
            yield Call(OP, inputs((8,), dtype, **{name: value}), label=f"{name}_{value}-{dtype.name}")
        yield Call(OP, inputs((5,), dtype), outputs=WITHOUT, label=f"largest_not_wanted-{dtype.name}")
    yield Call(OP, inputs((5, 1001), FLOAT32, largest=False), outputs=WITHOUT, label="tasks")
    yield Call(OP, inputs((2, 3), FLOAT32), label="known_shapes", static=True)


def worked(dtype: DType) -> Iterator[Worked]:
    """One step from zeros: the averages are a share of the gradient, and the step lr for each sign."""
    numbers = {"beta1_power": 0.5, "beta2_power": 0.75, "lr": 0.5, "beta1": 0.5, "beta2": 0.75, "epsilon": 0.0}
    given = inputs((3,), dtype, largest=False, weight_decay=0.0, **numbers)
    zeros, grad = np.zeros(3, dtype), np.array([2.0, -8.0, 32.0], dtype)
    call = Call(OP, {**given, "var": zeros, "m": zeros, "v": zeros, "grad": grad}, outputs=WITHOUT, label="first")
    expected = {"var_out": [-0.5, 0.5, -0.5], "m_out": [1.0, -4.0, 16.0], "v_out": [1.0, 16.0, 256.0]}
    yield Worked(call, expected)
    upward = {"var_out": [0.5, -0.5, 0.5], "m_out": [-1.0, 4.0, -16.0], "v_out": [1.0, 16.0, 256.0]}
    yield Worked(Call(OP, call.inputs, {"maximize": 1}, WITHOUT, "upward"), upward)
    decayed = call.but({"var": np.ones(3, dtype), "weight_decay": np.array(0.5)}, "decayed")
    yield Worked(decayed, {**expected, "var_out": [0.25, 1.25, 0.25]})


def refusals(plain: Call) -> Iterator[Refusal]:
    yield from of_wrong_shapes(plain, ("m", "v", "grad", "max_grad_norm"), SETTINGS)
    yield Refusal("no_largest", ("'max_grad_norm'", "'max_grad_norm_out'"), {"max_grad_norm": None}, status=MISSING)


def largest_terms(*inputs: ArrayLike | None, maximize: int = 0, dtype: Reals = np.float64) -> tuple[Array, ...]:
    """The largest term of each of the four sums; the averages' are the old one and the share of the gradient."""
    n = _given(inputs, maximize, dtype)
    with np.errstate(all="ignore"):
        _, _, v, most = oracle(*inputs, maximize=maximize, dtype=dtype)
        m = np.maximum(np.abs(n["beta1"] * n["m"]), np.abs((1 - n["beta1"]) * n["grad"]))
        v_hat = (v if n["max_grad_norm"] is None else most) / (1 - n["beta2_power"])
        update = n["lr"] * m / (1 - n["beta1_power"]) / (np.sqrt(v_hat) + n["epsilon"])
        return np.maximum(np.abs(n["var"]), np.abs(update)), m, v, most


def torch_in_place(torch: ModuleType, call: Call) -> Step | None:
    """torch's third step of one parameter, which changes the tensors of a call that it is given."""
    numbers = {name: float(np.asarray(call.given[name]).reshape(())) for name in SETTINGS}
    if any(abs(numbers[f"{beta}_power"] - numbers[beta] ** 3) > 1e-15 for beta in ("beta1", "beta2")):
        return None
    third = torch.tensor(3.0)

    def step(tensors: list[Any]) -> Any:
        named = dict(zip(call.inputs, tensors, strict=True))
        var, m, v = (named[name] for name in ("var", "m", "v"))
        most = [] if named["max_grad_norm"] is None else [named["max_grad_norm"]]
        torch._fused_adamw_(
            [var], [named["grad"]], [m], [v], most, [third],
            lr=numbers["lr"], beta1=numbers["beta1"], beta2=numbers["beta2"], weight_decay=numbers["weight_decay"],
            eps=numbers["epsilon"], amsgrad=bool(most), maximize=bool(call.attributes.get("maximize", 0)),
        )  # fmt: skip
        return var, m, v, *most

    return step


def benchmark(elements: int, dtype: DType) -> Call:
    return Call(OP, inputs((elements,), dtype, largest=False), outputs=WITHOUT)


LIMITS = limits(single=1, double=1)
RECORD = Record(
    OP,
    inputs={
        name: Input(variable="TScalar") if name in SETTINGS else Input(variable="T", optional=name == "max_grad_norm")
        for name in NAMES
    },
    outputs={
        "var_out": like("var", limits=LIMITS, portable_limits=LIMITS),
        "m_out": like("var", limits=LIMITS, portable_limits=LIMITS),
        "v_out": like("var", limits=LIMITS, portable_limits=LIMITS),
        "max_grad_norm_out": like("var", optional=True, needs="max_grad_norm", limits=LIMITS, portable_limits=LIMITS),
    },
    attributes={"maximize": Attribute(0, (0, 1), (-1, 2))},
    joint={
        NAMES: [
            (own, own, own, *[scalar] * len(SETTINGS), own, largest)
            for own in FLOATS
            for scalar in FLOATS
            for largest in (own, None)
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
    large=lambda dtype: (Call(OP, inputs((300, 101), dtype), label="blocks"),),
    torch=torch_call(torch_in_place),
    documented=("aclnnApplyAdamW", "Loshchilov", "Kingma", "AMSGrad", "beta1_power"),
    benchmarks=(
        Benchmark(benchmark, torch=torch_timed(torch_in_place)),
        Benchmark(
            benchmark,
            note="in place",
            torch=torch_timed(torch_in_place),
            in_place=dict(zip(WITHOUT, NAMES, strict=False)),
        ),
    ),
    accuracies=(accuracy.of_calls(benchmark, 20_000),),
)
