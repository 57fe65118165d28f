"""Captured graphs: inputs and outputs, results compared with PyTorch, and refused models."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from captures import gradients, training_step
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

import onnx_ops
from onnx_ops.torch import Capture, CaptureError
from onnx_ops.torch.verification import verify
from onnx_ops.training.step import Step

BATCH = {0: Dim("N")}


def names(model: onnx.ModelProto) -> tuple[list[str], list[str]]:
    return [value.name for value in model.graph.input], [value.name for value in model.graph.output]


def shapes(model: onnx.ModelProto) -> dict[str, list[Any]]:
    return {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = onnx_ops.InferenceSession(model, options)
    outputs = [value.name for value in session.get_outputs()]
    return dict(zip(outputs, session.run(outputs, feeds), strict=True))


def arrays(**tensors: Tensor) -> dict[str, np.ndarray]:
    return {name: tensor.detach().numpy() for name, tensor in tensors.items()}


def close(got: np.ndarray, wanted: Tensor, tolerance: float = 2e-6) -> None:
    """Sums in another order: a few units of the last place of a tensor's largest entry."""
    expected = wanted.detach().numpy()
    assert got.shape == expected.shape
    size = np.abs(expected).max(initial=1e-3, where=np.isfinite(expected))
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * size)


class Everything(nn.Module):
    """Tied, frozen and unused parameters; buffers that change, stay, and are not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.unused = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.linspace(0.5, 2, 4), requires_grad=False)
        self.register_buffer("scale", torch.full((4,), 3.0), persistent=False)
        self.register_buffer("running", torch.zeros(4), persistent=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("still", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = self.second(self.first(x) * self.frozen) * self.scale * self.still
        self.running = self.running * 0.9 + y.detach().mean(0)
        return y


def test_inputs_and_outputs_have_the_names_of_the_model() -> None:
    torch.manual_seed(0)
    model = Everything()
    x = torch.randn(3, 4)
    capture = gradients(model, lambda m, x: m(x).square().mean(), (x,), dynamic_shapes=(BATCH,))

    inputs, outputs = names(capture.model)
    assert inputs == ["unused", "frozen", "first.weight", "second.bias", "running", "calls", "still", "x"]
    assert outputs == ["loss", "grad.unused", "grad.first.weight", "grad.second.bias", "next.running", "next.calls"]
    assert shapes(capture.model)["x"] == ["N", 4]
    step = Step.of(capture.model)
    assert step.tied == {"second.weight": "first.weight"}
    assert step.roles == {name: "parameter" for name in inputs[:4]} | {name: "buffer" for name in inputs[4:-1]}
    assert not model.running.any(), "the model itself is as it was"
    assert not model.calls

    for rows in (3, 5):
        x = torch.randn(rows, 4)
        got = run(capture.model, capture.state | arrays(x=x))
        twin = Everything()
        twin.load_state_dict(model.state_dict())
        loss = twin(x).square().mean()
        loss.backward()
        close(got["loss"], loss)
        close(got["grad.first.weight"], twin.first.weight.grad)
        close(got["grad.second.bias"], twin.second.bias.grad)
        close(got["next.running"], twin.running)
        assert got["next.calls"] == 1
        assert not got["grad.unused"].any()


@dataclasses.dataclass
class Pair:
    x: Tensor
    y: Tensor
    factor: float = 2.0


def test_nested_arguments_are_named_by_their_places() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    weight = torch.randn(2, requires_grad=True)
    batch, other = Pair(torch.randn(3, 4), torch.randn(3, 2)), {"weights": [weight, None]}

    def loss(model: nn.Module, batch: Pair, other: dict[str, Any]) -> dict[str, Tensor]:
        output = model(batch.x) * batch.factor
        error = (functional.mse_loss(output, batch.y, reduction="none") * other["weights"][0]).mean()
        return {"error": error, "output": output, "positive": (output > 0).sum()}

    capture = gradients(model, loss, (batch, other), dynamic_shapes={"batch": {"x": BATCH, "y": BATCH}, "other": None})
    inputs, outputs = names(capture.model)
    assert inputs == ["weight", "bias", "batch.x", "batch.y", "other.weights.0"]
    assert outputs == ["loss", "output", "positive", "grad.weight", "grad.bias", "grad.other.weights.0"]

    feeds = {"batch.x": batch.x, "batch.y": batch.y, "other.weights.0": weight}
    got = run(capture.model, capture.state | {name: tensor.detach().numpy() for name, tensor in feeds.items()})
    wanted = loss(model, batch, other)
    wanted["error"].backward()
    close(got["loss"], wanted["error"])
    close(got["output"], wanted["output"])
    assert got["positive"] == int(wanted["positive"])
    close(got["grad.other.weights.0"], weight.grad)
    close(got["grad.weight"], model.weight.grad)


def test_what_a_tuple_reports_is_named_by_place_and_arguments_may_be_a_list() -> None:
    model = nn.Linear(4, 2)
    capture = gradients(
        model,
        lambda m, *batch: (functional.mse_loss(m(batch[0]), batch[1]), m(batch[0]), batch[1]),
        (torch.randn(3, 4), torch.randn(3, 2)),
        dynamic_shapes={"batch": (BATCH, BATCH)},
    )
    inputs, outputs = names(capture.model)
    assert inputs == ["weight", "bias", "batch.0", "batch.1"]
    assert outputs == ["loss", "output.1", "output.2", "grad.weight", "grad.bias"]
    assert shapes(capture.model)["output.1"] == ["N", 2]


def test_names_of_arguments_do_not_meet_those_of_values_inside() -> None:
    """Each of these is a name that the exporter gives to a value of this graph."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    inputs = [torch.randn(3, 4), *(torch.randn(3, 2) for _ in range(3))]

    def loss(model: nn.Module, mul: Tensor, linear: Tensor, val_0: Tensor, mean: Tensor) -> Tensor:
        return ((model(mul) * linear + val_0) * mean).mean()

    capture = gradients(model, loss, tuple(inputs))
    feeds = dict(zip(("mul", "linear", "val_0", "mean"), inputs, strict=True))
    close(run(capture.model, capture.state | arrays(**feeds))["loss"], loss(model, *inputs))


