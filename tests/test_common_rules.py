"""The rules of all ops: what they refuse, with which words, and that results do not depend on threads.

One row of `ROWS` is one way to call an op wrongly. It is seen by whoever can see it first: what the model tells, by the
checker, by strict shape inference, by `link` and when a session is made; shapes that the model leaves open, and
values, by the run. The reference evaluator sees all of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cases
import engines
import numpy as np
import onnx
import pytest
from engines import FLOAT16, FLOAT32, FLOAT64, Array, Attributes
from onnx.reference import ReferenceEvaluator

import onnx_ops
from models.single_op import single_op_model
from onnx_ops import OPS

INVALID = ("ACLNN_ERR_PARAM_INVALID", "161002")
MISSING = ("ACLNN_ERR_PARAM_NULLPTR", "161001")
KL, BCE, CTC = "KlDivBackward", "BinaryCrossEntropyWithLogitsBackward", "CtcLossBackward"
BN, HARDSHRINK = "BatchNormElemtBackward", "HardshrinkBackward"


@functools.cache
def _good(op: str) -> dict[str, Array]:
    """A call that the op computes; every input is there."""
    x, one, three = cases.normal((2, 3), np.float32), np.ones((), np.float32), np.ones(3, np.float32)
    if op == KL:
        return {"grad_output": one, "self": x, "target": np.abs(x)}
    if op == BCE:
        return {"grad_output": one, "self": x, "target": np.abs(x), "weight": three, "pos_weight": three}
    if op == BN:
        count = np.array([2], np.int32)
        names = ("mean", "invstd", "weight", "sum_dy", "sum_dy_xmu")
        return {"grad_out": x, "input": x, **dict.fromkeys(names, three), "counter": count}
    if op == HARDSHRINK:
        return {"grad_output": x, "self": x}
    if op != CTC:
        return OPS[op].example.arrays()
    log_probs = np.full((5, 2, 4), -math.log(4), np.float32)
    return {
        "grad_out": np.ones(2, np.float32),
        "log_probs": log_probs,
        "targets": np.array([[1, 2], [3, -1]], np.int64),
        "input_lengths": np.array([5, 4], np.int64),
        "target_lengths": np.array([2, 1], np.int64),
        "neg_log_likelihood": np.ones(2, np.float32),
        "log_alpha": np.zeros((2, 5, 5), np.float32),
    }


@dataclass(frozen=True)
class Row:
    """A wrong call: the good one with some inputs replaced (None: left out), or an attribute set.

    words: what the message must say besides the op and the status. by_values: only the numbers in a tensor are wrong.
    """

    id: str
    op: str
    words: tuple[str, ...]
    change: Mapping[str, Array | None] = field(default_factory=dict)
    attributes: Attributes = field(default_factory=dict)
    status: tuple[str, str] = INVALID
    by_values: bool = False
    by_rank: bool = False  # already wrong where only the ranks are known

    def __str__(self) -> str:
        return f"{self.op}-{self.id}"

    @property
    def inputs(self) -> list[Array | None]:
        return [self.change.get(name, a) for name, a in _good(self.op).items()]

    @property
    def given(self) -> dict[str, Array]:
        return engines.named(self.op, self.inputs)

    @property
    def by_shapes(self) -> bool:
        """Whether it takes the numbers of a shape to see it, more than dtypes, ranks and attributes."""
        shapes = any(a is not None and a.shape != _good(self.op)[name].shape for name, a in self.change.items())
        dtypes = any(a is None or a.dtype != _good(self.op)[name].dtype for name, a in self.change.items())
        return shapes and not dtypes and not self.by_rank and not self.by_values

    def judge(self, message: str) -> None:
        for word in (self.op, *self.words, *self.status):
            assert word in message, f"{word!r} is not in {message!r}"


def zeros(*shape: int, dtype: Any = np.float32) -> Array:
    return np.zeros(shape, dtype)


def _rows() -> list[Row]:
    rows: list[Row] = []
    words: tuple[str, ...]
    optional = {"weight", "pos_weight"}
    for op in OPS:
        for name, array in _good(op).items():
            if name not in optional:
                words = (f"'{name}'", "missing")
                rows.append(Row(f"no_{name}", op, words, {name: None}, status=MISSING))
            # a dtype that no input takes, and one that only other inputs take
            wrong = [np.uint64, np.float64 if array.dtype.kind == "i" else np.int32]
            if name == "targets":
                wrong = [np.uint64, np.float64]
            for dtype in wrong:
                words = (f"'{name}'", np.dtype(dtype).name.replace("float64", "double"), "expected one of")
                rows.append(Row(f"{name}_of_{np.dtype(dtype).name}", op, words, {name: array.astype(dtype)}))
        if op != CTC:
            for name in _good(op):
                words = (f"'{name}'", "(1, 1, 1, 1, 1, 1, 1, 1, 1)", "8 dimensions")
                nine = zeros(*[1] * 9, dtype=_good(op)[name].dtype)
                rows.append(Row(f"{name}_of_rank_9", op, words, {name: nine}, by_rank=True))

    def shape(op: str, name: str, own: Array, *words: str, by_rank: bool = False, **more: Array) -> None:
        text = "(" + ", ".join(map(str, own.shape)) + ("," if own.ndim == 1 else "") + ")"
        change = {name: own, **more}
        row = f"{name}_of_{'x'.join(map(str, own.shape)) or 'rank_0'}"
        rows.append(Row(row, op, (f"'{name}'", text, "expected", *words), change, by_rank=by_rank))

    def attribute(op: str, name: str, *values: int, words: Sequence[str] = ()) -> None:
        for value in values:
            rows.append(Row(f"{name}_{value}", op, (f"'{name}'", f" {value},", *words), attributes={name: value}))

    def value(op: str, row: str, *words: str, **change: Array) -> None:
        rows.append(Row(row, op, words, change, by_values=True))

    attribute(KL, "reduction", -1, 4, 2**40, words=("0 (none)", "1 (mean)", "2 (sum)", "3 (batchmean)"))
    attribute(KL, "log_target", -1, 2)
    attribute(BCE, "reduction", -1, 3, words=("0 (none)", "1 (mean)", "2 (sum)"))
    attribute(CTC, "blank", -1, 4, 2**31, words=("[0, 4)",))
    attribute(CTC, "zero_infinity", -1, 2)
    attribute(CTC, "through_log_softmax", -1, 2)

    shape(KL, "target", zeros(2, 4), "'self'", "(2, 3)")
    shape(KL, "target", zeros(3, 1, 2), "'self'", "(2, 3)")
    shape(KL, "grad_output", zeros(2, 4), "'self' and 'target'", "(2, 3)")
    shape(KL, "grad_output", zeros(3, 3), "(2, 3)")
    shape(KL, "grad_output", zeros(1, 2, 3), "(2, 3)", by_rank=True)  # broadcasts with S, but not to it
    shape(KL, "grad_output", zeros(0, 3), "(2, 3)")

    shape(BCE, "target", zeros(3), "(2, 3)", "'self'", by_rank=True)
    shape(BCE, "target", zeros(2, 1), "(2, 3)", "'self'")  # would broadcast; the same shape is asked for
    for name in ("grad_output", "weight", "pos_weight"):
        shape(BCE, name, zeros(2), "'self'", "(2, 3)")
        shape(BCE, name, zeros(4, 2, 3), "'self'", "(2, 3)", by_rank=True)
        shape(BCE, name, zeros(1, 2, 3), "'self'", "(2, 3)", by_rank=True)

    three = zeros(3)
    shape(BN, "input", three, "2 to 8 dimensions", grad_out=three, by_rank=True)
    shape(BN, "input", zeros(), "2 to 8 dimensions", grad_out=zeros(), by_rank=True)
    none = dict.fromkeys(("mean", "invstd", "weight", "sum_dy", "sum_dy_xmu"), zeros(0))
    shape(BN, "input", zeros(2, 0), "channel", grad_out=zeros(2, 0), **none)
    shape(BN, "grad_out", zeros(2, 1), "(2, 3)", "'input'")
    shape(BN, "grad_out", zeros(2, 3, 1), "(2, 3)", "'input'", by_rank=True)
    for name in ("mean", "invstd", "weight", "sum_dy", "sum_dy_xmu"):
        shape(BN, name, zeros(2), "(3,)", "channel")
        shape(BN, name, zeros(1), "(3,)", "channel")
        shape(BN, name, zeros(1, 3), "(3,)", "channel", by_rank=True)

    shape(HARDSHRINK, "self", zeros(2, 4), "'grad_output'", "(2, 3)")
    shape(HARDSHRINK, "self", zeros(0, 3), "'grad_output'", "(2, 3)")

    for name in ("grad_out", "neg_log_likelihood", "input_lengths", "target_lengths"):
        kind = _good(CTC)[name].dtype
        shape(CTC, name, zeros(3, dtype=kind), "(2,)", "'log_probs'")
        shape(CTC, name, zeros(2, 1, dtype=kind), "(2,)", by_rank=True)
        shape(CTC, name, zeros(dtype=kind), "(2,)", by_rank=True)
    shape(CTC, "log_probs", zeros(5, 4), "(T, N, C)", by_rank=True)
    shape(CTC, "log_probs", zeros(1, 5, 2, 4), "(T, N, C)", by_rank=True)
    shape(CTC, "targets", zeros(3, 2, dtype=np.int64), "(2, 2)", "'log_probs'")
    shape(CTC, "targets", zeros(dtype=np.int64), "(N, S)", by_rank=True)
    shape(CTC, "targets", zeros(1, 2, 2, dtype=np.int64), "(N, S)", by_rank=True)
    shape(CTC, "log_alpha", zeros(3, 5, 5), "(2, 5, 5)", "'log_probs'")
    shape(CTC, "log_alpha", zeros(2, 4, 5), "(2, 5, 5)", "'log_probs'")
    shape(CTC, "log_alpha", zeros(2, 5), "'log_probs'", by_rank=True)
    shape(CTC, "log_alpha", zeros(2, 5, 0), "state")
    for name, kinds in {
        "grad_out": (FLOAT16, FLOAT64),
        "neg_log_likelihood": (FLOAT16, engines.BFLOAT16),
        "log_alpha": (FLOAT16, engines.BFLOAT16),
    }.items():
        for kind in kinds:
            words = (f"'{name}'", kind.name.replace("float64", "double"), "'log_probs'", "float")
            rows.append(Row(f"{name}_of_{kind.name}", CTC, words, {name: _good(CTC)[name].astype(kind)}))
    half = {"grad_out": zeros(2, dtype=FLOAT16), "log_probs": zeros(5, 2, 4, dtype=FLOAT16)}
    narrow = zeros(2, dtype=engines.BFLOAT16)  # neither of the 16-bit types is the wider one
    words = ("'neg_log_likelihood'", "bfloat16", "float16")
    rows.append(Row("bfloat16_beside_float16", CTC, words, {**half, "neg_log_likelihood": narrow}))

    integers = functools.partial(np.array, dtype=np.int64)
    value(CTC, "input_length_too_long", "'input_lengths'", "6", "5", input_lengths=integers([5, 6]))
    value(CTC, "input_length_negative", "'input_lengths'", "-1", "5", input_lengths=integers([-1, 5]))
    value(CTC, "input_length_int64_min", "'input_lengths'", str(-(2**63)), input_lengths=integers([5, -(2**63)]))
    value(CTC, "input_length_int64_max", "'input_lengths'", str(2**63 - 1), input_lengths=integers([2**63 - 1, 5]))
    value(CTC, "target_length_negative", "'target_lengths'", "-1", target_lengths=integers([2, -1]))
    value(CTC, "target_length_beyond_S", "'target_lengths'", "3", "S = 2", target_lengths=integers([2, 3]))
    value(CTC, "target_length_int64_max", "'target_lengths'", str(2**63 - 1), target_lengths=integers([2**63 - 1, 0]))
    value(CTC, "target_length_2**62", "'target_lengths'", str(2**62), target_lengths=integers([2**62, 2**62]))
    value(CTC, "log_alpha_too_narrow", "'log_alpha'", "4", "5", "target length 2", log_alpha=zeros(2, 5, 4))
    value(CTC, "label_too_large", "'targets'", " 4 ", "sample 1", "[0, 4)", targets=integers([[1, 2], [4, 0]]))
    value(CTC, "label_negative", "'targets'", " -1 ", "sample 0", "[0, 4)", targets=integers([[1, -1], [3, 0]]))
    value(CTC, "label_int64_max", "'targets'", str(2**63 - 1), "[0, 4)", targets=integers([[1, 2**63 - 1], [3, 0]]))
    flat = functools.partial(value, CTC)
    flat("flat_label", "'targets'", " 7 ", "sample 1", targets=integers([1, 2, 7]))
    flat("flat_too_short", "'targets'", "2 ", "3", targets=integers([1, 2]))
    flat("flat_too_long", "'targets'", "4 ", "3", targets=integers([1, 2, 3, 1]))
    for number in (0.5, math.nan, math.inf, -1.0, 4.0):
        labels = np.array([[1, number], [3, -1]], np.float32)
        value(CTC, f"label_{number}", "'targets'", f" {number} ", "[0, 4)", targets=labels)
    return rows


ROWS = _rows()
STATIC = [row for row in ROWS if not row.by_values]
every = functools.partial(pytest.mark.parametrize, "row", ids=str)


def model_of(row: Row, known: str = "shapes") -> onnx.ModelProto:
    """A model of the wrong call that tells the inputs' shapes, or only their ranks, or nothing but dtypes."""
    types: list[Any] = []
    for name, a in zip(OPS[row.op].input_names, row.inputs, strict=True):
        dimensions = [f"{name}_{i}" for i in range(0 if a is None else a.ndim)]
        types.append(None if a is None else (a.dtype, {"shapes": a.shape, "ranks": dimensions, "dtypes": None}[known]))
    model = single_op_model(row.op, types, row.attributes)
    output = model.graph.output[0].type.tensor_type
    if known == "shapes" and not output.HasField("shape"):
        output.shape.SetInParent()  # the checker wants one before it looks at the node
    return model


