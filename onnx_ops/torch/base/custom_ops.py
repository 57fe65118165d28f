"""The ops of this domain as custom operators of PyTorch, such as `torch.ops.onnx_ops.KlDiv(x, y, reduction=2)`.

Each is generated from the record of the op: its schema from the signature, the FakeTensors of its outputs from type
inference, its results from the NumPy reference, and its node from the ONNX schema. Inputs are positional, None where
omitted; attributes are keyword-only. An output that requires an omitted input is None.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnx.defs import OpSchema
from onnx_ir.tensor_adapters import from_torch_dtype, to_torch_dtype
from torch import Tensor
from torch.autograd.function import FunctionCtx

from onnx_ops.core.op import Op
from onnx_ops.core.schema import attribute_type
from onnx_ops.core.space import Role
from onnx_ops.core.types import Dim, Shape, TensorType
from onnx_ops.ops import OPS
from onnx_ops.torch.base.arrays import to_array, to_tensor
from onnx_ops.torch.base.nodes import Value, aclnn
from onnx_ops.torch.base.second_derivatives import gradients_of
from onnx_ops.torch.base.sizes import Size
from onnx_ops.torch.base.table import translates

domain_ops = torch.ops.onnx_ops

LISTS = {"ints": "int[]", "floats": "float[]"}
"""Attribute types that have another name in schemas of PyTorch."""


def _schema(op: Op) -> str:
    """The schema in PyTorch's notation."""

    def declared(attribute: OpSchema.Attribute) -> str:
        kind = attribute_type(attribute)
        default = "" if attribute.required else f"={op.attribute_defaults[attribute.name]!r}"
        return f"{LISTS.get(kind, kind)} {attribute.name}{default}"

    inputs = [f"Tensor{'' if given.default is None else '?'} {given.name}" for given in op.signature.inputs]
    attributes = [declared(attribute) for attribute in op.signature.attributes]
    outputs = ", ".join(["Tensor"] * len(op.output_names))
    return f"({', '.join([*inputs, *(['*'] if attributes else []), *attributes])}) -> ({outputs})"


def _computable(op: Op, inputs: Sequence[object]) -> list[bool]:
    """Whether each output can be computed from the inputs that are not None."""
    omitted = {name for name, value in zip(op.input_names, inputs, strict=True) if value is None}
    return [output.requires not in omitted for output in op.signature.outputs]


def _unpacked(outputs: Sequence[Any]) -> Any:
    return tuple(outputs) if len(outputs) > 1 else outputs[0]