def test_sizes_that_are_equal_by_chance_stay_apart() -> None:
    """The batch has as many rows as the layer has columns."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    capture = gradients(model, lambda m, x: m(x).square().mean(), (torch.randn(4, 4),), dynamic_shapes=(BATCH,))
    x = torch.randn(7, 4)
    loss = model(x).square().mean()
    close(run(capture.model, capture.state | arrays(x=x))["loss"], loss)


def test_networks_that_are_not_the_model_are_constants() -> None:
    torch.manual_seed(0)
    model, teacher = nn.Linear(4, 3), nn.Linear(4, 3)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return functional.kl_div(model(x).log_softmax(1), teacher(x).softmax(1).detach(), reduction="batchmean")

    x = torch.randn(3, 4)
    capture = gradients(model, loss, (x,), dynamic_shapes=(BATCH,))
    assert names(capture.model)[0] == ["weight", "bias", "x"]
    assert {"KlDiv", "KlDivBackward"} <= {node.op_type for node in capture.model.graph.node if node.domain == "aclnn"}
    got = run(capture.model, capture.state | arrays(x=x))
    loss(model, x).backward()
    close(got["grad.weight"], model.weight.grad)


def test_inference_is_the_first_call_of_the_model_in_evaluation_mode(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor, *, scale: Tensor, double: bool = False) -> dict[str, Any]:
            y = self.layer(x) * scale
            return {"y": y * 10 if self.training else y, "parts": [y * 2 if double else y]}

    torch.manual_seed(0)
    model = Scaled()
    x = torch.randn(5, 4)
    capture = gradients(
        model,
        lambda m, x: m(x[1:], scale=x.mean(), double=True)["y"].mean() + m(x, scale=x.sum())["y"].mean(),
        (x,),
        dynamic_shapes=({0: Dim("N", min=3)},),
        inference=True,
    )
    assert model.training
    assert capture.inference is not None
    assert names(capture.inference) == (["x", "scale"], ["output.y", "output.parts.0"])
    got = run(capture.inference, arrays(x=x, scale=torch.tensor(3.0)))
    model.eval()
    wanted = model(x, scale=torch.tensor(3.0), double=True)
    close(got["output.y"], wanted["y"])
    close(got["output.parts.0"], wanted["parts"][0])


def test_a_model_that_the_loss_does_not_call_has_no_inference_graph() -> None:
    capture = gradients(nn.Linear(4, 2), lambda m, x: (m.weight @ x).mean(), (torch.randn(4, 5),), inference=True)
    assert capture.inference is None


@pytest.mark.parametrize("optimizer", [False, True])
def test_without_the_inference_graph_the_step_is_the_same(optimizer: bool) -> None:
    torch.manual_seed(0)
    model, args = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), (torch.randn(5, 4),)

    def captured(**options: bool) -> Capture:
        def loss(m: nn.Module, x: Tensor) -> Tensor:
            return m(x).square().mean()

        if optimizer:
            return training_step(model, loss, args, torch.optim.SGD(model.parameters(), 0.1), **options)
        return gradients(model, loss, args, **options)

    step = captured(inference=False)
    assert step.inference is None
    whole = captured(inference=True)
    assert whole.inference is not None
    assert step.model == whole.model
    np.testing.assert_equal(step.state, whole.state)


@pytest.mark.parametrize("opset", [18, 21, 23])
def test_opsets(opset: int) -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.LogSoftmax(1))
    capture = gradients(model, lambda m, x: m(x)[:, 0].mean(), (torch.randn(5, 4),), opset_version=opset)
    assert {entry.version for entry in capture.model.opset_import if not entry.domain} == {opset}


def test_a_saved_file_is_whole(tmp_path: Path) -> None:
    """A session of onnxruntime without the kernels runs it with the batch as its only inputs."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    x, y = torch.randn(6, 4), torch.rand(6, 3).softmax(1)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return functional.kl_div(model(x).log_softmax(1), y, reduction="batchmean")

    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    capture = training_step(model, loss, (x, y), optimizer, dynamic_shapes=(BATCH, BATCH), inference=True)
    capture.save(tmp_path / "step.onnx")
    session = ort.InferenceSession(tmp_path / "step.onnx")
    got = dict(zip((o.name for o in session.get_outputs()), session.run(None, arrays(x=x, y=y)), strict=True))
    value = loss(model, x, y)
    value.backward()
    optimizer.step()
    close(got["loss"], value)
    close(got["next.weight"], model.weight)
    # Paths of sources may contain private names.
    content = (tmp_path / "step.onnx").read_bytes()
    assert b".py" not in content
    assert str(Path.home()).encode() not in content


