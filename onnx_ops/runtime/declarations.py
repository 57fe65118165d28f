"""The combinations of dtypes for which an op is declared to onnxruntime, one OrtCustomOp each."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from onnx_ops.core.call import Call
from onnx_ops.core.op import Op
from onnx_ops.core.types import FLOATS, TensorType

Dtypes = tuple[int, ...]
"""Of the inputs that determine those of outputs; 0 for any."""
ANY: Dtypes = ()
"""All combinations."""
Kernels = Mapping[str, Collection[Dtypes]]
"""Kernels that suffice for sessions: by name, the dtypes of the calls."""


def dtypes_of(op: Op, call: Call) -> Dtypes:
    """The dtypes of a call; 0 for an unknown one or an omitted input."""
    return tuple(call.dtype(name) or 0 for name in op.signature.typed_inputs)


@dataclass(frozen=True)
class Declaration:
    """What an OrtCustomOp declares.

    Attributes:
        kernel_name: name of the custom op.
        input_types: dtypes of the inputs, 0 for any.
        optional_inputs: whether each may be omitted.
        output_types: dtypes of the outputs, 0 if set by shape inference.
        optional_outputs: whether each may be omitted.
    """

    kernel_name: str
    input_types: Sequence[int]
    optional_inputs: Sequence[bool]
    output_types: Sequence[int]
    optional_outputs: Sequence[bool]


def declarations(op: Op, wanted: Collection[Dtypes] = (ANY,)) -> list[Declaration]:
    """One per combination of dtypes of the inputs that determine those of outputs, without those that no call has.

    onnxruntime selects the first that matches. An omitted optional input matches any dtype, so combinations whose
    outputs are those without that input come first.
    """
    typed = op.signature.typed_inputs
    required = [name for name in typed if name not in op.signature.defaults]
    optional, optional_outputs = ([p.optional for p in ps] for ps in (op.inputs, op.outputs))
    combinations = []
    for mixture in itertools.product(FLOATS, repeat=len(typed)):
        if not any(_fit(mixture, called) for called in wanted):
            continue
        dtypes = dict(zip(typed, mixture, strict=True))
        outputs = _output_types(op, dtypes)
        differs = len(required) < len(typed) and outputs != _output_types(op, {n: dtypes[n] for n in required})
        inputs = [dtypes.get(name, 0) for name in op.input_names]
        combinations.append((differs, Declaration(op.kernel_name, inputs, optional, outputs, optional_outputs)))
    return [declared for _, declared in sorted(combinations, key=lambda pair: pair[0])]


def _fit(mixture: Dtypes, called: Dtypes) -> bool:
    return all(dtype in (own, 0) for own, dtype in zip(mixture, called, strict=False))


def _output_types(op: Op, dtypes: Mapping[str, int]) -> list[int]:
    """The dtypes of the outputs for dtypes of some inputs; 0 if determined by attributes."""
    optional = {p.name for p in op.inputs if p.optional}
    tensors = [
        TensorType(dtypes[name]) if name in dtypes else None if name in optional else TensorType()
        for name in op.input_names
    ]
    outputs = op.infer(op.call(tensors, op.required_attributes, [not p.optional for p in op.outputs]))
    pairs = zip(op.output_names, outputs, strict=True)
    return [0 if name in op.signature.outputs_typed_by_attributes else (tensor.dtype or 0) for name, tensor in pairs]
