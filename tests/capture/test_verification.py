"""The verification of a capture finds faults of a graph and accepts rounding errors."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from captures import gradients, training_step
from cases import names_with
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from onnx_ops.torch import CaptureError
from onnx_ops.torch import capture as capturing
from onnx_ops.torch.steps.calls import RunInfo
from onnx_ops.torch.steps.step import JointStep
from onnx_ops.torch.verification import tolerances, trials, updates, verify
from onnx_ops.torch.verification.widening import Float64Computation, to_float64
from onnx_ops.training.freed_memory import return_freed_memory
from scripts.memory.peaks import RESETS, peak, reset_peak, resident

# --- faults -----------------------------------------------------------------------------------------------------------


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        return self.head(self.left(x).tanh() + functional.silu(self.right(x)))


def classified(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), labels)


def output(graph: ir.Graph, name: str) -> int:
    return next(i for i, value in enumerate(graph.outputs) if value.name == name)


def replace(graph: ir.Graph, name: str, kind: str, *inputs: ir.Value) -> None:
    """Let a node compute an output."""
    place = output(graph, name)
    old = graph.outputs[place]
    node = ir.node(kind, inputs)
    graph.append(node)
    old.name, node.outputs[0].name = f"{name}.before", name
    node.outputs[0].shape, node.outputs[0].type = old.shape, old.type
    graph.outputs[place] = node.outputs[0]


def constant(graph: ir.Graph, name: str, array: Any, dtype: Any = np.float32) -> ir.Value:
    value = ir.val(name, const_value=ir.tensor(np.asarray(array, dtype), name=name))
    graph.register_initializer(value)
    return value


def scaled(graph: ir.Graph, values: dict[str, Tensor]) -> None:
    gradient = graph.outputs[output(graph, "grad.left.weight")]
    replace(graph, "grad.left.weight", "Mul", gradient, constant(graph, "factor", 1.01))


def not_updated(graph: ir.Graph, values: dict[str, Tensor]) -> None:
    replace(graph, "next.head.bias", "Identity", next(v for v in graph.inputs if v.name == "head.bias"))


def of_another(graph: ir.Graph, values: dict[str, Tensor]) -> None:
    one, other = (output(graph, f"next.optimizer.momentum_buffer.{name}.bias") for name in ("left", "right"))
    own, others = graph.outputs[one], graph.outputs[other]
    own.name, others.name = "moved", own.name
    own.name = "next.optimizer.momentum_buffer.right.bias"


def missing(graph: ir.Graph, values: dict[str, Tensor]) -> None:
    del graph.outputs[output(graph, "next.steps")]


def widened(graph: ir.Graph, values: dict[str, Tensor]) -> None:
    """The loss as float64, with the same number."""
    place = output(graph, "loss")
    old = graph.outputs[place]
    graph.append(node := ir.node("Cast", [old], {"to": ir.DataType.DOUBLE}))
    old.name, node.outputs[0].name = "loss.before", "loss"
    node.outputs[0].shape, node.outputs[0].type = old.shape, ir.TensorType(ir.DataType.DOUBLE)
    graph.outputs[place] = node.outputs[0]


def baked_in(graph: ir.Graph, values: dict[str, Tensor]) -> None:
    parameter = next(v for v in graph.inputs if v.name == "left.weight")
    fixed = constant(graph, "fixed", values["left.weight"].numpy())
    for use in list(parameter.uses()):
        if any(value.name and "next" in value.name for value in use.node.outputs):
            continue
        use.node.replace_input_with(use.idx, fixed)


def swapped(graph: ir.Graph, values: dict[str, Tensor]) -> None:
    one, other = (output(graph, f"grad.{name}.bias") for name in ("left", "right"))
    graph.outputs[one].name, graph.outputs[other].name = "grad.right.bias.now", "grad.left.bias"
    graph.outputs[one].name = "grad.right.bias"


def detached(graph: ir.Graph, values: dict[str, Tensor]) -> None:
    gradient = graph.outputs[output(graph, "grad.right.weight")]
    replace(graph, "grad.right.weight", "Mul", gradient, constant(graph, "nothing", 0.0))


def one_size(graph: ir.Graph, values: dict[str, Tensor], name: str = "loss") -> None:
    """A mean that divides by the number of rows of the example."""
    factor = constant(graph, "rows", 1 / 8)
    count = ir.node("Size", [next(v for v in graph.inputs if v.name == "labels")])
    graph.extend([count, cast := ir.node("Cast", count.outputs, {"to": 1})])
    graph.append(share := ir.node("Mul", [cast.outputs[0], factor]))
    replace(graph, name, "Mul", graph.outputs[output(graph, name)], share.outputs[0])


FAULTS: dict[str, tuple[Callable[..., None], str]] = {
    "one gradient times 1.01": (scaled, "grad.left.weight is off"),
    "a missing update": (not_updated, "next.head.bias is off"),
    "momentum of another parameter": (of_another, r"next\.optimizer\.momentum_buffer\.(left|right)\.bias is off"),
    "a missing buffer": (missing, "next.steps is missing"),
    "a loss of another dtype": (widened, "loss is float64, float32 in PyTorch"),
    "a parameter as a constant": (baked_in, "is off"),
    "two gradients in each other's place": (swapped, "grad.left.bias is off"),
    "a detached branch": (detached, "grad.right.weight is off"),
    "right for one size of the batch": (one_size, "loss is off"),
    "a gradient right for one size": (
        functools.partial(one_size, name="grad.head.bias"),
        "grad.head.bias is off",
    ),
}


LIKE_OTHERS = {
    "two gradients in each other's place",
    "a detached branch",
    "a gradient right for one size",
}


@pytest.mark.parametrize("name", names_with(full=LIKE_OTHERS, names=FAULTS))
def test_faults_of_graphs_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_fault(name, monkeypatch)


OF_LARGE_MODELS = [
    "a missing update",
    "momentum of another parameter",
    "a parameter as a constant",
    "a gradient right for one size",
]


@pytest.mark.parametrize("name", OF_LARGE_MODELS)
def test_faults_of_large_models_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose updates and gradients are compared in parts, and updates one row at a time."""
    monkeypatch.setattr(updates, "LARGE_UPDATE", 0)
    monkeypatch.setattr(updates, "SLICE", 0)
    monkeypatch.setattr(trials, "KEPT", 0)
    check_fault(name, monkeypatch)