def test_every_op_input_and_attribute_is_refused_somewhere() -> None:
    """The table above keeps up with the ops: each input by dtype, each that is required by being left out."""
    assert len({str(row) for row in ROWS}) == len(ROWS)
    for op in OPS.values():
        text = " ".join(" ".join(row.words) for row in ROWS if row.op == op.name)
        assert set(_good(op.name)) == set(op.input_names)
        for name in [*op.input_names, *(a for a in op.schema.attributes if a != "lambd")]:
            assert f"'{name}'" in text


@every(STATIC)
def test_checker(row: Row) -> None:
    """What the checker finds before it asks the op, a missing input, it says in its own words."""
    with pytest.raises((onnx_ops.OpError, onnx.checker.ValidationError)) as raised:
        onnx.checker.check_model(model_of(row), full_check=True)
    if row.status == MISSING and isinstance(raised.value, onnx.checker.ValidationError):
        assert row.op in str(raised.value)
    else:
        row.judge(str(raised.value))


@every([row for row in STATIC if row.status != MISSING])
def test_strict_shape_inference(row: Row) -> None:
    with pytest.raises(onnx_ops.OpError) as raised:
        onnx.shape_inference.infer_shapes(model_of(row), check_type=True, strict_mode=True)
    row.judge(str(raised.value))


