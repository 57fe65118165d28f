"""Kernel of the gradient of a convolution's weights where there are few: vectors are adjacent places of the windows.

Each gradient is the sum over all windows of the products of a channel of the gradient of the output with the elements
that a tap meets. Lines of the input are copied once for each tap along them, as in the convolution itself, so that both
are contiguous, over several lines. Tasks add up runs of lines, and their sums are added in order afterwards.
"""

from __future__ import annotations

import numpy as np

from onnx_ops.loops.memory import LANES, allocate, array_at, free, item_size, read_row, size_of, tail, write_row
from onnx_ops.loops.primitives import Array, Floating, add_any_order, ceil_divide, helper, like
from onnx_ops.loops.tiles import COLUMNS, ROWS, add_dot_products
from onnx_ops.ops.convolution._blocked import Blocks, first_window, window_count
from onnx_ops.ops.convolution._lines import copied_line, copy_lines, first_place, room_of_copies
from onnx_ops.ops.convolution._products import TASKS
from onnx_ops.ops.windows import volume

MOST_INPUTS = 8
"""Channels of an input, per group, up to which lines are faster than interleaved channels."""
FEWEST_COLUMNS = 8
"""Windows along a line from which on copying them is fast."""
MOST_PLACES = 1024
"""Approximate number of windows of a run."""
LONGEST_LINE = 2048
"""Windows along a line up to which a run has all of them."""
FEWEST_PLACES = 4
"""Windows of a run for each weight of a channel of the output, from which on lines are faster than tiles."""
FEWEST_RUNS = 4
"""Runs of a task, if there are so many: the sums of each take as much time as a quarter of a run."""
MOST_COPIED = 1 << 18
"""Most elements of the copies of a run."""


@helper
def weights_of_output(layout: Blocks) -> int:
    """Number of weights that a channel of the output has."""
    return int(layout.inputs * volume(layout.kernel))


@helper
def lines_of_copies(layout: Blocks, lines: int) -> int:
    """Number of lines of the input that so many lines of windows meet."""
    return int((lines - 1) * layout.stride[1] + (layout.kernel[1] - 1) * layout.dilation[1] + 1)


@helper
def step_of_lines(layout: Blocks, lines: int) -> int:
    """Distance of the lines of the input that adjacent lines of windows begin with."""
    return int(min(layout.stride[1], lines_of_copies(layout, lines)))


@helper
def copied_elements(layout: Blocks, lines: int, columns: int) -> int:
    """Elements of the copies for one tap along a line, in one channel."""
    return room_of_copies(lines_of_copies(layout, lines), step_of_lines(layout, lines), columns)