def check_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, said = FAULTS[name]

    def faulty(traced: Any, values: dict[str, Tensor], *rest: Any) -> ir.Model:
        model = capturing_honestly(traced, values, *rest)
        if "labels" in values:  # not the model alone
            fault(model.graph, values)
        return model

    capturing_honestly = capturing.to_onnx
    monkeypatch.setattr(capturing, "to_onnx", faulty)
    torch.manual_seed(0)
    model, rows = Branches(), Dim("rows")
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    shapes = ({0: rows}, {0: rows})
    with pytest.raises(CaptureError, match=f"{said}.*check=False"):
        training_step(model, classified, (torch.randn(8, 4), torch.randint(3, (8,))), optimizer, dynamic_shapes=shapes)


def decayed(model: ir.Model) -> None:
    node = next(node for node in model.graph if node.op_type == "ApplyAdamW")
    node.replace_input_with(6, constant(model.graph, "decay", 0.5, np.float64))


def late(model: ir.Model) -> None:
    """The average of the parameter before its update."""
    graph = model.graph
    of_average = graph.outputs[output(graph, "next.averaged.module.weight")].producer()
    assert of_average is not None
    weight = graph.outputs[output(graph, "next.weight")]
    place = next(i for i, value in enumerate(of_average.inputs) if value is weight)
    of_average.replace_input_with(place, next(value for value in graph.inputs if value.name == "weight"))


@pytest.mark.parametrize(("fault", "said"), [(decayed, "next.weight is off"), (late, "averaged.module.weight is off")])
def test_faults_of_small_steps_are_found(
    fault: Callable[[ir.Model], None], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step is a hundred-thousandth of the largest weight, and that of the average a thousandth of it."""

    def faulty(traced: Any, values: dict[str, Tensor], *rest: Any) -> ir.Model:
        model = capturing_honestly(traced, values, *rest)
        fault(model)
        return model

    capturing_honestly = capturing.to_onnx
    monkeypatch.setattr(capturing, "to_onnx", faulty)
    torch.manual_seed(0)
    model = nn.Linear(30, 30)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5)
    with pytest.raises(CaptureError, match=said):
        training_step(
            model, lambda model, x: model(x).square().mean(), (torch.randn(8, 30),), optimizer, averaged=averaged
        )


def test_faults_of_decay_rates_are_found_in_trained_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step changes the second moments by a thousandth of their size, and a wrong rate by a third of that."""

    def faulty(traced: Any, values: dict[str, Tensor], *rest: Any) -> ir.Model:
        model = capturing_honestly(traced, values, *rest)
        node = next(node for node in model.graph if node.op_type == "ApplyAdamW")
        node.replace_input_with(8, constant(model.graph, "beta2", 0.9993, np.float64))
        return model

    capturing_honestly = capturing.to_onnx
    monkeypatch.setattr(capturing, "to_onnx", faulty)
    torch.manual_seed(0)
    model, x = nn.Linear(30, 30), torch.randn(8, 30)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5)
    for _ in range(50):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    for state in optimizer.state.values():
        state["exp_avg_sq"] *= 20  # what many steps would have made of them
    with pytest.raises(CaptureError, match=r"exp_avg_sq\.weight is off"):
        training_step(model, lambda model, x: model(x).square().mean(), (x,), optimizer)


