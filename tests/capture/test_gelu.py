"""GELU in captured graphs."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from captures import gradients
from onnx import helper, numpy_helper
from torch import Tensor, nn
from torch.nn import functional

import onnx_ops
import onnx_ops.torch
from onnx_ops.torch.rewriting.gelus import gelus_by_op


class Gelus(nn.Module):
    """Both variants in one graph, whose nodes share a function body."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(functional.gelu(x * self.scale), approximate="tanh").sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_gradient_is_one_node(dtype: torch.dtype) -> None:
    x = torch.linspace(-5, 5, 101, dtype=dtype).requires_grad_()
    network = Gelus().to(dtype)
    model = gradients(network, lambda m, x: m(x), (x,)).model
    nodes = [node for node in model.graph.node if node.op_type == "GeluBackwardV2"]
    assert [helper.get_node_attr_value(node, "approximate") for node in nodes] == [1, 0]
    (wanted,) = torch.autograd.grad(network(x), x)
    feeds = {"x": x.detach().numpy(), "scale": network.scale.detach().numpy()}
    session = onnx_ops.InferenceSession(model)
    (got,) = session.run(["grad.x"], {i.name: feeds[i.name] for i in session.get_inputs()})
    tolerance = {torch.float32: 2e-6, torch.float64: 1e-14}[dtype]
    np.testing.assert_allclose(got, wanted.numpy(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gradients_of_gradients(approximate: str) -> None:
    """A gradient penalty; the capture is compared with PyTorch."""

    def loss(network: nn.Module, x: Tensor) -> Tensor:
        y = functional.gelu(network(x), approximate=approximate).sum()
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        return y + gradient.square().sum()

    gradients(nn.Linear(4, 4), loss, (torch.randn(3, 4, requires_grad=True),))


def _of_tanh(x: Tensor) -> Tensor:
    """NewGELUActivation of transformers."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def _factored(x: Tensor) -> Tensor:
    """FastGELUActivation of transformers."""
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


class _ByHand(torch.autograd.Function):
    """bias_gelu of Megatron-LM."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))

    @staticmethod
    def backward(ctx, g):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        t = torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))
        return (0.5 * x * ((1 - t * t) * (0.79788456 + 0.1070322243 * x * x)) + 0.5 * (1 + t)) * g


