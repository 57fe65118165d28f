/**
 * Splits the file of a training step, as written by `Capture.save` of `onnx_ops.torch`, into a model whose state is
 * required inputs, and the initial state.
 *
 * In the file the initial state is initializers with the names of inputs, which onnxruntime-web cannot feed. They are
 * removed with a minimal protobuf reader; field numbers are those of onnx.proto.
 */

import {
  BUFFER,
  CARRIED_DOMAIN,
  CHECKSUM_METADATA,
  FORMAT,
  INFERENCE,
  NEXT,
  OPTIMIZER,
  PARAMETER,
  SEED,
  SETTING,
  STEP_METADATA,
  UNVERSIONED,
  WEIGHTS_METADATA,
} from "./format.js";

/** An invalid training step, or arguments that do not match it. */
export class StepError extends Error {
  name = "StepError";
}

const ROLES = [PARAMETER, BUFFER, OPTIMIZER, SEED, SETTING];

/** By TensorProto.DataType: name in onnxruntime-web, typed array, and field of TensorProto other than raw_data. */
const TYPES = new Map([
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
const TYPES_BY_NAME = new Map([...TYPES.values()].map((one) => [one.type, one]));

/**
 * Splits a step's file.
 *
 * @param {Uint8Array | ArrayBuffer} file Its bytes; in Node also a Buffer.
 * @param {?(Uint8Array | ArrayBuffer | Blob)} weights The safetensors file of the step, if its state is in a second file. Of
 *   a Blob, such as a File, one tensor is read at a time.
 * @returns {Promise<{
 *   model: Uint8Array,
 *   state: Object<string, {type: string, data: TypedArray, dims: number[]}>,
 *   roles: Object<string, string>,
 *   tied: Object<string, string>,
 *   conditions: {line: string, code: string, numbers: {place: number, captured: string}[], expected: string}[],
 *   inputs: Object<string, {type: string, dims: (number | string | null)[] | null}>,
 *   outputs: Object<string, {type: string, dims: (number | string | null)[] | null}>,
 *   inference: ?{model: Uint8Array, inputs: Object},
 * }>} The step without its state; the initial state; the role of each input of the state; other names of tied parameters
 *   and buffers; what the outputs with the conditions of the step say; the types of all inputs and outputs; and the inference graph, with parameters and buffers as inputs,
 *   null if the file has none. A dynamic dimension is a string or null; dims are null for an unknown rank.
 * @throws {StepError} The arguments are not bytes, or the file is no ONNX model, no training step or damaged, has types
 *   that onnxruntime-web does not support, or external data that `weights` is not the file of.
 */
export async function openStep(file, weights = null) {
  const bytes = viewed(file);
  if (bytes === null) {
    throw new StepError(`the file came as ${kind(file)}, expected the bytes of a step as Uint8Array or ArrayBuffer`);
  }
  const model = new Message(bytes, "the model");
  const graphs = model.messages(7, "the graph");
  if (graphs.length !== 1) throw new StepError(`the bytes are no ONNX model: they hold ${graphs.length} graphs`);
  const [graph] = graphs;
  const { roles, tied, conditions } = record(model);
  const inputs = types(graph.messages(11, "an input"));
  const outputs = types(graph.messages(12, "an output"));
  const starts = new Map();
  const kept = graph.fields.filter(({ number, value }) => {
    if (number !== 5) return true;
    const tensor = new Message(value, "an initializer");
    const name = tensor.text(8);
    if (!Object.hasOwn(roles, name)) return true;
    starts.set(name, tensor);
    return false;
  });
  for (const [name, role] of Object.entries(roles)) {
    if (!Object.hasOwn(inputs, name)) {
      throw new StepError(`'${name}' has the role '${role}', but the step has no input of that name`);
    }
    if (!starts.has(name)) throw new StepError(`the file lacks the start of '${name}', ${typeText(inputs[name])}`);
  }
  const external = weights === null ? null : await openWeights(model, weights);
  const state = {};
  for (const name of Object.keys(roles)) state[name] = await started(starts.get(name), name, external);
  checkTensors("the state", mapped(roles, (name) => inputs[name]), state);
  for (const name of Object.keys(outputs).filter((output) => output.startsWith(NEXT))) {
    if (!Object.hasOwn(roles, name.slice(NEXT.length))) {
      throw new StepError(`output '${name}' is the next value of '${name.slice(NEXT.length)}', which is no state`);
    }
  }
  const stateless = joined(kept.map(({ whole }) => whole));
  const chunks = model.fields.map(({ number, whole }) => (number === 7 ? field(7, stateless) : whole));
  const inference = inferenceModel(model, roles);
  return { model: joined(chunks), state, roles, tied, conditions, inputs, outputs, inference };
}

/** Roles and tied names, from the model metadata. */
function record(model) {
  const entry = model.messages(14, "the metadata").findLast((message) => message.text(1) === STEP_METADATA);
  if (entry === undefined) {
    throw new StepError(`the model is no training step: its metadata have no entry '${STEP_METADATA}'`);
  }
  const cannot = (why) => new StepError(`the entry '${STEP_METADATA}' of the model's metadata cannot be read: ${why}`);
  let found;
  try {
    found = JSON.parse(entry.text(2));
  } catch (error) {
    throw cannot(error.message);
  }
  const problem = formatProblem(found?.format);
  if (problem !== null) throw cannot(problem);
  for (const key of ["roles", "tied"]) {
    const texts = found?.[key];
    if (typeof texts !== "object" || texts === null || !Object.values(texts).every((t) => typeof t === "string")) {
      throw cannot(`'${key}' is no object of strings`);
    }
  }
  for (const [name, role] of Object.entries(found.roles)) {
    if (!ROLES.includes(role)) throw cannot(`'${name}' has the role '${role}', expected one of ${ROLES.join(", ")}`);
  }
  for (const [other, first] of Object.entries(found.tied)) {
    if (![PARAMETER, BUFFER].includes(found.roles[first])) {
      throw cannot(`'${other}' is tied to '${first}', which is no parameter and no buffer`);
    }
  }
  found.conditions ??= [];
  const isNumber = (number) => Number.isInteger(number?.place) && typeof number.captured === "string";
  const isCondition = ({ line, code, numbers, expected }) =>
    [line, code, expected].every((text) => typeof text === "string") && Array.isArray(numbers) && numbers.every(isNumber);
  if (!Array.isArray(found.conditions) || !found.conditions.every((one) => one !== null && isCondition(one))) {
    throw cannot("'conditions' is no list of conditions");
  }
  return found;
}

/** Why a version of the format is not supported; null if it is. */
function formatProblem(version = UNVERSIONED) {
  const [, major] = (typeof version === "string" && /^([1-9][0-9]{0,8})\.[0-9]{1,9}$/.exec(version)) || [];
  if (major === undefined) {
    return `its format version is ${JSON.stringify(version)}, expected a string such as "${FORMAT}"`;
  }
  if (Number(major) <= Number.parseInt(FORMAT, 10)) return null;
  return `its format version is ${version}, expected at most ${FORMAT}: update onnx_ops`;
}

/** The inference graph as a model, null if there is none. Nodes and types are copied as bytes. */
function inferenceModel(model, roles) {
  const found = model.of(25).find(({ value }) => {
    const message = new Message(value, "a function");
    return message.text(10) === CARRIED_DOMAIN && message.text(1) === INFERENCE;
  });
  if (found === undefined) return null;
  const graph = new Message(found.value, "the inference graph");
  const infos = new Map(graph.of(12).map((one) => [new Message(one.value, "a type").text(1), one.value]));
  const info = (name) => {
    if (!infos.has(name)) throw new StepError(`'${name}' of the inference graph has no type`);
    return infos.get(name);
  };
  const names = graph.texts(4);
  const imported = new Set(graph.messages(9, "an import").map((message) => message.text(1)).concat(CARRIED_DOMAIN));
  const whole = joined([
    ...graph.of(7).map(({ value }) => field(1, value)),
    field(2, new TextEncoder().encode(INFERENCE)),
    ...names.map((name) => field(11, info(name))),
    ...graph.texts(5).map((name) => field(12, info(name))),
  ]);
  const chunks = [
    ...model.of(1).map((one) => one.whole),
    ...graph.of(9).map(({ value }) => field(8, value)),
    ...model.of(8).filter(({ value }) => !imported.has(new Message(value, "an import").text(1))).map((one) => one.whole),
    ...model.of(25).filter((one) => one !== found).map((one) => one.whole),
    field(7, whole),
  ];
  return { model: joined(chunks), inputs: types(names.map((name) => new Message(info(name), "an input"))) };
}

// Types

/** The types in ValueInfoProto messages, by name. */
function types(values) {
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

function noTensors(name, element) {
  const what = element === 16 ? "bfloat16" : `of type ${element} of TensorProto.DataType`;
  return new StepError(`'${name}' is ${what}, and onnxruntime-web has no such tensors`);
}

/** A type in error messages: "float32 (N, 3)". */
export function typeText({ type, dims }) {
  if (dims === null) return `${type} of unknown shape`;
  const sizes = dims.map((dim) => dim ?? "?");
  return `${type} (${sizes.join(", ")}${sizes.length === 1 ? "," : ""})`;
}

/**
 * Checks that `given` has a tensor, or {type, data, dims}, of each of the `wanted` types and no others, and that
 * dimensions of the same name are equal.
 *
 * @throws {StepError}
 */
export function checkTensors(what, wanted, given) {
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
}

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
    const known = sizes.get(dim) ?? { size, name };
    sizes.set(dim, known);
    if (known.size !== size) throw refused(` with ${dim} = ${known.size} as in '${known.name}'`);
  });
}