class Shrinking(nn.Module):
    """Its forward pass changes a parameter, whatever the batch is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 3), nn.Parameter(torch.linspace(0.5, 1.5, 3))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.scale.mul_(0.5)
        return self.layer(x) * self.scale


OPTIMIZERS: dict[str, Callable[[nn.Module], Any]] = {
    "SGD": lambda m: torch.optim.SGD(m.parameters(), 0.1),
    "AdamW": lambda m: torch.optim.AdamW(m.parameters(), 0.1),
    "NAdam, which shares a product": lambda m: torch.optim.NAdam(m.parameters(), 0.1),
    "two": lambda m: [
        torch.optim.SGD([m.layer.weight], 0.1, momentum=0.9),
        torch.optim.Adam([m.layer.bias, m.scale], 0.1),
    ],
}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        pytest.param(name, changes, marks=[] if changes == bool(number % 2) else pytest.mark.full)
        for number, name in enumerate(OPTIMIZERS)
        for changes in (False, True)
    ],
)
def test_large_updates_are_computed_in_parts(name: str, changes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the norm of all gradients, and from parameters that the loss has changed."""
    graphs: list[onnx.ModelProto] = []

    def counted(model: onnx.ModelProto) -> verify.Graph:
        graphs.append(model)
        return verify.Graph(model)

    monkeypatch.setattr(updates, "LARGE_UPDATE", 0)
    monkeypatch.setattr(updates, "Graph", counted)
    torch.manual_seed(0)
    model = Shrinking()
    if not changes:
        model.forward = lambda x: model.layer(x) * model.scale  # type: ignore[method-assign]
    training_step(
        model,
        classified,
        (torch.randn(8, 4), torch.randint(3, (8,))),
        OPTIMIZERS[name](model),
        clip_grad_norm=0.5,
    )
    computed = [{value.name for value in graph.graph.output} for graph in graphs]
    for parameter in ("layer.weight", "layer.bias", "scale"):
        assert sum(f"next.{parameter}" in names for names in computed) == 1