def _of_erf(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def _exact(x: Tensor) -> Tensor:
    return functional.gelu(x)


def _approximated(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


SPELLINGS = {
    "tanh": (_of_tanh, _approximated),
    "factored": (_factored, _approximated),
    "by hand": (_ByHand.apply, _approximated),
    "of a multiple": (lambda x: 3.0 * _of_tanh(0.5 * x), lambda x: 3 * _approximated(0.5 * x)),
    "gated": (lambda x: _factored(x.sin()) * x, lambda x: _approximated(x.sin()) * x),
    "residual": (lambda x: x + _of_tanh(x), lambda x: x + _approximated(x)),
    "first in a sum": (lambda x: _factored(x) + x.sin(), lambda x: _approximated(x) + x.sin()),
    "last in a sum": (lambda x: x.sin() + _of_tanh(x), lambda x: x.sin() + _approximated(x)),
    "erf": (_of_erf, _exact),
    "two terms": (lambda x: 0.5 * (x + x * torch.erf(x * 2**-0.5)), _exact),
    "distribution": (lambda x: x * torch.distributions.Normal(0.0, 1.0).cdf(x), _exact),
    "erf in a sum": (lambda x: _of_erf(x) + x.sin(), lambda x: _exact(x) + x.sin()),
}
"""GELUs as models write them, and the same by PyTorch's."""


class Spelled(nn.Module):
    """The sum of GELUs of multiples of an input, times factors."""

    def __init__(self, which: int) -> None:
        super().__init__()
        self.scales = nn.Parameter(torch.linspace(1, 1.5, len(SPELLINGS)))
        self.factors = nn.Parameter(torch.linspace(-1, 2, len(SPELLINGS)))
        self._which = which

    def forward(self, x: Tensor) -> Tensor:
        given = [functions[self._which] for functions in SPELLINGS.values()]
        return sum(factor * f(x * scale) for f, scale, factor in zip(given, self.scales, self.factors, strict=True))


def _loss(network: nn.Module, x: Tensor, weights: Tensor) -> Tensor:
    return (network(x) * weights).sum()


def test_written_out_gelus_are_two_nodes() -> None:
    """Compared with PyTorch's own, in float64, at other scales and for other batches, up to where GELU is 0 or x."""
    torch.manual_seed(0)
    rows = torch.export.Dim("rows")
    example = torch.randn(3, 5, requires_grad=True), torch.randn(3, 5)
    dims = {0: rows}, {0: rows}
    capture = onnx_ops.torch.gradients(Spelled(0), _loss, example, dynamic_shapes=dims)
    assert capture.inference is not None
    count = len(SPELLINGS)
    for model, backward in ((capture.model, count), (capture.inference, 0)):
        nodes = Counter(node.op_type for node in model.graph.node)
        found = {name: nodes[name] for name in ("Gelu", "GeluBackwardV2", "Tanh", "Erf", "Exp")}
        assert found == {"Gelu": count, "GeluBackwardV2": backward, "Tanh": 0, "Erf": 0, "Exp": 0}

    session, oracle = onnx_ops.InferenceSession(capture.model), Spelled(1).double()
    with torch.no_grad():
        oracle.scales.mul_(-0.75)
        oracle.factors.sub_(0.125)
    state = {name: tensor.detach().float().numpy() for name, tensor in oracle.named_parameters()}
    for size in (1, 7, 40):
        x = (torch.randn(size, 5) * torch.tensor([1e-3, 0.3, 1, 5, 40])).requires_grad_()
        weights = torch.randn(size, 5)
        inputs = x.detach().double().requires_grad_()
        loss = _loss(oracle, inputs, weights.double())
        wanted = [loss.detach(), *torch.autograd.grad(loss, [inputs, oracle.scales, oracle.factors])]
        names = ["loss", "grad.x", "grad.scales", "grad.factors"]
        got = session.run(names, state | {"x": x.detach().numpy(), "weights": weights.numpy()})
        for name, array, tensor in zip(names, got, wanted, strict=True):
            # Terms of the sums of up to 200 elements and 12 GELUs cancel; sines of 60 have an error of 4e-6.
            np.testing.assert_allclose(
                array, tensor.numpy(), rtol=0, atol=2e-5 * max(1, float(tensor.abs().max())), err_msg=name
            )


NUMBERS = "float half = {0.5}, float one = {1}, float three = {3}, float a = {0.7978846}, float b = {0.044715}"
INNER = "c2 = Mul (x, x) c3 = Mul (c2, x) e = Mul (c3, b) s = Add (x, e) u = Mul (s, a) t = Tanh (u)"
VALUE = f"{INNER} p = Add (t, one) h = Mul (x, half) y = Mul (h, p)"
GRADIENT = """
    gh = Mul (g, h) gp = Mul (g, p) tt = Mul (t, t) q = Sub (one, tt) gu = Mul (gh, q) v = Mul (gu, a)
    vb = Mul (v, b) k = Mul (c2, three) w = Mul (vb, k) z = Mul (gp, half)
"""
QUOTIENT = GRADIENT.replace("Mul (g, p)", "Div (p, g)")
ERF = "u = Div (x, r) t = Erf (u) p = Add (t, one) h = Mul (x, half) y = Mul (h, p)"


def _rewritten(nodes: str, outputs: str, numbers: str, dtype: type = np.float32, opset: int = 21) -> list[str]:
    """The op_types of a graph of x, g and o, (N, M), after the rewrite."""
    declared = ", ".join(f"float[N, M] {name}" for name in outputs.split())
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : {opset}]>
        g (float[N, M] x, float[N, M] g, float[N, M] o) => ({declared}) <{numbers}> {{ {nodes} }}"""
    )
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), tensor.name))
    rewritten = ir.from_proto(onnx.shape_inference.infer_shapes(model))
    gelus_by_op(rewritten)
    return [node.op_type for node in rewritten.graph.all_nodes()]


@pytest.mark.parametrize(
    ("nodes", "outputs", "expected"),
    [
        (VALUE, "y", {"Gelu": 1}),
        (ERF, "y", {"Gelu": 1}),
        (f"{VALUE} {GRADIENT} i = Add (v, w) d = Add (i, z)", "y d", {"Gelu": 1, "GeluBackwardV2": 1}),
        (
            f"{VALUE} {GRADIENT} i = Add (o, z) j = Add (i, w) d = Add (v, j)",
            "y d",
            {"Gelu": 1, "GeluBackwardV2": 1, "Add": 1},
        ),
        # The gradient alone, where f is needed in any case.
        (f"{VALUE} {GRADIENT} i = Add (v, w) d = Add (i, z)", "y d p", None),
    ],
)
def test_what_becomes_ops(nodes: str, outputs: str, expected: dict[str, int] | None) -> None:
    found = Counter(_rewritten(nodes, outputs, NUMBERS + ", float r = {1.4142135}"))
    if expected is None:
        assert found["GeluBackwardV2"] == found["Tanh"] == 1
        assert found["Gelu"] == 0
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("nodes", "outputs", "numbers", "dtype", "opset"),
    [
        (VALUE, "y", NUMBERS.replace("0.044715", "0.0447"), np.float32, 21),
        (VALUE, "y", NUMBERS.replace("0.7978846", "0.79788"), np.float32, 21),
        (VALUE, "y", NUMBERS.replace("half = {0.5}", "half = {0.500001}"), np.float32, 21),
        (VALUE, "y", NUMBERS.replace("float one", "float[1, 1, 1] one"), np.float32, 21),  # changes the rank
        (VALUE, "y", NUMBERS.replace("float one = {1}", "float[2] one = {1, 1}"), np.float32, 21),
        (VALUE, "y t", NUMBERS, np.float32, 21),
        (VALUE, "y p", NUMBERS, np.float32, 21),
        (VALUE, "y", NUMBERS, np.float64, 21),
        (VALUE, "y", NUMBERS, np.float16, 21),
        (VALUE, "y", NUMBERS, np.float32, 19),
        (VALUE.replace("h = Mul (x, half)", "h = Mul (g, half)"), "y", NUMBERS, np.float32, 21),
        (VALUE.replace("Mul (x, x)", "Mul (x, g)"), "y", NUMBERS, np.float32, 21),
        (VALUE.replace("t = Tanh (u)", "t = Sigmoid (u)"), "y", NUMBERS, np.float32, 21),
        (ERF, "y", NUMBERS + ", float r = {1.41421}", np.float32, 21),
        ("u = Mul (x, r) t = Sigmoid (u) y = Mul (x, t)", "y", "float r = {1.702}", np.float32, 21),
        (f"{VALUE} {GRADIENT} i = Add (v, w) d = Add (i, z)", "y d", NUMBERS, np.float16, 21),
        (f"{VALUE} {GRADIENT} i = Add (v, w) d = Sub (i, z)", "y d", NUMBERS, np.float32, 21),
        (f"{VALUE} {QUOTIENT} i = Add (v, w) d = Add (i, z)", "y d", NUMBERS, np.float32, 21),
        (f"{VALUE} {GRADIENT} i = Add (v, w) d = Add (i, z)", "y d", NUMBERS.replace("{3}", "{2}"), np.float32, 21),
        (f"{VALUE} {GRADIENT} i = Add (o, v) d = Add (i, z)", "y d", NUMBERS, np.float32, 21),
        (f"{VALUE} {GRADIENT} i = Add (o, v) j = Add (i, w) d = Add (j, z)", "y d i", NUMBERS, np.float32, 21),
    ],
)  # fmt: skip
def test_what_stays(nodes: str, outputs: str, numbers: str, dtype: type, opset: int) -> None:
    """Other functions, values that are read elsewhere, constants that change shapes, dtypes and opsets without ops."""
    found = _rewritten(nodes, outputs, numbers, dtype, opset)
    assert not {"Gelu", "GeluBackwardV2"} & set(found)
    assert len(found) == nodes.count("=")


@pytest.mark.parametrize(
    ("before", "inside", "is_found"),
    [
        ("", VALUE, True),
        (INNER, VALUE.removeprefix(INNER), False),
        (f"{VALUE} {GRADIENT} l = Add (v, w)", "i = Add (o, l) d = Add (i, z)", False),
    ],
)
def test_branches(before: str, inside: str, is_found: bool) -> None:
    """A GELU is replaced where all of it is in one graph, which may read values from outside."""
    branches = f"""then_branch = one () => (float[N, M] {"d" if "d =" in inside else "y"}) {{ {inside} }},
        else_branch = other () => (float[N, M] n) {{ n = Neg (x) }}"""
    nodes = f"{before} m = ReduceMax <keepdims = 0> (x) c = IsNaN (m) f = If (c) <{branches}>"
    found = _rewritten(nodes, "f", NUMBERS)
    assert found[-3:] == ["If", "Gelu", "Neg"] if is_found else not {"Gelu", "GeluBackwardV2"} & set(found)


def test_gradients_in_float64() -> None:
    """Of the approximation, of whose value onnxruntime has no kernel: only the gradient is one node.

    At infinity, and where x**3 is, it is the limit.
    """
    x = torch.linspace(-9, 9, 101, dtype=torch.float64).requires_grad_()
    network = nn.PReLU().double()
    capture = gradients(network, lambda network, x: _of_tanh(network(x)).sum(), (x,))
    nodes = Counter(node.op_type for node in capture.model.graph.node)
    assert nodes["GeluBackwardV2"] == nodes["Tanh"] == 1
    session = onnx_ops.InferenceSession(capture.model)
    (got,) = session.run(["grad.x"], capture.state | {"x": x.detach().numpy()})
    (wanted,) = torch.autograd.grad(_approximated(network(x)).sum(), x)
    np.testing.assert_allclose(got, wanted.numpy(), rtol=0, atol=1e-14)
    limits = np.resize([np.inf, 1e200, -1e200, -np.inf], 101)
    (got,) = session.run(["grad.x"], capture.state | {"x": limits})
    np.testing.assert_array_equal(got, limits > 0)
