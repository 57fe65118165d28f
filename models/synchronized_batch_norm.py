"""Synchronized batch normalization: workers that share a batch normalize it with the statistics of the whole batch.

The graphs here have the nodes of all workers; a Concat replaces the all-gather, a Sum the all-reduce:

    forward     BatchNormStats -> all-gather -> BatchNormGatherStatsWithCounts -> BatchNormElemt
    backward    BatchNormReduceBackward -> all-reduce -> BatchNormElemtBackward
"""

from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper

import onnx_ops
from onnx_ops.core.types import TensorType
from onnx_ops.graph.builder import Builder, Value

ONNX_OPSET = 18
IR_VERSION = 9


def statistics_type(element_type: int) -> int:
    """The element type of statistics, weights and sums, for an element type of the input."""
    return TensorProto.DOUBLE if element_type == TensorProto.DOUBLE else TensorProto.FLOAT


def forward_model(
    workers: int,
    element_type: int = TensorProto.FLOAT,
    rank: int = 4,
    *,
    affine: bool = True,
    running: bool = True,
    eps: float = 1e-5,
    momentum: float = 0.1,
) -> onnx.ModelProto:
    """Batch normalization in training.

    Args:
        workers: number of workers.
        element_type: of the input, a TensorProto.DataType.
        rank: of the input.
        affine: whether there are weight and bias.
        running: whether running statistics are updated.
        eps: added to the variance.
        momentum: weight of this batch in the running statistics.

    Returns:
        A model with the inputs input_0, input_1, ... (N_k, C, ...), one for each worker; with `affine` weight and bias
        (C,), with `running` running_mean and running_var (C,). Its outputs are out_0, out_1, ... of the shapes of the
        inputs, and for the backward pass mean and invstd (C,) of the whole batch and counts (workers,), int32; with
        `running` also running_mean_out and running_var_out (C,).
    """
    b, per_channel = Builder(), TensorType(statistics_type(element_type), ("C",))
    inputs = [b.input(f"input_{w}", _elements(w, element_type, rank)) for w in range(workers)]
    weight, bias = (b.input(name, per_channel) if affine else None for name in ("weight", "bias"))
    before = [b.input(name, per_channel) if running else None for name in ("running_mean", "running_var")]

    statistics = [
        b.several("BatchNormStats", x, names=(f"mean_{w}", f"invstd_{w}"), domain=onnx_ops.DOMAIN, eps=eps)
        for w, x in enumerate(inputs)
    ]
    means, invstds = (_gathered(b, [own[k] for own in statistics], name) for k, name in ((0, "means"), (1, "invstds")))
    counts = b.op("Concat", *(_count(b, x, w) for w, x in enumerate(inputs)), name="counts", axis=0)
    mean, invstd, *after = b.several(
        "BatchNormGatherStatsWithCounts",
        *(inputs[0], means, invstds, *before, counts),
        names=("mean", "invstd", "running_mean_out", "running_var_out")[: 4 if running else 2],
        domain=onnx_ops.DOMAIN,
        momentum=momentum,
        eps=eps,
    )
    for w, x in enumerate(inputs):
        out = b.op("BatchNormElemt", x, weight, bias, mean, invstd, domain=onnx_ops.DOMAIN, eps=eps)
        b.output(f"out_{w}", out, _elements(w, element_type, rank))
    b.output("mean", mean, per_channel)
    b.output("invstd", invstd, per_channel)
    b.output("counts", counts, TensorType(TensorProto.INT32, (workers,)))
    for name, value in zip(("running_mean_out", "running_var_out"), after, strict=False):
        b.output(name, value, per_channel)
    return _model(b, "synchronized_batch_norm")


def backward_model(
    workers: int, element_type: int = TensorProto.FLOAT, rank: int = 4, *, affine: bool = True
) -> onnx.ModelProto:
    """The backward pass of batch normalization in training.

    Args:
        workers, element_type, rank, affine: as in `forward_model`.

    Returns:
        A model with the inputs grad_out_0, input_0, grad_out_1, input_1, ... (N_k, C, ...), two for each worker; mean
        and invstd (C,), with `affine` weight (C,), and counts (workers,). Its outputs are grad_input_0, grad_input_1,
        ... of the shapes of the inputs, and with `affine` grad_weight and grad_bias (C,), summed over the workers.
    """
    b, per_channel = Builder(), TensorType(statistics_type(element_type), ("C",))
    elements = [_elements(w, element_type, rank) for w in range(workers)]
    pairs = [(b.input(f"grad_out_{w}", own), b.input(f"input_{w}", own)) for w, own in enumerate(elements)]
    mean, invstd = b.input("mean", per_channel), b.input("invstd", per_channel)
    weight = b.input("weight", per_channel) if affine else None
    counts = b.input("counts", TensorType(TensorProto.INT32, (workers,)))

    names = ("sum_dy", "sum_dy_xmu", "grad_weight", "grad_bias")[: 4 if affine else 2]
    sums = [
        b.several(
            "BatchNormReduceBackward",
            *(grad_out, x, mean, invstd, weight),
            names=[f"{name}_{w}" for name in names],
            domain=onnx_ops.DOMAIN,
        )
        for w, (grad_out, x) in enumerate(pairs)
    ]
    totals = [b.op("Sum", *(own[k] for own in sums), name=name) for k, name in enumerate(names)]
    for w, (grad_out, x) in enumerate(pairs):
        operands = (grad_out, x, mean, invstd, weight, *totals[:2], counts)
        b.output(f"grad_input_{w}", b.op("BatchNormElemtBackward", *operands, domain=onnx_ops.DOMAIN), elements[w])
    for name, total in zip(names[2:], totals[2:], strict=True):
        b.output(name, total, per_channel)
    return _model(b, "synchronized_batch_norm_backward")


def _elements(worker: int, element_type: int, rank: int) -> TensorType:
    return TensorType(element_type, (f"N_{worker}", "C", *(f"D_{axis}" for axis in range(2, rank))))


def _gathered(b: Builder, values: Sequence[Value], name: str) -> Value:
    """Stack values (C,) of the workers to (workers, C)."""
    rows = [b.op("Unsqueeze", value, [0], name=f"{value.hint}_row") for value in values]
    return b.op("Concat", *rows, name=name, axis=0)


def _count(b: Builder, x: Value, worker: int) -> Value:
    """Number of elements of a channel of one worker, (1,), int32."""
    sizes = [b.op("Shape", x, name="batch_size", end=1), b.op("Shape", x, name="later_sizes", start=2)]
    product = b.op("ReduceProd", b.op("Concat", *sizes, name="sizes", axis=0), name="count", keepdims=1)
    return product.cast(TensorProto.INT32).named(f"count_{worker}")


def _model(b: Builder, name: str) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", ONNX_OPSET), onnx_ops.opset_import()]
    return helper.make_model(b.graph(name), opset_imports=opsets, ir_version=IR_VERSION)
