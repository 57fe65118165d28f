"""Rotary position embeddings as models write them, and their gradients, as ops of this domain.

    y  = x * cos + concat(-x2, x1) * sin,  where x1 and x2 are the halves of the features of x
    dx = dy * cos + concat(m2, -m1),       where m1 and m2 are the halves of m = dy * sin

The second is the gradient of the first as autograd computes it, where it may be a part of a sum of gradients. The ops
have each in one pass, where these nodes write five tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnx_ops.core.domain import DOMAIN, OPSET_VERSION
from onnx_ops.torch.base.nodes import constant_integers, is_standard, replace_node, unneeded
from onnx_ops.torch.rewriting.joining import is_sum, is_term, terms_of
from onnx_ops.torch.rewriting.known_shapes import has_shape_of, sizes_depend_on_data

EMBEDDING, GRADIENT = "RotaryPositionEmbedding", "RotaryPositionEmbeddingGrad"
DTYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""Those that the ops compute in."""
MOST_TERMS = 8
"""The number of terms of a sum among which two are looked for."""


def rotary_embeddings_by_op(model: ir.Model) -> None:
    """Replace rotary embeddings in a graph and their gradients, in place, where nothing else needs their parts.

    A graph without gradients of any stays as it is.
    """
    by_data = sizes_depend_on_data(model)
    if not any((match := _match(node, by_data)) and match.op_type == GRADIENT for node in model.graph):
        return
    model.opset_imports.setdefault(DOMAIN, OPSET_VERSION)
    for node in list(model.graph):
        while node.graph is model.graph and (match := _match(node, by_data)) is not None:
            node = match.replace(model.graph)


@dataclass(frozen=True)
class _Match:
    """A sum of which one of the ops computes two terms.

    Attributes:
        total: the node of the sum.
        op_type: of the op.
        x, cos, sin: its inputs.
        rest: the other terms.
    """

    total: ir.Node
    op_type: str
    x: ir.Value
    cos: ir.Value
    sin: ir.Value
    rest: Sequence[ir.Value]

    def unneeded(self) -> set[ir.Node]:
        """The nodes that nothing needs after the replacement."""
        return unneeded(self.total.outputs, [self.x, self.cos, self.sin, *self.rest])

    def replace(self, graph: ir.Graph) -> ir.Node:
        """Put nodes in the place of the sum; returns the last one."""
        dead, like = self.unneeded(), self.total.outputs[0]
        added = [ir.node(self.op_type, [self.x, self.cos, self.sin], domain=DOMAIN)]
        for term in self.rest:
            last = added[-1].outputs[0]
            last.shape, last.type = like.shape, like.type
            added.append(ir.node("Add", [last, term]))
        replace_node(self.total, *added)
        graph.remove([node for node in dead if node.graph is graph], safe=True)
        return added[-1]


def _match(node: ir.Node, by_data: bool) -> _Match | None:
    """What computes two terms of the sum of a node."""
    if not is_sum(node):
        return None
    terms = list(node.inputs) if is_term(node.outputs[0]) else terms_of(node)
    for places in itertools.permutations(range(min(len(terms), MOST_TERMS)), 2):
        by_cos, by_sin = (terms[place] for place in places)
        product, other = _node(by_cos, "Mul"), None if by_sin is None else by_sin.producer()
        if product is None or other is None:
            continue
        for x, cos in (product.inputs, product.inputs[::-1]):
            found = None if x is None or cos is None else _embedding(other, x) or _gradient(other, x)
            if found is None or x is None or cos is None:
                continue
            op_type, sin, joined = found
            rest = [term for place, term in enumerate(terms) if place not in places]
            match = _Match(node, op_type, x, cos, sin, rest)
            if _fit(match, by_data) and joined in match.unneeded():
                return match
    return None


