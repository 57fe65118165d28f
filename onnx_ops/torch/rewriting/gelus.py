"""GELUs written out in elementary operators, and their gradients, as Gelu and the op GeluBackwardV2.

    gelu(x) = x * (1 + f(u(x))) / 2
    f = erf,  u(x) = x / sqrt(2);    approximated: f = tanh, u(x) = sqrt(2 / pi) * (x + 0.044715 * x**3)

The forward and backward pass of such a GELU write some twenty tensors. Its spelling does not matter: the values that
are functions of x, element by element, are computed at sample points in float64 and compared with gelu(x), and those
that are a gradient times a function of x with the derivative of gelu.
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
from onnx_ops.torch.base.nodes import replace_node, unneeded
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
MOST_ANCESTORS = 16
"""The number of values from u on upwards that are tried as x."""
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
    """Replace GELUs and their gradients, in place, where nothing else needs what they are computed by."""
    with np.errstate(all="ignore"):
        for node in list(model.graph.all_nodes()):
            if node.domain == "" and node.op_type in FORMS:
                any(_replace(node, functions, model) for functions in _arguments(node))


def _replace(node: ir.Node, functions: _Functions, model: ir.Model) -> bool:
    """Replace gelu(x), if f is that of a node, and its gradients; returns whether there were any."""
    gelu, graph = _Gelu(node, functions), functions.graph
    gradients = gelu.gradients()
    # onnxruntime has no kernel of Gelu for float64.
    has_op = functions.x.dtype is ir.DataType.FLOAT and model.graph.opset_imports[""] >= OPSET
    replacements = [*gelu.values(), *gradients] if has_op else gradients
    unneeded = _unneeded(replacements)
    if node not in unneeded:
        replacements, unneeded = gradients, _unneeded(gradients)
        if len(unneeded) < MIN_REMOVED:
            return False
    added = [replacement.nodes() for replacement in replacements]
    for replacement, nodes in zip(replacements, added, strict=True):
        producer = replacement.value.producer()
        assert producer is not None
        replace_node(producer, *nodes)
    graph.remove([each for each in unneeded if each.graph is graph], safe=True)
    if gradients:
        model.opset_imports.setdefault(DOMAIN, OPSET_VERSION)
    return True


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

    def extend(self) -> None:
        """Add all that is computed from known functions."""
        pending = list(self.samples)
        while pending:
            pending += [user.outputs[0] for user, _ in pending.pop().uses() if self._compute(user)]

    def _compute(self, node: ir.Node) -> bool:
        """Add what a node computes from known functions; whether it is new."""
        if node.graph is not self.graph or not _is_elementwise(node) or node.outputs[0] in self.samples:
            return False
        operands = [self.of(value) for value in node.inputs]
        if any(operand is None for operand in operands):
            return False
        self.samples[node.outputs[0]] = ELEMENTWISE[node.op_type](*operands)
        return True


def _is_elementwise(node: ir.Node | None) -> bool:
    return node is not None and node.domain == "" and node.op_type in ELEMENTWISE


def _arguments(node: ir.Node) -> Iterator[_Functions]:
    """The functions of each value x for which the argument of a node is u(x)."""
    (argument,), graph, u = node.inputs, node.graph, FORMS[node.op_type].u
    assert argument is not None
    assert isinstance(graph, ir.Graph | ir.Function)
    for x in _ancestors(argument):
        functions = _Functions(x, graph)
        functions.extend()
        found = functions.samples.get(argument)
        if found is not None and _are_close(found, u, np.abs(u), x.dtype):
            yield functions


def _ancestors(value: ir.Value) -> list[ir.Value]:
    """A value and the nearest of those that it is computed from by elementwise operators."""
    found = [value]
    for other in found:
        node = other.producer()
        for source in node.inputs if node is not None and _is_elementwise(node) else ():
            is_new = source is not None and source not in found and ir.convenience.get_const_tensor(source) is None
            if is_new and len(found) < MOST_ANCESTORS:
                found.append(source)
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
    tolerance = 2 * np.finfo(dtype.numpy()).eps + 16 * np.finfo(np.float64).eps
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
            for total in [] if whole else _sums(multiples, self._functions.graph):
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
        own = [value is not None and value in found for value in node.inputs]
        if node.op_type in ("Add", "Sub", "Neg"):
            is_linear = all(own)
        else:
            is_linear = sum(own) == 1 and (node.op_type == "Mul" or (node.op_type == "Div" and own[0]))
        operands = [
            found[value] if is_own else functions.of(value) for value, is_own in zip(node.inputs, own, strict=True)
        ]
        if not is_linear or any(each is None for each in operands):
            return None
        return ELEMENTWISE[node.op_type](*operands)

    pending = [gradient]
    while pending:
        for user, _ in pending.pop().uses():
            if user.graph is not functions.graph or user.domain or user.outputs[0] in found:
                continue
            if (samples := factor(user)) is not None:
                found[user.outputs[0]] = samples
                pending.append(user.outputs[0])
    return found


def _sums(multiples: Mapping[ir.Value, Samples], graph: ir.Graph | ir.Function) -> Iterator[ir.Node]:
    """The sums in a graph that have some of the values among their terms; not those that are terms themselves."""
    found: set[ir.Node] = set()
    for value in multiples:
        for user, _ in value.uses():
            while is_sum(user) and is_term(user.outputs[0]):
                user = user.outputs[0].uses()[0].node
            if is_sum(user) and user.graph is graph and user not in found:
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

    def nodes(self) -> list[ir.Node]:
        made = [ir.node(self.op_type, self.inputs, dict(self.attributes), domain=self.domain)]
        for other in self.added:
            last = made[-1].outputs[0]
            last.shape, last.type = self.value.shape, self.value.type
            made.append(ir.node("Add", [last, other]))
        return made


def _unneeded(replacements: Sequence[_Replacement]) -> set[ir.Node]:
    """The nodes that nothing needs once values are replaced."""
    read = {value for replacement in replacements for value in (*replacement.inputs, *replacement.added)}
    return unneeded({replacement.value for replacement in replacements}, read)
