/** Ranges of indices among the inputs of a step, such as class labels: `onnx_ops/training/ranges.py`. */
import { StepError } from "./errors.js";

/**
 * Checks the indices in a batch.
 *
 * @param {{input: string, low: number, high: number, ignored: ?number, cuts: ?number[][]}[]} ranges The input, its least
 *   index and its greatest one plus 1, a further value that is accepted, and the part with the indices: each cut,
 *   [axis, start, stop, step] or [axis, index], applies to the result of the one before.
 * @param {Object<string, {data: TypedArray, dims: number[]}>} batch
 * @throws {StepError}
 */
export function checkRanges(ranges, batch) {
  for (const { input, low, high, ignored = null, cuts = [] } of ranges) {
    const { data, dims } = batch[input];
    for (const place of places(dims, cuts)) {
      const index = data[place];
      if ((low <= index && index < high) || (ignored !== null && index == ignored)) continue; // bigint or number
      const at = dims.length > 0 ? `[${coordinates(place, dims).join(", ")}]` : "";
      const besides = ignored === null ? "" : `, or ${ignored}, which is ignored`;
      throw new StepError(`'${input}'${at} is ${index}, expected an index of ${low} to ${high - 1}${besides}`);
    }
  }
}

/** The positions in the data of a part of a tensor. */
function* places(dims, cuts) {
  let axes = dims.map((size, axis) => ({ size, stride: dims.slice(axis + 1).reduce((a, b) => a * b, 1) }));
  let first = 0;
  for (const [axis, ...cut] of cuts) {
    const { size, stride } = axes[axis];
    if (cut.length === 1) {
      const [index] = cut;
      if (index < -size || index >= size) return;
      first += stride * (index < 0 ? index + size : index);
      axes = axes.toSpliced(axis, 1);
    } else {
      const { start, count, step } = sliced(size, ...cut);
      first += stride * start;
      axes = axes.with(axis, { size: count, stride: stride * step });
    }
  }
  yield* walked(axes, first);
}

function* walked([axis, ...others], first) {
  if (axis === undefined) {
    yield first;
    return;
  }
  for (let index = 0; index < axis.size; index++) yield* walked(others, first + index * axis.stride);
}

/** The first index of a slice of Python and its number of elements. */
function sliced(size, start, stop, step) {
  const [least, most] = step > 0 ? [0, size] : [-1, size - 1];
  const within = (bound) => Math.min(Math.max(bound < 0 ? bound + size : bound, least), most);
  const first = within(start);
  return { start: first, count: Math.max(0, Math.ceil((within(stop) - first) / step)), step };
}

function coordinates(place, dims) {
  return dims.reduceRight(([rest, found], size) => [Math.floor(rest / size), [rest % size, ...found]], [place, []])[1];
}