def _fit(match: _Match, by_data: bool) -> bool:
    """Whether dtypes and shapes are those of the op: cosines and sines of one shape, none of them beyond that of x."""
    x, cos, sin, result = match.x, match.cos, match.sin, match.total.outputs[0]
    if x.dtype not in DTYPES or cos.dtype is not x.dtype or sin.dtype is not x.dtype or not x.shape or not cos.shape:
        return False
    return (
        len(cos.shape) <= len(x.shape)
        and cos.shape[-1] == x.shape[-1]
        and has_shape_of(cos, sin, by_data)
        and has_shape_of(x, result, by_data)
    )


def _embedding(node: ir.Node, x: ir.Value) -> tuple[str, ir.Value, ir.Node] | None:
    """The sines and the concatenation, if a node is concat(-x2, x1) * sin."""
    if not is_standard(node, "Mul"):
        return None
    for turned, sin in (node.inputs, node.inputs[::-1]):
        joined = _node(turned, "Concat")
        if joined is not None and sin is not None and _is_of_halves(joined, x, negative=0):
            return EMBEDDING, sin, joined
    return None


def _gradient(node: ir.Node, grad: ir.Value) -> tuple[str, ir.Value, ir.Node] | None:
    """The sines and the concatenation, if a node is concat(m2, -m1) of m = grad * sin."""
    if not is_standard(node, "Concat") or len(node.inputs) != 2:
        return None
    value = _whole(node.inputs[0])
    product = _node(value, "Mul")
    if value is None or product is None or not _is_of_halves(node, value, negative=1):
        return None
    for own, sin in (product.inputs, product.inputs[::-1]):
        if own is grad and sin is not None:
            return GRADIENT, sin, node
    return None


def _is_of_halves(node: ir.Node, whole: ir.Value, negative: int) -> bool:
    """Whether a concatenation has the second half of the last axis of a value, then the first half.

    Args:
        node: the concatenation.
        whole: the value.
        negative: the place of the half that is negated.
    """
    if len(node.inputs) != 2 or not whole.shape:
        return False
    rank, size = len(whole.shape), whole.shape[-1]
    if not isinstance(size, int) or size % 2 or node.attributes.get_int("axis", 0) % rank != rank - 1:
        return False
    halves = list(node.inputs)
    negated = _node(halves[negative], "Neg")
    if negated is None:
        return False
    halves[negative] = negated.inputs[0]
    return [_range(half, whole) for half in halves] == [(size // 2, size), (0, size // 2)]


def _whole(part: ir.Value | None) -> ir.Value | None:
    """What a value may be a part of."""
    node = None if part is None else part.producer()
    return node.inputs[0] if node is not None and (is_standard(node, "Slice") or is_standard(node, "Split")) else None


def _range(part: ir.Value | None, whole: ir.Value) -> tuple[int, int] | None:
    """Begin and end of what a value has of the last axis of another one, of static size; None for other values."""
    node, source = None if part is None else part.producer(), _whole(part)
    if node is None or part is None or source is None or source is not whole or not whole.shape:
        return None
    rank, size = len(whole.shape), whole.shape[-1]
    if not isinstance(size, int):
        return None
    if node.op_type == "Split":
        sizes = [value.shape[-1] if value.shape else None for value in node.outputs]
        known = [each for each in sizes if isinstance(each, int)]
        if node.attributes.get_int("axis", 0) % rank != rank - 1 or len(known) < len(sizes):
            return None
        place = node.outputs.index(part)
        return sum(known[:place]), sum(known[: place + 1])
    starts, ends, axes, steps = ([*map(constant_integers, node.inputs[1:]), None, None])[:4]
    if starts is None or ends is None or len(starts) != 1 or len(ends) != 1:
        return None
    has_steps = len(node.inputs) > 4 and node.inputs[4] is not None
    if (has_steps and steps != [1]) or axes is None or len(axes) != 1 or axes[0] % rank != rank - 1:
        return None
    begin, end, _ = slice(starts[0], ends[0]).indices(size)
    return begin, end


def _node(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """The node that computes a value, if it is of this type."""
    node = None if value is None else value.producer()
    return node if node is not None and is_standard(node, op_type) else None
