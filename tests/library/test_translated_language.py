"""The Python that is translated to C: the same values and texts, and refusals of what is not known."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from native_checks import Checks, answer, built, compiler

from onnx_ops.core.call import Call
from onnx_ops.core.op import Example, Op
from onnx_ops.core.schema import attribute
from onnx_ops.core.signature import Input, Output, Signature
from onnx_ops.core.types import TensorType
from onnx_ops.library.translation import TranslationError, source
from onnx_ops.ops import OPS

Texts = Callable[[int, int, float, tuple[int, ...]], str]
WORDS = {1: "one", 2: "two"}
PAIRS = {(1, 2): "pair"}


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2

    @property
    def other(self) -> Size:
        return {Size.SMALL: Size.LARGE}.get(self, Size.SMALL)


class Kind(enum.IntEnum):
    SMALL = 1


class Point(NamedTuple):
    x: int
    y: int = 7

    def moved(self, by: int, *, twice: bool = False) -> Point:
        return Point(self.x + by * (2 if twice else 1), y=self.y)


@dataclasses.dataclass(frozen=True)
class Line:
    begin: Point
    end: Point | None = None

    @property
    def is_open(self) -> bool:
        return self.end is None


def total(*numbers: int, start: int = 0) -> int:
    for number in numbers:
        start += number
    return start


def arithmetic(a: int, b: int, x: float, numbers: tuple[int, ...]) -> str:
    found = [a + b, a - b, a * b, -a, a & b, a | b, min(a, b), max(a, b, 3), True + a, a * 0.5 - x]
    if b:
        found += [a // b, a % b]
    return f"{found} {math.prod(numbers[:2])} {sum(n % 7 for n in numbers)} {int(a > b)} {float(b)}"


def comparisons(a: int, b: int, x: float, numbers: tuple[int, ...]) -> str:
    numeric = (a < b, a <= b, a == b, a != b, a > b, a >= b, a < x, a <= x, x < a, x <= a, a == x, x == x, x != x)
    chained = (a < b < 5, a <= b > x, a == a == b, a > 0, not a, not x)
    others = (a in (b, 3), a not in numbers, numbers == (), Point(a, b) == (a, b), (a, (b,)) == (b, (a,)), "ab" < "b")
    kinds = (isinstance(a, int), isinstance(x, int), isinstance(numbers, tuple), isinstance(Point(1), tuple))
    same = (Size.SMALL is Size(1), Size.SMALL == Kind.SMALL, Size.LARGE is not Size.LARGE.other, x is None)
    return f"{numeric} {chained} {others} {kinds} {same}"


def texts(a: int, b: int, x: float, numbers: tuple[int, ...]) -> str:
    joined = ", ".join(map(str, numbers)) + "; ".join(f"<{n}>" for n in numbers if n > 0)
    return (
        f"{a}{b}{x} {x!r} {x!s} {numbers} {[x, None, True, 'a', (a,), ()]!r} {joined} {Size.LARGE} {Size.LARGE.name}"
        f' {WORDS.get(a)} {WORDS.get(b, "many")} {PAIRS.get((a, b), "")} {"tensor(x)".removeprefix("tensor(")} %"\\ é'
    )


def containers(a: int, b: int, x: float, numbers: tuple[int, ...]) -> str:
    own = {"a": a, **({"b": b} if b else {})}
    other = own | {"a": x, "c": a}
    own["d"] = own["a"]
    popped = other.pop("a")
    first, *rest = (*numbers, a, b)
    *most, last = [b, *numbers]
    nested = [(i, n) for i, n in enumerate(numbers, 1) for k in range(2) if (n + k) % 2]
    return (
        f"{list(own.items())} {list(other)} {popped} {first} {rest} {most} {last} {nested} {numbers[1:]} {numbers[:-1]}"
        f" {numbers[a:b]} {numbers[-1:] * 2} {len(own)} {sorted(numbers)} {list(zip(numbers, rest))} {len({*numbers})}"  # noqa: B905
        f" {[n for n in {n: -n for n in numbers}.values()]} {dict([(a, b)]).get(a)} {[*range(3), *range(a % 5, 4)]}"
        f" {numbers.index(numbers[-1]) if numbers else -1} {list(other.keys())}"
    )


def control(a: int, b: int, x: float, numbers: tuple[int, ...]) -> str:
    steps, found = 0, []
    while True:
        steps += 1
        if steps == 3:
            continue
        if steps > 5 or (halved := a // 2) == b:
            break
        found.append(halved)
    for n in numbers:
        if n == a:
            break
        if n < 0:
            continue
        found.append(n if n else None)
    one = two = a or b or "none"
    both = a and x and numbers
    big = next((n for n in numbers if n > 100), None)
    return (
        f"{steps} {found} {one} {two} {both} {big} {any(n > 2 for n in numbers)} {all(n for n in numbers)}"
        f" {total(a, b)} {total(*numbers, start=b)} {total(a, *numbers)} {total()}"
    )


def records(a: int, b: int, x: float, numbers: tuple[int, ...]) -> str:
    line = Line(Point(a), Point(*(a, b)))
    x_, y = line.begin.moved(b, twice=True)
    cut = dataclasses.replace(line, end=None)
    return f"{line.begin.y} {x_} {y} {line.is_open} {cut.is_open} {tuple(line.begin)} {len(line.begin)} {line.begin[0]}"


def yielded(numbers: Sequence[int]) -> Any:
    for n in numbers:
        if n:
            yield -n


def lazy(a: int, b: int, x: float, numbers: tuple[int, ...]) -> str:
    return f"{list(yielded(numbers))} {sum(yielded(numbers))} {float(np.maximum(np.float32(x), np.float32(0)))}"


CASES: tuple[Texts, ...] = (arithmetic, comparisons, texts, containers, control, records, lazy)


def infer(call: Call) -> tuple[TensorType, ...]:
    case, a, b, x, numbers = (call.attributes[name] for name in ("case", "a", "b", "x", "numbers"))
    if case == 0:
        raise call.error(arithmetic(a, b, x, numbers))
    if case == 1:
        raise call.error(comparisons(a, b, x, numbers))
    if case == 2:
        raise call.error(texts(a, b, x, numbers))
    if case == 3:
        raise call.error(containers(a, b, x, numbers))
    if case == 4:
        raise call.error(control(a, b, x, numbers))
    if case == 5:
        raise call.error(records(a, b, x, numbers))
    raise call.error(lazy(a, b, x, numbers))


SIGNATURE = Signature(
    "Language",
    "",
    inputs=(Input("input", ""),),
    outputs=(Output("output", "", "input"),),
    attributes=[
        *(attribute(name, 0, "") for name in ("case", "a", "b")),
        attribute("x", 0.0, ""),
        attribute("numbers", (), ""),
    ],
)


def op_of(function: Callable[[Call], tuple[TensorType, ...]]) -> Op:
    like = OPS["Hardshrink"]
    return Op(SIGNATURE, function, like.kernel, like.reference, like.body, Example({}, {}))


@pytest.fixture(scope="module", autouse=True)
def translatable() -> None:
    """As if this file belonged to the package."""
    own = [value for value in globals().values() if getattr(value, "__module__", None) == __name__]
    inner = [part for value in own if inspect.isclass(value) for part in vars(value).values()]
    inner += [part.fget for part in inner if isinstance(part, property)]
    for value in (*own, *inner):
        if (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__ == __name__:
            value.__module__ = "onnx_ops.tests"


@pytest.mark.skipif(compiler() is None, reason="there is no compiler of C")
def test_values_and_texts(tmp_path: Path) -> None:
    op = op_of(infer)
    checks = Checks(built(source([op], []), tmp_path), [op])
    rng = np.random.default_rng(0)
    ends = (0, 1, -1, 2, 3, 7, -7, 2**31, 2**53, 2**53 + 1, 2**62, 2**63 - 1, -(2**63))
    reals = (0.0, -0.0, 1.0, 0.1, -2.5, 1e16, 1e-5, 2.0**53, 2.0**63, math.inf, -math.inf, math.nan, 3.4e38, 2.0**-149)
    for case in range(len(CASES)):
        for _ in range(300):
            a, b = (int(ends[i]) for i in rng.integers(len(ends), size=2))
            numbers = [int(ends[i]) for i in rng.integers(len(ends), size=rng.integers(5))]
            x = float(np.float32(reals[rng.integers(len(reals))]))
            given = {"case": case, "a": a, "b": b, "x": x, "numbers": numbers}
            expected = answer(functools.partial(op.infer, op.call([TensorType(1)], given)))
            assert isinstance(expected, str)
            assert checks.infer(op, [TensorType(1)], given) == expected


# --- refusals --------------------------------------------------------------------------------------------------------


def formatted(call: Call) -> Any:
    return f"{call.attributes['x']:.3f}"


def divided(call: Call) -> Any:
    return call.attributes["a"] / 2


def caught(call: Call) -> Any:
    try:
        return call.attributes["a"]
    except KeyError:
        return None


def identical(call: Call) -> Any:
    return call.attributes["a"] is call.attributes["b"]


def with_a_function(call: Call) -> Any:
    return [(lambda n: n)(1)]


def of_numpy(call: Call) -> Any:
    return np.linalg.norm(call.attributes["numbers"])


def by_a_method(call: Call) -> Any:
    return call.no_such_method()  # type: ignore[attr-defined]


def of_a_module(call: Call) -> Any:
    return math.no_such_function(call)  # type: ignore[attr-defined]


def of_a_string(call: Call) -> Any:
    return str(call.attributes["a"]).upper()


def stepping(call: Call) -> Any:
    return call.attributes["numbers"][::2]


def with_keywords(call: Call) -> Any:
    return total(**call.attributes)


def raising(call: Call) -> Any:
    return list(refusing(call))


def refusing(call: Call) -> Any:
    yield 1
    raise call.error("late")


def otherwise(call: Call) -> Any:
    for n in call.attributes["numbers"]:
        total(n)
    else:
        return 1


def deleting(call: Call) -> Any:
    own = {1: 2}
    del own[1]
    return own


REFUSED = {
    formatted: 1,
    divided: 1,
    caught: 1,
    identical: 1,
    with_a_function: 1,
    of_numpy: 1,
    by_a_method: 1,
    of_a_module: 1,
    of_a_string: 1,
    stepping: 1,
    with_keywords: 1,
    refusing: 2,
    otherwise: 1,
    deleting: 2,
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_what_is_not_known_is_refused_with_its_line(function: Callable[[Call], Any]) -> None:
    line = inspect.getsourcelines(function)[1] + REFUSED[function]
    asked = raising if function is refusing else function
    with pytest.raises(TranslationError) as raised:
        source([op_of(asked)], [])
    assert f"{Path(__file__).name}:{line}: {function.__name__}: " in str(raised.value)
