"""The trainer in JavaScript on WebGPU, which Chromium renders in software."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from chromium import CHROMIUM, FLAGS
from onnx import TensorProto, helper
from playwright.sync_api import Browser, Playwright

from models.perceptron import perceptron_step
from onnx_ops.core.step_format import InputRole
from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Builder
from onnx_ops.training.step import Step
from onnx_ops.training.step_files import step_model
from scripts.web import __main__ as web

DIST = web.NODE_MODULES / "onnxruntime-web" / "dist"
SOFTWARE = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"]
SIZES = (8, 16, 3)
COLUMNS = 12
"""Tensors that are joined by one node: more than a shader of onnxruntime-web can read."""

pytestmark = pytest.mark.skipif(bool(web.missing_packages()), reason="onnxruntime-web is not installed")

PROGRAM = """
async ([file, inputs, executionProviders, steps]) => {
  const ort = await import("/ort/ort.min.mjs");
  const { Trainer } = await import("/training/trainer.js");
  ort.env.wasm.wasmPaths = new URL("/ort/", location.href).href;
  Object.assign(ort.env.wasm, { numThreads: 1 });
  const found = { losses: [] };
  let trainer;
  const values = async () => {
    const state = await trainer.state();
    return Object.fromEntries(Object.entries(state).map(([name, { data }]) => [name, Array.from(data, Number)]));
  };
  try {
    const step = await (await fetch(file)).arrayBuffer();
    trainer = await Trainer.create(ort, step, { executionProviders, sessionOptions: { logSeverityLevel: 4 } });
    found.before = await values();
    const tensor = ([data, dims]) => new ort.Tensor("float32", Float32Array.from(data), dims);
    const batch = Object.fromEntries(Object.entries(inputs).map(([name, one]) => [name, tensor(one)]));
    for (let step = 0; step < steps; step++) found.losses.push((await trainer.step(batch)).loss.data[0]);
  } catch (error) {
    found.error = `${error.name}: ${error.message}`;
  }
  if (trainer) found.after = await values();
  return found;
}
"""


def joining_step() -> onnx.ModelProto:
    """A step that joins many tensors: a weight plus the sum of x, for each column."""
    b = Builder(TensorProto.FLOAT)
    column, whole = TensorType(TensorProto.FLOAT, (1, 2)), TensorType(TensorProto.FLOAT, (1, 2 * COLUMNS))
    x, weight = b.input("x", column), b.input("weight", whole)
    joined = b.op("Concat", *(b.op("Exp", x * float(factor)) for factor in range(COLUMNS)), axis=1)
    moved = weight + joined
    b.output("loss", b.op("ReduceSum", moved, keepdims=0), TensorType(TensorProto.FLOAT, ()))
    b.output("next.weight", moved, whole)
    model = helper.make_model(b.graph("joining"), opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    Step({"weight": InputRole.PARAMETER}).write_into(model)
    return step_model(model, {"weight": np.ones((1, 2 * COLUMNS), np.float32)})


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server of an empty page, the steps, the trainer and onnxruntime-web with its kernels for WebGPU."""
    names = ["ort.min.mjs", "ort-wasm-simd-threaded.jsep.mjs", "ort-wasm-simd-threaded.jsep.wasm"]
    contents: dict[str, web.Content] = {
        "/index.html": b"<!doctype html>",
        "/perceptron.onnx": perceptron_step(SIZES).SerializeToString(),
        "/joining.onnx": joining_step().SerializeToString(),
        **{f"/training/{path.name}": path for path in web.TRAINER.glob("*.js")},
        **{f"/ort/{name}": DIST / name for name in names},
    }
    with web.Server(("127.0.0.1", 0), contents) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.url
        server.shutdown()


@pytest.fixture(scope="module")
def gpu(playwright: Playwright) -> Iterator[Browser]:
    """Chromium with a software renderer for WebGPU."""
    flags = [flag for flag in FLAGS if flag != "--disable-gpu"]
    with playwright.chromium.launch(executable_path=CHROMIUM, args=[*flags, *SOFTWARE]) as launched:
        yield launched


def train(browser: Browser, url: str, file: str, batch: dict[str, np.ndarray], provider: str, steps: int = 6) -> Any:
    """What the program reports."""
    inputs = {name: [array.ravel().tolist(), array.shape] for name, array in batch.items()}
    with browser.new_page() as page:
        page.set_default_timeout(120_000)
        page.goto(url)
        return page.evaluate(PROGRAM, [file, inputs, [provider], steps])


@pytest.mark.full
def test_numbers_are_those_of_the_cpu(gpu: Browser, url: str) -> None:
    rng = np.random.default_rng(0)
    batch = {"x": rng.normal(size=(20, SIZES[0])), "labels": rng.integers(2, size=(20, SIZES[-1]))}
    found, expected = (train(gpu, url, "perceptron.onnx", batch, provider) for provider in ("webgpu", "wasm"))
    assert "error" not in found, found["error"]
    assert found["losses"][0] > found["losses"][-1]
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=1e-5)
    assert found["after"].keys() == expected["after"].keys()
    for name, values in expected["after"].items():
        np.testing.assert_allclose(found["after"][name], values, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.full
def test_errors_of_the_gpu_are_not_wrong_numbers(gpu: Browser, url: str) -> None:
    """onnxruntime-web reports no error where a shader reads more buffers than the device allows."""
    batch = {"x": np.array([[0.1, 0.2]])}
    assert "error" not in train(gpu, url, "joining.onnx", batch, "wasm")
    found = train(gpu, url, "joining.onnx", batch, "webgpu")
    assert found["error"].startswith("StepError: the GPU cannot run the step, and the state is as before: ")
    assert "storage buffers" in found["error"]
    assert found["after"] == found["before"]


def test_without_webgpu(browser: Browser, url: str) -> None:
    found = train(browser, url, "perceptron.onnx", {}, "webgpu")
    assert found["error"].startswith("StepError: WebGPU is not available: ")
    assert found["error"].endswith('Leave "webgpu" out of executionProviders to train on the CPU')