def _results(op: Op, tensors: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> Any:
    arrays = [None if tensor is None else to_array(tensor) for tensor in tensors]
    op.check_arrays(arrays, attributes, _computable(op, arrays))
    return _unpacked([None if a is None else to_tensor(a) for a in op.compute(arrays, **attributes)])


class _Dimensions:
    """Sizes of FakeTensors as dimensions for type inference: a SymInt is a symbolic dimension, named by its expression.

    Type inference compares no symbolic dimensions, so it adds no guards.
    """

    def __init__(self) -> None:
        self._sizes: dict[Dim, torch.SymInt] = {}

    def of(self, tensor: Tensor) -> tuple[Dim, ...]:
        return tuple(map(self._named, tensor.shape))

    def _named(self, size: Size) -> Dim:
        known = size if isinstance(size, int) else size.node.maybe_as_int()
        if known is None:
            self._sizes[str(size)] = size
            return str(size)
        return known

    def sizes(self, shape: Shape | None) -> list[Size]:
        """The sizes of an inferred shape; new ones for dimensions that are unknown, such as those given by values."""
        assert shape is not None
        return [
            torch.library.get_ctx().new_dynamic_size() if dim is None else self._sizes.get(dim, dim) for dim in shape
        ]


def _fakes(op: Op, tensors: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> Any:
    _broadcast(op, tensors)
    dimensions, computable = _Dimensions(), _computable(op, tensors)
    types = [
        None if tensor is None else TensorType(from_torch_dtype(tensor.dtype), dimensions.of(tensor))
        for tensor in tensors
    ]
    like = next(tensor for tensor in tensors if tensor is not None)
    outputs = op.infer(op.call(types, attributes, computable))
    return _unpacked(
        [
            like.new_empty(dimensions.sizes(output.shape), dtype=to_torch_dtype(ir.DataType(output.dtype)))
            if there
            else None
            for output, there in zip(outputs, computable, strict=True)
        ]
    )


def _broadcast(op: Op, tensors: Sequence[Tensor | None]) -> None:
    """Guard that dynamic sizes of inputs that broadcast to the index space are equal, as PyTorch's operators do."""
    roles = [given.role or Role(0) for given in op.signature.inputs]
    shapes = [
        tensor.shape
        for tensor, role in zip(tensors, roles, strict=True)
        if tensor is not None and role & (Role.SHAPE | Role.INTO | Role.SAME)
    ]
    if any(isinstance(size, torch.SymInt) for shape in shapes for size in shape):
        torch.broadcast_shapes(*shapes)


def _node(op: Op, inputs: Sequence[Value | None], attributes: Mapping[str, Any]) -> Any:
    outputs = getattr(aclnn, op.name)(*inputs, **attributes)
    if len(op.output_names) == 1:
        return outputs
    count = _computable(op, inputs).count(True)
    outputs[0].producer().resize_outputs(count)
    return outputs[:count]


def _define(op: Op) -> None:
    @torch.library.custom_op(f"onnx_ops::{op.name}", mutates_args=(), schema=_schema(op))
    def operator(*tensors: Tensor | None, **attributes: Any) -> Any:
        return _results(op, tensors, attributes)

    operator.register_fake(lambda *tensors, **attributes: _fakes(op, tensors, attributes))
    translation = translates(getattr(domain_ops, op.name).default)
    translation(lambda *inputs, **attributes: _node(op, inputs, attributes))


for _op in OPS.values():
    _define(_op)


def differentiable(
    name: str, gradients: Mapping[str, str], output: str | None = None, formula: Callable[..., Tensor] | None = None
) -> None:
    """Make other ops the gradient of an op in PyTorch.

    The first input of such an op is the gradient with respect to an output; its others, and its attributes, have the
    names of inputs, outputs and attributes of the op that is differentiated.

    Args:
        name: of the op.
        gradients: for inputs of the op the name of the op that computes the gradient with respect to them.
        output: the output that is differentiated; None for the only one.
        formula: the op in operators that PyTorch differentiates any number of times, for second derivatives; None for
            an op that PyTorch itself differentiates once.
    """
    forward = OPS[name]
    backward = {given: OPS[gradient] for given, gradient in gradients.items()}
    place = 0 if output is None else forward.output_names.index(output)
    names = (*forward.input_names, *forward.output_names)
    saved = {taken for op in backward.values() for taken in op.input_names[1:]}
    if formula is not None:
        saved |= set(forward.input_names)

    def setup_context(
        ctx: FunctionCtx,
        inputs: tuple[Tensor | None, ...],
        keyword_only_inputs: dict[str, Any],
        output: Tensor | tuple[Tensor, ...],
    ) -> None:
        values = zip(names, (*inputs, *(output if isinstance(output, tuple) else (output,))), strict=True)
        ctx.save_for_backward(*(value if name in saved else None for name, value in values))
        ctx.attributes = keyword_only_inputs

    def gradient(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        values = dict(zip(names, ctx.saved_tensors, strict=True))
        if formula is not None and torch.is_grad_enabled():  # to be differentiated again
            inputs = [values[given] for given in forward.input_names]
            return tuple(gradients_of(functools.partial(formula, **ctx.attributes), inputs, [grads[place]]))

        def with_respect_to(given: str) -> Tensor:
            op = backward[given]
            attributes = {k: v for k, v in ctx.attributes.items() if k in op.attributes}
            found = getattr(domain_ops, op.name)(grads[place], *(values[n] for n in op.input_names[1:]), **attributes)
            return found.to(values[given].dtype)

        wanted = zip(forward.input_names, ctx.needs_input_grad, strict=False)
        return tuple(with_respect_to(given) if wants and given in backward else None for given, wants in wanted)

    torch.library.register_autograd(f"onnx_ops::{name}", gradient, setup_context=setup_context)


def custom_operator(
    translation: Callable[..., Any], fake: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Any]], Any]:
    """Make a function of tensors an operator of PyTorch that is none of this domain's ops.

    Args:
        translation: from the operator's arguments to its nodes.
        fake: from the operator's arguments to FakeTensors; None if the decorated function computes them too.
    """

    def declared(function: Callable[..., Any]) -> Any:
        operator = torch.library.custom_op(f"onnx_ops::{function.__name__}", function, mutates_args=())
        operator.register_fake(fake or function)
        translates(getattr(domain_ops, function.__name__).default)(translation)
        return operator

    return declared
