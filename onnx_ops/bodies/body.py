"""Writes an op in standard ONNX operators: the portable body that runs where no kernel is registered.

One body serves all nodes of a model that use the op, whatever their dtypes, so what a node does not need is left out
only if no node does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.defs import OpSchema

from onnx_ops.core.call import Call
from onnx_ops.core.domain import DOMAIN, KERNEL_DOMAIN, kernel_name
from onnx_ops.core.errors import LinkError
from onnx_ops.core.op import Op
from onnx_ops.core.reduction import Reduction
from onnx_ops.core.types import dtype_name
from onnx_ops.core.version import __version__

SMALLEST_NORMAL = float(np.finfo(np.float32).smallest_normal)


class Body:
    """The statements of a portable body, in the order they run.

    Attributes:
        calls: all uses of the op in the model.
        compute: the dtype to compute in: float, or double if an input of any use is or may be double.
    """

    def __init__(self, op: Op, calls: Sequence[Call]) -> None:
        self.op = op
        self.calls = calls
        self.statements: list[str] = []
        floats = {c.dtype(p.name) for c in calls for p in op.schema.inputs if c.present(p.name)}
        self.compute = TensorProto.DOUBLE if floats & {None, TensorProto.DOUBLE} else TensorProto.FLOAT

    def emit(self, statement: str) -> None:
        """Add a statement of ONNX's text syntax."""
        self.statements.append(statement)

    def has(self, name: str) -> bool:
        """Whether any use has the optional input. If so, `link` supplies it in the uses that leave it out."""
        return any(c.present(name) for c in self.calls)

    def attribute(self, name: str) -> Any:
        """The value of an attribute that all uses agree on, else None."""
        values = {c.attributes[name] for c in self.calls}
        return values.pop() if len(values) == 1 else None

    def load(self, name: str) -> str:
        """An input in the computing dtype."""
        if all(c.dtype(name) == self.compute for c in self.calls if c.present(name)):
            return name
        return self._cast(name)

    def load_float(self, value: str) -> str:
        """A float32 value, as an attribute of the node has it, in the computing dtype."""
        return value if self.compute == TensorProto.FLOAT else self._cast(value)

    def _cast(self, value: str) -> str:
        self.emit(f"{value}_cast = Cast <to = {self.compute}> ({value})")
        return f"{value}_cast"

    def constant(self, name: str, value: float) -> str:
        """A scalar of the computing dtype."""
        if self.compute == TensorProto.FLOAT and 0 < abs(value) < SMALLEST_NORMAL:
            # Before onnx 1.23 the parser refuses a subnormal number; as a double it is none.
            self.emit(f"{name}_wide = Constant <value = double {{{value!r}}}> ()")
            self.emit(f"{name} = Cast <to = {self.compute}> ({name}_wide)")
            return name
        self.emit(f"{name} = Constant <value = {self.kind} {{{value!r}}}> ()")
        return name

    @property
    def kind(self) -> str:
        """The computing dtype in ONNX's text syntax."""
        return dtype_name(self.compute)

    def scaled(self, value: str, factor: str) -> str:
        """A value times a factor, divided as the attribute `reduction` says."""
        if divisor := self.divisor(value):
            # Divided first: the factor is one number in most models, and its product with the value may overflow.
            self.emit(f"share = Div ({factor}, {divisor})")
            factor = "share"
        self.emit(f"scaled = Mul ({value}, {factor})")
        return "scaled"

    def divisor(self, whole: str) -> str | None:
        """What a mean divides by, in the computing dtype; None if no use takes one."""
        kinds = {Reduction(c.attributes["reduction"]) for c in self.calls}
        if not kinds & {Reduction.MEAN, Reduction.BATCHMEAN}:
            return None
        if Reduction.MEAN in kinds:
            self.emit(f"size = Size ({whole})")
        if Reduction.BATCHMEAN in kinds:
            self.emit(f"batch_axis = Shape <start = 0, end = 1> ({whole})")
            self.emit("batch = ReduceProd <keepdims = 0> (batch_axis)")
        if len(kinds) == 1:
            count = "size" if Reduction.MEAN in kinds else "batch"
        else:
            self.emit("reduction = Constant <value_int: int = @reduction> ()")
            self.emit("one_count = Constant <value_int = 1> ()")
            count = "one_count"
            for kind, value in ((Reduction.MEAN, "size"), (Reduction.BATCHMEAN, "batch")):
                if kind in kinds:
                    self.emit(f"code_{value} = Constant <value_int = {int(kind)}> ()")
                    self.emit(f"is_{value} = Equal (reduction, code_{value})")
                    self.emit(f"count_{value} = Where (is_{value}, {value}, {count})")
                    count = f"count_{value}"
        self.emit(f"divisor = Cast <to = {self.compute}> ({count})")
        return "divisor"

    def store(self, value: str, *like: str) -> None:
        """Make a value the output, cast from the computing dtype to the output's dtype.

        Where that dtype differs between uses or is unknown, the body takes it from one of the inputs `like`.
        """
        dtypes = [self.op.infer(c)[0].dtype for c in self.calls]
        out = self.op.output_names[0]
        if set(dtypes) == {self.compute}:
            self.statements = [re.sub(rf"\b{value}\b", out, s) for s in self.statements]
            return
        if len(set(dtypes)) == 1 and None not in dtypes:
            self.emit(f"{out} = Cast <to = {dtypes[0]}> ({value})")
            return
        if None in dtypes and len(like) > 1:
            # Inputs of unknown dtypes must have the same dtype. Concat checks that when the session is made.
            self.emit("nothing_at_all = Constant <value = float[0] {}> ()")
            for name in like:
                self.emit(f"nothing_of_{name} = CastLike (nothing_at_all, {name})")
            self.emit(f"agreed = Concat <axis = 0> ({', '.join(f'nothing_of_{name}' for name in like)})")
        for name in like:
            if [c.dtype(name) for c in self.calls] == dtypes:
                self.emit(f"{out} = CastLike ({value}, {name})")
                return
        mixtures = {", ".join(_dtype_text(c.dtype(name)) for name in like) for c in self.calls}
        raise LinkError(
            f"{self.op.name} is used with several mixtures of dtypes of {' and '.join(map(repr, like))}: "
            f"{'; '.join(sorted(mixtures))}; one node, in a function, can serve one of them"
        )

    def either(self, condition: str, usual: Callable[[], str], wide: Callable[[], str]) -> str:
        """What `usual` writes where a condition holds at run time, else what `wide` writes, which computes in double.

        Both emit statements and return the name of their result. No name of theirs may be there already.
        """
        kind = self.kind
        outer, compute = self.statements, self.compute
        branches = []
        for write, dtype in ((usual, compute), (wide, TensorProto.DOUBLE)):
            self.statements, self.compute = [], dtype
            result = write()
            if dtype != compute:
                self.emit(f"narrowed = Cast <to = {compute}> ({result})")
                result = "narrowed"
            lines = "\n".join(self.statements)
            branches.append(f"{write.__name__.strip('_')} () => ({kind}[] {result}) {{\n{lines}\n}}")
        self.statements, self.compute = outer, compute
        self.emit(f"chosen = If ({condition}) <then_branch = {branches[0]}, else_branch = {branches[1]}>")
        return "chosen"

    def widen(self) -> None:
        """Compute in double."""
        self.compute = TensorProto.DOUBLE

    def function(self, opset: int) -> onnx.FunctionProto:
        """The body as a function, under the name of the op's kernel."""
        self.op.body(self)
        head, lines = function_head(self.op, kernel_name(self.op.name)), "\n".join(self.statements)
        function = onnx.parser.parse_function(
            f'<domain: "{KERNEL_DOMAIN}", opset_import: ["": {opset}]>\n{head} {{\n{lines}\n}}'
        )
        function.doc_string = _documentation(
            self.op, "This is what runs where the op's kernel is not registered: the op in standard operators."
        )
        return function


