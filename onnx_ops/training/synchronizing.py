"""Batch norm of a training step over the samples of all workers."""

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
from onnx_ops.graph.types import value_types
from onnx_ops.graph.walk import GRAPH, placed_nodes
from onnx_ops.linking.attached import restore
from onnx_ops.ops import OPS
from onnx_ops.training.exchanges import Combined, Exchanged
from onnx_ops.training.step import StepError, tensor_text

STATISTICS, GATHERING, FINISHING = "BatchNormStats", "BatchNormGatherStatsWithCounts", "BatchNormElemtBackward"
STANDARD = "BatchNormalization"


def synchronized(
    model: onnx.ModelProto, batch: Collection[str], ends: Collection[str]
) -> tuple[onnx.ModelProto, list[Exchanged]]:
    """Let batch norm in training be that of all workers' samples.

    Behind each BatchNormStats the statistics of the workers are merged by a BatchNormGatherStatsWithCounts, and what
    read the former reads the latter. BatchNormElemtBackward gets the sums and the counts of all workers, and so do the
    nodes that keep running statistics.

    Args:
        model: a step.
        batch: its inputs that differ from worker to worker.
        ends: values that are averaged; nodes behind them stay as they are.

    Returns:
        The step, with a further input for what comes of each exchange, and what is exchanged.

    Raises:
        StepError: a step without such nodes; one that has them in a function or a subgraph, reads statistics in other
            nodes too, or trains a BatchNormalization.
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
        tensor = value.type_of_all("workers")
        whole.graph.input.append(helper.make_tensor_value_info(value.of_all, tensor.dtype or 0, tensor.shape))
    if not any(value.combined is Combined.ROWS for value in edit.exchanged):
        raise StepError(
            f"the step has no batch norm to synchronize: none of its nodes is {STATISTICS} of a value that depends on"
            " the batch"
        )
    _check_readers(whole.graph, edit.merged, following(whole.graph, batch, ends))
    return whole, edit.exchanged


class _Edit:
    """Writes the nodes of a step, and finds out what is exchanged."""

    def __init__(self, model: onnx.ModelProto, local: Collection[str]) -> None:
        self._local, self._types, self._names = local, value_types(model), Names.of(model)
        self.nodes: list[onnx.NodeProto] = []
        self._replaced: dict[tuple[str, Combined], str] = {}
        self.exchanged: list[Exchanged] = []
        self.merged: list[str] = []
        """The statistics of all workers."""

    def add(self, given: onnx.NodeProto) -> None:
        """Add a node, and what is to be with it."""
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
            # Its values do not matter: with rows of the statistics the node depends on what all workers have alike.
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
        """Let a node read what comes of the exchange of an operand.

        What is exchanged is a copy: the operand itself may come from elsewhere, and be exchanged as a gradient too.
        """
        given = _read(node, operand)
        if (given, combined) not in self._replaced:
            copy = self._names.new(f"{given}.own")
            self.nodes.append(helper.make_node("Identity", [given], [copy]))
            self._replaced[given, combined] = self._of_all(copy, self._types.get(given, TensorType()), combined)
        _rewire(node, operand, self._replaced[given, combined])

    def _of_all(self, own: str, tensor: TensorType, combined: Combined) -> str:
        """Exchange a value; returns the name of what comes of it."""
        if tensor.shape is None or not all(isinstance(size, int) for size in tensor.shape):
            raise StepError(f"'{own}' of batch norm is {tensor_text(tensor)}, expected a shape that is known")
        self.exchanged.append(Exchanged(own, self._names.new(f"{own}.of_all"), tensor, combined))
        return self.exchanged[-1].of_all


def _read(node: onnx.NodeProto, operand: str) -> str:
    return node.input[OPS[node.op_type].input_names.index(operand)]


def _rewire(node: onnx.NodeProto, operand: str, value: str) -> None:
    node.input[OPS[node.op_type].input_names.index(operand)] = value


def _check_readers(graph: onnx.GraphProto, statistics: Collection[str], local: Collection[str]) -> None:
    """Refuse batch norm that is computed, or derived a second time, by nodes that do not know of other workers."""
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
    """Refuse batch norm in training that cannot be synchronized where it stands."""
    called = {function_key(function) for function in functions_needed(model.graph, model.functions)}
    for place, node in placed_nodes(model):
        if isinstance(place.importer, onnx.FunctionProto) and function_key(place.importer) not in called:
            continue
        where = f"{node.op_type} ({place.label(node)}) cannot be synchronized"
        if (node.domain, node.op_type) in ((DOMAIN, STATISTICS), (DOMAIN, FINISHING)) and place.text != GRAPH:
            raise StepError(f"{where}, expected it in the step's own graph")
        if node.op_type == STANDARD and any(a.name == "training_mode" and a.i for a in node.attribute):
            raise StepError(f"{where}, expected {STATISTICS} and BatchNormElemt")