@every(STATIC)
def test_link(row: Row) -> None:
    model = model_of(row)
    before = model.SerializeToString()
    with pytest.raises(onnx_ops.OpError) as raised:
        onnx_ops.link(model)
    row.judge(str(raised.value))
    assert raised.value.op_type == row.op
    assert (raised.value.status.name, str(int(raised.value.status))) == row.status
    assert model.SerializeToString() == before


@every(STATIC)
def test_session_creation(row: Row) -> None:
    with pytest.raises(Exception, match=row.op) as raised:
        onnx_ops.InferenceSession(model_of(row), engines.options())
    row.judge(str(raised.value))


@every(ROWS)
def test_reference_evaluator(row: Row) -> None:
    evaluator = ReferenceEvaluator(model_of(row, "ranks"), new_ops=onnx_ops.reference_ops())
    with pytest.raises(onnx_ops.OpError) as raised:
        evaluator.run(None, row.given)
    row.judge(str(raised.value))


AT_RUN = [("ranks", row) for row in ROWS if row.by_shapes or row.by_values]
AT_RUN += [("dtypes", row) for row in ROWS if row.by_shapes or row.by_rank or row.by_values]


@pytest.mark.parametrize(("known", "row"), AT_RUN, ids=str)
def test_run(row: Row, known: str) -> None:
    """The session, whose model tells no shapes, refuses when it runs, and then runs the good call as it did before."""
    session = onnx_ops.InferenceSession(model_of(row, known), engines.options())
    good = dict(_good(row.op))
    targets = row.given.get("targets")
    if targets is not None:  # there are several right ranks and dtypes of these
        good["targets"] = np.array([1, 2, 3] if targets.ndim == 1 else [[1, 2], [3, 0]], targets.dtype)
    # A session that knows a wrong rank takes no other.
    fits = known == "dtypes" or all(a.ndim == row.given[name].ndim for name, a in good.items())
    expected = engines.run_session(session, good) if fits else None
    for _ in range(2):
        with pytest.raises(Exception, match=row.op) as raised:
            engines.run_session(session, row.given)
        row.judge(str(raised.value))
        if expected is not None:
            engines.assert_same_bits(engines.run_session(session, good), expected)


