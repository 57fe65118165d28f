"""`onnx-ops golden`: golden functions run without onnx_ops, and return the bits of the definitions."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from typer.testing import CliRunner

from onnx_ops.ascend.correspondence import CORRESPONDENCES
from onnx_ops.ascend.golden import golden_source, kernel_name, kernels, operators
from onnx_ops.cli.app import app
from onnx_ops.core.op import Op
from onnx_ops.ops import OPS

BFLOAT16 = ml_dtypes.bfloat16
FLOATS = (np.float16, BFLOAT16, np.float32, np.float64)

# Reads golden files and calls, and writes the results, in an interpreter that cannot import onnx_ops and onnx.
RUN = """
import pickle, runpy, sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("onnx_ops", "onnx", "onnxruntime", "numba"):
            raise ImportError(name)

sys.meta_path.insert(0, Refused())
import ml_dtypes
folder, found = sys.argv[1], []
for kernel, inputs, attributes in pickle.load(open(f"{folder}/calls.pickle", "rb")):
    namespace = runpy.run_path(f"{folder}/{kernel}.py")
    function = namespace[namespace["__golden__"]["kernel"][kernel]]
    result = function(*inputs, **attributes, input_formats=["ND"] * len(inputs), testcase_name="one")
    found.append(result if isinstance(result, tuple) else (result,))
pickle.dump(found, open(f"{folder}/results.pickle", "wb"))
"""

Golden = tuple[str, list[Any], dict[str, Any], Any]
"""A kernel, its inputs and attributes in CANN's names, and what it returns."""


def normal(shape: tuple[int, ...], dtype: npt.DTypeLike, seed: int = 0) -> np.ndarray:
    array = np.random.default_rng([seed, *shape]).normal(size=shape)
    if array.size > 3:
        array.flat[:3] = [np.nan, np.inf, -0.0]
    return array.astype(dtype)


def reference(name: str, *inputs: Any, **attributes: Any) -> Any:
    return OPS[name].reference(*inputs, **attributes)


