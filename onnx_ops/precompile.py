"""Compiles all native code beforehand, for container images and for machines whose cache cannot be written later."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from onnx import TensorProto
from onnx.defs import OpSchema

from onnx_ops.errors import OpError
from onnx_ops.op import Op
from onnx_ops.ops import OPS
from onnx_ops.sessions import register
from onnx_ops.signature import FLOATS, Call, TensorType, dtype_names

MOST_CHOICES = 4
"""Integer attributes that choose among kernels number their values from 0 on, and have no more than this."""


def precompile() -> Iterator[tuple[int, int, str]]:
    """Fill the cache of compiled code, step by step.

    Yields:
        After each step: how many are done, how many there are, and the op at hand.

    Raises:
        KernelsUnavailable: kernels cannot be registered here.
        OSError: the cache cannot be written.
    """
    cache_to_fill()
    steps = [(op, call) for op in OPS.values() for call in _calls(op)]
    register(None)
    for done, (op, call) in enumerate(steps, 1):
        op.kernel.record(call)
        yield done, len(steps), op.name


def cache_to_fill() -> Path:
    """The directory that compiled code is kept in; OSError if it cannot be written."""
    from onnx_ops.runtime.compiler import cache_directory

    return cache_directory()


def _calls(op: Op) -> Iterator[Call]:
    """At least one call for each kernel that an op may need: any dtypes of the output, any one of the other inputs."""
    typed = op.kernel.typed_inputs
    allowed = {
        c.type_param_str: [TensorProto.DataType.Value(name.upper()) for name in dtype_names(c.allowed_type_strs)]
        for c in op.schema.type_constraints
    }
    choices = [name for name, a in op.schema.attributes.items() if a.type == OpSchema.AttrType.INT]
    for own in itertools.product(FLOATS, repeat=len(typed)):
        for other in FLOATS:
            dtypes = []
            for parameter in op.schema.inputs:
                dtype = dict(zip(typed, own, strict=True)).get(parameter.name, other)
                possible = allowed[parameter.type_str]
                dtypes.append(dtype if dtype in possible else possible[0])
            for values in itertools.product(range(MOST_CHOICES), repeat=len(choices)):
                call = op.call([TensorType(dtype) for dtype in dtypes], dict(zip(choices, values, strict=True)))
                try:
                    op.kernel.infer(call)
                except OpError:  # a mixture of dtypes, or an attribute, that the op does not take
                    continue
                yield call
