"""The windows of max pooling: what the attributes say, how many fit into an input, and which inputs are refused."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, Protocol

from onnx.defs import OpSchema

from onnx_ops.core.call import Call
from onnx_ops.core.schema import attribute
from onnx_ops.core.types import Dim, Shape
from onnx_ops.loops.memory import setting
from onnx_ops.loops.primitives import helper
from onnx_ops.loops.records import Job, Numbers, record_of
from onnx_ops.ops.windows import AXES, adds_too_much, check_padding

PLANAR = 2


def window_attributes() -> list[OpSchema.Attribute]:
    """Those besides kernel_size."""
    return [
        attribute("stride", (), "How far windows are apart, along each spatial axis; none: kernel_size."),
        attribute("padding", (), "How far windows reach beyond both ends of each axis; none: 0."),
        attribute("dilation", (), "How far the elements of a window are apart, along each axis; none: 1."),
        attribute("ceil_mode", 0, "1: a last window may reach beyond the end."),
    ]


class Window(NamedTuple):
    """A window along one axis."""

    kernel: int
    stride: int
    padding: int
    dilation: int

    def met(self, size: int, count: int) -> range:
        """The elements of a window that lie in an input of this size in one of `count` windows or more."""
        last_begin = (count - 1) * self.stride - self.padding
        begin, end = -(last_begin // self.dilation), (size - 1 + self.padding) // self.dilation + 1
        return range(max(begin, 0), min(self.kernel, end))


def spatial_rank(call: Call) -> int:
    """The number of spatial axes; two where the call does not tell kernel_size."""
    return len(call.attributes["kernel_size"]) or PLANAR


def windows_of(call: Call) -> list[Window]:
    """The window along each spatial axis; empty where the call does not tell kernel_size. Refuses wrong attributes."""
    call.check_choice("ceil_mode", {0: "no", 1: "yes"})
    kernel = call.attributes["kernel_size"]
    if len(kernel) > AXES:
        raise call.error(f"attribute 'kernel_size' is {kernel}, expected at most {AXES} numbers")
    own = {"kernel_size": kernel}
    for name, default in (("stride", kernel), ("padding", (0,) * len(kernel)), ("dilation", (1,) * len(kernel))):
        given = call.attributes[name]
        if given and len(given) != len(kernel):
            expected = f"as many numbers as 'kernel_size' has, {len(kernel)}, or none"
            raise call.error(f"attribute '{name}' is {given}, expected {expected}")
        own[name] = given or default
    for name in own:
        call.check_range(name, 0 if name == "padding" else 1)
    made = [Window(*values) for values in zip(*own.values(), strict=True)]
    halves = tuple((w.dilation * (w.kernel - 1) + 1) // 2 for w in made)
    if any(w.padding > half for w, half in zip(made, halves, strict=True)):
        raise call.error(f"attribute 'padding' is {own['padding']}, expected at most half of the window, {halves}")
    return made


def check_rank(call: Call, name: str) -> None:
    """Refuse an input that has other than one or two axes before the spatial ones."""
    shape, spatial = call.shape(name), spatial_rank(call)
    if shape is not None and len(shape) not in (spatial + 1, spatial + 2):
        raise call.shape_error(name, f"{spatial + 1} or {spatial + 2} dimensions, {spatial} of them spatial")


def pooled_shape(call: Call, windows: list[Window]) -> Shape | None:
    """The shape that pooling gives the input 'self'; refuses a size that has no windows, or an empty one."""
    shape = call.shape("self")
    if shape is None:
        return None
    lead = len(shape) - len(windows)
    check_padding(call, "padding", shape[lead:], [2 * window.padding for window in windows])
    dims: list[Dim] = []
    for axis, (size, window) in enumerate(zip(shape[lead:], windows, strict=True), lead):
        count = window_count(size, *window, call.attributes["ceil_mode"]) if isinstance(size, int) else None
        if count == 0:
            expected = f"a size of axis {axis} in which every window of {window.kernel} has an element"
            raise call.shape_error("self", expected)
        dims.append(count)
    return (*shape[:lead], *dims)


@helper
def window_count(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: int) -> int:
    """How many windows there are along an axis; 0 if there is none, or one without an element of the input."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1 + (stride - 1 if ceil_mode != 0 else 0)
    if span < 0:
        return 0
    count = span // stride + 1
    if ceil_mode != 0 and (count - 1) * stride >= size + padding:  # it would begin beyond the end
        count -= 1
    # A window that begins in the input has an element of it. One that begins before steps over the input where it meets
    # it at `size` or later, but before `dilation`. As padding is at most half of the window, the windows of which each
    # fits begin at most `size` apart: if one of them steps over, then the first does, or the first that meets it at
    # `size` or later. With ceil_mode there may be one more.
    last_before = min(count - 1, (padding - 1) // stride)
    later = (size - first_inside(-padding, dilation) + stride - 1) // stride
    for o in (0, later, last_before):
        if 0 <= o <= last_before and first_inside(o * stride - padding, dilation) >= size:
            return 0
    return count


@helper
def first_inside(begin: int, dilation: int) -> int:
    """The first element of a window that does not lie before the input, of one that begins before it."""
    return begin % dilation


# --- for kernels -----------------------------------------------------------------------------------------------------


class Windows(Protocol):
    """The layout of max pooling."""

    # by spatial axis
    size: Annotated[Numbers, AXES]  # of the input
    count: Annotated[Numbers, AXES]  # of windows
    kernel: Annotated[Numbers, AXES]  # the fields of a `Window`
    stride: Annotated[Numbers, AXES]
    padding: Annotated[Numbers, AXES]
    dilation: Annotated[Numbers, AXES]
    planes: int


LAYOUT = record_of(Windows)


@helper
def write_windows(layout: Windows, attributes: Any, job: Job, place: int) -> int:
    """Write the windows over an input; returns the number of axes before the spatial ones, -1 if it has no windows.

    Args:
        layout: record of LAYOUT.
        attributes: record of the attributes.
        job: record of the run.
        place: index of the input.
    """
    spatial = attributes.kernel_size_count
    lead = job.rank[place] - spatial
    if lead != 1 and lead != 2:
        return -1
    plane, padded = 1.0, 1.0
    for i in range(AXES):
        axis = i - (AXES - spatial)
        size, kernel, stride, padding, dilation = 1, 1, 1, 0, 1
        if axis >= 0:
            size = job.dims[place, lead + axis]
            kernel = setting(attributes.kernel_size, spatial, axis, 1)
            stride = setting(attributes.stride, attributes.stride_count, axis, kernel)
            padding = setting(attributes.padding, attributes.padding_count, axis, 0)
            dilation = setting(attributes.dilation, attributes.dilation_count, axis, 1)
        count = window_count(size, kernel, stride, padding, dilation, attributes.ceil_mode)
        if count == 0:
            return -1
        layout.size[i], layout.count[i] = size, count
        layout.kernel[i], layout.stride[i] = kernel, stride
        layout.padding[i], layout.dilation[i] = padding, dilation
        plane, padded = plane * size, padded * (size + 2 * padding)
    return -1 if adds_too_much(plane, padded) else lead
