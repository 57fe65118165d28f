"""Rewrites batch norm of a training step to use the samples of all workers."""

from __future__ import annotations

from collections.abc import Collection

import onnx
from onnx import TensorProto, helper

from onnx_ops.core.domain import DOMAIN
from onnx_ops.core.errors import node_label
from onnx_ops.core.types import TensorType
from onnx_ops.graph.edits import Names
from onnx_ops.graph.functions import function_key, functions_needed
from onnx_ops.graph.slices import following, values_read
from onnx_ops.graph.types import value_info, value_types
from onnx_ops.graph.walk import GRAPH, placed_nodes
from onnx_ops.linking.attached import restore
from onnx_ops.ops import OPS
from onnx_ops.training.arrays import tensor_text
from onnx_ops.training.errors import StepError
from onnx_ops.training.workers.exchange import Combined, Exchanged

STATISTICS, GATHERING, FINISHING = "BatchNormStats", "BatchNormGatherStatsWithCounts", "BatchNormElemtBackward"
STANDARD = "BatchNormalization"


def synchronized(
    model: onnx.ModelProto, batch: Collection[str], ends: Collection[str]
) -> tuple[onnx.ModelProto, list[Exchanged]]:
    """Make batch norm in training use the samples of all workers.

    After each BatchNormStats a BatchNormGatherStatsWithCounts merges the statistics of the workers, and readers of the
    former read the latter. BatchNormElemtBackward, and the nodes that update running statistics, get the sums and the
    counts of all workers.

    Args:
        model: a step.
        batch: its inputs that differ between workers.
        ends: values that are averaged; nodes after them stay as they are.

    Returns:
        The step, with an input for each combined value, and the values to exchange.

    Raises:
        StepError: a step without such nodes; nodes in a function or a subgraph; statistics that other nodes read too;
            a BatchNormalization in training mode.
    """
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    restore(whole)
    _check_places(whole)
    edit = _Edit(whole, following(whole.graph, batch, ends))
    for node in whole.graph.node:
        edit.add(node)
    del whole.graph.node[:]
    whole.graph.node.extend(edit.nodes)
    for value in edit.exchanged:
        whole.graph.input.append(value_info(value.of_all, value.type_of_all("workers")))
    if not any(value.combined is Combined.ROWS for value in edit.exchanged):
        raise StepError(
            f"the step has no batch norm to synchronize: none of its nodes is {STATISTICS} of a value that depends on"
            " the batch"
        )
    _check_readers(whole.graph, edit.merged, following(whole.graph, batch, ends))
    return whole, edit.exchanged