# --- the same bits whatever the number of threads ------------------------------------------------------------------


def _large(op: str, dtype: Any) -> list[tuple[list[Array | None], Attributes]]:
    shape = (53, 61, 67)  # 216611 elements, a multiple of no block
    x, g = cases.normal(shape, dtype, "x"), cases.normal(shape, dtype, "g")
    y = cases.uniform(shape, dtype, "y")
    one = np.ones((), dtype)
    if op == HARDSHRINK:
        return [([g, x], {}), ([g[:, :1], x], {"lambd": 0.3})]
    if op == BCE:
        return [([g, x, y, y[:, :1], y[0]], {}), ([one, x, y], {"reduction": 2})]
    if op == BN:
        channels = [cases.uniform((61,), dtype, key, low=0.5) for key in range(5)]
        return [([g, x, *channels, np.int32([4000, 53])], {})]
    if op == KL:
        sums = [(), (67,), (61, 1), (53, 1, 1), (1, 61, 1), (53, 1, 67), (53, 61, 1)]
        small = [([one, cases.normal(s, dtype, "self"), y], {"reduction": r % 4}) for r, s in enumerate(sums)]
        return [([g, x, y], {"reduction": 0}), ([g, x, x], {"log_target": 1}), *small]
    import test_ctc_loss_backward as ctc

    samples = [[1 + (n + k) % 7 for k in range(n % 13)] for n in range(40)]
    return [(list(ctc.make(samples, [30 + n % 21 for n in range(40)], 9, dtype=dtype, wide=np.float64)), {})]