@pytest.mark.parametrize(("optimizer", "sliced"), [(torch.optim.AdamW, True), (torch.optim.Adafactor, False)])
def test_elementwise_updates_are_compared_in_slices(
    optimizer: Callable[..., torch.optim.Optimizer], sliced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the state of an optimizer that has made a step; the update of Adafactor has norms."""
    models: list[onnx.ModelProto] = []

    def counted(model: onnx.ModelProto) -> verify.Graph:
        models.append(model)
        return verify.Graph(model)

    monkeypatch.setattr(updates, "LARGE_UPDATE", 0)
    monkeypatch.setattr(updates, "SLICE", 0)
    monkeypatch.setattr(updates, "Graph", counted)
    model = nn.Linear(4, 3)
    of_model = optimizer(model.parameters(), 0.1)
    batch = torch.randn(8, 4), torch.randint(3, (8,))
    classified(model, *batch).backward()
    of_model.step()
    training_step(model, classified, batch, of_model)
    sizes = [v.type.tensor_type.shape.dim[0].dim_param for m in models for v in m.graph.input if v.name == "weight"]
    assert sizes == ["rows" if sliced else ""]


@pytest.mark.full
@pytest.mark.skipif(not RESETS.exists(), reason="needs Linux")
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_memory_of_captures(optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    """Parameters, those of the second state, gradients of the graph, and half of those of PyTorch."""
    assert peak_of_capture(linear_layers(), (torch.randn(4, 1024),), optimizer) < 4.3


@pytest.mark.full
@pytest.mark.skipif(not RESETS.exists(), reason="needs Linux")
def test_memory_of_captures_of_recurrent_layers() -> None:
    """Gradients of each time step are freed once they are added, which leaves gaps in the heap."""
    layers = nn.LSTM(1024, 1024, 3, batch_first=True)
    assert peak_of_capture(Last(layers), (torch.randn(2, 10, 1024),), torch.optim.SGD) < 4.4


@pytest.mark.skipif(not RESETS.exists(), reason="needs Linux")
def test_memory_of_captures_with_many_slices() -> None:
    """Gradients of each slice are as large as the tensor, and freed once they are added."""
    layer, x = nn.Linear(32, 32), torch.randn(2**15, 32)
    gradients(layer, sum_of_slices, (x[:64],))
    before = resident()
    reset_peak()
    gradients(layer, sum_of_slices, (x,))
    assert peak() - before < 60 * x.nbytes


def sum_of_slices(layer: nn.Linear, x: Tensor) -> Tensor:
    rows = layer(x).view(64, -1)
    return torch.stack([rows[i].square().mean() for i in range(64)]).sum()


@pytest.mark.full
@pytest.mark.skipif(not RESETS.exists(), reason="needs Linux")
def test_memory_of_captures_that_are_compared_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters, those of the second state in both dtypes, the gradients, and half of PyTorch's in both dtypes."""

    def refused(*_: Any) -> None:
        raise CaptureError("rounding")

    def differs(got: Any, wanted: Any, tolerance: Any = None, what: str = "") -> CaptureError | None:
        return CaptureError("rounding") if tolerance is None else None

    monkeypatch.setattr(verify, "compare", refused)
    monkeypatch.setattr(verify, "_difference", differs)
    assert peak_of_capture(linear_layers(), (torch.randn(4, 1024),), torch.optim.SGD) < 9


class Last(nn.Module):
    """The last output of recurrent layers."""

    def __init__(self, layers: nn.LSTM) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)[0][:, -1]


def linear_layers() -> nn.Module:
    return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(20)))


def peak_of_capture(model: nn.Module, args: tuple[Tensor], optimizer: Callable[..., torch.optim.Optimizer]) -> float:
    """The peak of memory of a capture, in multiples of the size of the parameters."""
    small = nn.Linear(2, 2)  # PyTorch and onnx load what they need in the first capture
    training_step(small, lambda m, x: m(x).mean(), (torch.randn(2, 2),), torch.optim.SGD(small.parameters(), 0.1))
    size = sum(parameter.nbytes for parameter in model.parameters())
    gc.collect()
    return_freed_memory()
    before = resident() - size
    reset_peak()
    training_step(model, lambda m, x: m(x).square().mean(), args, optimizer(model.parameters(), 1e-3))
    return (peak() - before) / size


# --- the second state -------------------------------------------------------------------------------------------------


class Particular(nn.Module):
    """Takes no other rows than those of the example, or makes NaNs of them."""

    def __init__(self, raises: bool) -> None:
        super().__init__()
        self.layer, self.raises = nn.Linear(4, 3), raises

    def forward(self, x: Tensor) -> Tensor:
        first = float(x[0, 0]) if type(x) is Tensor else 1.0  # while it is traced, x has no numbers
        if first != 1.0 and self.raises:
            raise ValueError(f"the first number is {first}")
        return self.layer(x) * (1.0 if first == 1.0 else float("nan"))


@pytest.mark.parametrize("raises", [True, False])
def test_a_batch_that_pytorch_refuses_proves_nothing(raises: bool) -> None:
    x = torch.arange(1.0, 21.0).reshape(5, 4)
    model = Particular(raises)
    training_step(model, lambda m, x: m(x).square().mean(), (x,), torch.optim.SGD(model.parameters(), 0.1))


@pytest.mark.parametrize("places", [torch.searchsorted, lambda ends, x, **side: torch.bucketize(x, ends, **side)])
def test_sequences_remain_sorted(places: Callable[..., Tensor]) -> None:
    """The ends of sequences in a batch; what PyTorch searches in others is unspecified."""
    searched: list[list[int]] = []

    def loss(model: nn.Module, x: Tensor, ends: Tensor) -> Tensor:
        if type(ends) is Tensor:  # while it is traced, it has no numbers
            searched.append(ends.tolist())
        sequence = places(ends, torch.arange(len(x)), right=True)
        return torch.zeros(len(ends), 3).index_add(0, sequence, model(x)).square().sum()

    example = torch.randn(9, 4), torch.tensor([2, 5, 9])
    gradients(nn.Linear(4, 3), loss, example, dynamic_shapes=({0: Dim("tokens")}, {0: Dim("sequences")}))
    assert [2, 5, 9, 9] in searched


