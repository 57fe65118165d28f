"""Forward ONNX models as training steps, beside PyTorch, and their operators beside onnxruntime."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import steps
import torch
from typer.testing import CliRunner

import onnx_ops
from onnx_ops.cli.app import app
from onnx_ops.graph.files import ModelFileError
from onnx_ops.torch import CaptureError, migrate
from onnx_ops.torch.importing.module import ImportedModel
from onnx_ops.torch.importing.tensors import ON_TENSORS
from onnx_ops.torch.migration import LOSSES

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning", "ignore:.*torchvision:UserWarning")


class Classifier(torch.nn.Module):
    """A transformer encoder of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 8)
        self.position = torch.nn.Parameter(0.1 * torch.randn(1, 5, 8))
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, activation="gelu", batch_first=True)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embed(tokens) + self.position).mean(1))


def perceptron() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def convolutions() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1, bias=False),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(4, 6, 3, stride=2, padding=1),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(6, 3),
    )


def exported(model: torch.nn.Module, example: torch.Tensor, path: Path) -> Path:
    torch.onnx.export(
        model.eval(),
        (example,),
        path,
        dynamo=True,
        optimize=False,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        input_names=["x"],
        output_names=["y"],
        external_data=False,
        verbose=False,
    )
    return path


def batches(example: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for size in (5, 2, 7, 4):
        shape = (size, *example.shape[1:])
        whole = example.dtype == torch.int64
        x = torch.randint(0, 11, shape, generator=generator) if whole else torch.randn(shape, generator=generator)
        yield x, torch.randint(0, 3, (size,), generator=generator)


@pytest.mark.parametrize(
    ("make", "example"),
    [
        (perceptron, torch.zeros(3, 4)),
        pytest.param(convolutions, torch.zeros(3, 1, 8, 8), marks=pytest.mark.full),
        pytest.param(Classifier, torch.zeros(3, 5, dtype=torch.int64), marks=pytest.mark.full),
    ],
    ids=["perceptron", "convolutions", "transformer"],
)
def test_training_is_that_of_pytorch(make: Any, example: torch.Tensor, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = make()
    path = exported(model, example, tmp_path / "model.onnx")
    capture = migrate(path, "cross_entropy", lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    capture.save(tmp_path / "step.onnx")
    trainer = onnx_ops.Trainer(tmp_path / "step.onnx")
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1, momentum=0.9)
    for x, labels in batches(example):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        found = trainer.step(x=x.numpy(), labels=labels.numpy())
        np.testing.assert_allclose(found["loss"], loss.detach(), rtol=1e-5)
    weights = trainer.weights()
    expected = {name: value for name, value in model.state_dict().items() if "num_batches" not in name}
    assert set(weights) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(weights[name], value, rtol=0, atol=2e-6, err_msg=name)
    model.eval()
    trainer.export(tmp_path / "trained.onnx")
    session = ort.InferenceSession(tmp_path / "trained.onnx")
    assert [value.name for value in (*session.get_inputs(), *session.get_outputs())] == ["x", "y"]
    with torch.no_grad():
        wanted = model(x).numpy()
    np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], wanted, rtol=0, atol=1e-5)
    np.testing.assert_allclose(trainer.predict(x=x.numpy())["y"], wanted, rtol=0, atol=1e-5)
    evaluated = trainer.evaluate(x=x.numpy(), labels=labels.numpy())["loss"]
    loss = torch.nn.functional.cross_entropy(torch.from_numpy(wanted), labels)
    np.testing.assert_allclose(evaluated, loss, rtol=1e-5)


LINEAR = """
    <ir_version: 10, opset_import: ["": 21]>
    linear (float[N, 3] "in.x") => (float[N, 2] "out.y", float[N, 2] scaled)
    <float[3, 2] "w.a" = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}, float[2] b = {0.5, -0.5}, float[1] factor = {0.5}>
    {
        product = MatMul ("in.x", "w.a")
        "out.y" = Add (product, b)
        scaled = Mul ("out.y", factor)
    }"""


