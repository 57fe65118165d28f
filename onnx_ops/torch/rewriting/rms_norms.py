"""Normalizations by the root mean square, and their gradients, as the ops RmsNorm and RmsNormGrad.

    normal = x * r,  r = 1 / sqrt(mean of x**2 + epsilon),  y = normal * gamma

torch.rms_norm on a CPU consists of these operators, and models write them out. With g the gradient with respect to
`normal`, autograd adds two terms to that with respect to x:

    g * r,   sum of (g * x) * (-1 / n) * r**3 * x

where n is the number of elements of a mean. The order of the factors of the second does not matter here. RmsNormGrad
computes the sum of both in place of the first, and the second is omitted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnx_ops.core.domain import DOMAIN, OPSET_VERSION
from onnx_ops.torch.base.nodes import constant_integers, is_read_once, is_standard, replace_node, unneeded
from onnx_ops.torch.rewriting.joining import is_term, terms_of
from onnx_ops.torch.rewriting.known_shapes import has_shape_of

MOST_FACTORS = 8
"""The depth up to which products are taken apart."""
MOST_ELEMENTS = 1 << 24
"""The number of elements of a row below which float32 holds it."""
TOLERANCE = 1e-6
"""Of the constant -1 / n, whose factors are rounded to float32."""


def rms_norms_by_op(model: ir.Model) -> None:
    """Replace normalizations in a graph and their gradients, in place, where nothing else needs their parts.

    A graph without gradients of any stays as it is.
    """
    if not any(match.has_gradients for node in model.graph if (match := _match(node)) is not None):
        return
    model.opset_imports.setdefault(DOMAIN, OPSET_VERSION)
    for node in list(model.graph):
        if node.graph is model.graph and (match := _match(node)) is not None:
            match.replace()


def _match(node: ir.Node) -> _Match | None:
    """What is replaced of the normalization whose `normal` a node computes."""
    norm = _norm(node)
    return None if norm is None else norm.match()


@dataclass(frozen=True)
class _Product:
    """coefficient * r**of_r * x**of_x."""

    coefficient: float = 1.0
    of_r: float = 0.0
    of_x: float = 0.0

    def times(self, other: _Product) -> _Product:
        return _Product(self.coefficient * other.coefficient, self.of_r + other.of_r, self.of_x + other.of_x)

    def over(self, other: _Product) -> _Product | None:
        """The quotient; None where it may have a pole that a product has not."""
        if other.of_x or other.coefficient == 0:
            return None
        return _Product(self.coefficient / other.coefficient, self.of_r - other.of_r, self.of_x)

    def power(self, exponent: float) -> _Product | None:
        if self.coefficient != 1 or not 0 < exponent <= MOST_FACTORS:
            return None
        return _Product(1.0, self.of_r * exponent, self.of_x * exponent)


@dataclass(frozen=True)
class _Terms:
    """The two terms of the gradient with respect to x, in one sum.

    Attributes:
        direct: g * r.
        by_mean: the node that adds the other one.
        rest: what it is added to.
    """

    direct: ir.Value
    by_mean: ir.Node
    rest: ir.Value


@dataclass(frozen=True)
class _Norm:
    """A normalization in a graph.

    Attributes:
        x, r, normal: the values.
        root: 1 / r.
        mean: the node that computes the mean of the squares.
        epsilon: added to it.
        sizes: of the normalized axes, the last ones of x.
        leading: the number of the others.
        graph: the graph.
    """

    x: ir.Value
    r: ir.Value
    root: ir.Value
    normal: ir.Value
    mean: ir.Node
    epsilon: float
    sizes: list[int]
    leading: int
    graph: ir.Graph

    def match(self) -> _Match | None:
        """What is replaced; None unless nothing needs the mean of squares then."""
        return next((match for match in self._matches() if self.mean in match.unneeded()), None)

    def _matches(self) -> Iterator[_Match]:
        scaled = [
            (user.outputs[0], other)
            for user, other in self._products(self.normal)
            if self._is_gamma(other) and self._is_like_x(user.outputs[0])
        ]
        if len(scaled) == 1:
            ((y, gamma),) = scaled
            gradients = [
                (dy, terms)
                for user, dy in self._products(gamma)
                if self._is_like_x(dy) and (terms := self._terms(user.outputs[0])) is not None
            ]
            sums = [
                (dy, dgamma)
                for user, dy in self._products(self.normal)
                if self._is_like_x(dy) and (dgamma := self._sum_of_rows(user.outputs[0])) is not None
            ]
            for (dy, terms), (other, dgamma) in itertools.product(gradients, sums):
                if dy is other:
                    yield _Match(self, y, gamma, dy, terms, dgamma)
            for dy, terms in gradients:
                yield _Match(self, y, gamma, dy, terms)
            for dy, dgamma in sums:
                yield _Match(self, y, gamma, dy, None, dgamma)
            yield _Match(self, y, gamma)
        for _, g in self._products(self.x):
            if g is not self.x and (terms := self._terms(g)) is not None:
                yield _Match(self, self.normal, None, g, terms)
        yield _Match(self, self.normal)

    def _products(self, value: ir.Value) -> Iterator[tuple[ir.Node, ir.Value]]:
        """The products of a value in the graph, with the other factor."""
        for user, place in value.uses():
            other = user.inputs[1 - place] if is_standard(user, "Mul") and user.graph is self.graph else None
            if other is not None:
                yield user, other

    def _is_gamma(self, value: ir.Value) -> bool:
        return value.dtype is self.x.dtype and value.shape is not None and list(value.shape) == self.sizes

    def _is_like_x(self, value: ir.Value) -> bool:
        """Whether a value has the shape of x, whatever the dynamic sizes are."""
        return has_shape_of(self.x, value, by_data=False)

    def _terms(self, g: ir.Value) -> _Terms | None:
        """The terms of the gradient with respect to x, if g is that with respect to `normal`."""
        if not self._is_like_x(g):
            return None
        for direct, factor in self._products(g):
            if factor is not self.r or not is_term(direct.outputs[0]):
                continue
            for product, other in self._products(g):
                for reduction in _users(product.outputs[0]) if other is self.x else ():
                    terms = self._in_one_sum(direct.outputs[0], self._by_mean(reduction))
                    if terms is not None:
                        return terms
        return None

    def _in_one_sum(self, direct: ir.Value, by_mean: ir.Value | None) -> _Terms | None:
        if by_mean is None or not is_term(by_mean):
            return None
        ((adding, place),) = by_mean.uses()
        total, rest = adding, adding.inputs[1 - place]
        while is_term(total.outputs[0]):
            (total,) = _users(total.outputs[0])
        if rest is None or not self._is_like_x(rest) or not any(value is direct for value in terms_of(total)):
            return None
        return _Terms(direct, adding, rest)

    def _by_mean(self, reduction: ir.Node) -> ir.Value | None:
        """The term of the gradient that a sum of g * x is a factor of."""
        axes = _axes(reduction, "ReduceSum")
        if axes is None or not reduction.attributes.get_int("keepdims", 1) or axes != self._axes:
            return None
        value, product = reduction.outputs[0], _Product()
        for _ in range(MOST_FACTORS):
            if not is_read_once(value):
                return None
            (user, place), *_ = value.uses()
            further: _Product | None
            if is_standard(user, "Neg"):
                further = product.times(_Product(-1.0))
            elif is_standard(user, "Mul") or (is_standard(user, "Div") and place == 0):
                factor = self._product(user.inputs[1 - place])
                further = (
                    None
                    if factor is None
                    else product.over(factor)
                    if is_standard(user, "Div")
                    else product.times(factor)
                )
            else:
                return None
            if further is None:
                return None
            value, product = user.outputs[0], further
            if product.of_x:
                break
        wanted = -1 / math.prod(self.sizes)
        is_it = (product.of_x, product.of_r) == (1, 3) and math.isclose(product.coefficient, wanted, rel_tol=TOLERANCE)
        return value if is_it else None

    @property
    def _axes(self) -> list[int]:
        return list(range(self.leading, self.leading + len(self.sizes)))

    def _product(self, value: ir.Value | None, depth: int = MOST_FACTORS) -> _Product | None:
        """A value as a product of powers of r and x."""
        known = {self.x: _Product(of_x=1), self.r: _Product(of_r=1), self.root: _Product(of_r=-1)}
        if value is None or value in known:
            return None if value is None else known[value]
        rank = self.leading + len(self.sizes)
        number = _number(value, rank)
        if number is not None:
            return _Product(number)
        node = value.producer()
        if node is None or not depth:
            return None
        if is_standard(node, "Neg") or is_standard(node, "Reciprocal"):
            inner = self._product(node.inputs[0], depth - 1)
            if inner is None:
                return None
            return inner.times(_Product(-1.0)) if is_standard(node, "Neg") else _Product().over(inner)
        if is_standard(node, "Pow"):
            inner, exponent = self._product(node.inputs[0], depth - 1), _number(node.inputs[1], rank)
            return None if inner is None or exponent is None else inner.power(exponent)
        if is_standard(node, "Mul") or is_standard(node, "Div"):
            first, second = (self._product(given, depth - 1) for given in node.inputs)
            if first is None or second is None:
                return None
            return first.over(second) if is_standard(node, "Div") else first.times(second)
        return None

    def _sum_of_rows(self, value: ir.Value) -> ir.Value | None:
        """The sum of a value over all axes but the normalized ones, possibly in steps; None if it is not summed.

        The steps leave the normalized axes as they are, the last ones.
        """
        sizes, rank = self.sizes, self.leading + len(self.sizes)
        if not self._is_like_x(value):
            return None
        while rank > len(sizes) and is_read_once(value):
            ((user, place),) = value.uses()
            axes = _axes(user, "ReduceSum", rank)
            if axes is not None and max(axes) < rank - len(sizes):
                rank -= 0 if user.attributes.get_int("keepdims", 1) else len(axes)
            elif is_standard(user, "Reshape") and place == 0:
                target = constant_integers(user.inputs[1])
                if target is None or target[-len(sizes) :] != sizes:
                    break
                rank = len(target)
            else:
                break
            value = user.outputs[0]
        shape = [1] * (rank - len(sizes)) + sizes
        return value if value.shape is not None and list(value.shape) == shape else None


@dataclass(frozen=True)
class _Match:
    """What RmsNorm and RmsNormGrad replace.

    Attributes:
        norm: the normalization.
        y: y.
        gamma: the value, None for ones.
        dy: the gradient with respect to y, None if there is none.
        terms: of the gradient with respect to x, None if there is none.
        dgamma: the gradient with respect to gamma, which may have more axes, of size 1, before those of gamma.
    """

    norm: _Norm
    y: ir.Value
    gamma: ir.Value | None = None
    dy: ir.Value | None = None
    terms: _Terms | None = None
    dgamma: ir.Value | None = None

    @property
    def has_gradients(self) -> bool:
        return self.dy is not None

    def unneeded(self) -> set[ir.Node]:
        """The nodes that nothing needs after the replacement."""
        replaced, read = [self.y], [self.norm.x]
        if self.terms is not None:
            replaced += [self.terms.direct, self.terms.by_mean.outputs[0]]
            read.append(self.terms.rest)
        if self.dgamma is not None:
            replaced.append(self.dgamma)
        return unneeded(replaced, [*read, *(value for value in (self.gamma, self.dy) if value is not None)])

    def replace(self) -> None:
        x, r, graph = self.norm.x, self.norm.r, self.norm.graph
        dead, places = self.unneeded(), {node: place for place, node in enumerate(graph)}
        (result,) = _producers(self.y)
        ends = _producers(self.terms and self.terms.direct, self.dgamma)
        if any(places[node] < places[result] for node in ends):
            return
        gamma = self._ones() if self.gamma is None else self.gamma
        norm = ir.node("RmsNorm", [x, gamma], {"epsilon": self.norm.epsilon}, num_outputs=2, domain=DOMAIN)
        rstd = norm.outputs[1]
        rstd.shape, rstd.type = r.shape, r.type
        if ends:
            gradient = ir.node("RmsNormGrad", [self.dy, x, rstd, gamma], num_outputs=2, domain=DOMAIN)
            for value, like in zip(gradient.outputs, (x, gamma), strict=True):
                value.shape, value.type = like.shape, like.type
            graph.insert_before(min(ends, key=places.__getitem__), gradient)
            self._put_gradients(*gradient.outputs)
        replace_node(result, norm)
        graph.remove([node for node in dead if node.graph is graph], safe=True)

    def _put_gradients(self, dx: ir.Value, dgamma: ir.Value) -> None:
        """Put gradients in the place of those that were written out."""
        if self.terms is not None:
            rest, (total,) = self.terms.rest, self.terms.by_mean.outputs
            self._put(dx, self.terms.direct)
            self._put(dx if rest is self.terms.direct else rest, total)
        if self.dgamma is not None and self.dgamma.shape is not None:
            shape = list(self.dgamma.shape)
            if shape == self.norm.sizes:
                self._put(dgamma, self.dgamma)
                return
            numbers = self._constant(f"{self.dgamma.name}_shape", np.array(shape, np.int64))
            reshape = ir.node("Reshape", [dgamma, numbers])
            self.norm.graph.insert_after(*_producers(self.dgamma), reshape)
            self._put(reshape.outputs[0], self.dgamma)

    def _put(self, value: ir.Value, old: ir.Value) -> None:
        """Put a value in the place of another one."""
        added = []
        if value.is_graph_output() or value.producer() is None:  # whose name stays
            added = [ir.node("Identity", [value])]
            value = added[0].outputs[0]
        value.shape, value.type = old.shape, old.type
        nodes = _producers(old)
        ir.convenience.replace_nodes_and_values(self.norm.graph, *nodes, nodes, added, [old], [value])

    def _ones(self) -> ir.Value:
        sizes = self.norm.sizes
        return self._constant(f"ones_{'x'.join(map(str, sizes))}_of_rms_norms", np.ones(sizes, np.float32))

    def _constant(self, name: str, array: np.ndarray) -> ir.Value:
        graph = self.norm.graph
        if name not in graph.initializers:
            tensor = ir.tensor(array, name=name)
            graph.register_initializer(
                ir.val(name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=tensor.shape)
            )
        return graph.initializers[name]


def _producers(*values: ir.Value | None) -> list[ir.Node]:
    found = [None if value is None else value.producer() for value in values]
    return [node for node in found if node is not None]


def _norm(node: ir.Node) -> _Norm | None:
    """The normalization whose `normal` a node computes."""
    if not is_standard(node, "Mul") or not isinstance(node.graph, ir.Graph):
        return None
    for x, r in (node.inputs, node.inputs[::-1]):
        if x is None or r is None or x.dtype is not ir.DataType.FLOAT or x.shape is None:
            continue
        root, rank = _inverted(r), len(x.shape)
        node_of_root = None if root is None else root.producer()
        if root is None or node_of_root is None or not is_standard(node_of_root, "Sqrt"):
            continue
        (total,) = _producers(node_of_root.inputs[0]) or (None,)
        if total is None or not is_standard(total, "Add"):
            continue
        for value, constant in (total.inputs, total.inputs[::-1]):
            mean, epsilon = None if value is None else value.producer(), _number(constant, rank)
            axes = None if mean is None else _axes(mean, "ReduceMean")
            if mean is None or axes is None or epsilon is None or not mean.attributes.get_int("keepdims", 1):
                continue
            sizes = [size for size in x.shape[axes[0] :] if isinstance(size, int)]
            are_last = axes == list(range(axes[0], rank)) and len(sizes) == len(axes)
            if are_last and 0 < math.prod(sizes) < MOST_ELEMENTS and _is_square(mean.inputs[0], x):
                return _Norm(x, r, root, node.outputs[0], mean, epsilon, sizes, axes[0], node.graph)
    return None


def _inverted(value: ir.Value) -> ir.Value | None:
    """What a value is the reciprocal of."""
    node = value.producer()
    if node is not None and is_standard(node, "Mul") and node.inputs[0] is not None and _number(node.inputs[1], 0) == 1:
        node = node.inputs[0].producer()  # PyTorch's 1 / x
    if node is not None and is_standard(node, "Reciprocal"):
        return node.inputs[0]
    return node.inputs[1] if node is not None and is_standard(node, "Div") and _number(node.inputs[0], 0) == 1 else None


def _is_square(value: ir.Value | None, x: ir.Value) -> bool:
    node = None if value is None else value.producer()
    if node is None or node.inputs[0] is not x:
        return False
    return (is_standard(node, "Mul") and node.inputs[1] is x) or (
        is_standard(node, "Pow") and _number(node.inputs[1], 0) == 2
    )


def _users(value: ir.Value) -> list[ir.Node]:
    return [user for user, _ in value.uses()]


def _number(value: ir.Value | None, rank: int) -> float | None:
    """A constant of one element and at most `rank` axes."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None or tensor.size != 1 or len(tensor.shape) > rank else float(tensor.numpy().item())


def _axes(node: ir.Node, op_type: str, rank: int | None = None) -> list[int] | None:
    """The axes of a reduction, at least one, in order; None for other nodes, and where they are not known.

    Args:
        rank: of what is reduced, None for what the node says.
    """
    if not is_standard(node, op_type) or len(node.inputs) < 2 or node.inputs[0] is None:
        return None
    if rank is None:
        shape = node.inputs[0].shape
        if shape is None:
            return None
        rank = len(shape)
    found = constant_integers(node.inputs[1])
    return sorted(axis % rank for axis in found) if found else None