# --- rounding ---------------------------------------------------------------------------------------------------------


class OnTheEdge(nn.Module):
    """Its activation gets zeros in two columns, on whose other side a change of the weights puts them."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(6, 3)), nn.Parameter(torch.zeros(3))
        with torch.no_grad():  # ReLU has a gradient in the third column
            self.weight[:, 2] = torch.tensor([0.25] * 3 + [0.0] * 3)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(torch.cat([x, -x], 1) @ self.weight) + self.bias


def captured_with_a_jump(activation: nn.Module, monkeypatch: pytest.MonkeyPatch, of_bias: float = 0.0) -> None:
    """Gradients of float32 are off by 3 percent, as where an activation's input has changed its sign, and by more."""

    def run(graph: verify.Graph, values: dict[str, Tensor]) -> dict[str, np.ndarray]:
        got = honest(graph, values)
        weight = values.get("weight")
        if weight is not None and weight.dtype is torch.float32 and bool((weight[:, :2] == 1).all()):
            got["grad.weight"] *= np.float32(1.03)
            got["grad.bias"] *= np.float32(1 + of_bias)
        return got

    honest = verify.Graph.run
    monkeypatch.setattr(verify.Graph, "run", run)
    torch.manual_seed(0)
    example = (torch.randint(1, 9, (7, 3)).float(),)
    gradients(OnTheEdge(activation), lambda m, x: (m(x) + 1).square().mean(), example)


def test_jumps_where_rounding_can_change_signs_are_no_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    captured_with_a_jump(nn.ReLU(), monkeypatch)


def test_jumps_that_few_changes_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of random changes, the first ones may change no sign."""

    def rarely(values: dict[str, Tensor], amount: float, seed: int) -> Iterable[tuple[str, Tensor]]:
        return disturbances(values, amount, seed) if seed > 2 else values.items()

    disturbances = verify.disturbances
    monkeypatch.setattr(verify, "disturbances", rarely)
    captured_with_a_jump(nn.ReLU(), monkeypatch)


def test_jumps_are_rounded_too() -> None:
    """The sign that a small change reverses is reversed in the graph, whose other errors are those of float32."""
    exact = {"grad.weight": np.array([1.0, -0.4, 0.3]), "grad.bias": np.array([50.0])}
    near = {"grad.weight": np.array([1.0, -0.3, 0.3]), "grad.bias": np.array([50.0])}
    theirs = {name: array.astype(np.float32) for name, array in exact.items()}
    tolerance = tolerances.rounding(theirs, near, exact, {}, {})
    for off, agrees in ((0.1, True), (0.1007, True), (0.103, False)):  # 0.001 of 1 and 1e-5 of 50 more are allowed
        got = {name: array.astype(np.float32) for name, array in near.items()}
        got["grad.weight"][1] = np.float32(off - 0.4)
        if agrees:
            tolerances.compare("outputs", got, exact, tolerance)
        else:
            with pytest.raises(CaptureError, match=r"grad\.weight is off"):
                tolerances.compare("outputs", got, exact, tolerance)


@pytest.mark.parametrize(("own", "most"), [(0.04, 0.4), (0.2, 0.5), (0.52, 1.04)])
def test_errors_as_large_as_those_of_pytorch_are_rounding(own: float, most: float) -> None:
    """Ten times up to half of the largest entry, or twice, as in ResNet-50 with two small images."""
    exact = {"grad.weight": np.array([1.0, -0.4, 0.3]), "grad.bias": np.array([1.0, 0.5])}
    theirs = exact | {"grad.weight": np.array([1.0, -0.4 + own, 0.3], np.float32)}
    found = tolerances.rounding(theirs, exact, exact, {}, tolerances.errors_of_float32(theirs, exact))
    assert found["grad.weight"][0] == pytest.approx(most, abs=1e-3)
    assert found["grad.bias"][0] == pytest.approx(min(most, 0.5), abs=1e-3)


@pytest.mark.parametrize(("of_pytorch", "agrees"), [(0.35, False), (0.45, True)])
def test_errors_of_pytorch_may_be_small_by_chance(
    of_pytorch: float, agrees: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in MobileOne, with gradients that are 0 but for the epsilon of a batch norm."""

    def in_single(*args: Any) -> dict[str, np.ndarray] | None:
        found = honest(*args)
        return None if found is None else found | {"grad.bias": found["grad.bias"] * np.float32(1 + of_pytorch)}

    honest = verify.Verification._in_single
    monkeypatch.setattr(verify.Verification, "_in_single", in_single)
    with contextlib.nullcontext() if agrees else pytest.raises(CaptureError, match=r"grad\.bias is off"):
        captured_with_a_jump(nn.ReLU(), monkeypatch, of_bias=0.8)


