"""What the ops refuse, and with which words.

A wrong call is seen by whoever can see it first: what the model tells, by the checker, by strict shape inference, by
`link` and when a session is made; shapes that the model leaves open, and values, by the run. The reference evaluator
sees all of them.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import backends
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from backends import LIBRARY, WITH_KERNELS, Array, Backend
from cases import check_each
from onnx.defs import OpSchema
from onnx.reference import ReferenceEvaluator, op_run

import onnx_ops
from models.single_op import single_op_model
from onnx_ops.ops import OPS
from tests.ops import RECORDS
from tests.ops._shared.record import MISSING, Call, Record, Refusal


@dataclass(frozen=True)
class Row:
    """A wrong call of an op."""

    record: Record
    refusal: Refusal
    call: Call

    def __str__(self) -> str:
        return f"{self.op}-{self.refusal.label}"

    @property
    def op(self) -> str:
        return self.record.op

    @property
    def good(self) -> dict[str, Array]:
        """The call that it differs from, with all inputs."""
        return self.record.plain.given

    @property
    def given(self) -> dict[str, Array]:
        return self.call.given

    @property
    def by_shapes(self) -> bool:
        """Whether it takes the numbers of a shape to see it, more than dtypes, ranks, attributes and presence."""
        change = self.refusal.change
        shapes = any(a is not None and a.shape != self.good[name].shape for name, a in change.items())
        dtypes = any(a is None or a.dtype != self.good[name].dtype for name, a in change.items())
        return shapes and not dtypes and not self.refusal.by_rank and not self.refusal.by_values

    def judge(self, message: str) -> None:
        for word in (self.op, *self.refusal.words, *self.refusal.status):
            assert word in message, f"{word!r} is not in {message!r}"


ROWS = [
    Row(record, refusal, call)
    for name, record in RECORDS.items()
    if name in OPS
    for refusal, call in record.wrong_calls()
]
STATIC = [row for row in ROWS if not row.refusal.by_values]
each_op = pytest.mark.parametrize("op", OPS)


def model_of(row: Row, known: str = "shapes") -> onnx.ModelProto:
    """A model of the wrong call that tells the inputs' shapes, or only their ranks, or nothing but dtypes."""
    types: list[Any] = []
    for name, a in zip(OPS[row.op].input_names, row.record.arrays(row.call), strict=True):
        dimensions = [f"{name}_{i}" for i in range(0 if a is None else a.ndim)]
        types.append(None if a is None else (a.dtype, {"shapes": a.shape, "ranks": dimensions, "dtypes": None}[known]))
    model = single_op_model(row.op, types, row.call.attributes, row.call.outputs)
    for value in model.graph.output:
        if known == "shapes" and not value.type.tensor_type.HasField("shape"):
            value.type.tensor_type.shape.SetInParent()  # the checker wants one before it looks at the node
    return model


def of_op(op: str, rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.op == op]


def test_every_input_and_attribute_is_refused_somewhere() -> None:
    """Each input by dtype, each required one by being left out, each attribute of whole numbers by its value."""
    assert len({str(row) for row in ROWS}) == len(ROWS)
    for name, op in OPS.items():
        words = " ".join(" ".join(row.refusal.words) for row in ROWS if row.op == name)
        whole = [name for name, a in op.schema.attributes.items() if a.type == OpSchema.AttrType.INT]
        for wanted in [*op.input_names, *whole]:
            assert f"'{wanted}'" in words, (name, wanted)


@each_op
def test_checker(op: str) -> None:
    """What the checker finds before it asks the op, a missing input, it says in its own words."""
    check_each(refused_by_the_checker, of_op(op, STATIC))


def refused_by_the_checker(row: Row) -> None:
    with pytest.raises((onnx_ops.OpError, onnx.checker.ValidationError)) as raised:
        onnx.checker.check_model(model_of(row), full_check=True)
    if row.refusal.status == MISSING and isinstance(raised.value, onnx.checker.ValidationError):
        assert row.op in str(raised.value)
    else:
        row.judge(str(raised.value))