def test_command(tmp_path: Path) -> None:
    """One step of SGD on the mean square error beside the gradient by hand; of the second output, one weight frozen."""
    path, step = tmp_path / "linear.onnx", tmp_path / "step.onnx"
    onnx.save(onnx.parser.parse_model(LINEAR), path)
    command = ["migrate", str(path), "--loss", "mse", "--out", str(step), "--output", "scaled", "--train", "w.*"]
    command += ["--optimizer", "sgd", "--set", "lr=0.25", "--no-check", "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert report["parameters"] == ["w.a"]
    assert [(row["name"], row["shape"]) for row in report["inputs"]] == [("in_x", ["N", 3]), ("labels", ["N", 2])]
    trainer = onnx_ops.Trainer(step)
    x, labels = np.eye(4, 3, dtype=np.float32), np.ones((4, 2), np.float32)
    before = trainer.weights()["w.a"].astype(np.float64)
    error = 0.5 * (x @ before + [0.5, -0.5]) - 1
    trainer.step(in_x=x, labels=labels)
    np.testing.assert_allclose(trainer.weights()["w.a"], before - 0.25 * 0.5 * x.T @ (2 * error / 8), atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--optimizer", "adamx"], "no optimizer 'adamx' in torch.optim"),
        (["--set", "lr"], "has no value"),
        (["--set", "rate=1"], "AdamW has no argument 'rate', expected one of lr, betas, eps"),
        (["--out", "none/step.onnx"], "none/step.onnx: No such file or directory"),
        (["--set", "lr=fast"], "expected NAME=VALUE with numbers"),
        (["--output", "z"], "there is no output 'z', expected one of out.y, scaled"),
        (["--train", "v*"], "no floating initializer matches v*, there are w.a, b, factor"),
    ],
)
def test_what_the_command_refuses(arguments: list[str], message: str, tmp_path: Path) -> None:
    path = tmp_path / "linear.onnx"
    onnx.save(onnx.parser.parse_model(LINEAR), path)
    command = ["migrate", str(path), "--loss", "l1", "--out", str(tmp_path / "step.onnx"), *arguments]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert message in " ".join(result.output.split())


def test_models_that_cannot_be_read(tmp_path: Path) -> None:
    text, step = tmp_path / "text.onnx", tmp_path / "step.onnx"
    text.write_text("no model")
    step.write_bytes(steps.whole_step().SerializeToString())
    for model, message in (
        (tmp_path / "none.onnx", "cannot read .*none.onnx: No such file or directory"),
        (text, "text.onnx is no ONNX model: "),
        (step, "the model is a training step already, expected a forward model"),
    ):
        result = CliRunner().invoke(app, ["migrate", str(model), "--loss", "l1", "--out", str(tmp_path / "out.onnx")])
        assert result.exit_code == 1
        assert re.search(message, " ".join(result.output.split()))


def test_external_data_is_read(tmp_path: Path) -> None:
    """Weights of a model in two files; they may not lie outside its folder, nor be missing."""
    model = onnx.parser.parse_model(LINEAR)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name))
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    onnx.save(model, tmp_path / "linear.onnx", save_as_external_data=True, location="linear.data", size_threshold=0)
    capture = migrate(tmp_path / "linear.onnx", "l1", torch.optim.SGD, check=False)
    for name in ("w.a", "b"):
        np.testing.assert_array_equal(capture.state[name], arrays[name])
    (tmp_path / "linear.data").unlink()
    with pytest.raises(ModelFileError, match=r"linear\.data"):
        migrate(tmp_path / "linear.onnx", "l1", torch.optim.SGD)


