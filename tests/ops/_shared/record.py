"""What is known of an op apart from its implementation: one record drives tests, benchmarks and tables of accuracy."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from tests.ops._shared.arrays import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS
from tests.ops._shared.covering import covering
from tests.ops._shared.numbers import Array, Reals, difference, ulp_error

DType = np.dtype[Any]
T = TypeVar("T")
LENGTHS = tuple(map(np.dtype, (np.uint8, np.int8, np.int16, np.int32, np.int64)))
TRUTH = np.dtype(np.bool_)
INVALID = ("ACLNN_ERR_PARAM_INVALID", "161002")
KEPT_ELEMENTS = 20_000
"""Of the inputs of a call that is not large."""
MISSING = ("ACLNN_ERR_PARAM_NULLPTR", "161001")


def onnx_name(dtype: DType) -> str:
    """ONNX's word for a dtype."""
    return {"float32": "float", "float64": "double"}.get(dtype.name, dtype.name)


# --- calls ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Call:
    """One call of an op.

    Attributes:
        op: the op_type.
        inputs: by name, in the op's order; None for one that is left out.
        attributes: those that are not left to their defaults.
        outputs: the names of those wanted; None for all.
        label: what is special about it.
        static: whether a model of it tells the dimensions.
        careful: whether factors are so large or small that a function body, which goes by the formula one operator at a
            time, may overflow or lose digits.
    """

    op: str
    inputs: Mapping[str, Array | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] | None = None
    label: str = ""
    static: bool = False
    careful: bool = False

    def __str__(self) -> str:
        return f"{self.op}-{self.label}"

    @property
    def given(self) -> dict[str, Array]:
        """The inputs that are there."""
        return {name: array for name, array in self.inputs.items() if array is not None}

    def dtype(self, name: str) -> DType:
        return self.given[name].dtype

    def but(self, inputs: Mapping[str, Array | None], label: str = "") -> Call:
        """The same call with other inputs."""
        return replace(self, inputs={**self.inputs, **inputs}, label=label or self.label)


def with_value(
    inputs: Mapping[str, Array | None], name: str, place: int | tuple[int, ...], value: float
) -> dict[str, Array | None]:
    """Copies of inputs, one of which has another value at a place."""
    array = np.array(inputs[name])
    array[place] = value
    return {**inputs, name: array}


def with_dtypes(inputs: Mapping[str, Array | None], choice: Choice, *names: str) -> dict[str, Array | None]:
    """Inputs, some of which have the dtypes of a choice."""
    return {**inputs, **{name: np.asarray(inputs[name]).astype(choice.dtype(name)) for name in names}}


@dataclass(frozen=True)
class Choice:
    """What a call is made of: dtypes of the inputs (None: left out), values of the attributes, and a form."""

    dtypes: Mapping[str, DType | None]
    attributes: Mapping[str, Any]
    form: Any

    def dtype(self, name: str) -> DType:
        found = self.dtypes[name]
        assert found is not None
        return found


@dataclass(frozen=True)
class Worked:
    """A call whose result is known without computing it: worked out by hand, or a closed form.

    Attributes:
        outputs: by name.
        rtol: 0 for numbers that are exact in the dtype.
    """

    call: Call
    outputs: Mapping[str, Any]
    rtol: float = 0.0
    atol: float = 0.0


@dataclass(frozen=True)
class Refusal:
    """A wrong call: the plain one with some inputs replaced (None: left out), or an attribute set (None: left out).

    Attributes:
        words: what the message must say besides the op and the status.
        by_values: only the numbers in a tensor are wrong.
        by_rank: it is wrong already where only the ranks are known.
        outputs: those wanted, if not all.
    """

    label: str
    words: tuple[str, ...]
    change: Mapping[str, Array | None] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    status: tuple[str, str] = INVALID
    by_values: bool = False
    by_rank: bool = False
    outputs: tuple[str, ...] | None = None


# --- the contract --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Input:
    """dtypes: those that the op takes. variable: shared by inputs and outputs that always have one dtype."""

    dtypes: tuple[DType, ...] = FLOATS
    optional: bool = False
    variable: str = ""