@each_op
def test_strict_shape_inference(op: str) -> None:
    rows = [row for row in of_op(op, STATIC) if row.refusal.status != MISSING]
    check_each(refused_by_shape_inference, rows)


def refused_by_shape_inference(row: Row) -> None:
    with pytest.raises(onnx_ops.OpError) as raised:
        onnx.shape_inference.infer_shapes(model_of(row), check_type=True, strict_mode=True)
    row.judge(str(raised.value))


@each_op
def test_link(op: str) -> None:
    check_each(refused_by_link, of_op(op, STATIC))


def refused_by_link(row: Row) -> None:
    model = model_of(row)
    before = model.SerializeToString()
    with pytest.raises(onnx_ops.OpError) as raised:
        onnx_ops.link(model)
    row.judge(str(raised.value))
    assert raised.value.op_type == row.op
    assert (raised.value.status.name, str(int(raised.value.status))) == row.refusal.status
    assert model.SerializeToString() == before


@each_op
def test_session_creation(op: str) -> None:
    check_each(refused_as_a_session_is_made, of_op(op, STATIC))


def refused_as_a_session_is_made(row: Row) -> None:
    with pytest.raises(Exception, match=row.op) as raised:
        backends.kernel_session(model_of(row))
    row.judge(str(raised.value))


@pytest.fixture
def evaluator_knows_the_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if onnx.reference had been imported after the ops."""
    for name, op in OPS.items():
        monkeypatch.setitem(op_run._schemas, name, op.schema)


@each_op
@pytest.mark.usefixtures("evaluator_knows_the_schemas")
def test_reference_evaluator(op: str) -> None:
    check_each(refused_by_the_evaluator, of_op(op, ROWS))


def refused_by_the_evaluator(row: Row) -> None:
    evaluator = ReferenceEvaluator(model_of(row, "ranks"), new_ops=onnx_ops.reference_ops())
    with pytest.raises(onnx_ops.OpError) as raised:
        evaluator.run(None, row.given)
    row.judge(str(raised.value))


AT_RUN = {
    "ranks": [row for row in ROWS if row.by_shapes or row.refusal.by_values],
    "dtypes": [row for row in ROWS if row.by_shapes or row.refusal.by_rank or row.refusal.by_values],
}


@functools.lru_cache(maxsize=64)
def session_of(model: bytes, backend: Backend) -> ort.InferenceSession:
    return backends.session_with_kernels(backend, model)


WAYS = [
    pytest.param(known, backend, marks=pytest.mark.full if (known, backend) == ("dtypes", LIBRARY) else ())
    for known, backend in itertools.product(AT_RUN, WITH_KERNELS)
]


@pytest.mark.parametrize(("known", "backend"), WAYS, ids=str)
@each_op
def test_run(op: str, known: str, backend: Backend) -> None:
    """The session, whose model tells no shapes, refuses when it runs, and then runs the good call as it did before."""
    check_each(functools.partial(refused_at_run, known, backend), of_op(op, AT_RUN[known]))


def refused_at_run(known: str, backend: Backend, row: Row) -> None:
    session = session_of(model_of(row, known).SerializeToString(), backend)
    good = dict(row.good)
    targets = row.given.get("targets")
    if targets is not None:  # there are several right ranks and dtypes of these
        good["targets"] = np.array([1, 2, 3] if targets.ndim == 1 else [[1, 2], [3, 0]], targets.dtype)
    # A session that knows a wrong rank takes no other.
    fits = known == "dtypes" or all(a.ndim == row.given[name].ndim for name, a in good.items())
    fits = fits and not (row.refusal.by_rank and row.refusal.attributes)  # nor does an attribute that does not suit it
    expected = backends.run_outputs(session, good) if fits else None
    for _ in range(2):
        with pytest.raises(Exception, match=row.op) as raised:
            backends.run_outputs(session, row.given)
        row.judge(str(raised.value))
        if expected is not None:
            for output, array in backends.run_outputs(session, good).items():
                backends.assert_same_bits(array, expected[output])