def test_weights_have_the_names_of_the_state_dict(tmp_path: Path) -> None:
    """The file of the weights is read by safetensors into a module, a tied parameter and a buffer among its state."""
    safetensors = pytest.importorskip("safetensors.torch")

    def made() -> nn.Sequential:
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
        model[2].weight = model[0].weight
        return model

    torch.manual_seed(0)
    model, other, x = made(), made(), torch.randn(6, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    capture = training_step(model, lambda model, x: model(x).square().mean(), (x,), optimizer, check=False)
    capture.save(tmp_path / "step.onnx", external=True)
    safetensors.load_model(other, tmp_path / "step.safetensors", strict=False)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    read = safetensors.load_file(tmp_path / "step.safetensors")
    assert read.keys() == capture.state.keys() > model.state_dict().keys() - {"2.weight"}
    trainer = onnx_ops.Trainer(tmp_path / "step.onnx")
    for name, array in trainer.state_dict().items():
        assert torch.equal(torch.from_numpy(array), read[name])


def test_a_capture_shows_its_parameters_state_and_batch() -> None:
    model = nn.Linear(4, 3)
    capture = gradients(model, lambda model, x: model(x).sum(), (torch.randn(2, 4),), dynamic_shapes=(BATCH,))
    assert repr(capture) == "<Capture: 15 parameters, state of 60 bytes, batch inputs: x float32 (N, 4)>"


def test_factors_beside_products_of_doubles_keep_their_digits() -> None:
    """A third, as a float, is wrong in the eighth digit."""
    torch.manual_seed(0)
    model, x = nn.Linear(4, 3, bias=False).double(), torch.randn(6, 4, dtype=torch.float64)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x / 3) / 7).square().sum()

    capture = gradients(model, loss, (x,), dynamic_shapes=(BATCH,))
    got = run(capture.model, capture.state | arrays(x=x))
    value = loss(model, x)
    value.backward()
    assert model.weight.grad is not None
    close(got["loss"], value, 1e-14)
    close(got["grad.weight"], model.weight.grad, 1e-14)


