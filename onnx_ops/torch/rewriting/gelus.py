"""GELUs written out in elementary operators, and their gradients, as Gelu and the op GeluBackwardV2.

    gelu(x) = x * (1 + f(u(x))) / 2,    f = tanh, u(x) = sqrt(2 / pi) * (x + 0.044715 * x**3);    or f = erf, u(x) = x / sqrt(2)

Forward and backward pass of such a GELU write some twenty tensors. However it is written: the elementwise functions of x
in the graph are computed at sample points in float64, and compared with gelu(x); so are the factors by which gradients
are multiplied with the derivative of gelu.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnx_ops.core.domain import DOMAIN, OPSET_VERSION
from onnx_ops.torch.base.nodes import replace_node
from onnx_ops.torch.operators.activations import GELUS
from onnx_ops.torch.rewriting.joining import is_sum, is_term, terms_of

Samples = npt.NDArray[np.float64]
"""A function at the points X."""

X: Samples = np.concatenate([-np.geomspace(10, 1e-3, 31), [0.0], np.geomspace(1e-3, 10, 31)])

ELEMENTWISE: Mapping[str, Callable[..., Samples]] = {
    "Add": np.add,
    "Div": np.divide,
    "Erf": np.vectorize(math.erf, otypes=[np.float64]),
    "Exp": np.exp,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Pow": np.power,
    "Reciprocal": np.reciprocal,
    "Sub": np.subtract,
    "Tanh": np.tanh,
}

OPSET = 20
"""The first one with Gelu."""
MOST_ANCESTORS = 32
"""The number of values that u is computed from up to which they are tried as x."""
MOST_TERMS = 8
"""The number of terms of a sum up to which the sums of some of them are tried."""
MIN_REMOVED = 4
"""The least number of nodes that take longer than the op for the gradient, which computes f again."""


@dataclass(frozen=True)
class _Form:
    """Which GELU.

    Attributes:
        approximate: its name in PyTorch and ONNX.
        u, slope: u and its derivative.
        derivative: of f, from u and f(u).
    """

    approximate: str
    u: Samples
    slope: Samples
    derivative: Callable[[Samples, Samples], Samples]


_A, _B = math.sqrt(2 / math.pi), 0.044715
FORMS = {
    "Tanh": _Form("tanh", _A * (X + _B * X**3), _A * (1 + 3 * _B * X**2), lambda u, f: 1 - f * f),
    "Erf": _Form(
        "none", X / math.sqrt(2), X * 0 + 1 / math.sqrt(2), lambda u, f: 2 / math.sqrt(math.pi) * np.exp(-u * u)
    ),
}
"""The GELUs, by the operator that f is."""


def gelus_by_op(model: ir.Model) -> None:
    """Replace GELUs and their gradients, in place, if nothing else reads what they are computed by."""
    has_gelu = model.graph.opset_imports[""] >= OPSET
    with np.errstate(all="ignore"):
        for node in list(model.graph.all_nodes()):
            if node.domain == "" and node.op_type in FORMS and _replaced(node, has_gelu):
                model.opset_imports.setdefault(DOMAIN, OPSET_VERSION)


def _replaced(node: ir.Node, has_gelu: bool) -> bool:
    """Replace the GELU whose f a node is; returns whether the graph has got an op of this domain."""
    functions = _functions_up_to(node)
    if functions is None:
        return False
    functions.extend()
    gelu = _Gelu(node, functions)
    gradients = gelu.gradients()
    # onnxruntime has no kernel of Gelu for float64.
    values = gelu.values() if has_gelu and functions.x.dtype is ir.DataType.FLOAT else []
    dead = _dead([*values, *gradients])
    if node not in dead:
        values, dead = [], _dead(gradients)
        if len(dead) < MIN_REMOVED:
            return False
    for replacement in (*values, *gradients):
        replacement.apply()
    graph = functions.graph
    graph.remove([left for left in dead if left.graph is graph], safe=True)
    return bool(gradients)


class _Functions:
    """Values that are functions of one value, element by element.

    Attributes:
        x: the value.
        graph: the graph that they are computed in.
        samples: the functions.
    """

    def __init__(self, x: ir.Value, graph: ir.Graph | ir.Function) -> None:
        self.x, self.graph = x, graph
        self.samples: dict[ir.Value, Samples] = {x: X}
        self._rank = 0 if x.shape is None else len(x.shape)

    def of(self, value: ir.Value | None) -> Samples | None:
        """A known function, or a constant that leaves the shape of x as it is; None for other values."""
        if value is None or value in self.samples:
            return None if value is None else self.samples[value]
        tensor = ir.convenience.get_const_tensor(value)
        if tensor is None or tensor.size != 1 or len(tensor.shape) > self._rank:
            return None
        return np.full_like(X, tensor.numpy().item())

    def compute(self, node: ir.Node) -> bool:
        """Add what a node computes from known functions; whether there is anything new."""
        if node.graph is not self.graph or not _is_elementwise(node) or node.outputs[0] in self.samples:
            return False
        operands = [self.of(value) for value in node.inputs]
        if any(operand is None for operand in operands) or self.samples.keys().isdisjoint(node.inputs):
            return False
        self.samples[node.outputs[0]] = ELEMENTWISE[node.op_type](*operands)
        return True

    def extend(self) -> None:
        """Add all that is computed from known functions."""
        pending = list(self.samples)
        while pending:
            pending += [user.outputs[0] for user, _ in pending.pop().uses() if self.compute(user)]


def _is_elementwise(node: ir.Node | None) -> bool:
    return node is not None and node.domain == "" and node.op_type in ELEMENTWISE


def _functions_up_to(node: ir.Node) -> _Functions | None:
    """The functions by which the argument of a node is u(x); None if it is no such function of any value."""
    (argument,), graph, u = node.inputs, node.graph, FORMS[node.op_type].u
    assert argument is not None
    assert isinstance(graph, ir.Graph | ir.Function)
    ancestors = _ancestors(argument)
    for x in reversed(ancestors):
        functions = _Functions(x, graph)
        for value in ancestors:
            if value is not x and (producer := value.producer()) is not None:
                functions.compute(producer)
        found = functions.samples.get(argument)
        if found is not None and _are_close(found, u, np.abs(u), x.dtype):
            return functions
    return None


def _ancestors(value: ir.Value) -> list[ir.Value]:
    """The values that a value is computed from by elementwise operators, each before what is computed from it."""
    found: list[ir.Value] = []
    seen: set[ir.Value] = set()

    def visit(value: ir.Value) -> None:
        if value in seen or len(seen) >= MOST_ANCESTORS or ir.convenience.get_const_tensor(value) is not None:
            return
        seen.add(value)
        node = value.producer()
        for source in node.inputs if node is not None and _is_elementwise(node) else ():
            if source is not None:
                visit(source)
        found.append(value)

    visit(value)
    return found


def _are_close(found: Samples, wanted: Samples, scale: Samples, dtype: ir.DataType | None) -> bool:
    """Whether functions differ by no more than constants that are rounded to a dtype make of it.

    Args:
        found, wanted: the functions.
        scale: the sum of the absolute values of the terms of `wanted`.
        dtype: float32 or float64; no functions of others are close.
    """
    if dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return False
    tolerance = 2 * np.finfo(dtype.numpy()).eps
    return bool(np.all(np.abs(found - wanted) <= tolerance * scale))


class _Gelu:
    """A GELU in a graph.

    Args:
        node: f.
        functions: those of x, f(u(x)) among them.
    """

    def __init__(self, node: ir.Node, functions: _Functions) -> None:
        (argument,), (result,), form = node.inputs, node.outputs, FORMS[node.op_type]
        assert argument is not None
        u, f = functions.samples[argument], functions.samples[result]
        self._functions, self._approximate = functions, form.approximate
        inner = X / 2 * form.derivative(u, f) * form.slope
        self._value, self._value_scale = X / 2 * (1 + f), np.abs(X / 2) * (1 + np.abs(f))
        self._derivative, self._derivative_scale = (1 + f) / 2 + inner, (1 + np.abs(f)) / 2 + np.abs(inner)

    def values(self) -> list[_Replacement]:
        """Of gelu(x)."""
        x, dtype = self._functions.x, self._functions.x.dtype
        return [
            _Replacement(value, "Gelu", [x], {"approximate": self._approximate})
            for value, samples in self._functions.samples.items()
            if _are_close(samples, self._value, self._value_scale, dtype)
        ]

    def gradients(self) -> list[_Replacement]:
        """Of gradients times the derivative of gelu(x), and of sums that have them among their terms."""
        found: dict[ir.Value, _Replacement] = {}
        for gradient in self._factors():
            multiples = _multiples(gradient, self._functions)
            inputs, attributes = [gradient, self._functions.x], {"approximate": GELUS[self._approximate]}
            whole = [value for value, samples in multiples.items() if self._is_derivative(samples)]
            for value in whole:
                found.setdefault(value, _Replacement(value, "GeluBackwardV2", inputs, attributes, domain=DOMAIN))
            for total in [] if whole else _sums(multiples):
                summed = terms_of(total)
                if (own := self._chosen(summed, multiples)) is not None:
                    rest = [value for place, value in enumerate(summed) if place not in own]
                    (value,) = total.outputs
                    made = _Replacement(value, "GeluBackwardV2", inputs, attributes, domain=DOMAIN, added=rest)
                    found.setdefault(value, made)
        return list(found.values())

    def _factors(self) -> list[ir.Value]:
        """Values that functions of x are multiplied with, and those that they are multiples of."""
        functions = self._functions
        pending = [
            other
            for value in functions.samples
            for user, _ in value.uses()
            if user.domain == "" and user.op_type in ("Mul", "Div")
            for other in user.inputs
            if other is not None and functions.of(other) is None
        ]
        found: dict[ir.Value, None] = {}
        while pending:
            value = pending.pop()
            if value in found:
                continue
            found[value] = None
            node = value.producer()
            if node is not None and node.domain == "" and node.op_type in ("Mul", "Div", "Neg"):
                others = [other for other in node.inputs if other is not None and functions.of(other) is None]
                pending += others if len(others) == 1 else []
        return list(found)

    def _chosen(self, summed: Sequence[ir.Value], multiples: Mapping[ir.Value, Samples]) -> Collection[int] | None:
        """The places of the terms whose sum is the gradient times the derivative."""
        places = [place for place, value in enumerate(summed) if value in multiples]
        if len(places) > MOST_TERMS:
            return None
        for count in range(2, len(places) + 1):
            for some in itertools.combinations(places, count):
                if self._is_derivative(np.sum([multiples[summed[place]] for place in some], axis=0)):
                    return some
        return None

    def _is_derivative(self, samples: Samples) -> bool:
        return _are_close(samples, self._derivative, self._derivative_scale, self._functions.x.dtype)


def _multiples(gradient: ir.Value, functions: _Functions) -> dict[ir.Value, Samples]:
    """The values that are a gradient times a function of x, by that function."""
    found = {gradient: np.ones_like(X)}

    def factor(node: ir.Node) -> Samples | None:
        operands = [None if value is None else found.get(value) for value in node.inputs]
        if node.op_type == "Neg" or (node.op_type in ("Add", "Sub") and all(each is not None for each in operands)):
            return ELEMENTWISE[node.op_type](*operands)
        if node.op_type in ("Mul", "Div") and sum(each is not None for each in operands) == 1:
            if node.op_type == "Div" and operands[0] is None:
                return None
            operands = [functions.of(value) if known is None else known for value, known in zip(node.inputs, operands)]
            return None if any(each is None for each in operands) else ELEMENTWISE[node.op_type](*operands)
        return None

    pending = [gradient]
    while pending:
        for user, _ in pending.pop().uses():
            if user.graph is not functions.graph or user.domain or user.outputs[0] in found:
                continue
            if (samples := factor(user)) is not None:
                found[user.outputs[0]] = samples
                pending.append(user.outputs[0])
    return found


def _sums(multiples: Mapping[ir.Value, Samples]) -> Iterator[ir.Node]:
    """The sums that have some of the values among their terms; not those that are terms themselves."""
    found: set[ir.Node] = set()
    for value in multiples:
        for user, _ in value.uses():
            while is_sum(user) and is_term(user.outputs[0]):
                user = user.outputs[0].uses()[0].node
            if is_sum(user) and user not in found:
                found.add(user)
                yield user


@dataclass(frozen=True)
class _Replacement:
    """A node for a value.

    Attributes:
        value: the value, to be replaced.
        op_type, inputs, attributes, domain: of the node.
        added: values that are added to what it computes.
    """

    value: ir.Value
    op_type: str
    inputs: Sequence[ir.Value]
    attributes: Mapping[str, int | str]
    domain: str = ""
    added: Sequence[ir.Value] = ()

    def apply(self) -> None:
        node = self.value.producer()
        assert node is not None
        nodes = [ir.node(self.op_type, self.inputs, dict(self.attributes), domain=self.domain)]
        for other in self.added:
            last = nodes[-1].outputs[0]
            last.shape, last.type = self.value.shape, self.value.type
            nodes.append(ir.node("Add", [last, other]))
        replace_node(node, *nodes)


def _dead(replacements: Sequence[_Replacement]) -> set[ir.Node]:
    """The nodes that nothing needs once values are replaced."""
    replaced = {replacement.value for replacement in replacements}
    needed = {value for replacement in replacements for value in (*replacement.inputs, *replacement.added)}
    dead: set[ir.Node] = set()

    def is_unused(value: ir.Value) -> bool:
        if value in replaced:
            return True
        return not value.is_graph_output() and value not in needed and all(user in dead for user, _ in value.uses())

    pending = [value.producer() for value in replaced]
    while pending:
        node = pending.pop()
        if node is not None and node not in dead and all(map(is_unused, node.outputs)):
            dead.add(node)
            pending += [value.producer() for value in node.inputs if value is not None]
    return dead