// Tensors

/** {type, data, dims} of a TensorProto message, with a copy of the data; `external` as of `openWeights`. */
async function started(tensor, name, external) {
  const element = Number(tensor.integer(2));
  if (!TYPES.has(element)) throw noTensors(name, element);
  const { type, array, field: typed } = TYPES.get(element);
  const dims = tensor.integers(1).map(Number);
  if (tensor.integer(14) !== 0n) {
    const data = await externalData(tensor, name, external);
    return { type, data: ownData({ type, data, dims }, name, false), dims };
  }
  const raw = tensor.of(9).at(-1);
  const data = raw ? bytesOf(raw.value, name) : listed(tensor, typed, array, name);
  return { type, data: ownData({ type, data, dims }, name), dims };
}

function listed(tensor, typed, array, name) {
  if (array === Float32Array || array === Float64Array) {
    return joined(tensor.of(typed).map(({ value }) => bytesOf(value, name)));
  }
  const values = tensor.integers(typed);
  return array === BigInt64Array || array === BigUint64Array ? array.from(values) : array.from(values, Number);
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
  const count = dims.reduce((product, dim) => product * dim, 1);
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
function viewed(data) {
  if (ArrayBuffer.isView(data)) return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  return ["ArrayBuffer", "SharedArrayBuffer"].includes(kind(data)) ? new Uint8Array(data) : null;
}

/** The class name of a value, such as "ArrayBuffer", also for values of other realms. */
function kind(value) {
  return Object.prototype.toString.call(value).slice("[object ".length, -1);
}

// External data

/**
 * The safetensors file of a step.
 *
 * @returns {{file: string, size: number, offset: number, header: Object, read: function(number, number)}} Its name in the
 *   model, its size, the offset of the tensors, their entries by name, and a function that reads from one position to
 *   another one as ArrayBuffer.
 * @throws {StepError} It is not the file that was saved with the step.
 */
async function openWeights(model, weights) {
  const isBlob = ["Blob", "File"].includes(kind(weights));
  const bytes = isBlob ? null : viewed(weights);
  if (bytes === null && !isBlob) {
    throw new StepError(`the weights came as ${kind(weights)}, expected a Blob or bytes as Uint8Array or ArrayBuffer`);
  }
  const size = isBlob ? weights.size : bytes.length;
  const read = async (start, end) => {
    return isBlob ? weights.slice(start, end).arrayBuffer() : bytes.slice(start, end).buffer;
  };
  const entry = model.messages(14, "the metadata").findLast((message) => message.text(1) === WEIGHTS_METADATA);
  if (entry === undefined) throw new StepError("weights are given, and the step was saved as one file");
  try {
    const { file, sha256 } = JSON.parse(entry.text(2));
    if (size < 8) throw new SyntaxError("it is too short for a header");
    const offset = 8 + Number(new DataView(await read(0, 8)).getBigUint64(0, true));
    if (offset > size) throw new SyntaxError("it is too short for its header");
    const header = JSON.parse(new TextDecoder().decode(await read(8, offset)));
    if (header?.__metadata__?.[CHECKSUM_METADATA] !== sha256) throw new SyntaxError("it has another checksum");
    return { file, size, offset, header, read };
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    throw new StepError(`the weights are not the file that was saved with the step: ${error.message}`);
  }
}

/** The data of a TensorProto message that are in the safetensors file, as ArrayBuffer. */
async function externalData(tensor, name, external) {
  const entries = new Map(tensor.messages(13, name).map((message) => [message.text(1), message.text(2)]));
  const file = entries.get("location");
  if (external === null || file !== external.file) {
    throw new StepError(`'${name}' has its data in another file, '${file}'; pass that of the step as weights`);
  }
  const [start, length] = ["offset", "length"].map((key) => Number(entries.get(key)));
  const [first, end] = external.header[name]?.data_offsets ?? [];
  if (first + external.offset !== start || end - first !== length || start + length > external.size) {
    throw new StepError(`the weights are not the file that was saved with the step: '${name}' is not where it was`);
  }
  return external.read(start, start + length);
}

// Protobuf

const ENDS_EARLY = "the bytes end too early";

/** A message, as the list of its fields. */
class Message {
  /** @param what Name of the message, for errors. */
  constructor(bytes, what) {
    this.what = what;
    this.fields = [];
    const reader = new Reader(bytesOf(bytes, what), what);
    while (!reader.done) {
      const start = reader.at;
      const tag = reader.varint();
      const value = reader.value(Number(tag & 7n));
      this.fields.push({ number: Number(tag >> 3n), value, whole: reader.bytes.subarray(start, reader.at) });
    }
  }

  of(number) {
    return this.fields.filter((one) => one.number === number);
  }

  messages(number, what) {
    return this.of(number).map(({ value }) => new Message(value, what));
  }

  texts(number) {
    return this.of(number).map(({ value }) => {
      try {
        return new TextDecoder("utf-8", { fatal: true }).decode(bytesOf(value, this.what));
      } catch (error) {
        throw error instanceof TypeError ? damaged(this.what, "a text is no UTF-8") : error;
      }
    });
  }

  text(number) {
    return this.texts(number).at(-1) ?? "";
  }

  /** Signed 64-bit integers, packed or not. */
  integers(number) {
    return this.of(number)
      .flatMap(({ value }) => (typeof value === "bigint" ? value : [...packed(value, this.what)]))
      .map((value) => BigInt.asIntN(64, value));
  }

  integer(number) {
    return this.integers(number).at(-1) ?? 0n;
  }
}

class Reader {
  constructor(bytes, what) {
    Object.assign(this, { bytes, what, at: 0 });
  }

  get done() {
    return this.at === this.bytes.length;
  }

  varint() {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      if (this.done) throw damaged(this.what, ENDS_EARLY);
      const byte = this.bytes[this.at++];
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    throw damaged(this.what, "a number has more than 10 bytes");
  }

  value(wireType) {
    if (wireType === 0) return this.varint();
    if (wireType === 1) return this.take(8);
    if (wireType === 2) return this.take(Number(this.varint()));
    if (wireType === 5) return this.take(4);
    throw damaged(this.what, `no field has the wire type ${wireType}`);
  }

  take(count) {
    if (count > this.bytes.length - this.at) throw damaged(this.what, ENDS_EARLY);
    this.at += count;
    return this.bytes.subarray(this.at - count, this.at);
  }
}

function* packed(bytes, what) {
  const reader = new Reader(bytes, what);
  while (!reader.done) yield reader.varint();
}

function bytesOf(value, what) {
  if (typeof value === "bigint") throw damaged(what, "a number stands where bytes are expected");
  return value;
}

function damaged(what, why) {
  return new StepError(`the bytes are no ONNX model, or damaged: in ${what}, ${why}`);
}

/** A length-delimited field. */
function field(number, bytes) {
  return joined([varint((number << 3) | 2), varint(bytes.length), bytes]);
}

function varint(value) {
  const bytes = [];
  for (; value >= 0x80; value = Math.floor(value / 0x80)) bytes.push((value % 0x80) | 0x80);
  return Uint8Array.of(...bytes, value);
}

function joined(chunks) {
  const result = new Uint8Array(chunks.reduce((size, chunk) => size + chunk.length, 0));
  let at = 0;
  for (const chunk of chunks) {
    result.set(chunk, at);
    at += chunk.length;
  }
  return result;
}

/** An object with the same keys and the values `make(key)`. */
function mapped(object, make) {
  return Object.fromEntries(Object.keys(object).map((name) => [name, make(name)]));
}
