"""Whole models in onnxruntime-web: their numbers, and that what is wrong fails and harms nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import backends
import linking_cases
import numpy as np
import onnx
import pytest
import test_ctc_loss_backward
import test_ops_refusals
from onnxruntime_web import WEB, Node, Session, Trainer, WebError, without_bfloat16

import onnx_ops
from models.perceptron import perceptron_step
from models.single_op import single_op_model
from tests.ops._shared import arrays

Array = np.ndarray[Any, Any]
CTC = test_ctc_loss_backward.OP
SelfContained = Callable[[onnx.ModelProto], onnx.ModelProto]

made_self_contained = pytest.mark.parametrize(
    "self_contained", [onnx_ops.link, onnx_ops.inline], ids=["linked", "inlined"]
)


@pytest.mark.parametrize(
    "self_contained",
    [onnx_ops.link, pytest.param(onnx_ops.inline, marks=pytest.mark.full)],
    ids=["linked", "inlined"],
)
@linking_cases.each_case
def test_graphs(node: Node, case: linking_cases.Case, self_contained: SelfContained) -> None:
    """Several uses, mixed dtypes, functions, branches, loops, old opsets."""
    session = Session(node, self_contained(case.model))
    for actual, expected in zip(session.run(case.feeds).values(), case.expected, strict=True):
        linking_cases.assert_same(actual, expected, case.tolerance)
    session.release()


@made_self_contained
@pytest.mark.parametrize("hidden", [(), (64,), (32, 16)], ids=str)
def test_training(node: Node, hidden: tuple[int, ...], self_contained: SelfContained) -> None:
    """The same losses and parameters as in Python's onnxruntime, step by step, while both learn."""
    model = self_contained(perceptron_step((64, *hidden, 10), rate=0.5))
    here, there = onnx_ops.Trainer(model, backends.kernel_options()), Trainer(node, model)
    labels = np.eye(10, dtype=np.float32)[arrays.rng("labels").integers(10, size=50)]
    batch = {"x": arrays.uniform((50, 64), np.float32, "images"), "labels": labels}

    losses = []
    for _ in range(30):
        for name, value in here.step(**batch).items():
            backends.assert_close(there.step(**batch)[name], value, rtol=1e-5, what=name)
            losses.append(float(value))
    state = there.state()
    for name, value in here.state_dict().items():
        backends.assert_close(state[name], value, atol=1e-5 * float(np.abs(value).max()), what=name)
    assert losses[-1] < losses[0] / 2
    there.release()


# --- what is wrong -------------------------------------------------------------------------------------------------


def hardshrink_model(**dtypes: Any) -> onnx.ModelProto:
    kinds = {"grad_output": np.float32, "self": np.float32} | dtypes
    return single_op_model("HardshrinkBackward", [(kind, ("M", "N")) for kind in kinds.values()])


def still_right(session: Session) -> None:
    """Run what it can run."""
    x = np.array([[1.0, -2.0, 0.25]], np.float32)
    (actual,) = session.run({"grad_output": x, "self": x}).values()
    np.testing.assert_array_equal(actual, np.array([[1.0, -2.0, 0.0]], np.float32), strict=True)


NOT_RUN: dict[str, tuple[bytes, str]] = {
    "no_model": (b"this is no model", "protobuf"),
    "nothing": (b"", "No graph"),
    "not_linked": (hardshrink_model().SerializeToString(), "HardshrinkBackward"),
}


@pytest.mark.parametrize("name", NOT_RUN)
def test_what_is_no_self_contained_model_is_refused(node: Node, name: str) -> None:
    model, words = NOT_RUN[name]
    session = Session(node, onnx_ops.link(hardshrink_model()))
    with pytest.raises(WebError, match=words):
        Session(node, model)
    still_right(session)
    session.release()


X = np.ones((2, 3), np.float32)
WRONG_FEEDS: dict[str, tuple[Mapping[str, Array], str]] = {
    "dtype": ({"grad_output": X, "self": X.astype(np.float64)}, "data type"),
    "rank": ({"grad_output": X, "self": X[0]}, "rank"),
    "shape": ({"grad_output": X, "self": np.ones((2, 4), np.float32)}, "broadcast"),
    "missing": ({"grad_output": X}, "'self' is missing"),
    "unknown": ({"grad_output": X, "self": X, "lambd": X}, "'lambd'"),
}