def test_unsupported_operators_are_listed_together() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 21, "own": 1]>
        network (float[N, 3] x) => (float[N, 3] y) {
            first = Det (x)
            second = own.Special (x)
            best, rest = MaxPool <kernel_shape = [1]> (x)
            third = Det (x)
            y = Add (x, second)
        }""")
    with pytest.raises(CaptureError) as refusal:
        ImportedModel(model)
    for part in ("Det (2, such as", "own.Special (1", "MaxPool with 2 outputs (1"):
        assert part in str(refusal.value)
    older = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 11]> n (float[N] x) => (float[N] y) { y = Relu (x) }'
    )
    with pytest.raises(CaptureError, match="the model has opset 11, expected 13 or newer"):
        ImportedModel(older)


def test_what_is_trained() -> None:
    """A scale of one element is none, unless a pattern names it; masks with infinities never are."""
    model = onnx.parser.parse_model(LINEAR)
    assert {name for name, _ in ImportedModel(model).named_parameters()} == {"w.a", "b"}
    assert {name for name, _ in ImportedModel(model, ["factor"]).named_parameters()} == {"factor"}
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, -np.inf], np.float32), "mask"))
    assert {name for name, _ in ImportedModel(model).named_parameters()} == {"w.a", "b"}


def test_losses_are_means_of_pytorch() -> None:
    x, y = torch.randn(4, 3), torch.rand(4, 3)
    assert set(LOSSES) == {"cross_entropy", "mse", "bce_with_logits", "l1"}
    torch.testing.assert_close(LOSSES["mse"](x, y), ((x - y) ** 2).mean())
    torch.testing.assert_close(LOSSES["l1"](x, y), (x - y).abs().mean())
    torch.testing.assert_close(LOSSES["bce_with_logits"](x, y), (torch.log1p(x.exp()) - x * y).mean())
    rows = torch.tensor([0, 2, 1, 1])
    torch.testing.assert_close(LOSSES["cross_entropy"](x, rows), -x.log_softmax(1)[torch.arange(4), rows].mean())


UNARY = [
    *("Relu", "Sigmoid", "Tanh", "Exp", "Neg", "Abs", "Erf", "Floor", "Ceil", "Round", "Sign", "Sin", "Cos"),
    *("Reciprocal", "Softplus", "Softsign", "HardSwish", "Mish", "Identity", "Selu", "Elu", "LeakyRelu"),
    *("HardSigmoid", "Gelu", "Softmax", "LogSoftmax", "Celu", "GlobalAveragePool", "GlobalMaxPool", "Flatten"),
    *("Transpose", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2"),
    *("ReduceSumSquare", "ReduceLogSumExp"),
]
NODES = [
    *(f"y = {kind} (x)" for kind in UNARY),
    *(f"y = {kind} (x, v)" for kind in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "PRelu")),
    "y = Softmax <axis = 1> (x)",
    'y = Gelu <approximate = "tanh"> (x)',
    "y = HardSigmoid <alpha = 0.3, beta = 0.4> (x)",
    "y = LeakyRelu <alpha = 0.3> (x)",
    "y = Elu <alpha = 0.3> (x)",
    "y = Flatten <axis = 2> (x)",
    "y = Transpose <perm = [0, 2, 3, 1]> (x)",
    "y = Conv <pads = [1, 0, 2, 1], strides = [2, 1]> (x, w)",
    "y = Conv <pads = [1, 1, 1, 1], dilations = [2, 1]> (x, w, v2)",
    'y = Conv <auto_pad = "SAME_UPPER", strides = [2, 2]> (x, w)',
    'y = Conv <auto_pad = "SAME_LOWER"> (x, w)',
    "y = ConvTranspose <strides = [2, 2], output_padding = [1, 1]> (x, wt)",
    "y = MaxPool <kernel_shape = [2, 3], strides = [2, 1], pads = [0, 1, 1, 1]> (x)",
    "y = MaxPool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1> (x)",
    "y = AveragePool <kernel_shape = [2, 2], pads = [1, 1, 1, 1]> (x)",
    "y = AveragePool <kernel_shape = [2, 2], pads = [1, 0, 0, 0], count_include_pad = 1> (x)",
    "y = BatchNormalization <epsilon = 0.1> (x, v3, v3, v3, v3)",
    "y = LayerNormalization <epsilon = 0.1> (x, v, v)",
    "y = LayerNormalization <axis = 2> (x, m)",
    "y = InstanceNormalization <epsilon = 0.1> (x, v3, v3)",
    "y = GroupNormalization <num_groups = 3, epsilon = 0.1> (x, v3, v3)",
    "flat = Flatten (x) y = Gemm <alpha = 0.5, beta = 2.0, transB = 1> (flat, g, v2)",
    "y = MatMul (x, square)",
    "z = Constant <value_floats = [0.5]> () i = Constant <value_ints = [2]> () b = Expand (z, i) y = Conv (x, w, b)",
    "i = Constant <value_ints = [0, -1, 20]> () y = Reshape (x, i)",
    "i = Constant <value_ints = [1, -2]> () y = Unsqueeze (x, i)",
    "i = Constant <value_ints = [1, 3]> () y = ReduceMean <keepdims = 0> (x, i)",
    "i = Constant <value_ints = [1, 2]> () y = Gather <axis = -1> (x, i)",
    "i = Constant <value_int = 1> () y = Gather <axis = 1> (x, i)",
    "s = Constant <value_ints = [1, -4]> () e = Constant <value_ints = [3, 9223372036854775807]> ()"
    " a = Constant <value_ints = [1, -1]> () t = Constant <value_ints = [1, 2]> () y = Slice (x, s, e, a, t)",
    "s = Constant <value_ints = [-1]> () e = Constant <value_ints = [-9223372036854775807]> ()"
    " a = Constant <value_ints = [2]> () y = Slice (x, s, e, a, s)",
    "a, b = Split <axis = 2, num_outputs = 2> (x) y = Concat <axis = 3> (a, b)",
    "i = Constant <value_ints = [1, 3]> () a, b = Split <axis = 2> (x, i) y = Identity (b)",
    "i = Constant <value_ints = [2, 1, 1, 1, 1]> () y = Expand (x, i)",
    "i = Constant <value_ints = [1, 2, 1, 1]> () y = Tile (x, i)",
    "i = Constant <value_ints = [0, 0, 1, 0, 0, 0, 2, 1]> () y = Pad (x, i)",
    "i = Constant <value_ints = [1, 1, 0, 2]> () a = Constant <value_ints = [3, 2]> ()"
    ' y = Pad <mode = "reflect"> (x, i, , a)',
    "l = Constant <value_float = -0.5> () h = Constant <value_float = 0.5> () y = Clip (x, l, h)",
    "c = Less (x, v) y = Where (c, x, v)",
    'y = Einsum <equation = "bchw,wk->bchk"> (x, square)',
    "y = Trilu <upper = 0> (x)",
    "i = Constant <value_int = 2> () y = CumSum (x, i)",
    "s = Shape (x) i = Constant <value_int = 1> () c = Gather (s, i) f = Cast <to = 1> (c) y = Mul (x, f)",
    "s = Shape <start = 2> (x) e = Constant <value_ints = [-1]> () t = Concat <axis = 0> (e, s) y = Reshape (x, t)",
    "s = Shape (x) z = ConstantOfShape <value = float[1] {1.5}> (s) y = Add (x, z)",
    "a = ArgMax <axis = 1, keepdims = 0> (x) y = Cast <to = 1> (a)",
    "i = Constant <value_float = 2.0> () y = Pow (x, i)",
    "y = Dropout (x)",
]


@pytest.mark.parametrize("nodes", NODES)
def test_operators_compute_what_onnxruntime_does(nodes: str) -> None:
    rng = np.random.default_rng(0)
    shapes = {"w": (2, 3, 3, 2), "wt": (3, 2, 3, 2), "v": (5,), "v2": (2,), "v3": (3,), "m": (4, 5), "g": (2, 60)}
    shapes["square"] = (5, 5)
    text = nodes.replace(") ", ")\n")
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> network (float[N, 3, 4, 5] x) => (y) {{ {text} }}'
    )
    used = {name for node in model.graph.node for name in node.input}
    for name, shape in shapes.items():
        if name in used:
            array = rng.random(shape).astype(np.float32) + 0.1
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    x = rng.normal(size=(2, 3, 4, 5)).astype(np.float32)
    wanted = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    got = ImportedModel(model).eval()(torch.from_numpy(x))["y"].detach().numpy()
    assert got.dtype == wanted.dtype
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=2e-6)


def test_most_operators_are_compared() -> None:
    compared = {
        node.partition(" = ")[2].split()[0] for text in NODES for node in text.replace(") ", ")\n").splitlines()
    }
    assert len(set(ON_TENSORS) - compared) < 25, sorted(set(ON_TENSORS) - compared)
