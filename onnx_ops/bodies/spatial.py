"""Spatial axes in function bodies, which are written for the greatest number of axes that an op supports."""

from __future__ import annotations

from onnx_ops.bodies.body import Body
from onnx_ops.graph.builder import Value

FILLINGS = {0: "zeros", 1: "ones"}


class SpatialAxes:
    """The spatial axes of an op, padded in front with axes of size 1 to a fixed number.

    Attributes:
        count: number of axes of the call, as a 1-D tensor, since shape inference of onnxruntime takes the difference of
            a scalar and a 1-D tensor for a scalar.
        absent: number of padded axes, 1-D.
    """

    def __init__(self, b: Body, own: Value, most: int) -> None:
        """Count the axes.

        Args:
            b: the body.
            own: 1-D, an element per spatial axis of the call.
            most: fixed number of axes.
        """
        self._b = b
        self._most = most
        self.count = b.op("Shape", own, name="spatial")
        self.absent = b.op("Sub", [most], self.count, name="absent")
        self._of_absent = {number: b.op("Expand", number, self.absent, name=name) for number, name in FILLINGS.items()}

    def sizes(self, own: Value, name: str) -> Value:
        """1-D: sizes of all axes, given those of the call's own axes."""
        return self._b.op("Concat", self._of_absent[1], own, name=name, axis=0)

    def setting(self, attribute: str, usual: int, default: Value | None = None, part: int = 0) -> Value:
        """1-D: values of a list attribute for all axes.

        Args:
            attribute: its name; an empty list denotes the default.
            usual: 0 or 1: the value for padded axes, and the default.
            default: 1-D, the default for the call's own axes, if not `usual`.
            part: index of the part, for an attribute with several values per axis, one part after the other.
        """
        b = self._b
        if default is None:
            default = b.op("Expand", usual, self.count, name=f"{attribute}_default")
        either = b.op("Concat", b.value_of(attribute), *[default] * (part + 1), name=f"{attribute}_or_default", axis=0)
        begin, end = ([0], self.count) if part == 0 else (self.count * part, self.count * (part + 1))
        given = b.op("Slice", either, begin, end, name=f"{attribute}_given")
        return b.op("Concat", self._of_absent[usual], given, name=f"{attribute}_of_all", axis=0)

    def strides(self, sizes: Value) -> Value:
        """1-D: strides in elements of a contiguous row-major block of these sizes."""
        b = self._b
        inner = [
            b.op("ReduceProd", b.op("Slice", sizes, [axis], [self._most]), name="inner", keepdims=1)
            for axis in range(1, self._most)
        ]
        return b.op("Concat", *inner, [1], name="strides_of_elements", axis=0)