@made_self_contained
@pytest.mark.parametrize("name", WRONG_FEEDS)
def test_wrong_feeds_are_refused(node: Node, name: str, self_contained: SelfContained) -> None:
    session = Session(node, self_contained(hardshrink_model()))
    feeds, words = WRONG_FEEDS[name]
    for _ in range(2):
        with pytest.raises(WebError, match=words):
            session.run(feeds)
        still_right(session)
    session.release()


@pytest.mark.parametrize(("grad", "x"), [("float16", "float"), ("double", "float"), ("float", "double")])
def test_dtypes_that_a_model_does_not_tell(node: Node, grad: str, x: str) -> None:
    """Behind an operator that onnx does not know a mixture of dtypes is refused when the session is made."""
    model = linking_cases.model_of(
        f"""graph ({grad}[2,2] g, {x}[2,2] x) => (float[2,2] o) {{
            u = com.microsoft.Inverse (g)
            v = com.microsoft.Inverse (x)
            w = aclnn.HardshrinkBackward (u, v)
            o = Cast <to = 1> (w)
        }}""",
        imports='"" : 21, "aclnn" : 1, "com.microsoft" : 1',
    )
    with pytest.raises(WebError, match="inconsistent type"):
        Session(node, onnx_ops.link(model))


# Of these no operator of the body sees that the op would refuse them: they broadcast, are larger than needed, leave
# windows or results without elements, or set nothing, as the weight of BatchNormReduceBackward.
FITTING = {
    "BinaryCrossEntropyWithLogits-target_of_2x1",
    "BinaryCrossEntropyWithLogitsBackward-target_of_2x1",
    "BinaryCrossEntropyWithLogitsTargetBackward-target_of_2x1",
    "BatchNormElemt-input_of_2x0",
    "BatchNormElemtBackward-input_of_2x0",
    "BatchNormElemtBackward-grad_out_of_2x1",
    *(f"BatchNormElemtBackward-{name}_of_1" for name in ("mean", "invstd", "weight", "sum_dy", "sum_dy_xmu")),
    "BatchNormReduceBackward-input_of_2x0",
    "BatchNormReduceBackward-grad_out_of_2x1",
    "BatchNormReduceBackward-invstd_of_1",
    "BatchNormReduceBackward-weight_of_1",
    "BatchNormReduceBackward-weight_of_2",
    *(f"DepthwiseConv2D-{name}" for name in ("no_elements", "too_small")),
    *(f"DepthwiseConv2DBackpropFilter-{name}" for name in ("places", "no_filters")),
    *(f"DepthwiseConv2DBackpropInput-{name}" for name in ("places", "no_elements")),
    "Convolution-empty_kernel",
    *(f"ConvolutionBackward-{name}" for name in ("windows", "empty_kernel")),
    "CtcLoss-targets_of_3x2",
    "CtcLossBackward-targets_of_3x2",
    "CtcLossBackward-log_alpha_of_2x5x0",
    "EmbeddingDenseBackward-indices_of_4x3",
    *(
        f"FlashAttentionScore{kind}-{name}"
        for kind in ("", "Grad")
        for name in ("samples", "samples_of_value", "heads_of_value")
    ),
    *(f"GridSampler{axes}D{kind}-nothing" for axes in (2, 3) for kind in ("", "Backward")),
    "MaxPool2dWithIndices-shape_2x3x1x6",
    "MaxPool2dWithIndices-shape_2x3x5x1",
    "MaxPool2dWithIndices-window_beyond_its_stride",
    "MaxPool2dWithIndices-window_without_elements",
    "RmsNorm-gamma_(5,7)",
    "RmsNormGrad-gamma",
    *(f"RotaryPositionEmbedding{kind}-{name}" for kind in ("", "Grad") for name in ("sin", "one_feature")),
    "SoftmaxBackward-shapes",
    "ThnnFusedLstmCell-hidden_gates_of_1x12",
    *(f"ThnnFusedLstmCellBackward-{name}_of_1x3" for name in ("grad_hy", "grad_cy", "cy")),
}