def elementwise(dtype: npt.DTypeLike) -> Iterator[Golden]:
    grad, x, other = (normal((3, 5), dtype, seed) for seed in range(3))
    row = normal((5,), dtype, 3)
    for lambd in (0.5, 0.25):
        yield "hard_shrink", [x], {"lambd": lambd}, reference("Hardshrink", x, lambd=lambd)
        yield "hard_shrink_grad", [grad, x], {"lambd": lambd}, reference("HardshrinkBackward", grad, x, lambd=lambd)
    yield "hard_shrink_grad", [grad, x], {}, reference("HardshrinkBackward", grad, x)
    yield "log", [abs(x)], {}, reference("InplaceLog", abs(x))
    yield "sort", [x], {"axis": 0, "descending": True}, reference("Sort", x, dim=0, descending=1)
    yield "lgamma", [x], {}, reference("Lgamma", x)
    yield "digamma", [x], {}, reference("Digamma", x)
    yield "sin", [x], {}, reference("InplaceSin", x)
    yield "cos", [x], {}, reference("InplaceCos", x)
    yield "swish", [x], {}, reference("Silu", x)
    yield "silu_grad", [grad, x], {}, reference("SiluBackward", grad, x)
    yield "hardtanh_grad", [x, grad], {}, reference("HardtanhBackward", grad, x)
    bounds = {"min_val": 0.25, "max_val": 6.0}
    yield "hardtanh_grad", [x, grad], bounds, reference("HardtanhBackward", grad, x, min=0.25, max=6.0)
    yield "hard_sigmoid_grad", [grad, x], {}, reference("HardsigmoidBackward", grad, x)
    yield "hard_swish_grad_v2", [grad, x], {}, reference("HardswishBackwardV2", grad, x)
    for given in ({}, {"beta": -1.5, "threshold": 0.5}):
        yield "softplus_v2", [x], given, reference("SoftplusV2", x, **given)
        yield "softplus_v2_grad", [grad, x], given, reference("SoftplusBackward", grad, x, **given)
    even = np.arange(15).reshape(3, 5) % 2 == 0
    yield "select_v2", [even, grad, row], {}, reference("SWhere", even, grad, row)
    yield "threshold_grad_v2_d", [grad, x], {}, reference("ThresholdBackward", grad, x, threshold=1.0)
    yield "threshold_grad_v2_d", [grad, x], {"threshold": -1.5}, reference("ThresholdBackward", grad, x, threshold=-1.5)
    for number, text in enumerate(("none", "tanh")):
        yield "gelu_grad_v2", [grad, x], {"approximate": text}, reference("GeluBackwardV2", grad, x, approximate=number)
    for number, text in enumerate(("none", "mean", "sum", "batchmean")):
        for kernel, op in (("kl_div_loss_grad", "KlDivBackward"), ("kl_div_target_loss_grad", "KlDivTargetBackward")):
            for log in (False, True):
                given = {"reduction": text, "log_target": log}
                yield kernel, [grad, x, other], given, reference(op, grad, x, other, reduction=number, log_target=log)
        if text == "batchmean":
            continue
        for weights in ((), (row,), (None, row), (other, row)):
            inputs = [x, other, *weights]
            expected = reference("BinaryCrossEntropyWithLogits", *inputs, reduction=number)
            yield "sigmoid_cross_entropy_with_logits_v2", inputs, {"reduction": text}, expected
            inputs = [x, other, grad, *weights]
            expected = reference("BinaryCrossEntropyWithLogitsBackward", grad, x, other, *weights, reduction=number)
            yield "sigmoid_cross_entropy_with_logits_grad_v2", inputs, {"reduction": text}, expected
    yield "kl_div_loss_grad", [grad, x, other], {}, reference("KlDivBackward", grad, x, other)
    y, rstd = reference("RmsNorm", x, row, epsilon=0.25)
    yield "rms_norm", [x, row], {"epsilon": 0.25}, (y, rstd)
    yield "rms_norm_grad", [grad, x, rstd, row], {}, reference("RmsNormGrad", grad, x, rstd, row)
    angles, heads = (
        [normal((3, 8), dtype, seed) for seed in (4, 5)],
        [normal((2, 3, 8), dtype, seed) for seed in (6, 7)],
    )
    for mode in range(4):
        rotated = reference("RotaryPositionEmbedding", heads[0], *angles, mode=mode)
        yield "rotary_position_embedding", [heads[0], *angles], {"mode": mode}, rotated
        inputs = [heads[0], *angles, heads[1]]
        turned = reference("RotaryPositionEmbeddingGrad", *inputs, mode=mode)
        yield "rotary_position_embedding_grad", inputs, {"mode": mode}, turned
    for kernel, op, inputs in (
        ("kl_div_loss_grad", "KlDivBackward", (grad, row, other)),
        ("kl_div_target_loss_grad", "KlDivTargetBackward", (grad, other, row)),
    ):
        wide = np.broadcast_arrays(*(array.astype(np.float64) for array in inputs))
        expected = (reference(op, *wide, reduction=0) / 5).astype(dtype)
        yield kernel, list(inputs), {}, expected