def test_errors_name_what_rounding_does_not_explain(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CaptureError, match=r"PyTorch: grad\.bias is off .* largest entry is [^;]*$"):
        captured_with_a_jump(nn.ReLU(), monkeypatch, of_bias=0.8)


def test_jumps_of_smooth_functions_are_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CaptureError, match=r"grad\.weight is off"):
        captured_with_a_jump(nn.Tanh(), monkeypatch)


class Cosine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.cosine_similarity(x, x.detach(), dim=1)


class Normalized(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.normalize(x, dim=1).square()


VANISHING: dict[str, Callable[[], nn.Module]] = {
    "softmax": lambda: nn.Softmax(1),
    "layer norm": lambda: nn.LayerNorm(8, elementwise_affine=False),
    "normalize": Normalized,
    "cosine": Cosine,
}


def with_vanishing_gradients(layer: nn.Module, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), layer).to(dtype)
    training_step(
        model,
        lambda m, x: m(x).sum(),
        (torch.randn(6, 8, dtype=dtype),),
        torch.optim.SGD(model.parameters(), 0.1),
        dynamic_shapes=({0: Dim("n")},),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("make", VANISHING.values(), ids=VANISHING)
def test_gradients_that_are_0_but_for_rounding(make: Callable[[], nn.Module], dtype: torch.dtype) -> None:
    """Sums of normalized numbers, which no parameter changes: PyTorch's gradients have no digit to compare either."""
    with_vanishing_gradients(make(), dtype)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1e-5), (torch.float32, 1e-9), (torch.float64, 1e-11)])