@dataclass(frozen=True)
class Attribute:
    """One attribute.

    Attributes:
        default: if it is required, the value that a plain call has.
        values: those that calls are made with.
        wrong: those that are refused, with the words of the refusal.
    """

    default: Any
    values: tuple[Any, ...]
    wrong: tuple[Any, ...] = ()
    words: tuple[str, ...] = ()
    required: bool = False


Limits = Mapping[str, float]


def limits(half: float = 0.51, *, single: float, double: float) -> Limits:
    """The largest errors, in units in the last place of the largest term, by dtype of the result."""
    return {"float16": half, "bfloat16": half, "float32": single, "float64": double, "bool": 0.0, "int64": 0.0}


# One operator at a time, and onnxruntime's float32 exp is off by up to 2.
PORTABLE_LIMITS = limits(single=8, double=8)
# float64 sums of float64 terms in a fixed order, rounded once: half a unit, and for float64 results what the sum itself
# is off by is in `slack`.
SUM_LIMITS = limits(single=0.51, double=1)


@dataclass(frozen=True)
class Output:
    """One output.

    Attributes:
        dtype: which it has in a call.
        like: the input whose dtype it always has; None if attributes or several inputs settle it.
        dtypes: which there are.
        needs: an optional input without which there is no such output.
        limits: the largest errors of kernel and references.
        portable_limits: those of function bodies.
    """

    dtype: Callable[[Call], DType]
    like: str | None = None
    dtypes: tuple[DType, ...] = FLOATS
    optional: bool = False
    needs: str = ""
    limits: Limits = field(default_factory=lambda: SUM_LIMITS)
    portable_limits: Limits = field(default_factory=lambda: PORTABLE_LIMITS)


def like(name: str, **rest: Any) -> Output:
    """An output that has the dtype of an input."""
    return Output(lambda call: call.dtype(name), name, **rest)


def promoted(call: Call) -> DType:
    """The one floating dtype that holds those of all floating inputs."""
    kinds = {array.dtype for array in call.given.values() if array.dtype in FLOATS}
    if len(kinds) == 1:
        return kinds.pop()
    return FLOAT64 if FLOAT64 in kinds else FLOAT32


def at_least_float32(name: str) -> Callable[[Call], DType]:
    """float64 if an input is, else float32."""
    return lambda call: FLOAT64 if call.dtype(name) == FLOAT64 else FLOAT32


# --- benchmarks and accuracy ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Benchmark:
    """A row of the table of speed per dtype and size.

    Attributes:
        make: a call of a size in a dtype, with values as they occur in training.
        sizes: by name; what `make` takes.
        note: what tells it from other rows of the op.
        of_torch: how many times as fast as torch it has to be, by size, if not once.
        torch: torch's call that is timed, like the record's; None for that one itself.
        in_place: inputs, by the output that has their memory where the kernel is timed.
    """

    make: Callable[[Any, DType], Call]
    sizes: Mapping[str, Any] = field(default_factory=lambda: ELEMENTS)
    note: str = ""
    of_torch: Mapping[str, float] = field(default_factory=dict)
    torch: Callable[[ModuleType, Call], Callable[[], Any] | None] | None = None
    in_place: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_variant(self) -> bool:
        """Whether the row shows other attributes or inputs, which matter less for small tensors."""
        return bool(self.note) and not self.in_place


ELEMENTS = {"1e3": 1_000, "1e5": 100_000, "1e6": 1_000_000, "1.6e7": 16_000_000}


@dataclass(frozen=True)
class Accuracy:
    """A row of the table of accuracy per dtype.

    Attributes:
        calls: all that a row is judged by.
        note: what tells it from other rows of the op.
        tail: where an exponential in the formula is below the smallest normal number: a table of its own.
        absolute: whether the errors of the results are also printed as they are, one row for each label of a call.
    """

    calls: Callable[[DType], Iterator[Call]]
    note: str = ""
    tail: Callable[[Call, Reals], Array] | None = None
    absolute: bool = False


# --- the record ----------------------------------------------------------------------------------------------------


def _none(*unused: Any) -> Iterator[Any]:
    return iter(())


