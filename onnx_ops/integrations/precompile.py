"""Compiles all kernels ahead of time, for container images and caches that are read-only later."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from onnx import TensorProto
from onnx.defs import OpSchema

from onnx_ops.core.call import Call
from onnx_ops.core.errors import OpError
from onnx_ops.core.op import Op
from onnx_ops.core.schema import Parameter
from onnx_ops.core.types import FLOATS, TensorType
from onnx_ops.integrations.sessions import register
from onnx_ops.ops import ALL_VERSIONS
from onnx_ops.runtime.cache import cache_directory, problem

MOST_CHOICES = 4
"""Upper bound for integer attributes that select a kernel; their values are 0, 1, ..."""


def precompile() -> None:
    """Compile all kernels that are not in the cache.

    Raises:
        KernelsUnavailableError: kernels cannot be registered here.
        OSError: the cache cannot be written, or is unsafe.
    """
    cache_directory()
    register(None)
    from onnx_ops.runtime.ahead import compile_ahead, missing
    from onnx_ops.runtime.compiler import compile_native, is_kept
    from onnx_ops.runtime.heap_callbacks import FUNCTIONS
    from onnx_ops.runtime.progress import reporter

    wanted, advance = [*FUNCTIONS.values(), *all_functions()], reporter()
    compile_ahead(wanted)
    left = missing(wanted)
    for number, function in enumerate(left):
        advance(number, len(left))
        compile_native(*function)
    if not all(map(is_kept, wanted)):
        raise OSError(problem() or "what was compiled has vanished from the cache")


def all_functions(ops: Iterable[Op] = ALL_VERSIONS) -> list[Any]:
    """The native functions of all kernels of ops."""
    from onnx_ops.runtime.kernels import functions_of

    calls = ((op, call) for op in ops for call in _calls(op))
    return list(dict.fromkeys(function for op, call in calls for function in functions_of(op, call)))


def _calls(op: Op) -> Iterator[Call]:
    """Calls that need all kernels of an op, each at least once.

    With all outputs, and all or none of the optional inputs: all combinations of the dtypes that outputs follow, and
    one dtype for the other inputs; with one dtype for all inputs: all combinations of optional inputs and outputs.
    """
    typed = op.signature.typed_inputs
    allowed = [[TensorProto.DataType.Value(name.upper()) for name in parameter.dtypes] for parameter in op.inputs]
    own_attributes = op.attributes.items()
    choices = [name for name, a in own_attributes if a.type == OpSchema.AttrType.INT and not a.required]
    presences = list(_subsets(op.inputs))
    wishes = [wanted for wanted in _subsets(op.outputs) if any(wanted)]
    for *own, other in itertools.product(FLOATS, repeat=len(typed) + 1):
        of_typed = dict(zip(typed, own, strict=True))
        given = [of_typed.get(name, other) for name in op.input_names]
        dtypes = [dtype if dtype in possible else possible[0] for dtype, possible in zip(given, allowed, strict=True)]
        for values in itertools.product(range(MOST_CHOICES), repeat=len(choices)):
            attributes = {**op.required_attributes, **dict(zip(choices, values, strict=True))}
            for present, wanted in itertools.product(presences, wishes):
                is_extreme = all(wanted) and present in (presences[0], presences[-1])
                if len({*own, other}) > 1 and not is_extreme:
                    continue
                tensors = [TensorType(dtype) if there else None for dtype, there in zip(dtypes, present, strict=True)]
                call = op.call(tensors, attributes, wanted)
                try:
                    op.infer(call)
                except OpError:  # dtypes, an attribute or an output that the op does not support
                    continue
                yield call


def _subsets(parameters: Sequence[Parameter]) -> Iterator[tuple[bool, ...]]:
    """All combinations of present inputs, or outputs."""
    return itertools.product(*((True, False) if parameter.optional else (True,) for parameter in parameters))