def others(dtype: npt.DTypeLike) -> Iterator[Golden]:
    scalars = [np.array([n], dtype) for n in (0.9, 0.99, 0.01, 0.1, 0.9, 0.99, 1e-3)]
    powers = [scalars[i].astype(np.float64) * scalars[i + 4].astype(np.float64) for i in range(2)]
    here = [*powers, *scalars[2:]]  # with the powers of this step
    var, m, grad = (normal((4, 3), dtype, seed) for seed in range(3))
    v, most = (np.abs(normal((4, 3), dtype, seed)) for seed in (3, 4))
    for amsgrad in (False, True):
        for maximize in (False, True):
            largest = most if amsgrad else None
            expected = reference("ApplyAdamW", var, m, v, *here, grad, largest, maximize=int(maximize))[:3]
            given = {"amsgrad": amsgrad, "maximize": maximize}
            yield "apply_adam_w", [var, m, v, *scalars, grad, most], given, expected
    yield "apply_adam_w", [var, m, v, *scalars, grad], {}, reference("ApplyAdamW", var, m, v, *here, grad, None)[:3]

    rows, indices = normal((2, 3, 4), dtype), np.array([[1, 0, 1], [4, 4, 4]], np.int32)
    for own in ({}, {"padding_idx": 1}, {"padding_idx": 6}, {"padding_idx": -3}, {"scale_grad_by_freq": True}):
        here = own if own.get("padding_idx") == 1 else {key: on for key, on in own.items() if key != "padding_idx"}
        expected = reference("EmbeddingDenseBackward", rows, indices, num_weights=6, **here)
        yield "embedding_dense_grad", [rows, indices], {"num_weights": 6, **own}, expected
    for axes, modes in (("2", ("bilinear", "nearest", "bicubic")), ("3", ("bilinear", "nearest"))):
        sizes = (4, 5) if axes == "2" else (2, 4, 5)
        image, points = normal((2, 3, *sizes), dtype), normal((2, *sizes[:-1], 3, int(axes)), dtype)
        for mode, padding in itertools.product(modes, ("zeros", "border", "reflection")):
            settings = {"interpolation_mode": mode, "padding_mode": padding, "align_corners": True}
            numbers = [modes.index(mode), ("zeros", "border", "reflection").index(padding), 1]
            given = dict(zip(settings, numbers, strict=True))
            out = reference(f"GridSampler{axes}D", image, points, **given)
            yield f"grid_sampler{axes}_d", [image, points], settings, out
            grads = reference(f"GridSampler{axes}DBackward", out, image, points, **given)
            yield f"grid_sampler{axes}_d_grad", [out, image, points], settings, grads

    table = normal((6, 4), dtype)
    yield "scatter_max", [table, indices, rows], {}, reference("ScatterMax", table, indices, rows)

    log_probs = np.log(np.random.default_rng(0).dirichlet(np.ones(4), (6, 3))).astype(dtype)
    targets, lengths = np.array([[1, 2, 0], [3, 3, 1], [1, 0, 2]]), (np.array([6, 2, 5]), np.array([2, 2, 1]))
    given = [log_probs, targets, *lengths]
    forward = reference("CtcLoss", *given)
    for version in ("v2", "v3"):
        shown = forward[0], forward[1][:, :, :5]  # 2 * max(target_lengths) + 1
        yield f"ctc_loss_{version}", given, {"reduction": "none", "zero_infinity": True}, shown
        for zero in (False, True):
            inputs = [np.ones(3, dtype), *given, *forward[:2]]
            expected = reference("CtcLossBackward", *inputs, zero_infinity=int(zero))
            yield f"ctc_loss_{version}_grad", inputs, {"zero_infinity": zero}, expected

    x = normal((2, 3, 7, 8), dtype)
    for own in ({}, {"ceil_mode": True}, {"dilation": [2, 1]}):
        window = {"ksize": [3, 2], "strides": [2, 2], "pads": [1, 0], **own}
        names = {"kernel_size": [3, 2], "stride": [2, 2], "padding": [1, 0], **own}
        out, places = reference("MaxPool2dWithIndices", x, **names)
        grad = normal(out.shape, dtype, 5)
        back = reference("MaxPool2dWithIndicesBackward", grad, x, places, **names)
        for whole, kind in ((np.int32, 3), (np.int64, 9)):
            given = {**window, "dtype": kind}
            yield "max_pool_with_argmax_v3", [x], given, (out, places.astype(whole))
            yield "max_pool_grad_with_argmax_v3", [x, grad, places.astype(whole)], given, back
        last = {**window, "data_format": "NHWC"}
        expected = last_axis(out), last_axis(places.astype(np.int32))
        yield "max_pool_with_argmax_v3", [last_axis(x)], last, expected
        inputs = [last_axis(array) for array in (x, grad, places)]
        yield "max_pool_grad_with_argmax_v3", inputs, last, last_axis(back)