@dataclass(frozen=True, eq=False)
class Record:
    """One op.

    Attributes:
        op: the op_type.
        inputs: by name, in the op's order.
        outputs: by name, in the op's order.
        attributes: by name.
        oracle: the definition once more, slow and obvious: oracle(*inputs, dtype=..., **attributes) widens floating
            inputs to `dtype`, evaluates the formula and returns `dtype`, a tuple for several outputs.
        make: the inputs of a choice.
        forms: shapes and the like to make calls of, by name.
        joint: inputs and attributes that do not go with each other in all dtypes and values: those that do.
        calls: further calls that it computes: shapes, special values, ends of the range.
        worked: calls with results that are known, for a dtype.
        refusals: calls that it refuses, besides those that follow from `inputs` and `attributes`.
        terms: the largest term of each element of each output, like the oracle; by default the result itself.
        slack: what an output may be off by besides rounding: slack(call, output, dtype of the result, portable);
            what is not finite counts as 0.
        limit_of: the limit of an output in calls that have one of their own, on all backends.
        large: calls with more elements than a block has, whose results do not depend on threads.
        torch_draws: whether torch's results are random, so that only its speed can be compared.
        torch: torch_call(torch, call): a function of no arguments that computes the same with torch on the same memory,
            a tensor or a tuple of the outputs wanted; None where torch has nothing like it.
        documented: words that the documentation of the schema has to say.
        unread: inputs whose values are never looked at.
        benchmarks, accuracies: rows of the tables.
    """

    op: str
    inputs: Mapping[str, Input]
    outputs: Mapping[str, Output]
    oracle: Callable[..., Array | tuple[Array, ...]]
    make: Callable[[Choice], Mapping[str, Array | None]]
    forms: Mapping[str, Any]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    joint: Mapping[tuple[str, ...], Sequence[tuple[Any, ...]]] = field(default_factory=dict)
    calls: Callable[[], Iterable[Call]] = _none
    worked: Callable[[DType], Iterable[Worked]] = _none
    refusals: Callable[[Call], Iterable[Refusal]] = _none
    terms: Callable[..., Array | tuple[Array, ...]] | None = None
    slack: Callable[[Call, str, DType, bool], ArrayLike] = lambda call, output, dtype, portable: 0.0
    limit_of: Callable[[Call, str, DType], float | None] = lambda call, output, dtype: None
    large: Callable[[DType], Iterable[Call]] = _none
    torch: Callable[[ModuleType, Call], Callable[[], Any] | None] | None = None
    torch_draws: bool = False
    documented: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    benchmarks: tuple[Benchmark, ...] = ()
    accuracies: tuple[Accuracy, ...] = ()

    def __str__(self) -> str:
        return self.op

    # Calls

    def arrays(self, call: Call) -> list[Array | None]:
        """The inputs of a call in the op's order."""
        assert set(call.inputs) <= set(self.inputs), set(call.inputs)
        return [call.inputs.get(name) for name in self.inputs]

    @property
    def defaults(self) -> dict[str, Any]:
        return {name: attribute.default for name, attribute in self.attributes.items()}

    def call(self, choice: Choice, label: str = "") -> Call:
        return self.call_of(self.make(choice), choice.attributes, label)

    def call_of(self, given: Mapping[str, Array | None], attributes: Mapping[str, Any], label: str = "") -> Call:
        """A call that wants every output that there is with these inputs."""
        inputs: dict[str, Array | None] = {name: None for name in self.inputs} | dict(given)
        possible = tuple(
            n for n, output in self.outputs.items() if not output.needs or inputs[output.needs] is not None
        )
        outputs = None if len(possible) == len(self.outputs) else possible
        return Call(self.op, inputs, attributes, outputs, label)

    @functools.cached_property
    def plain(self) -> Call:
        """A call in float32 with every input and all defaults."""
        dtypes = {n: FLOAT32 if FLOAT32 in i.dtypes else np.dtype(np.int64) for n, i in self.inputs.items()}
        dtypes |= {n: np.dtype(np.int64) for n, i in self.inputs.items() if np.dtype(np.int64) in i.dtypes}
        dtypes |= {n: np.dtype(np.int32) for n, i in self.inputs.items() if i.dtypes[0] == np.int32}
        call = self.call(Choice(dtypes, self.defaults, next(iter(self.forms.values()))), "plain")
        return replace(call, attributes={name: a.default for name, a in self.attributes.items() if a.required})

    @property
    def parameters(self) -> dict[tuple[str, ...], Sequence[tuple[Any, ...]]]:
        """What calls are combined of, by names: dtypes of inputs, None for one left out, and values of attributes.

        Inputs and attributes that are named in `joint` count as one.
        """
        found: dict[tuple[str, ...], Sequence[tuple[Any, ...]]] = dict(self.joint)
        joined = {name for names in self.joint for name in names}
        for name, given in self.inputs.items():
            if name not in joined:
                found[name,] = [(dtype,) for dtype in ((None,) if given.optional else ()) + given.dtypes]
        for name, attribute in self.attributes.items():
            if name not in joined:
                found[name,] = [(value,) for value in attribute.values]
        return found

    def combinations(self, strength: int | None = 2) -> Iterator[Call]:
        """Calls in which all values of any `strength` of the parameters meet; None: all combinations.

        The form counts as a parameter; the forms of all combinations come in turn.
        """
        axes = self.parameters
        forms = [(form,) for form in self.forms]
        if strength is None:
            rows = ((*row, form) for row, form in zip(itertools.product(*axes.values()), itertools.cycle(forms)))
        else:
            rows = iter(covering([*axes.values(), forms], strength))
        names = [name for group in axes for name in group]
        for row in rows:
            *values, form = itertools.chain(*row)
            own = dict(zip(names, values, strict=True))
            kinds = {name: own[name] for name in self.inputs}
            attributes = {name: own[name] for name in self.attributes}
            words = [v.name if isinstance(v, np.dtype) else "none" if v is None else str(v) for v in values]
            yield self.call(Choice(kinds, attributes, self.forms[form]), "-".join([*words, form]))

    def wrong_calls(self) -> Iterator[tuple[Refusal, Call]]:
        """The calls to refuse: inputs left out, of a wrong dtype or rank, wrong attributes, and those of the record."""
        plain = self.plain
        for refusal in (
            *self._wrong_inputs(plain),
            *self._mixed_dtypes(plain),
            *self._wrong_attributes(),
            *self.refusals(plain),
        ):
            attributes = {**plain.attributes, **refusal.attributes}
            attributes = {name: value for name, value in attributes.items() if value is not None}
            changed = replace(plain, attributes=attributes, outputs=refusal.outputs)
            yield refusal, changed.but(refusal.change, refusal.label)

    def _wrong_inputs(self, plain: Call) -> Iterator[Refusal]:
        everything = {dtype for given in self.inputs.values() for dtype in given.dtypes}
        for name, given in self.inputs.items():
            array = plain.given[name]
            if not given.optional:
                yield Refusal(f"no_{name}", (f"'{name}'", "missing"), {name: None}, status=MISSING)
            others = sorted(everything - set(given.dtypes), key=lambda dtype: dtype.name)
            wrong = {np.dtype(np.uint64), *(others[:1] or {np.dtype(np.int32)} - set(given.dtypes))}
            for dtype in sorted(wrong, key=lambda dtype: dtype.name):
                words = (f"'{name}'", onnx_name(dtype), "expected one of")
                yield Refusal(f"{name}_of_{dtype.name}", words, {name: np.zeros(array.shape, dtype)})
            if array.ndim < 9:
                words = (f"'{name}'", "(1, 1, 1, 1, 1, 1, 1, 1, 1)", "expected")
                nine = np.zeros([1] * 9, array.dtype)
                yield Refusal(f"{name}_of_rank_9", words, {name: nine}, by_rank=True)

    def _mixed_dtypes(self, plain: Call) -> Iterator[Refusal]:
        """Of each two inputs that always have one dtype, the second with another one that the op takes by itself."""
        first: dict[str, str] = {}
        for name, given in self.inputs.items():
            if not given.variable or first.setdefault(given.variable, name) == name:
                continue
            array = plain.given[name]
            other = next(dtype for dtype in reversed(given.dtypes) if dtype != array.dtype)
            words = (f"'{name}'", onnx_name(other), "expected", onnx_name(array.dtype), "the dtype of")
            yield Refusal(f"{name}_of_{other.name}", words, {name: array.astype(other)})

    def _wrong_attributes(self) -> Iterator[Refusal]:
        for name, attribute in self.attributes.items():
            if attribute.required:
                yield Refusal(f"no_{name}", (f"'{name}'", "missing"), attributes={name: None}, status=MISSING)
            for value in attribute.wrong:
                words = (f"'{name}'", f" {value},", *attribute.words)
                yield Refusal(f"{name}_{value}", words, attributes={name: value})

    # Judging

    def output_dtype(self, call: Call, output: str) -> DType:
        return self.outputs[output].dtype(call)

    def wanted(self, call: Call) -> tuple[str, ...]:
        """The outputs of a call."""
        return tuple(self.outputs) if call.outputs is None else call.outputs

    def expected(self, call: Call, dtype: Reals = np.float64) -> dict[str, Array]:
        """All outputs by the oracle."""
        return _by_output(call, self, self.oracle, dtype)

    def largest_terms(self, call: Call) -> dict[str, Array]:
        """The largest term of each element of all outputs; empty if it is the result itself."""
        return {} if self.terms is None else _by_output(call, self, self.terms, np.float64)

    def errors(
        self,
        call: Call,
        output: str,
        actual: Array,
        *,
        portable: bool = False,
        slack: float | None = None,
        limit: float | None = None,
    ) -> Array:
        """The error of each element of an output beyond the slack, in units in the last place of its largest term.

        slack: a number instead of the record's.
        limit: if no error is larger without slack, in units in the last place of the result, these errors are
            returned: terms and slack, which take as long to compute as the result, only make them smaller.
        """
        wide = FLOAT64 in {actual.dtype, *(array.dtype for array in call.given.values())}
        dtype = np.longdouble if wide else np.float64
        expected = self.expected(call, dtype)[output]
        assert actual.shape == expected.shape, f"{output} has shape {actual.shape}, expected {expected.shape}"
        if limit is not None and np.all((error := ulp_error(actual, expected)) <= limit):
            return error
        error = ulp_error(actual, expected, self.largest_terms(call).get(output))
        allowed = self.slack(call, output, actual.dtype, portable) if slack is None else slack
        if np.any(allowed):
            off, granted = difference(actual, expected), np.where(np.isfinite(allowed), allowed, 0.0)
            with np.errstate(all="ignore"):
                beyond = np.where(np.isfinite(off), error * (1 - granted / off), error)
            error = np.where(off <= granted, 0.0, beyond)
        return error

    def limit(self, call: Call, output: str, dtype: DType, *, portable: bool = False) -> float:
        """The largest error that `errors` may find in an output of a dtype."""
        own = self.limit_of(call, output, dtype)
        if own is not None:
            return own
        judged = self.outputs[output]
        if portable and judged.limits[dtype.name]:
            return max(judged.portable_limits[dtype.name], judged.limits[dtype.name])
        return judged.limits[dtype.name]