def test_ends_of_a_range_of_doubles_keep_their_digits() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(4, 3).double(), torch.randn(2, 4, dtype=torch.float64)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x) * torch.linspace(0.1, 0.7, 3, dtype=torch.float64)).sum()

    capture = gradients(model, loss, (x,))
    got = run(capture.model, capture.state | arrays(x=x))
    np.testing.assert_allclose(got["grad.bias"], [0.2, 0.8, 1.4], rtol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_arc_tangents_of_two_numbers(dtype: torch.dtype) -> None:
    """Among them zeros on either side, whose direction is 0 or a half turn, and infinities."""
    values = torch.tensor([0.0, 1.0, -1.0, 2.5, -0.3, 1e-30, -1e30, np.inf, -np.inf, np.nan], dtype=dtype)
    y, x = torch.meshgrid(values, values, indexing="ij")

    def loss(model: nn.Module, y: Tensor, x: Tensor) -> dict[str, Tensor]:
        return {"loss": model(torch.ones(1, dtype=dtype)).sum(), "angles": torch.atan2(y, x)}

    capture = gradients(nn.Linear(1, 1).to(dtype), loss, (y, x), check=False)
    got = run(capture.model, capture.state | arrays(y=y, x=x))
    np.testing.assert_allclose(got["angles"], torch.atan2(y, x), rtol=3e-7 if dtype is torch.float32 else 1e-15)


def test_functions_of_doubles_keep_their_digits() -> None:
    x = torch.tensor([-30.0, -5.0, -0.3, 0.0, 0.2, 1.0, 3.0, 4.5, 9.0, 26.0, np.nan], dtype=torch.float64)
    functions = (torch.special.erfc, torch.deg2rad, torch.rad2deg, torch.log2, torch.log10)

    def loss(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
        one = model(torch.ones(1, dtype=torch.float64)).sum()
        return {"loss": one, **{f.__name__: f(x) for f in functions}}

    capture = gradients(nn.Linear(1, 1).double(), loss, (x,), check=False)
    got = run(capture.model, capture.state | arrays(x=x))
    for function in functions:
        np.testing.assert_allclose(got[function.__name__], function(x), rtol=1e-14, err_msg=function.__name__)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_what_is_copied_broadcasts() -> None:
    """PyTorch makes the grid by copying coordinates, which are one row, into all rows of it."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        grid = nn.functional.affine_grid(model(x).reshape(-1, 3, 4), [2, 1, 2, 3, 2], False)
        return (grid * torch.arange(72.0).reshape(2, 2, 3, 2, 3)).sum()

    captured = gradients(nn.Linear(5, 12), loss, (torch.ones(2, 5),))  # which compares it with PyTorch
    assert "grad.bias" in {value.name for value in captured.model.graph.output}


class Inner(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))


class Outer(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.inner = Inner(function)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).mean()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda y: y * 2 if y.sum() > 0 else y, "inner (Inner) decides by the numbers in a tensor"),
        (lambda y: y * float(y.max().item() > 0), "inner (Inner) decides by the numbers in a tensor"),
        (lambda y: torch.special.zeta(2.5, y.exp()), "zeta, which inner (Inner) needs"),
    ],
)
def test_what_a_graph_cannot_do_names_the_module(function: Any, said: str) -> None:
    with pytest.raises(CaptureError) as refused:
        gradients(Outer(function), lambda m, x: m(x), (torch.randn(5, 4),))
    assert said in str(refused.value)


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_a_loss_of_one_element_is_a_scalar(shape: tuple[int, ...]) -> None:
    """As for PyTorch's backward()."""
    model, x = nn.Linear(4, 2), torch.randn(5, 4)
    capture = gradients(model, lambda m, x: m(x).square().mean().reshape(shape), (x,), evaluation=True)
    model(x).square().mean().backward()
    assert onnx_ops.Trainer(capture).evaluate(x=x.numpy())["loss"].shape == ()
    found = run(capture.model, capture.state | arrays(x=x))
    assert found["loss"].shape == ()
    close(found["grad.weight"], model.weight.grad)


def test_a_loss_of_each_sample_is_none_for_a_batch_of_one_either() -> None:
    with pytest.raises(CaptureError, match="expected a floating scalar"):
        gradients(nn.Linear(4, 1), lambda m, x: m(x), (torch.randn(1, 4),), dynamic_shapes=({0: Dim("batch")},))


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda m, x: m(x), "the loss is a tensor of shape (5, 2), expected a floating scalar"),
        (lambda m, x: (m(x) > 0).sum(), "expected a floating scalar"),
        (lambda m, x: m(x).detach().mean(), "depends on no parameter"),
        (lambda m, x: "fine", "the loss returned str"),
        (lambda m, x: {"loss": m(x).mean(), "x": x * 2}, "'x' would name two values"),
    ],
)
def test_losses_that_are_none(loss: Any, said: str) -> None:
    with pytest.raises(CaptureError) as refused:
        gradients(nn.Linear(4, 2), loss, (torch.randn(5, 4),))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": lambda x: x}, "the model is a function, expected a torch.nn.Module"),
        (
            {"args": torch.ones(5, 4)},
            "the example is a Tensor, expected a tuple of the loss's arguments",
        ),
        (
            {"optimizer": None},
            "the optimizer is None, expected one like torch.optim.SGD(model.parameters())",
        ),
        ({"optimizer": torch.optim.SGD}, "the optimizer is <class 'torch.optim.sgd.SGD'>, expected one like"),
        ({"optimizer": [torch.optim.SGD]}, "the optimizer is <class 'torch.optim.sgd.SGD'>, expected one like"),
    ],
)
def test_arguments_of_other_types(change: dict[str, Any], said: str) -> None:
    model = nn.Linear(4, 2)
    given = {"model": model, "loss": lambda m, x: m(x).mean(), "args": (torch.ones(5, 4),)}
    with pytest.raises(CaptureError) as refused:
        training_step(**(given | {"optimizer": torch.optim.SGD(model.parameters())} | change))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        (({3: Dim("N")},), "names the axis 3, but its rank is 2"),
        ((BATCH, BATCH), "dynamic_shapes has 2 entries, expected 1: x"),
        ({"z": BATCH}, "expected entries of ['x']"),
        (({1: Dim("M")},), "x.size()[1] is to be dynamic, but the model or loss makes the number 4 of it"),
    ],
)
def test_dynamic_shapes_that_do_not_fit(shapes: Any, said: str) -> None:
    with pytest.raises(CaptureError) as refused:
        gradients(nn.Linear(4, 2), lambda m, x: m(x).mean(), (torch.randn(5, 4),), dynamic_shapes=shapes)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (
            lambda m, x: (m(x) * 2 if x.shape[0] > 4 else m(x)).mean(),
            "Say so by min=5",
        ),
        (lambda m, x: (m(x) * 2 if len(x) > 4 else m(x)).mean(), "right only where it is 5 or more"),
        (lambda m, x: m(x).view(-1, 2, 2).mean(), "the graph is right only where ((2*x.size()[0]) % 4) == 0"),
    ],
)
def test_graphs_that_hold_for_some_sizes_only(loss: Any, said: str) -> None:
    """Conditions on sizes are evaluated at capture time."""
    with pytest.raises(CaptureError) as refused:
        gradients(nn.Linear(4, 2), loss, (torch.randn(6, 4),), dynamic_shapes=(BATCH,))
    assert said in str(refused.value)


