"""Writes the function body of an op: standard ONNX operators, run where no kernel is registered.

A model has one body per op, shared by all nodes whatever their dtypes and outputs; a part of it is omitted only if no
node needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from onnx import AttributeProto, TensorProto

from onnx_ops.core.call import Call
from onnx_ops.core.op import Op
from onnx_ops.core.reduction import Reduction
from onnx_ops.core.schema import attribute_kind
from onnx_ops.core.types import TensorType, dtype_name
from onnx_ops.graph.builder import Builder, Operand, Reference, Value

NOTHING = np.zeros(0, np.float32)
"""Value of a declared output that no node uses: a function must compute all outputs it declares."""


class Body(Builder):
    """Builder of a function body.

    Attributes:
        calls: all calls of the op in the model.
        inputs: inputs of the op by name, in the dtypes of the calls.
        outputs: declared outputs: those up to the last one that a call uses.
        misfits: outputs whose dtypes differ between calls and follow no input; with each, the inputs and attributes
            that could determine its dtype.
    """

    def __init__(self, op: Op, calls: Sequence[Call], wanted: Iterable[str]) -> None:
        """Write the body.

        Args:
            op: the op.
            calls: at least one.
            wanted: names of the outputs that a call uses.
        """
        super().__init__()
        self._wanted = frozenset(wanted)
        self._op = op
        self.calls = calls
        self.inputs = {name: self.input(name) for name in op.input_names}
        self.outputs = op.output_names[: max(map(op.output_names.index, self._wanted)) + 1]
        self.misfits: dict[str, tuple[str, ...]] = {}
        self._stored: dict[str, Value] = {}
        self._types = [op.infer(c) for c in calls]
        dtypes = {c.dtype(name) for c in calls for name in op.input_names if c.present(name)}
        if dtypes & {None, TensorProto.DOUBLE}:
            self.widen()
        op.body(self)
        for name in self.outputs:
            self.output(name, self._stored[name] if self.wants(name) else NOTHING)

    @property
    def compute(self) -> int:
        """The computing dtype: DOUBLE if an input of any call is or may be double, else FLOAT."""
        return self.float_dtype

    def widen(self) -> None:
        """Compute in double."""
        self.float_dtype = TensorProto.DOUBLE

    def has(self, name: str) -> bool:
        """Whether any call has an optional input; `link` then materializes it where it is omitted."""
        return any(c.present(name) for c in self.calls)

    def wants(self, output: str) -> bool:
        """Whether any call uses an output."""
        return output in self._wanted

    def attribute(self, name: str) -> Any:
        """The value of an attribute if it is the same in all calls, else None."""
        values = {c.attributes[name] for c in self.calls}
        return values.pop() if len(values) == 1 else None

    def value_of(self, name: str) -> Value:
        """An attribute as a value of the graph: int64, or the computing dtype for a float."""
        kind = attribute_kind(self._op.attributes[name])
        agreed = self.attribute(name)
        if agreed is not None:
            return self.constant(agreed, name=name)
        value = self.attribute_value(name, kind)
        return value.cast(self.compute) if kind == AttributeProto.FLOAT and self.compute != TensorProto.FLOAT else value

    def load(self, name: str) -> Value:
        """An input in the computing dtype."""
        return self.load_as(name, self.compute)

    def load_as(self, name: str, dtype: int) -> Value:
        """An input, cast to a dtype if any call has another one."""
        given = self.inputs[name]
        return given if all(c.dtype(name) == dtype for c in self.calls if c.present(name)) else given.cast(dtype)

    def scaled(self, value: Value, factor: Value) -> Value:
        """value * factor / divisor, with the divisor of the attribute `reduction`."""
        divisor = self.divisor(value)
        if divisor is not None:
            # Divide first: the factor is a scalar in most models, and value * factor may overflow.
            factor = (factor / divisor).named("share")
        return (value * factor).named("scaled")

    def divisor(self, whole: Value) -> Value | None:
        """The divisor of a mean or batchmean in the computing dtype; None if no call takes one."""
        kinds = {Reduction(c.attributes["reduction"]) for c in self.calls}
        if not kinds & {Reduction.MEAN, Reduction.BATCHMEAN}:
            return None
        counts = {}
        if Reduction.MEAN in kinds:
            counts[Reduction.MEAN] = self.op("Size", whole)
        if Reduction.BATCHMEAN in kinds:
            first = self.op("Shape", whole, name="batch_axis", start=0, end=1)
            counts[Reduction.BATCHMEAN] = self.op("ReduceProd", first, name="batch", keepdims=0)
        (count, *_) = counts.values()
        if len(kinds) > 1:
            reduction, count = self.value_of("reduction"), self.constant(1)
            for kind, number in counts.items():
                is_kind = reduction.equal(int(kind)).named(f"is_{kind.name.lower()}")
                count = self.op("Where", is_kind, number, count, name="count")
        return count.cast(self.compute).named("divisor")

    def either(self, condition: Value, usual: Callable[[], Value], wide: Callable[[], Value]) -> Value:
        """`usual` where a condition holds at run time, else `wide`, computed in double."""
        compute = self.compute

        def in_double() -> Value:
            self.widen()
            result = wide()
            return result if compute == TensorProto.DOUBLE else result.cast(compute)

        try:
            branches = [
                self.subgraph(write, outputs=(TensorType(compute),), name=branch.__name__.strip("_"))
                for write, branch in ((usual, usual), (in_double, wide))
            ]
        finally:
            self.float_dtype = compute
        return self.op("If", condition, name="chosen", then_branch=branches[0], else_branch=branches[1])

    def store(self, output: str, value: Value, *like: str) -> None:
        """Define an output, cast from the computing dtype to the dtype of the output.

        Where that dtype differs between calls or is unknown, it is taken from the first of `like`, inputs or dtype
        attributes, that has it in all calls. An unused output is ignored.
        """
        if not self.wants(output):
            return
        index = self._op.output_names.index(output)
        typed = [(c, types[index].dtype) for c, types in zip(self.calls, self._types, strict=True)]
        typed = [(c, dtype) for c, dtype in typed if c.wants(output)] or typed
        calls, dtypes = [c for c, _ in typed], [dtype for _, dtype in typed]
        if set(dtypes) == {self.compute}:
            self._stored[output] = value
            return
        if len(set(dtypes)) == 1 and dtypes[0] is not None:
            self._stored[output] = value.cast(dtypes[0])
            return
        inputs = [name for name in like if name in self.inputs and self.has(name)]
        if None in dtypes and len(inputs) > 1:
            # Inputs of unknown dtype must agree, which Concat checks when the session is created.
            kinds = [self.op_like(NOTHING, name, f"nothing_of_{name}") for name in inputs]
            self.keep(self.op("Concat", *kinds, name="agreed", axis=0))
        for name in like:
            if [c.held_dtype(name) for c in calls] == dtypes:
                if name not in self.inputs:
                    self._stored[output] = self.op("Cast", value, to=Reference(name, AttributeProto.INT))
                    return
                if self.has(name):
                    self._stored[output] = self.op_like(value, name)
                    return
        self._stored[output] = value
        self.misfits[output] = like

    def give(self, output: str, value: Value) -> None:
        """Define an output without a cast. An unused output is ignored."""
        if self.wants(output):
            self._stored[output] = value

    def op_like(self, value: Operand, name: str, hint: str = "cast_like") -> Value:
        """A value cast to the dtype of an input."""
        return self.op("CastLike", value, self.inputs[name], name=hint)

    def misfit(self) -> str | None:
        """Why one body cannot serve all calls; None if it can."""
        if not self.misfits:
            return None
        like = next(iter(self.misfits.values()))
        combinations = {", ".join(_dtype_text(c.held_dtype(name)) for name in like) for c in self.calls}
        return (
            f"{self._op.name} is used with several combinations of dtypes of {' and '.join(map(repr, like))}: "
            f"{'; '.join(sorted(combinations))}; one node in a function supports one combination"
        )


def _dtype_text(dtype: int | None) -> str:
    return "unknown" if dtype is None else dtype_name(dtype)