ATTACHED_BY = "Attached by onnx_ops "
"""Stands, with the version, in the documentation of all functions that `link` attaches."""


def _documentation(op: Op, part: str) -> str:
    summary = str(op.schema.doc).strip().split("\n\n")[0]
    return f"{DOMAIN}.{op.name}: {' '.join(summary.split())} {part} {ATTACHED_BY}{__version__}."


def public_function(op: Op, version: int) -> onnx.FunctionProto:
    """The op as a function whose body is its kernel.

    Args:
        op: any.
        version: of the domain of the kernels, that the model imports.
    """
    attributes = ", ".join(f"{name}: {attribute_type(a)} = @{name}" for name, a in op.schema.attributes.items())
    function = onnx.parser.parse_function(
        f'<domain: "{DOMAIN}", opset_import: ["{KERNEL_DOMAIN}": {version}]>\n{function_head(op, op.name)} {{\n'
        f"{op.output_names[0]} = {KERNEL_DOMAIN}.{kernel_name(op.name)}"
        f" {f'<{attributes}>' if attributes else ''} ({', '.join(op.input_names)})\n}}"
    )
    function.doc_string = _documentation(
        op, "It calls the kernel of the op where one is registered, else the function of that name."
    )
    return function


def _dtype_text(dtype: int | None) -> str:
    return "unknown" if dtype is None else dtype_name(dtype)


def attribute_type(attribute: OpSchema.Attribute) -> str:
    """The type of an attribute in ONNX's text syntax."""
    return "float" if attribute.type == OpSchema.AttrType.FLOAT else "int"


def function_head(op: Op, name: str) -> str:
    """Name, attributes with their defaults, inputs and outputs of an op, in ONNX's text syntax."""
    attributes = ", ".join(
        f"{key}: {attribute_type(a)} = {helper.get_attribute_value(a.default_value)}"
        for key, a in op.schema.attributes.items()
    )
    return f"{name} {f'<{attributes}>' if attributes else ''} ({', '.join(op.input_names)}) => ({op.output_names[0]})"
