/** The types of tensors, and checks of them. */
import { StepError } from "./errors.js";

/** By TensorProto.DataType: name in onnxruntime, typed array, and field of TensorProto other than raw_data. */
export const TYPES = new Map([
  [1, { type: "float32", array: Float32Array, field: 4 }],
  [2, { type: "uint8", array: Uint8Array, field: 5 }],
  [3, { type: "int8", array: Int8Array, field: 5 }],
  [4, { type: "uint16", array: Uint16Array, field: 5 }],
  [5, { type: "int16", array: Int16Array, field: 5 }],
  [6, { type: "int32", array: Int32Array, field: 5 }],
  [7, { type: "int64", array: BigInt64Array, field: 7 }],
  [9, { type: "bool", array: Uint8Array, field: 5 }],
  [10, { type: "float16", array: Uint16Array, field: 5 }], // its bits
  [11, { type: "float64", array: Float64Array, field: 10 }],
  [12, { type: "uint32", array: Uint32Array, field: 11 }],
  [13, { type: "uint64", array: BigUint64Array, field: 11 }],
]);
const TYPES_BY_NAME = new Map([...TYPES].map(([element, one]) => [one.type, { element, ...one }]));

/** The number of a type in TensorProto.DataType. */
export function elementNumber(type) {
  return TYPES_BY_NAME.get(type).element;
}

/** The types in ValueInfoProto messages, by name. */
export function typesOf(values) {
  return Object.fromEntries(values.map((value) => [value.text(1), typeOf(value)]));
}

function typeOf(value) {
  const [tensor] = value.messages(2, "a type").flatMap((type) => type.messages(1, "a tensor's type"));
  const element = Number(tensor?.integer(1) ?? 0n);
  if (!TYPES.has(element)) throw noTensors(value.text(1), element);
  const [shape] = tensor.messages(2, "a shape");
  const dims = shape?.messages(1, "a dimension").map((dim) => {
    return dim.of(1).length > 0 ? Number(dim.integer(1)) : dim.text(2) || null;
  });
  return { type: TYPES.get(element).type, dims: dims ?? null };
}

/** The error for a tensor whose TensorProto.DataType onnxruntime-web does not have. */
export function noTensors(name, element) {
  const what = element === 16 ? "bfloat16" : `of type ${element} of TensorProto.DataType`;
  return new StepError(`'${name}' is ${what}, and JavaScript has no such tensors`);
}

/** A type in error messages: "float32 (N, 3)". */
export function typeText({ type, dims }) {
  if (dims === null) return `${type} of unknown shape`;
  const sizes = dims.map((dim) => dim ?? "?");
  return `${type} (${sizes.join(", ")}${sizes.length === 1 ? "," : ""})`;
}

/**
 * Checks that `given` has a tensor, or {type, data, dims}, of each of the `wanted` types and no others, that dimensions of
 * the same name are equal, and that they are within their bounds.
 *
 * @param {string} what Is checked, for errors.
 * @param {Object<string, {min: number, max: ?number}>} bounds The sizes that named dimensions may have.
 * @throws {StepError}
 */
export function checkTensors(what, wanted, given, bounds = {}) {
  const missing = Object.keys(wanted).filter((name) => given[name] === undefined);
  const unknown = Object.keys(given).filter((name) => !Object.hasOwn(wanted, name));
  const problems = [];
  if (missing.length > 0) {
    problems.push(`lacks ${missing.map((name) => `'${name}' (${typeText(wanted[name])})`).join(", ")}`);
  }
  if (unknown.length > 0) {
    const known = Object.keys(wanted).map((name) => `'${name}'`).join(", ") || "nothing";
    problems.push(`has ${unknown.map((name) => `'${name}'`).join(", ")}, where the step wants ${known}`);
  }
  if (problems.length > 0) throw new StepError(`${what} ${problems.join(" and ")}`);
  const sizes = new Map();
  for (const [name, type] of Object.entries(wanted)) checkTensor(name, type, given[name], sizes);
  for (const [dim, { min, max }] of Object.entries(bounds)) {
    const { size, name } = sizes.get(dim) ?? { size: min };
    if (min <= size && (max === null || size <= max)) continue;
    const range = max === null ? `>= ${min}` : `from ${min} to ${max}`;
    throw new StepError(`'${name}' is ${typeText(given[name])}, expected ${typeText(wanted[name])} with ${dim} ${range}`);
  }
}