def test_faults_of_gradients_that_are_0(dtype: torch.dtype, size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient that is not 0 in float64 either, also where it is less than the rounding errors of float32."""

    def run(graph: verify.Graph, values: dict[str, Tensor]) -> dict[str, np.ndarray]:
        got = honest(graph, values)
        if "grad.0.weight" in got:
            got["grad.0.weight"] = got["grad.0.weight"] + got["grad.0.weight"].dtype.type(size)
        return got

    honest = verify.Graph.run
    monkeypatch.setattr(verify.Graph, "run", run)
    with pytest.raises(CaptureError, match=r"grad\.0\.weight is off"):
        with_vanishing_gradients(nn.Softmax(1), dtype)


def test_faults_of_gradients_that_overflow_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """What PyTorch is off by in float32 is infinite then, and no bound."""

    def run(graph: verify.Graph, values: dict[str, Tensor]) -> dict[str, np.ndarray]:
        got = honest(graph, values)
        if "grad.0.weight" in got:
            got["grad.0.weight"] = got["grad.0.weight"] * 1.01
        return got

    honest = verify.Graph.run
    monkeypatch.setattr(verify.Graph, "run", run)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 1)).double()
    with pytest.raises(CaptureError, match=r"grad\.0\.weight is off"):
        training_step(
            model,
            lambda m, x: (m(x) ** 2 * 100).exp().sum(),
            (torch.full((2, 4), 2.0, dtype=torch.float64),),
            torch.optim.SGD(model.parameters(), 0.0),
        )


class Logistic(nn.Module):
    """The logistic map (May 1976), which is chaotic: each step about doubles the effect of a rounded constant."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x).sigmoid()
        for _ in range(20):
            x = 3.7 * x * (1 - x)
        return x


@pytest.mark.parametrize("factor", [1.0, 1.05])
def test_rounded_constants_with_large_effects(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64 a graph may be off by what PyTorch's results change by where inputs change as much as constants."""

    def run(graph: verify.Graph, values: dict[str, Tensor]) -> dict[str, np.ndarray]:
        got = honest(graph, values)
        return got | {"grad.layer.weight": got["grad.layer.weight"] * got["grad.layer.weight"].dtype.type(factor)}

    honest = verify.Graph.run
    monkeypatch.setattr(verify.Graph, "run", run)
    torch.manual_seed(6)
    model, x = Logistic(), torch.randn(5, 3)
    with (
        contextlib.nullcontext() if factor == 1.0 else pytest.raises(CaptureError, match=r"grad\.layer\.weight is off")
    ):
        gradients(model, lambda model, x: model(x).square().mean(), (x,))


class OfOneAxis(nn.Module):
    """Layers side by side, each on images (batch, 4, 6) times a parameter."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.scale = nn.Parameter(torch.randn(len(layers), 4, 6))

    def forward(self, x: Tensor) -> Tensor:
        results = [layer(x * scale) for layer, scale in zip(self.layers, self.scale, strict=True)]
        return torch.stack([(result * (0.7 * result).sin()).mean() for result in results]).sum()


def test_graphs_have_a_form_in_float64() -> None:
    """What onnxruntime has no float64 kernels of, with the numbers that PyTorch has in float64."""
    torch.manual_seed(0)
    activations = nn.ELU(1.3), nn.CELU(0.7), nn.SELU(), nn.Hardsigmoid(), nn.Hardswish(), nn.LeakyReLU(0.2), nn.PReLU()
    smooth = nn.Softplus(2.0), nn.GELU(), nn.GELU("tanh"), nn.Mish(), nn.LayerNorm(6), nn.GroupNorm(2, 4)
    pools = nn.AdaptiveAvgPool1d(3), nn.AvgPool1d(3, 2, 1), nn.AvgPool1d(3, 2, 1, count_include_pad=False)
    model, x = OfOneAxis(*activations, *smooth, *pools), torch.randn(3, 4, 6)
    capture = gradients(model, lambda model, x: model(x), (x,), check=False)
    wide = {name: tensor.double() for name, tensor in model.state_dict().items()} | {"x": x.double()}
    graph = verify.Graph(to_float64(capture.model), optimized=False)
    got = graph.run(wide)
    model.double()
    value = model(x.double())
    gradient = torch.autograd.grad(value, list(model.parameters()))
    names = [f"grad.{name}" for name, _ in model.named_parameters()]
    for name, wanted in zip(("loss", *names), (value.detach(), *gradient), strict=True):
        np.testing.assert_allclose(got[name], wanted.numpy(), rtol=0, atol=1e-6 * float(wanted.abs().max()))


class OfOneDtype(nn.Module):
    """Constants and lines of code that name float32 or take it as the default."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.groups = nn.Linear(3, 3), torch.eye(3) / 3  # no buffer

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).float() @ self.groups * torch.full((3,), 1 / 3)
        return (y - torch.ones(3) / 7).to(torch.bfloat16).exp().to(x.dtype) @ torch.eye(3, dtype=x.dtype)


def test_pytorch_computes_in_float64_whatever_the_code_names() -> None:
    torch.manual_seed(0)
    model, x = OfOneDtype(), torch.randn(2, 3, dtype=torch.float64)
    weight, bias = (parameter.detach().double().requires_grad_() for parameter in model.linear.parameters())
    with Float64Computation():
        y = torch.func.functional_call(model, {"linear.weight": weight, "linear.bias": bias}, x).sum()
        found = torch.autograd.grad(y, (weight, bias))
    line = torch.nn.functional.linear(x, weight, bias)
    wanted = (line @ model.groups.double() / 3 - 1 / 7).exp().sum()
    assert y.dtype is torch.float64
    np.testing.assert_allclose(y.item(), wanted.item(), rtol=1e-14)
    for got, exact in zip(found, torch.autograd.grad(wanted, (weight, bias)), strict=True):
        np.testing.assert_allclose(got, exact, rtol=1e-13)


Single = torch.FloatTensor  # scripts choose it by the device


def of_types(x: Tensor) -> Tensor:
    """As the noise of a script for GANs; the tensors of which PyTorch's types make others have their dtype there."""
    noise = Single(torch.arange(6.0).reshape(2, 3) / 7) + torch.FloatTensor(2, 3).fill_(1 / 3)
    assert isinstance(noise, torch.FloatTensor)
    return x.type(Single).square() * torch.FloatTensor(noise.exp()).type("torch.FloatTensor")


def test_pytorch_computes_in_float64_with_types_of_tensors() -> None:
    x = torch.randn(2, 3, dtype=torch.float64)
    with Float64Computation():
        found = of_types(x)
    wanted = x.square() * (torch.arange(6.0).reshape(2, 3).double() / 7 + 1 / 3).exp()
    assert found.dtype is torch.float64
    np.testing.assert_allclose(found, wanted, rtol=1e-14)
    assert Single is torch.FloatTensor
    assert of_types(x.float()).dtype is torch.float32


class ScaledBeforeNorm(nn.Module):
    """The gradient of a factor before a norm is 0 but for the norm's epsilon, by default that of the dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.norm = nn.Parameter(torch.ones(1)), nn.RMSNorm(1000, elementwise_affine=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x * self.scale)


@pytest.mark.parametrize("seed", range(3))
def test_epsilons_of_the_dtype_are_those_of_the_model(seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(10, 1000)
    gradients(ScaledBeforeNorm(), lambda model, x: model(x).sum() * 1e-3, (x,), inference=False)


def test_pytorch_computes_in_float64_with_the_epsilons_of_float32() -> None:
    x = torch.tensor([[1e-3, 2e-3]], dtype=torch.float64)
    for single, least in ((True, 2.0**-23), (False, 2.0**-52)):
        with Float64Computation(single=single):
            found, own, half = nn.RMSNorm(2)(x), torch.finfo(x.dtype), torch.finfo(torch.float16)
        wanted = x / (x.square().mean() + least).sqrt()
        np.testing.assert_allclose(found.detach(), wanted, rtol=1e-14)
        assert own.eps == least
        assert half.eps == 2.0**-10
    assert torch.finfo(torch.float64).eps == 2.0**-52


def test_graphs_with_sequences_are_converted_to_float64() -> None:
    """As the parts of a split by a dynamic size."""
    graph = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
        parts (float[n, 3] x, int64[2] sizes, int64 place) => (float[m, 3] y)
        <seq(float[k, 3]) parts> { parts = SplitToSequence <axis = 0> (x, sizes) y = SequenceAt (parts, place) }""")
    x = np.arange(9.0).reshape(3, 3) / 7
    session = onnxruntime.InferenceSession(to_float64(graph).SerializeToString())
    (y,) = session.run(None, {"x": x, "sizes": np.array([1, 2]), "place": np.array(1)})
    np.testing.assert_array_equal(y, x[1:])