def last_axis(array: np.ndarray) -> np.ndarray:
    return np.moveaxis(array, 1, -1)


def lstm(dtype: npt.DTypeLike) -> Iterator[Golden]:
    gates, hidden = normal((3, 8), dtype), normal((3, 8), dtype, 1)
    cx = normal((3, 2), dtype, 2)
    none = np.zeros(8, dtype)
    expected = reference("ThnnFusedLstmCell", gates, hidden, cx)
    yield "thnn_fused_lstm_cell", [gates, hidden, cx, none, none], {}, expected
    first, second = normal((8,), np.float64, 3), normal((8,), np.float64, 4)
    wide = [array.astype(np.float64) for array in (gates, hidden, cx)]
    if np.dtype(dtype) == np.float64:
        expected = reference("ThnnFusedLstmCell", wide[0], wide[1] + (first + second), wide[2])
        yield "thnn_fused_lstm_cell", [*wide, first, second], {}, expected
    dhy, dc, cy = (normal((3, 2), dtype, seed) for seed in (5, 6, 7))
    storage = np.random.default_rng(0).random((3, 8)).astype(dtype)
    for inputs in ([dhy, dc, cx, cy, storage], [None, dc, cx, cy, storage], [dhy, None, cx, cy, storage]):
        back = reference("ThnnFusedLstmCellBackward", *inputs)
        exact, _ = reference("ThnnFusedLstmCellBackward", *inputs, dtype=np.float64)
        yield "thnn_fused_lstm_cell_grad", inputs, {}, back
        yield "thnn_fused_lstm_cell_grad", inputs, {"has_bias": True}, (*back, exact.sum(axis=0).astype(dtype))


def batch_norm(dtype: npt.DTypeLike) -> Iterator[Golden]:
    """Against formulas, and the ops on whole batches."""
    rng = np.random.default_rng(1)
    grad, x = (rng.normal(size=(4, 3, 5)).astype(dtype) for _ in range(2))
    mean, weight = (rng.normal(size=3).astype(dtype) for _ in range(2))
    invstd = (0.5 + rng.random(3)).astype(dtype)
    sums = (rng.normal(size=3).astype(dtype) for _ in range(2))
    vectors = [mean, invstd, weight, *sums]
    expected = reference("BatchNormElemtBackward", grad, x, *vectors, np.ones(1, np.int32))
    spread = [np.broadcast_to(vector[:, None], x.shape) for vector in vectors]
    yield "sync_batch_norm_backward_elemt", [grad, x, *spread], {}, expected

    sum_dy, sum_dy_dx = (rng.normal(size=3).astype(dtype) for _ in range(2))
    wide = [a.astype(np.float64) for a in (sum_dy, sum_dy_dx, mean, invstd)]
    centred = wide[1] - wide[2] * wide[0]
    yield (
        "sync_batch_norm_backward_reduce",
        [sum_dy, sum_dy_dx, mean, invstd],
        {},
        tuple(result.astype(dtype) for result in (centred, centred * wide[3])),
    )


@pytest.mark.parametrize("calls", [elementwise, others, lstm, batch_norm], ids=lambda calls: str(calls.__name__))
def test_results_have_the_bits_of_the_definitions(calls: Any, tmp_path: Path) -> None:
    made = [call for dtype in FLOATS for call in calls(dtype)]
    found = results([call[:3] for call in made], tmp_path)
    for (kernel, _, attributes, expected), got in zip(made, found, strict=True):
        wanted = expected if isinstance(expected, tuple) else (expected,)
        assert len(got) == len(wanted), kernel
        for one, other in zip(got, wanted, strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape), kernel
            assert one.tobytes() == np.ascontiguousarray(other).tobytes(), (kernel, attributes, one.dtype)