@helper
def split_weight_lines(layout: Blocks) -> bool:
    """Split the gradient of the weights into tasks by lines; returns whether these are faster than tiles."""
    columns, height, copies = layout.count[2], layout.count[1], layout.inputs * layout.kernel[0] * layout.kernel[2]
    if layout.inputs > MOST_INPUTS or columns < FEWEST_COLUMNS or layout.samples * layout.outputs * copies == 0:
        return False
    if columns > LONGEST_LINE:
        columns = MOST_PLACES
    lines = min(max(MOST_PLACES // columns, 1), height)
    if layout.stride[1] > (layout.kernel[1] - 1) * layout.dilation[1] + 1:  # lines between windows are not read
        lines = 1
    if lines * columns % LANES != 0:  # whole vectors, if a few lines have them
        for fewer in range(lines, max(lines // 2, 0), -1):
            if fewer * columns % LANES == 0:
                lines = fewer
                break
    if lines * columns < FEWEST_PLACES * weights_of_output(layout):
        return False
    if copies * copied_elements(layout, lines, columns) > MOST_COPIED:
        lines = 1
    if copies * copied_elements(layout, lines, columns) > MOST_COPIED:
        return False
    layout.lines, layout.columns = lines, columns
    layout.runs = layout.samples * layout.count[0] * ceil_divide(height, lines) * ceil_divide(layout.count[2], columns)
    layout.chunks = min(max(layout.runs // FEWEST_RUNS, 1), max(TASKS // layout.groups, 1))
    return True


@helper
def sums_elements(layout: Blocks) -> int:
    """Elements of the sums of all tasks."""
    return int(layout.groups * layout.chunks * layout.outputs * weights_of_output(layout))


@helper
def write_starts(layout: Blocks, lines: int, columns: int, starts: Array) -> None:
    """Write where the copies of each weight begin; those of the last one are repeated to the end of its tile."""
    kernel, weights, room = layout.kernel, weights_of_output(layout), copied_elements(layout, lines, columns)
    seen, step = lines_of_copies(layout, lines), step_of_lines(layout, lines)
    for k in range(ceil_divide(weights, COLUMNS) * COLUMNS):
        own = min(k, weights - 1)
        line, c = own // kernel[2], own % kernel[2]
        row = copied_line(line % kernel[1] * layout.dilation[1], seen, step)
        starts[k] = (line // kernel[1] * kernel[2] + c) * room + row * columns


@helper
def add_run(
    sums: Array, grad: Array, grads: Array, copies: Array, starts: Array, outputs: int, weights: int, vectors: int
) -> None:
    """Add the products of so many vectors of each channel of the output and the copies of each weight."""
    tiles = ceil_divide(weights, COLUMNS)
    for row in range(ceil_divide(outputs, ROWS)):
        for tile in range(tiles):
            place, first = (row * tiles + tile) * ROWS * COLUMNS, tile * COLUMNS
            add_dot_products(sums, place, grad, grads, row * ROWS, copies, starts, first, vectors)


@helper
def add_lines(layout: Blocks, number: int, grad: int, image: int, element_type: int, dtype: Floating) -> bool:
    """A task: write the sums of some runs of a group; returns whether there was memory.

    Args:
        number: of the task.
        grad, image: addresses of the gradient of the output and of the input.
        dtype: of the sums.
    """
    outputs, kernel, stride, count = layout.outputs, layout.kernel, layout.stride, layout.count
    weights, places, size = weights_of_output(layout), layout.lines * layout.columns, item_size(element_type)
    chunk, group = number % layout.chunks, number // layout.chunks
    rows, columns = ceil_divide(outputs, ROWS) * ROWS, ceil_divide(weights, COLUMNS) * COLUMNS
    is_direct = size == size_of(dtype)
    copied = layout.inputs * kernel[0] * kernel[2] * copied_elements(layout, layout.lines, layout.columns)
    memory, sums, copies, converted, grads, starts, grad_ends, copy_ends, end_grads, end_starts = allocate(
        (rows * columns * LANES, dtype), (copied + LANES, dtype), (0 if is_direct else outputs * places, dtype),
        (rows, np.int64), (columns, np.int64), (outputs * LANES, dtype), (weights * LANES, dtype),
        (rows, np.int64), (columns, np.int64),
    )  # fmt: skip
    if memory == 0:
        return False
    for i in range(rows * columns * LANES):
        sums[i] = like(0, sums[0])
    for i in range(outputs * LANES):
        grad_ends[i] = like(0, sums[0])
    for i in range(weights * LANES):
        copy_ends[i] = like(0, sums[0])
    for o in range(rows):
        end_grads[o] = min(o, outputs - 1) * LANES
    for k in range(columns):
        end_starts[k] = min(k, weights - 1) * LANES
    plane = volume(count)
    for run in range(layout.runs * chunk // layout.chunks, layout.runs * (chunk + 1) // layout.chunks):
        sample, z, line, column = first_place(layout, run)
        own = sample * layout.groups + group
        lines, across = min(layout.lines, count[1] - line), min(layout.columns, count[2] - column)
        begin = (
            z * stride[0] - layout.before[0],
            line * stride[1] - layout.before[1],
            column * stride[2] - layout.before[2],
        )
        seen, step = lines_of_copies(layout, lines), step_of_lines(layout, lines)
        if not copy_lines(layout, image, element_type, own, begin, seen, across, step, kernel[2], copies, dtype):
            free(memory)
            return False
        write_starts(layout, lines, across, starts)
        first, found = own * outputs * plane + (z * count[1] + line) * count[2] + column, lines * across
        source = array_at(grad, 1, dtype)
        if not is_direct:
            source = converted
            for o in range(outputs):
                read_row(grad + (first + o * plane) * size, element_type, found, tail(converted, o * places))
        for o in range(rows):
            channel = min(o, outputs - 1)
            grads[o] = first + channel * plane if is_direct else channel * places
        vectors, rest = found // LANES, found % LANES
        add_run(sums, source, grads, copies, starts, outputs, weights, vectors)
        if rest > 0:
            # What is behind the end of the last line belongs to another one.
            at = vectors * LANES
            for o in range(outputs):
                for i in range(LANES):
                    grad_ends[o * LANES + i] = source[grads[o] + at + i] if i < rest else like(0, sums[0])
            for k in range(weights):
                for i in range(LANES):
                    copy_ends[k * LANES + i] = copies[starts[k] + at + i] if i < rest else like(0, sums[0])
            add_run(sums, grad_ends, end_grads, copy_ends, end_starts, outputs, weights, 1)
    result = array_at(layout.sums + number * outputs * weights * size_of(dtype), outputs * weights, dtype)
    tiles = columns // COLUMNS
    for o in range(outputs):
        for k in range(weights):
            place = (o // ROWS * tiles + k // COLUMNS) * ROWS * COLUMNS + o % ROWS * COLUMNS + k % COLUMNS
            total = like(0, sums[0])
            for lane in range(LANES):
                total = add_any_order(total, sums[place * LANES + lane])
            result[o * weights + k] = total
    free(memory)
    for at in range(outputs * weights):  # a zero of the padding was multiplied with a number that is not finite
        if result[at] != result[at] and not write_alone(
            layout, chunk, group, at, grad, image, element_type, result, dtype
        ):
            return False
    return True


@helper
def write_alone(
    layout: Blocks, chunk: int, group: int, at: int, grad: int, image: int, element_type: int, result: Array,
    dtype: Floating,
) -> bool:  # fmt: skip
    """Write the sum of a task for one weight, in which no zero of the padding has a part; whether there was memory."""
    kernel, stride, count, length = layout.kernel, layout.stride, layout.count, layout.length
    size, weights = item_size(element_type), weights_of_output(layout)
    o, k = at // weights, at % weights
    c, a = k // volume(kernel), k // (kernel[1] * kernel[2]) % kernel[0] * layout.dilation[0]
    row, column = k // kernel[2] % kernel[1] * layout.dilation[1], k % kernel[2] * layout.dilation[2]
    memory, grads, seen = allocate((count[2], dtype), (length[2], dtype))
    if memory == 0:
        return False
    total = like(0, grads[0])
    for run in range(layout.runs * chunk // layout.chunks, layout.runs * (chunk + 1) // layout.chunks):
        sample, z, first, begin = first_place(layout, run)
        own, depth = sample * layout.groups + group, z * stride[0] - layout.before[0] + a
        j = first_window(layout, 2, column, begin)
        columns = window_count(layout, 2, column, j, min(begin + layout.columns, count[2]))
        x = j * stride[2] - layout.before[2] + column
        for line in range(first, min(first + layout.lines, count[1])):
            y = line * stride[1] - layout.before[1] + row
            if columns <= 0 or depth < 0 or depth >= length[0] or y < 0 or y >= length[1]:
                continue
            place = (((own * layout.outputs + o) * count[0] + z) * count[1] + line) * count[2] + j
            read_row(grad + place * size, element_type, columns, grads)
            place = (((own * layout.inputs + c) * length[0] + depth) * length[1] + y) * length[2] + x
            read_row(image + place * size, element_type, (columns - 1) * stride[2] + 1, seen)
            for i in range(columns):
                total = add_any_order(total, grads[i] * seen[i * stride[2]])
    result[at] = total
    free(memory)
    return True


@helper
def write_weight_lines(layout: Blocks, channel: int, target: int, element_type: int, dtype: Floating) -> bool:
    """A task: add up what the tasks have of a channel of the output; returns whether there was memory."""
    weights, outputs = weights_of_output(layout), layout.outputs
    group, o = channel // outputs, channel % outputs
    memory, totals = allocate((weights, dtype))
    if memory == 0:
        return False
    for k in range(weights):
        totals[k] = like(0, totals[0])
    for chunk in range(layout.chunks):
        begin = ((group * layout.chunks + chunk) * outputs + o) * weights
        sums = array_at(layout.sums + begin * size_of(dtype), weights, dtype)
        for k in range(weights):
            totals[k] = totals[k] + sums[k]
    write_row(totals, element_type, weights, target + channel * weights * item_size(element_type))
    free(memory)
    return True