def test_sizes_that_dimensions_are_told_to_have() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (model(x) * (2 if x.shape[0] > 4 else 1) - y[::2]).square().mean()

    rows = Dim("B", min=5)
    example = torch.randn(6, 4), torch.randn(12, 2)
    capture = gradients(model, loss, example, dynamic_shapes=({0: rows}, {0: rows * 2}))
    assert shapes(capture.model)["y"] == ["2*B", 2]
    x, y = torch.randn(8, 4), torch.randn(16, 2)
    close(run(capture.model, capture.state | arrays(x=x, y=y))["loss"], loss(model, x, y))


def test_names_that_are_taken() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return self.x * x

    with pytest.raises(CaptureError, match="'x' is an argument of the loss and a name in the model"):
        gradients(Named(), lambda m, x: m(x).mean(), (torch.randn(5, 4),))


def test_arguments_that_do_not_fit_the_loss() -> None:
    with pytest.raises(CaptureError, match=r"2 arguments were given, expected 1: \['x'\]"):
        gradients(nn.Linear(4, 2), lambda m, x: m(x).mean(), (torch.randn(5, 4), torch.randn(5)))


def test_sparse_gradients() -> None:
    with pytest.raises(CaptureError, match="the gradient of 'weight' is sparse"):
        gradients(nn.Embedding(4, 2, sparse=True), lambda m, x: m(x).mean(), (torch.tensor([1, 2]),))


def test_wrong_numbers_are_refused_with_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a translation were wrong: the graph's loss is twice that of PyTorch."""

    def doubled(*args: Any) -> Any:
        got = honest(*args)
        return got | {"loss": got["loss"] * 2} if "loss" in got else got

    honest = verify.Graph.run
    monkeypatch.setattr(verify.Graph, "run", doubled)
    model, arguments = nn.Linear(4, 2), (torch.randn(5, 4),)
    with pytest.raises(CaptureError, match=r"not those of PyTorch: loss is off by .* is allowed"):
        gradients(model, lambda m, x: m(x).square().mean(), arguments)
    gradients(model, lambda m, x: m(x).square().mean(), arguments, check=False)


def test_an_interrupt_in_a_capture_is_the_users() -> None:
    def interrupted(y: Tensor) -> Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gradients(Outer(interrupted), lambda m, x: m(x), (torch.randn(5, 4),))
