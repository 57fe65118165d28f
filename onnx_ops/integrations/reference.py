"""The ops for onnx.reference.ReferenceEvaluator."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from onnx_ops.core.domain import DOMAIN
from onnx_ops.core.errors import at_node, node_label
from onnx_ops.core.op import Op
from onnx_ops.ops import OPS

if TYPE_CHECKING:
    from onnx.reference.op_run import OpRun


@functools.cache
def reference_ops() -> list[type[OpRun]]:
    """The NumPy definitions of all ops: ReferenceEvaluator(model, new_ops=onnx_ops.reference_ops())."""
    return [_evaluator(op) for op in OPS.values()]


def _evaluator(op: Op) -> type[OpRun]:
    from onnx.reference.op_run import OpRun

    def run(self: OpRun, *inputs: np.ndarray | None, **attributes: Any) -> tuple[np.ndarray, ...]:
        given = {name: value for name, value in attributes.items() if name in op.attributes and value is not None}
        arrays = [*inputs, *[None] * (len(op.input_names) - len(inputs))]
        node = self.onnx_node
        with at_node(node_label(node.name, next(iter(node.output), ""))):
            call = op.check_arrays(arrays, given, list(map(bool, node.output)))
        results = op.compute(arrays, **call.attributes)[: len(node.output)]
        # The evaluator does not accept None for an omitted output.
        return tuple(np.empty(0, np.float32) if result is None else result for result in results)

    # Without `op_schema` the evaluator would use the schema of this name among those registered when it was imported,
    # and raise an error of its own for a missing attribute.
    return type(op.name, (OpRun,), {"op_domain": DOMAIN, "op_schema": None, "_run": run, "__doc__": op.schema.doc})