def results(calls: list[Any], folder: Path) -> list[Any]:
    """What the functions return in an interpreter of their own."""
    for kernel in {call[0] for call in calls}:
        (folder / f"{kernel}.py").write_text(golden_source(kernels()[kernel]))
    (folder / "run.py").write_text(RUN)
    (folder / "calls.pickle").write_bytes(pickle.dumps(calls))
    command = [sys.executable, "-P", str(folder / "run.py"), str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert result.returncode == 0, result.stderr
    return list(pickle.loads((folder / "results.pickle").read_bytes()))


def test_statistics_of_devices(tmp_path: Path) -> None:
    """SyncBatchNormGatherStats returns the statistics of all samples."""
    rng = np.random.default_rng(2)
    parts = [rng.normal(1, 2, (rows, 3)) for rows in (4, 9, 2)]
    sums = np.array([part.sum(axis=0) for part in parts])
    squares = np.array([(part**2).sum(axis=0) for part in parts])
    running = [rng.normal(size=3), rng.random(3)]
    counts = np.array([4, 9, 2], np.int32)
    calls = [("sync_batch_norm_gather_stats", [sums, squares, counts, *running], {"momentum": 0.25, "eps": 0.125})]
    mean, invstd, new_mean, new_var = results(calls, tmp_path)[0]
    rows = np.concatenate(parts)
    np.testing.assert_allclose(mean, rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(invstd, 1 / np.sqrt(rows.var(axis=0) + 0.125), rtol=1e-12)
    np.testing.assert_allclose(new_mean, 0.75 * running[0] + 0.25 * rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(new_var, 0.75 * running[1] + 0.25 * rows.var(axis=0, ddof=1), rtol=1e-12)


def test_every_operator_has_a_golden_function() -> None:
    """Those of plugins, and those of CANN's list without a golden function."""
    with_operator = {kernel_name(c.operator.name) for c in CORRESPONDENCES.values() if c.operator is not None}
    assert with_operator <= set(kernels())
    missing_in_cann = (
        "ctc_loss_v2_grad ctc_loss_v3_grad hard_shrink hard_shrink_grad sync_batch_norm_backward_elemt"
        " sync_batch_norm_backward_reduce sync_batch_norm_gather_stats thnn_fused_lstm_cell thnn_fused_lstm_cell_grad"
        " sigmoid_cross_entropy_with_logits_grad_v2"
    )
    assert set(missing_in_cann.split()) <= set(kernels())
    made = {call[0] for calls in (elementwise, others, lstm, batch_norm) for call in calls(np.float32)}
    assert made | {"sync_batch_norm_gather_stats"} == set(kernels())


def test_command(tmp_path: Path) -> None:
    def invoke(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["golden", *arguments])
        return result.exit_code, result.output

    source = golden_source(OPS["KlDivBackward"])
    assert invoke("kldivbackward") == (0, source)
    assert invoke("KlDivLossGrad") == (0, source)
    assert invoke("kl_div_loss_grad") == (0, source)
    assert "onnx_ops" not in "".join(line for line in source.splitlines() if not line.startswith("#"))
    path = tmp_path / "golden.py"
    assert invoke("KlDivBackward", "--out", str(path))[0] == 0
    assert path.read_text() == source
    code, message = invoke("DropoutV3")
    assert code == 1
    assert "DropoutV3: there is no golden function" in message


@pytest.mark.parametrize("op", [op for op in OPS.values() if operators(op)], ids=lambda op: str(op.name))
def test_lines_fit(op: Op) -> None:
    assert max(map(len, golden_source(op).splitlines())) <= 120