__all__ = [
    "BFLOAT16", "FLOAT16", "FLOAT32", "FLOAT64", "FLOATS", "INVALID", "LENGTHS", "MISSING", "PORTABLE_LIMITS",
    "SUM_LIMITS", "TRUTH", "Accuracy", "Array", "Attribute", "Benchmark", "Call", "Choice", "DType", "Input", "Limits",
    "Output", "Record", "Refusal", "Worked", "at_least_float32", "like", "limits", "onnx_name", "promoted",
]  # fmt: skip


def kept_by_call(function: Callable[..., T]) -> Callable[..., T]:
    """A function of a call and more whose results are kept: a call is judged output by output, on several backends.

    Those of a large call are kept for its next output alone.
    """
    of_small, of_large = functools.lru_cache(maxsize=1024)(function), functools.lru_cache(maxsize=4)(function)

    @functools.wraps(function)
    def kept(call: Call, *rest: Any) -> T:
        large = sum(array.size for array in call.given.values()) > KEPT_ELEMENTS
        return (of_large if large else of_small)(call, *rest)

    return kept


@kept_by_call
def _by_output(call: Call, record: Record, function: Callable[..., Any], dtype: Reals) -> dict[str, Array]:
    with np.errstate(all="ignore"):
        result = function(*record.arrays(call), **{**record.defaults, **call.attributes}, dtype=dtype)
    return dict(zip(record.outputs, result if isinstance(result, tuple) else (result,), strict=True))
