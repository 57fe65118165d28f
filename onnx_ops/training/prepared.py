"""Graphs that a step file carries for trainers in other languages.

They are what `Trainer` makes of a step itself: the step whose state can be updated in place, and the graphs of the
accumulation of gradients. Each is a linked model of its own, the bytes of which are the value of a constant in a
function that no node calls: as functions of the step's model they would need the same function bodies of each op.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnx_ops.core.domain import DOMAIN, KERNEL_DOMAIN
from onnx_ops.core.step_format import (
    ACCUMULATION,
    CARRIED_DOMAIN,
    CHECK_FINITE,
    COUNTERS,
    GRAD_SCALE,
    IN_PLACE,
    PREPARED_METADATA,
    UPDATE,
)
from onnx_ops.graph.imports import add_import, default_opset
from onnx_ops.graph.metadata import set_metadata
from onnx_ops.graph.walk import placed_nodes
from onnx_ops.linking.attached import op_of_kernel, restore
from onnx_ops.linking.link import link
from onnx_ops.training.accumulation import AccumulationGraphs
from onnx_ops.training.errors import StepError
from onnx_ops.training.step import Step
from onnx_ops.training.step_runner import Checks, checked_in_place

PREPARED = (IN_PLACE, ACCUMULATION, COUNTERS, UPDATE)

Names = Mapping[str, str | Mapping[str, str] | None]


def prepare(model: onnx.ModelProto) -> list[str]:
    """Add the graphs to a step, in place of those that it has.

    Where the state cannot be updated in place, that graph is omitted; where the step cannot be cut at its gradients,
    the reason takes the place of the graphs.

    Args:
        model: a step without start values, which this function changes.

    Returns:
        The names of the graphs.
    """
    remove_prepared(model)
    graphs = _graphs(model)
    for name, graph in graphs.items():
        content = np.frombuffer(graph.SerializeToString(), np.uint8)
        constant = helper.make_node("Constant", [], ["model"], value=numpy_helper.from_array(content))
        imports = [helper.make_opsetid("", default_opset(model, 1))]
        model.functions.append(helper.make_function(CARRIED_DOMAIN, name, [], ["model"], [constant], imports))
        add_import(model, CARRIED_DOMAIN, 1)
    return list(graphs)


def remove_prepared(model: onnx.ModelProto) -> None:
    """Remove what `prepare` has added."""
    kept = [f for f in model.functions if f.domain != CARRIED_DOMAIN or f.name not in PREPARED]
    del model.functions[:]
    model.functions.extend(kept)


def _graphs(model: onnx.ModelProto) -> dict[str, onnx.ModelProto]:
    step = onnx.ModelProto()
    step.CopyFrom(model)
    restore(step)
    kept = [f for f in step.functions if f.domain != CARRIED_DOMAIN]
    del step.functions[:]
    step.functions.extend(kept)
    checks = Checks.of(step, GRAD_SCALE not in Step.of(step).roles)
    found: dict[str, onnx.ModelProto] = {}
    whole = checked_in_place(step, checks, CHECK_FINITE)
    if whole is not None:
        # Nodes of a function body might read the state after it is written.
        found[IN_PLACE] = _of_kernels(_linked(whole.model, {"passed": whole.passed}))
    try:
        parts = AccumulationGraphs.of(step, checks, CHECK_FINITE)
    except StepError as refusal:
        found[ACCUMULATION] = _described(onnx.ModelProto(), {"refused": str(refusal)})
        return found
    averaging = parts.averaging
    names: Names = {
        "means": averaging.means,
        "samples": averaging.samples,
        "count": averaging.count,
        "checked": averaging.checked,
        "value": averaging.value,
    }
    found[ACCUMULATION] = _linked(averaging.model, names)
    counted = parts.counted
    if counted.counters is not None:
        found[COUNTERS] = _linked(counted.counters, {})
    update = checked_in_place(counted.update, checks.of_part(counted.update), CHECK_FINITE)
    if update is None:
        found[UPDATE] = _linked(counted.update, {"passed": None})
    else:
        found[UPDATE] = _linked(update.model, {"passed": update.passed})
    return found


def _linked(model: onnx.ModelProto, names: Names) -> onnx.ModelProto:
    return _described(link(model), names)


def _described(model: onnx.ModelProto, names: Names) -> onnx.ModelProto:
    del model.metadata_props[:]
    set_metadata(model, PREPARED_METADATA, json.dumps(names))
    return model


def _of_kernels(linked: onnx.ModelProto) -> onnx.ModelProto:
    """A linked model, changed so that nodes are those of kernels, without function bodies."""
    attached = {f.name: f.node[0].op_type for f in linked.functions if f.domain == DOMAIN and op_of_kernel(f.node[0])}
    for place, node in placed_nodes(linked):
        if node.domain == DOMAIN and node.op_type in attached:
            add_import(place.importer, KERNEL_DOMAIN, 1)
            node.domain, node.op_type = KERNEL_DOMAIN, attached[node.op_type]
    kept = [function for function in linked.functions if function.domain not in (DOMAIN, KERNEL_DOMAIN)]
    del linked.functions[:]
    linked.functions.extend(kept)
    return linked
