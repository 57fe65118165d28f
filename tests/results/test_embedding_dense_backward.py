"""EmbeddingDenseBackward: what its record does not say."""

from __future__ import annotations

import backends
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from backends import FLOAT32, KERNEL, PORTABLE, Array

import onnx_ops
from tests.ops import embedding_dense_backward as record
from tests.ops._shared.arrays import normal, rng

OP = record.OP


TWO_TABLES = """<ir_version: 10, opset_import: ["": 21, "aclnn": 1]>
two (float[N, 3] grad, int64[N] words, int64[N] places) => (float[V, 3] by_words, float[P, 3] by_places) {
    by_words = aclnn.EmbeddingDenseBackward <num_weights = 9, padding_idx = 2> (grad, words)
    by_places = aclnn.EmbeddingDenseBackward <num_weights = 4, scale_grad_by_freq = 1> (grad, places)
}"""


def test_two_tables_of_different_sizes_in_one_model() -> None:
    """One function body serves both."""
    grad = normal((20, 3), FLOAT32, "two")
    feeds = {name: rng(name).integers(0, rows, 20) for name, rows in (("words", 9), ("places", 4))}
    expected = {
        "by_words": record.oracle(grad, feeds["words"], 9, 2),
        "by_places": record.oracle(grad, feeds["places"], 4, scale_grad_by_freq=1),
    }
    for way, session in backends.sessions(onnx.parser.parse_model(TWO_TABLES)).items():
        for name, actual in backends.run_outputs(session, {"grad": grad, **feeds}).items():
            backends.assert_close(actual, expected[name].astype(np.float32), rtol=2e-7, what=way)


def test_a_function_that_nobody_calls_is_linked() -> None:
    """Nothing tells the number of rows in it."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21, "aclnn": 1, "me": 1]>
        plain (float[N] x) => (float[N] y) { y = Neg (x) }
        <domain: "me", opset_import: ["": 21, "aclnn": 1]>
        table <rows> (grad, indices) => (out) {
            out = aclnn.EmbeddingDenseBackward <num_weights: int = @rows> (grad, indices)
        }""")
    ort.InferenceSession(onnx_ops.link(model).SerializeToString(), backends.options())


def test_rows_do_not_depend_on_how_work_is_cut() -> None:
    """One row of a large call is to the bit what it is in a call of its own."""
    (call, *_) = record.large(FLOAT32)
    grad, indices = (call.given[name] for name in ("grad", "indices"))
    (whole,) = KERNEL.run(call).values()
    for v in (0, 1, 2, 17):
        own: dict[str, Array | None] = {"grad": grad[indices == v], "indices": np.zeros((indices == v).sum(), np.int64)}
        (row,) = KERNEL.run(backends.Call(OP, own, {"num_weights": 1})).values()
        backends.assert_same_bits(row[0], whole[v])


@pytest.mark.parametrize("value", [-1, 5, 2**40])
def test_without_a_kernel_a_bad_index_makes_all_nan(value: int) -> None:
    given: dict[str, Array | None] = {"grad": np.ones((3, 2), np.float32), "indices": np.array([1, value, 1])}
    (out,) = PORTABLE.run(backends.Call(OP, given, {"num_weights": 5})).values()
    assert out.shape == (5, 2)
    assert np.isnan(out).all()