/** The name of a dimension in terms of another one, such as "2*pairs + 1". */
const MULTIPLE = /^(?:([1-9]\d{0,8})\*)?([A-Za-z_]\w*)(?: ([+-]) (\d{1,9}))?$/;

/** `sizes` has the size of each named dimension so far, with the name of the input. */
function checkTensor(name, wanted, tensor, sizes) {
  if (typeof tensor?.type !== "string" || !Array.isArray(tensor.dims)) {
    throw new StepError(`'${name}' is no tensor, expected ${typeText(wanted)}`);
  }
  const refused = (more = "") => {
    return new StepError(`'${name}' is ${typeText(tensor)}, expected ${typeText(wanted)}${more}`);
  };
  if (tensor.type !== wanted.type) throw refused();
  if (wanted.dims === null) return;
  if (tensor.dims.length !== wanted.dims.length) throw refused();
  wanted.dims.forEach((dim, axis) => {
    const size = tensor.dims[axis];
    if (typeof dim === "number" && dim !== size) throw refused();
    if (typeof dim !== "string") return;
    const enter = (own, given) => {
      const known = sizes.get(own) ?? { size: given, name };
      sizes.set(own, known);
      if (known.size !== given) throw refused(` with ${own} = ${known.size} as in '${known.name}'`);
    };
    enter(dim, size);
    const [, factor = 1, root = dim, sign, offset = 0] = MULTIPLE.exec(dim) ?? [];
    if (root === dim) return;
    const more = size - (sign === "-" ? -offset : Number(offset));
    if (more < 0 || more % factor !== 0) throw refused(` for a number ${root}`);
    enter(root, more / factor);
  });
}

/** The number of elements of a tensor. */
export function elementCount(dims) {
  return dims.reduce((product, dim) => product * dim, 1);
}

/** The typed array of a type's elements, and the bytes of one. */
export function elementsOf(type) {
  const { array } = TYPES_BY_NAME.get(type);
  return { array, size: array.BYTES_PER_ELEMENT };
}

/** The bytes of a tensor's data, without copying. */
export function bytesOfTensor({ data }) {
  return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
}

/**
 * The data of a tensor, as typed array.
 *
 * @param {{type: string, data: TypedArray | ArrayBuffer | Array, dims: number[]}} tensor Its data are a typed array, the
 *   little-endian bytes of one, which need not be aligned, or an array of numbers, which is copied as array.
 * @param {string} name Of the tensor, for errors.
 * @param {boolean} copies Whether the result is a copy; else it has the memory of the data, an ArrayBuffer.
 * @throws {StepError} The data are of another type, or their number of elements is not that of the dimensions.
 */
export function ownData({ type, data, dims }, name, copies = true) {
  const { array } = TYPES_BY_NAME.get(type);
  const count = elementCount(dims);
  const own = Array.isArray(data) ? data.slice() : elements(data, array, name, copies);
  if (own.length !== count || dims.some((dim) => dim < 0)) {
    throw new StepError(`'${name}' is ${typeText({ type, dims })}, but has ${own.length} elements`);
  }
  return own;
}

function elements(data, array, name, copies) {
  const bytes = viewed(data);
  const kinds = [array.name, "Uint8Array", "DataView", ...(array === Uint16Array ? ["Float16Array"] : [])];
  if (bytes === null || (ArrayBuffer.isView(data) && !kinds.includes(kind(data)))) {
    throw new StepError(`the data of '${name}' are ${kind(data)}, expected ${array.name} or its bytes as Uint8Array`);
  }
  if (bytes.length % array.BYTES_PER_ELEMENT !== 0) {
    throw new StepError(`the data of '${name}' are ${bytes.length} bytes, no multiple of ${array.BYTES_PER_ELEMENT}`);
  }
  return new array(copies ? bytes.slice().buffer : bytes.buffer); // typed arrays require aligned memory
}

/**
 * The bytes of an ArrayBuffer or a view as Uint8Array; null for other values. Never a Buffer of Node, whose `slice` does
 * not copy.
 */
export function viewed(data) {
  if (ArrayBuffer.isView(data)) return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  return ["ArrayBuffer", "SharedArrayBuffer"].includes(kind(data)) ? new Uint8Array(data) : null;
}

/** The class name of a value, such as "ArrayBuffer", also for values of other realms. */
export function kind(value) {
  return Object.prototype.toString.call(value).slice("[object ".length, -1);
}

