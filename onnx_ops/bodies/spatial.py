"""Spatial axes in portable bodies: an op takes a few numbers of them, and its body is written for the most."""

from __future__ import annotations

from onnx_ops.bodies.body import Body
from onnx_ops.graph.builder import Value

FILLINGS = {0: "zeros", 1: "ones"}


class SpatialAxes:
    """The spatial axes of an op, always as many as it has at most: before its own ones come those it lacks, of size 1.

    Attributes:
        count: how many the op has. It is a list of one number, as is what comes of it: onnxruntime takes a number less
            such a list for the number when it infers shapes.
        absent: how many it lacks, a list too.
    """

    def __init__(self, b: Body, own: Value, most: int) -> None:
        """Count them.

        Args:
            b: the body that is being written.
            own: a list with one number for each axis that the op has.
            most: as many axes as it can have.
        """
        self._b = b
        self._most = most
        self.count = b.op("Shape", own, name="spatial")
        self.absent = b.op("Sub", [most], self.count, name="absent")
        self._of_absent = {number: b.op("Expand", number, self.absent, name=name) for number, name in FILLINGS.items()}

    def sizes(self, own: Value, name: str) -> Value:
        """The sizes along the op's own axes, after those of the axes it lacks."""
        return self._b.op("Concat", self._of_absent[1], own, name=name, axis=0)

    def setting(self, attribute: str, usual: int, default: Value | None = None, part: int = 0) -> Value:
        """What an attribute says for each axis.

        Args:
            attribute: a list, which is empty where the defaults hold.
            usual: 0 or 1, which holds for the axes that the op lacks, and where the attribute is empty.
            default: a number for each of the op's own axes, which holds in place of `usual` where the attribute is
                empty.
            part: which numbers, of an attribute that has several for each axis, one part after the other.
        """
        b = self._b
        if default is None:
            default = b.op("Expand", usual, self.count, name=f"{attribute}_default")
        either = b.op("Concat", b.value_of(attribute), *[default] * (part + 1), name=f"{attribute}_or_default", axis=0)
        begin, end = ([0], self.count) if part == 0 else (self.count * part, self.count * (part + 1))
        given = b.op("Slice", either, begin, end, name=f"{attribute}_given")
        return b.op("Concat", self._of_absent[usual], given, name=f"{attribute}_of_all", axis=0)

    def strides(self, sizes: Value) -> Value:
        """How far neighbours along each axis are apart where a block of these sizes lies in memory, row by row."""
        b = self._b
        inner = [
            b.op("ReduceProd", b.op("Slice", sizes, [axis], [self._most]), name="inner", keepdims=1)
            for axis in range(1, self._most)
        ]
        return b.op("Concat", *inner, [1], name="strides_of_elements", axis=0)
