"""Max pooling with indices and its gradient in models: what the records of the two ops do not say."""

from __future__ import annotations

import itertools

import backends
import numpy as np
import onnx
import pytest
from backends import FLOAT32, Array

import onnx_ops
from onnx_ops.ops.max_pool._rules import window_count
from tests.ops._shared import max_pool
from tests.ops._shared.arrays import normal
from tests.ops._shared.max_pool import Setting

SEVERAL = """<ir_version: 10, opset_import: ["": 21, "aclnn": 1]>
several (float[N, C, H, W] x, float[N, C, L, K, M] v) => (float[N, C, I, J] dx, float[N, C, L, K, M] dv) {
    y, y_at = aclnn.MaxPool2dWithIndices <kernel_size = [3, 3], stride = [2, 2], padding = [1, 1]> (x)
    z, z_at = aclnn.MaxPool2dWithIndices <kernel_size = [2, 2], ceil_mode = 1> (y)
    dy = aclnn.MaxPool2dWithIndicesBackward <kernel_size = [2, 2], ceil_mode = 1> (z, y, z_at)
    dx = aclnn.MaxPool2dWithIndicesBackward <kernel_size = [3, 3], stride = [2, 2], padding = [1, 1]> (dy, x, y_at)
    w, w_at = aclnn.MaxPool2dWithIndices <kernel_size = [2, 1, 3], stride = [1, 1, 1]> (v)
    dv = aclnn.MaxPool2dWithIndicesBackward <kernel_size = [2, 1, 3], stride = [1, 1, 1]> (w, v, w_at)
}"""


def scattered(grad: Array, indices: Array, shape: tuple[int, ...], spatial: int) -> Array:
    out = np.zeros((int(np.prod(shape[: len(shape) - spatial])), int(np.prod(shape[len(shape) - spatial :]))))
    for plane, (g, at) in enumerate(zip(grad.reshape(len(out), -1), indices.reshape(len(out), -1), strict=True)):
        np.add.at(out[plane], at, g)
    return out.reshape(shape)


def test_pools_of_several_kinds_in_one_model() -> None:
    """Windows and numbers of axes differ, and one function body of each op serves all."""
    x, v = normal((2, 3, 13, 10), FLOAT32, "x"), normal((1, 2, 4, 3, 5), FLOAT32, "v")
    y, y_at = max_pool.pooled(x, Setting((3, 3), (2, 2), (1, 1)))
    z, z_at = max_pool.pooled(y, Setting((2, 2), ceil_mode=1))
    w, w_at = max_pool.pooled(v, Setting((2, 1, 3), (1, 1, 1)))
    expected = {
        "dx": scattered(scattered(z, z_at, y.shape, 2), y_at, x.shape, 2),
        "dv": scattered(w, w_at, v.shape, 3),
    }
    for way, session in backends.sessions(onnx.parser.parse_model(SEVERAL)).items():
        for name, actual in backends.run_outputs(session, {"x": x, "v": v}).items():
            # Sums of up to six terms, in float32 on kernels.
            np.testing.assert_allclose(actual, expected[name], rtol=1e-6, atol=1e-6, err_msg=way)


@pytest.mark.parametrize("opset", [16, 21])
def test_indices_of_the_standard_operator(opset: int) -> None:
    """ONNX's MaxPool counts through the whole tensor."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": {opset}, "aclnn": 1]>
        pool (float[N, C, H, W] x, float[N, C, I, J] g) => (float[N, C, H, W] dx) {{
            y, at = MaxPool <kernel_shape = [3, 2], strides = [2, 1]> (x)
            dx = aclnn.MaxPool2dWithIndicesBackward <kernel_size = [3, 2], stride = [2, 1]> (g, x, at)
        }}""")
    x = normal((3, 2, 9, 8), FLOAT32, "x")
    y, at = max_pool.pooled(x, Setting((3, 2), (2, 1)))
    g = normal(y.shape, FLOAT32, "g")
    for way, session in backends.sessions(model).items():
        (dx,) = backends.run_outputs(session, {"x": x, "g": g}).values()
        np.testing.assert_allclose(dx, scattered(g, at, x.shape, 2), rtol=1e-6, atol=1e-6, err_msg=way)


def test_both_kinds_of_indices_in_one_plane() -> None:
    """Each index is taken for what it is, also where the plane has others."""
    grad = np.arange(1, 9, dtype=np.float32).reshape(2, 1, 2, 2)
    indices = np.array([[[[0, 1], [2, 3]]], [[[6, 1], [2, 9]]]])  # planes of six; the second begins at 6
    for kind, backend in itertools.product((np.int64, np.int32), backends.BACKENDS):
        inputs = [grad, np.zeros((2, 1, 2, 3), np.float32), indices.astype(kind)]
        out = backend("MaxPool2dWithIndicesBackward", inputs)
        assert out.reshape(2, 6).tolist() == [[1, 2, 3, 4, 0, 0], [5, 6, 7, 8, 0, 0]], backend


@pytest.mark.parametrize("index", [-1, 12, 2**40])
def test_without_a_kernel_a_bad_index_makes_its_plane_nan(index: int) -> None:
    indices = np.array([[[[0, 1], [2, 3]]], [[[1, 1], [2, index]]]])
    inputs = [np.ones((2, 1, 2, 2), np.float32), np.zeros((2, 1, 2, 3), np.float32), indices]
    out = backends.PORTABLE("MaxPool2dWithIndicesBackward", inputs)
    assert out[0].reshape(-1).tolist() == [1, 1, 1, 1, 0, 0]
    assert np.isnan(out[1]).all()


def test_numbers_of_windows() -> None:
    for size, kernel, stride, dilation, mode in itertools.product(range(8), (1, 2, 4), (1, 2, 5), (1, 3, 10), (0, 1)):
        for padding in range((dilation * (kernel - 1) + 1) // 2 + 1):
            window = kernel, stride, padding, dilation, mode
            starts = max_pool.window_starts(size, *window)
            have_elements = all(any(0 <= start + j * dilation < size for j in range(kernel)) for start in starts)
            assert window_count(size, *window) == (len(starts) if have_elements else 0), (size, *window)


def test_inference_of_a_long_axis() -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21, "aclnn": 1]>
    long (float[1, 1, 4, {2**40}] x) => (float[N, C, H, W] y, int64[N, C, H, W] at) {{
        y, at = aclnn.MaxPool2dWithIndices <kernel_size = [3, 3], stride = [1, 2], padding = [1, 1], ceil_mode = 1> (x)
    }}""")
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)  # in a loop over windows it would take days
    dims = inferred.graph.output[0].type.tensor_type.shape.dim
    assert [d.dim_value for d in dims] == [1, 1, 4, 2**39 + 1]
    onnx_ops.link(model)
