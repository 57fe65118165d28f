"""Loop, Scan and If nodes, whose bodies are written by functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
from onnxscript import evaluator
from torch.onnx._internal.exporter._building import OpRecorder

from onnx_ops.torch.base.nodes import integers, op


def body(name: str, inputs: Sequence[ir.Value], write: Callable[..., Sequence[Any]]) -> ir.Graph:
    """The body of a loop; `write` writes its nodes, from its inputs to its outputs."""
    recorder = OpRecorder(evaluator.default().opset, {})
    with evaluator.default_as(recorder):
        # An output may be an input, or another output, which ONNX does not take.
        outputs = [op.Identity(value) for value in write(*inputs)]
    for i, node in enumerate(recorder.nodes):
        for j, value in enumerate(node.outputs):
            value.name = f"{name}_{i}_{j}"
    return ir.Graph(inputs, outputs, nodes=recorder.nodes, name=name)


def loop(
    name: str,
    count: ir.Value,
    states: Sequence[tuple[ir.Value, ir.DataType]],
    step: Callable[..., Sequence[Any]],
    stacked: int = 0,
    conditional: bool = False,
) -> Sequence[ir.Value]:
    """A Loop.

    Args:
        name: of the body, which no other loop has.
        count: () int64, the number of steps, the largest one if it is conditional.
        states: the initial ones, with their dtypes.
        step: writes the nodes of a step: from its number and the states to the next states, then the results that are
            stacked.
        stacked: the number of these results.
        conditional: whether the first result of `step` is no state but says if there is another step, () bool.

    Returns:
        The final states, then the stacks (count, ...).
    """
    inputs = [
        ir.Value(name=f"{name}_step", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([])),
        ir.Value(name=f"{name}_goes_on", type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([])),
        *(ir.Value(name=f"{name}_state_{i}", type=ir.TensorType(dtype)) for i, (_, dtype) in enumerate(states)),
    ]

    def write(number: ir.Value, goes_on: ir.Value, *values: ir.Value) -> Sequence[ir.Value]:
        found = step(number, *values)
        return found if conditional else [goes_on, *found]

    node = ir.node(
        "Loop",
        [count, None, *(state for state, _ in states)],
        {"body": body(name, inputs, write)},
        num_outputs=len(states) + stacked,
    )
    evaluator.default().nodes.append(node)
    return node.outputs


def scan(
    name: str,
    states: Sequence[ir.Value],
    sequences: Sequence[ir.Value],
    stacked: int,
    backwards: bool,
    step: Callable[..., Sequence[Any]],
) -> Sequence[ir.Value]:
    """A Scan.

    Args:
        name: of the body, which no other loop has.
        states: (1, N, H), the initial ones.
        sequences: (T, N, ...).
        stacked: the number of results of each step that are stacked.
        backwards: whether it runs from the last step to the first.
        step: writes the nodes of a step: from its states and the elements of the sequences to the next states, then
            the results that are stacked.

    Returns:
        The final states (1, N, H), then the stacks (T, N, ...).
    """
    first = [op.Squeeze(state, integers([0])) for state in states]
    inputs = [
        ir.Value(name=f"{name}_in_{i}", type=ir.TensorType(value.dtype), shape=ir.Shape(value.shape[1:]))
        for i, value in enumerate((*states, *sequences))
    ]
    node = ir.node(
        "Scan",
        [*first, *sequences],
        {
            "body": body(name, inputs, step),
            "num_scan_inputs": len(sequences),
            "scan_input_directions": [int(backwards)] * len(sequences),
            "scan_output_directions": [int(backwards)] * stacked,
        },
        num_outputs=len(states) + stacked,
    )
    evaluator.default().nodes.append(node)
    ends, stacks = node.outputs[: len(states)], node.outputs[len(states) :]
    return [*(op.Unsqueeze(end, integers([0])) for end in ends), *stacks]


def branch(
    name: str,
    condition: ir.Value,
    if_true: Callable[[], Sequence[ir.Value]],
    if_false: Callable[[], Sequence[ir.Value]],
) -> Sequence[ir.Value]:
    """An If.

    Args:
        name: of the branches, which no others have.
        condition: () bool.
        if_true: writes the nodes of a branch, from values of the graph around it.
        if_false: writes those of the other one, with as many results.
    """
    branches = body(f"{name}_if", [], if_true), body(f"{name}_else", [], if_false)
    node = ir.node(
        "If",
        [condition],
        {"then_branch": branches[0], "else_branch": branches[1]},
        num_outputs=len(branches[0].outputs),
    )
    evaluator.default().nodes.append(node)
    return node.outputs


def any_of(condition: ir.Value) -> ir.Value:
    """() bool, whether an element is true; of none it is false."""
    return op.Cast(op.ReduceMax(op.Cast(condition, to=ir.DataType.UINT8), keepdims=0), to=ir.DataType.BOOL)