class _Edit:
    """The rewritten nodes of a step, and the values to exchange."""

    def __init__(self, model: onnx.ModelProto, local: Collection[str]) -> None:
        self._local, self._types, self._names = local, value_types(model), Names.of(model)
        self.nodes: list[onnx.NodeProto] = []
        self._replaced: dict[tuple[str, Combined], str] = {}
        self.exchanged: list[Exchanged] = []
        self.merged: list[str] = []
        """The statistics of all workers."""

    def add(self, given: onnx.NodeProto) -> None:
        """Add a node, and the nodes that its rewrite needs."""
        node = onnx.NodeProto()
        node.CopyFrom(given)
        kind = node.op_type if node.domain == DOMAIN else ""
        if kind == STATISTICS and _read(node, "input") in self._local:
            self._merge(node)
            return
        if kind == FINISHING and _read(node, "input") in self._local:
            for name in ("sum_dy", "sum_dy_xmu"):
                self._replace(node, name, Combined.GRADIENT_SUM)
            self._replace(node, "counter", Combined.TOTAL)
        if kind == GATHERING and _read(node, "mean") in self._local:
            self._replace(node, "counts", Combined.TOTAL)
            # The values of `input` are not used; those of `mean` are the same on all workers, unlike the activations.
            _rewire(node, "input", _read(node, "mean"))
        self.nodes.append(node)

    def _merge(self, node: onnx.NodeProto) -> None:
        """Add a BatchNormStats, and a node that merges the statistics of all workers."""
        x, wanted = _read(node, "input"), list(node.output)
        node.output[:] = [self._names.new(f"{name}.own") for name in wanted]
        size, row, channels, elements, count = (
            self._names.new(f"{wanted[0]}.{what}") for what in ("size", "row", "channels", "elements", "count")
        )
        self.nodes += [
            node,
            helper.make_node("Size", [x], [size]),
            helper.make_node("Shape", [x], [row], start=1, end=2),
            helper.make_node("Squeeze", [row], [channels]),
            helper.make_node("Div", [size, channels], [elements]),
            helper.make_node("Cast", [elements], [count], to=TensorProto.INT32),
        ]
        rows = [
            self._of_all(name, self._types.get(statistic, TensorType()), Combined.ROWS)
            for name, statistic in zip(node.output, wanted, strict=True)
        ]
        counts = self._of_all(count, TensorType(TensorProto.INT32, ()), Combined.ROWS)
        merging = helper.make_node(GATHERING, [], wanted, domain=DOMAIN)
        merging.attribute.extend(node.attribute)
        operands = {"input": rows[0], "mean": rows[0], "invstd": rows[1], "counts": counts}
        merging.input.extend(operands.get(name, "") for name in OPS[GATHERING].input_names)
        self.nodes.append(merging)
        self.merged += wanted

    def _replace(self, node: onnx.NodeProto, operand: str, combined: Combined) -> None:
        """Make a node read the combined value of an operand.

        A copy is exchanged, as the operand itself may be exchanged too, as a gradient.
        """
        given = _read(node, operand)
        if (given, combined) not in self._replaced:
            copy = self._names.new(f"{given}.own")
            self.nodes.append(helper.make_node("Identity", [given], [copy]))
            self._replaced[given, combined] = self._of_all(copy, self._types.get(given, TensorType()), combined)
        _rewire(node, operand, self._replaced[given, combined])

    def _of_all(self, own: str, tensor: TensorType, combined: Combined) -> str:
        """Exchange a value; returns the name of the combined value."""
        if tensor.shape is None or not all(isinstance(size, int) for size in tensor.shape):
            raise StepError(f"'{own}' of batch norm is {tensor_text(tensor)}, expected a shape that is known")
        self.exchanged.append(Exchanged(own, self._names.new(f"{own}.of_all"), tensor, combined))
        return self.exchanged[-1].of_all


def _read(node: onnx.NodeProto, operand: str) -> str:
    return node.input[OPS[node.op_type].input_names.index(operand)]


def _rewire(node: onnx.NodeProto, operand: str, value: str) -> None:
    node.input[OPS[node.op_type].input_names.index(operand)] = value


def _check_readers(graph: onnx.GraphProto, statistics: Collection[str], local: Collection[str]) -> None:
    """Raise StepError for statistics that are read by other nodes than those of batch norm, as second derivatives do.

    Those nodes would compute with the statistics of all workers as if they were of the worker's own samples.
    """
    found = set(statistics)
    for node in graph.node:
        if node.op_type == GATHERING or found.isdisjoint(values_read(node)):
            continue
        if not any(name in local for name in node.output):
            found.update(node.output)
        elif node.domain != DOMAIN:
            raise StepError(
                f"{node.op_type} ({node_label(node.name, node.output[0])}) reads statistics of batch norm, which cannot"
                " be synchronized then: expected that only its own nodes read them, as in captures without its second"
                " derivatives"
            )


def _check_places(model: onnx.ModelProto) -> None:
    """Raise StepError for batch norm in a place where it cannot be synchronized."""
    called = {function_key(function) for function in functions_needed(model.graph, model.functions)}
    for place, node in placed_nodes(model):
        if isinstance(place.importer, onnx.FunctionProto) and function_key(place.importer) not in called:
            continue
        where = f"{node.op_type} ({place.label(node)}) cannot be synchronized"
        if (node.domain, node.op_type) in ((DOMAIN, STATISTICS), (DOMAIN, FINISHING)) and place.text != GRAPH:
            raise StepError(f"{where}, expected it in the step's own graph")
        if node.op_type == STANDARD and any(a.name == "training_mode" and a.i for a in node.attribute):
            raise StepError(f"{where}, expected {STATISTICS} and BatchNormElemt")
