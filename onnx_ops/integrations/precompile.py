"""Compiles all native code beforehand, for container images and for machines whose cache cannot be written later."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from onnx import TensorProto
from onnx.defs import OpSchema

from onnx_ops.core.call import Call
from onnx_ops.core.errors import OpError
from onnx_ops.core.op import Op
from onnx_ops.core.schema import allowed_dtypes, is_optional
from onnx_ops.core.types import FLOATS, TensorType
from onnx_ops.integrations.sessions import register
from onnx_ops.ops import ALL_VERSIONS
from onnx_ops.runtime.cache import cache_directory, problem

MOST_CHOICES = 4
"""Integer attributes that choose among kernels number their values from 0 on, and have no more than this."""


def precompile() -> None:
    """Fill the cache of compiled code.

    Raises:
        KernelsUnavailableError: kernels cannot be registered here.
        OSError: the cache cannot be written, or is refused.
    """
    cache_directory()
    register(None)
    from onnx_ops.runtime.ahead import compile_ahead, missing
    from onnx_ops.runtime.compiler import compile_native, is_kept
    from onnx_ops.runtime.progress import reporter

    wanted, advance = all_functions(), reporter()
    compile_ahead(wanted)
    left = missing(wanted)
    for number, function in enumerate(left):
        advance(number, len(left))
        compile_native(*function)
    if not all(map(is_kept, wanted)):
        raise OSError(problem() or "what was compiled has vanished from the cache")


def all_functions() -> list[Any]:
    """The native functions of all kernels."""
    from onnx_ops.runtime.kernels import functions_of

    calls = ((op, call) for op in ALL_VERSIONS for call in _calls(op))
    return list(dict.fromkeys(function for op, call in calls for function in functions_of(op, call)))


def _calls(op: Op) -> Iterator[Call]:
    """At least one call for each kernel that an op may need.

    All inputs and outputs with any dtypes of the output, and any one of the other inputs; then with one dtype for all,
    any of the optional inputs and outputs.
    """
    typed = op.signature.typed_inputs
    allowed = [
        [TensorProto.DataType.Value(name.upper()) for name in allowed_dtypes(op.schema, parameter)]
        for parameter in op.schema.inputs
    ]
    own_attributes = op.schema.attributes.items()
    choices = [name for name, a in own_attributes if a.type == OpSchema.AttrType.INT and not a.required]
    presences = list(_subsets(op.schema.inputs))
    wishes = [wanted for wanted in _subsets(op.schema.outputs) if any(wanted)]
    for *own, other in itertools.product(FLOATS, repeat=len(typed) + 1):
        settled = dict(zip(typed, own, strict=True))
        given = [settled.get(name, other) for name in op.input_names]
        dtypes = [dtype if dtype in possible else possible[0] for dtype, possible in zip(given, allowed, strict=True)]
        for values in itertools.product(range(MOST_CHOICES), repeat=len(choices)):
            attributes = {**op.required_attributes, **dict(zip(choices, values, strict=True))}
            for present, wanted in itertools.product(presences, wishes):
                if len({*own, other}) > 1 and not (all(present) and all(wanted)):
                    continue
                tensors = [TensorType(dtype) if there else None for dtype, there in zip(dtypes, present, strict=True)]
                call = op.call(tensors, attributes, wanted)
                try:
                    op.infer(call)
                except OpError:  # a mixture of dtypes, an attribute or an output that the op does not take
                    continue
                yield call


def _subsets(parameters: Sequence[OpSchema.FormalParameter]) -> Iterator[tuple[bool, ...]]:
    """Which inputs, or outputs, may be there."""
    return itertools.product(*((True, False) if is_optional(parameter) else (True,) for parameter in parameters))