class InvertedResidual(nn.Module):
    """The block of MobileNetV2 (Sandler et al. 2018)."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        wide = 4 * channels
        self.skips = stride == 1 and channels == out
        self.layers = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride, padding=1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU6(),
            nn.Conv2d(wide, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.skips else self.layers(x)


def inverted_residuals(depth: int = 16, width: int = 8) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 2, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU6()]
    channels = width
    for i in range(depth):
        out = width * (1 + i // 4)
        layers.append(InvertedResidual(channels, out, 2 if i in (4, 8) else 1))
        channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


@pytest.mark.full
def test_deep_networks_of_kinks() -> None:
    """Rounding changes signs of inputs of ReLU6, and gradients with them; what is wrong in float64 is a fault."""
    torch.manual_seed(5)
    model, example = inverted_residuals(), (torch.randn(4, 3, 32, 32), torch.randint(10, (4,)))
    joint = JointStep(model, classified, example, None)
    capture = gradients(model, classified, example, check=False)
    broken = onnx.ModelProto()
    broken.CopyFrom(capture.model)
    name = "grad.5.layers.3.weight"
    factor = broken.graph.initializer.add()
    factor.CopyFrom(onnx.numpy_helper.from_array(np.float32(1.01), "factor"))
    node = next(node for node in broken.graph.node if name in node.output)
    node.output[list(node.output).index(name)] = "before"
    broken.graph.node.append(onnx.helper.make_node("Mul", ["before", "factor"], [name]))
    verifying = verify.Verification(capture.model, joint, None)
    for _ in range(2):
        for parameter in model.parameters():
            parameter.data.mul_(1 + 0.1 * torch.randn(parameter.shape))
        for trial in trials.trials(joint, RunInfo(), {}):
            verifying.step(trial)
    with pytest.raises(
        CaptureError, match=r"in float64 of .* PyTorch: grad\.5\.layers\.3\.weight is off [^;]*; [^;]*$"
    ):
        verify.Verification(broken, joint, None).step(trial)


def test_batches_of_another_size_have_no_equal_elements() -> None:
    """Of which topk may take any: rows of more elements than the example's are made of these."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x.mean(1, keepdim=True)).sum() + (x.topk(3, 1).values * torch.arange(1, 4)).sum()

    x = torch.randn(40, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    gradients(nn.Linear(1, 1), loss, (x,), dynamic_shapes=({1: Dim("columns")},))