@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32, FLOAT64], ids=cases.shape_id)
@pytest.mark.parametrize("op", list(OPS))
def test_same_bits_for_any_number_of_threads(op: str, dtype: np.dtype) -> None:
    for inputs, attributes in _large(op, dtype):
        model = engines.model_of(op, inputs, attributes)
        results = []
        for threads in (1, 2, 3):
            session = onnx_ops.InferenceSession(model, engines.options(threads))
            results += [engines.run_session(session, engines.named(op, inputs)) for _ in range(2)]
        engines.check(engines.KERNEL, op, inputs, attributes)
        for result in results[1:]:
            engines.assert_same_bits(result, results[0])


# --- inputs in memory ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", list(OPS))
@engines.on_every_engine
def test_inputs_are_not_written_to(engine: engines.Engine, op: str) -> None:
    inputs = list(_good(op).values())
    before = [a.copy() for a in inputs]
    engine(op, inputs)
    for array, copy in zip(inputs, before, strict=True):
        engines.assert_same_bits(array, copy)


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "transposed": lambda a: np.asarray(a.T.copy(order="C").T),
    "every_other": lambda a: np.repeat(a, 2, axis=-1)[..., ::2] if a.ndim else a,
    "backwards": lambda a: np.asarray(a[::-1].copy()[::-1]) if a.ndim else a,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", list(OPS))
@engines.on_every_engine
def test_memory_layout_does_not_matter(engine: engines.Engine, op: str, layout: str) -> None:
    """NumPy arrays that do not lie in memory in order."""
    inputs = list(_good(op).values())
    engines.assert_same_bits(engine(op, [LAYOUTS[layout](a) for a in inputs]), engine(op, inputs))
