"""Writes an op in standard ONNX operators: the portable body that runs where no kernel is registered.

One body serves all nodes of a model that use the op, whatever their dtypes and the outputs they want, so what a node
does not need is left out only if no node does.
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
"""What a function gives out in place of an output that no node wants: it must make all outputs that it declares."""


class Body(Builder):
    """A portable body while it is written.

    Attributes:
        calls: all uses of the op in the model.
        inputs: all inputs of the op, by name, as they are given.
        outputs: the outputs that the body declares: those up to the last one that a use wants.
        misfits: the outputs whose dtypes differ between uses in a way that one body cannot follow; with each the inputs
            and attributes from which it would take its dtype.
    """

    def __init__(self, op: Op, calls: Sequence[Call], wanted: Iterable[str]) -> None:
        """Write the body.

        Args:
            op: any.
            calls: at least one.
            wanted: names of the outputs that a use wants.
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
        """The dtype to compute in: float, or double if an input of any use is or may be double."""
        return self.float_dtype

    def widen(self) -> None:
        """Compute in double."""
        self.float_dtype = TensorProto.DOUBLE

    def has(self, name: str) -> bool:
        """Whether any use has the optional input. If so, `link` supplies it in the uses that leave it out."""
        return any(c.present(name) for c in self.calls)

    def wants(self, output: str) -> bool:
        """Whether any use wants an output."""
        return output in self._wanted

    def attribute(self, name: str) -> Any:
        """The value of an attribute that all uses agree on, else None."""
        values = {c.attributes[name] for c in self.calls}
        return values.pop() if len(values) == 1 else None

    def value_of(self, name: str) -> Value:
        """An attribute as a value of the graph: int64, or for a float the computing dtype."""
        kind = attribute_kind(self._op.schema.attributes[name])
        agreed = self.attribute(name)
        if agreed is not None:
            return self.constant(agreed, name=name)
        value = self.attribute_value(name, kind)
        return value.cast(self.compute) if kind == AttributeProto.FLOAT and self.compute != TensorProto.FLOAT else value

    def load(self, name: str) -> Value:
        """An input in the computing dtype."""
        return self.load_as(name, self.compute)

    def load_as(self, name: str, dtype: int) -> Value:
        """An input in a dtype."""
        given = self.inputs[name]
        return given if all(c.dtype(name) == dtype for c in self.calls if c.present(name)) else given.cast(dtype)

    def scaled(self, value: Value, factor: Value) -> Value:
        """A value times a factor, divided as the attribute `reduction` says."""
        divisor = self.divisor(value)
        if divisor is not None:
            # Divided first: the factor is one number in most models, and its product with the value may overflow.
            factor = (factor / divisor).named("share")
        return (value * factor).named("scaled")

    def divisor(self, whole: Value) -> Value | None:
        """What a mean divides by, in the computing dtype; None if no use takes one."""
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
        """What `usual` writes where a condition holds at run time, else what `wide` writes, computing in double."""
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
        """Make a value an output, cast from the computing dtype to the output's dtype.

        Where that dtype differs between uses or is unknown, the body takes it from the first of the inputs `like` that
        has it in all uses. Among them may be attributes that hold dtypes. An output that no use wants is passed over.
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
            # Inputs of unknown dtypes must have the same dtype. Concat checks that when the session is made.
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
        """Make a value an output as it is. An output that no use wants is passed over."""
        if self.wants(output):
            self._stored[output] = value

    def op_like(self, value: Operand, name: str, hint: str = "cast_like") -> Value:
        """A value cast to the dtype of an input."""
        return self.op("CastLike", value, self.inputs[name], name=hint)

    def misfit(self) -> str | None:
        """Why one body cannot serve all uses; None if it does."""
        if not self.misfits:
            return None
        like = next(iter(self.misfits.values()))
        mixtures = {", ".join(_dtype_text(c.held_dtype(name)) for name in like) for c in self.calls}
        return (
            f"{self._op.name} is used with several mixtures of dtypes of {' and '.join(map(repr, like))}: "
            f"{'; '.join(sorted(mixtures))}; one node, in a function, can serve one of them"
        )


def _dtype_text(dtype: int | None) -> str:
    return "unknown" if dtype is None else dtype_name(dtype)