@pytest.mark.parametrize(
    "row", [row for row in test_ops_refusals.ROWS if row.by_shapes and str(row) not in FITTING], ids=str
)
def test_shapes_that_do_not_fit_are_refused(node: Node, row: test_ops_refusals.Row) -> None:
    """By the operator of the body that meets them; the session then runs what is right as it did before."""
    session = Session(node, onnx_ops.link(without_bfloat16(test_ops_refusals.model_of(row, "dtypes"))))
    expected = session.run(row.good)
    for _ in range(2):
        with pytest.raises(WebError):
            session.run(row.given)
        for name, value in session.run(row.good).items():
            backends.assert_same_bits(value, expected[name])
    session.release()


LOWEST, HIGHEST = -(2**63), 2**63 - 1
WRONG_VALUES: list[tuple[str, float]] = [
    *(("input_lengths", value) for value in (-1, 7, 2**32 + 5, LOWEST, HIGHEST)),
    *(("target_lengths", value) for value in (-1, 3, 4, 2**62, LOWEST, HIGHEST)),
    *(("targets", value) for value in (-1, -4, 4, 2**32 + 1, LOWEST, HIGHEST)),
    *(("targets", value) for value in (0.5, -1.0, 4.0, math.nan, math.inf)),
]


def assert_harmless(inputs: list[Array], settings: backends.Attributes, good: Array, wrong: int) -> None:
    """What is wrong with one sample gives no number but 0 there, and everywhere else the same bits."""
    actual = WEB(CTC, inputs, settings)
    assert not np.any(np.isfinite(actual[:, wrong]) & (actual[:, wrong] != 0))
    for sample in set(range(good.shape[1])) - {wrong}:
        # Where targets are concatenated a wrong length moves the labels of others: they may have no number either.
        moves = inputs[2].ndim == 1 and inputs[4].sum() != inputs[2].size
        if not (moves and np.isnan(actual[:, sample]).all()):
            backends.assert_same_bits(actual[:, sample], good[:, sample])


@pytest.mark.parametrize(
    ("flat", "zero_infinity"),
    [
        pytest.param(flat, zero_infinity, marks=() if flat == bool(zero_infinity) else pytest.mark.full)
        for flat in (False, True)
        for zero_infinity in (0, 1)
    ],
    ids=lambda value: {False: "padded", True: "concatenated"}[value] if isinstance(value, bool) else str(value),
)
@pytest.mark.parametrize(("name", "value"), WRONG_VALUES, ids=str)
def test_wrong_length_or_label(node: Node, name: str, value: float, flat: bool, zero_infinity: int) -> None:
    settings = {"zero_infinity": zero_infinity}
    inputs = test_ctc_loss_backward.make([[1, 2], [3, 1], [2]], [6, 5, 6], flat=flat, dtype=np.float32)
    if isinstance(value, float):
        inputs[2] = inputs[2].astype(np.float32)
    good = backends.check(WEB, CTC, inputs, settings)
    bad = [array.copy() for array in inputs]
    if name == "targets":
        bad[2][3 if flat else (1, 1)] = value
    else:
        bad[3 if name == "input_lengths" else 4][1] = value
    assert_harmless(bad, settings, good, wrong=1)
    backends.assert_same_bits(WEB(CTC, inputs, settings), good)


@pytest.mark.parametrize("states", [1, 2, 3, 4])
def test_log_alpha_without_all_states(node: Node, states: int) -> None:
    """Enough for the empty target or for that of one label, too few for two."""
    samples = [[1, 2], [], []] if states < 3 else [[1, 2], [2], [3]]
    inputs = test_ctc_loss_backward.make(samples, [6, 5, 6], dtype=np.float32)
    good = backends.check(WEB, CTC, inputs)
    assert_harmless([*inputs[:6], inputs[6][:, :, :states]], {}, good, wrong=0)
