/**
 * The safetensors format: the length of a header, the header in JSON, and the bytes of the tensors, laid out as by
 * onnx_ops in Python. https://huggingface.co/docs/safetensors describes it.
 */
import { StepError } from "./errors.js";
import { mapped } from "./objects.js";
import { joined } from "./protobuf.js";
import { bytesOfTensor, elementCount, elementsOf, kind, viewed } from "./tensors.js";

/** Types in safetensors files. Tensors of the first ones come first, so that all are aligned. */
const DTYPES = {
  uint64: "U64",
  int64: "I64",
  float64: "F64",
  float32: "F32",
  uint32: "U32",
  int32: "I32",
  float16: "F16",
  uint16: "U16",
  int16: "I16",
  int8: "I8",
  uint8: "U8",
  bool: "BOOL",
};
const ORDER = Object.keys(DTYPES);
const TYPES = Object.fromEntries(Object.entries(DTYPES).map(([type, dtype]) => [dtype, type]));

const METADATA = "__metadata__";
const LENGTH = 8; // bytes of the header's length, of which the header's length is a multiple
const LONGEST_HEADER = 100_000_000; // bytes, as in the library safetensors

/**
 * The bytes of a file.
 *
 * @param {Object<string, {type: string, data: TypedArray, dims: number[]}>} tensors
 * @param {Object<string, string>} metadata
 * @returns {Uint8Array}
 */
export function safetensors(tensors, metadata) {
  const rank = (name) => ORDER.indexOf(tensors[name].type);
  const names = Object.keys(tensors).sort((one, other) => rank(one) - rank(other) || byCodePoints(one, other));
  let end = 0;
  const entries = names.map((name) => {
    const { type, dims, data } = tensors[name];
    const entry = { dtype: DTYPES[type], shape: dims, data_offsets: [end, (end += data.byteLength)] };
    return `${JSON.stringify(name)}:${JSON.stringify(entry)}`;
  });
  const texts = sortedEntries(metadata).map((entry) => entry.map((text) => JSON.stringify(text)).join(":"));
  // Not an object: its keys "0", "1", ... would come first.
  const header = new TextEncoder().encode(`{${[`"${METADATA}":{${texts.join(",")}}`, ...entries].join(",")}}`);
  const padding = new Uint8Array((LENGTH - (header.length % LENGTH)) % LENGTH).fill(0x20);
  const length = new Uint8Array(BigUint64Array.of(BigInt(header.length + padding.length)).buffer);
  return joined([length, header, padding, ...names.map((name) => bytesOfTensor(tensors[name]))]);
}

/**
 * The contents of a file.
 *
 * @param {Uint8Array | ArrayBuffer | Blob} file Of a Blob, such as a File, only the header is read.
 * @param {string} what The file, for errors.
 * @returns {Promise<{
 *   tensors: Object<string, {type: string, dims: number[], start: number, end: number}>,
 *   metadata: Object<string, string>,
 *   read: function(number, number): Promise<ArrayBuffer>,
 * }>} Types and positions of the tensors, the metadata, and a function that copies the bytes between two positions.
 * @throws {StepError} It is no safetensors file, or it has a dtype that JavaScript does not have.
 */
export async function openSafetensors(file, what) {
  const isBlob = ["Blob", "File"].includes(kind(file));
  const bytes = isBlob ? null : viewed(file);
  if (bytes === null && !isBlob) {
    throw new StepError(`${what} came as ${kind(file)}, expected a Blob or bytes as Uint8Array or ArrayBuffer`);
  }
  const size = isBlob ? file.size : bytes.length;
  const read = async (start, end) => (isBlob ? file.slice(start, end).arrayBuffer() : bytes.slice(start, end).buffer);
  const require = (holds, problem) => {
    if (!holds) throw new StepError(`${what} is no safetensors file: ${problem}`);
  };
  require(size >= LENGTH, "it is too short for a header");
  const length = Number(new DataView(await read(0, LENGTH)).getBigUint64(0, true));
  require(length <= Math.min(size - LENGTH, LONGEST_HEADER), `its header would have ${length} bytes`);
  const header = parsed(await read(LENGTH, LENGTH + length), require);
  const metadata = header[METADATA] ?? {};
  delete header[METADATA];
  const isTexts = isObject(metadata) && Object.values(metadata).every((text) => typeof text === "string");
  require(isTexts, `its '${METADATA}' is no object of strings`);
  const tensors = mapped(header, (entry, name) => {
    const { dtype, shape, data_offsets: offsets } = entry ?? {};
    const isEntry = typeof dtype === "string" && areSizes(shape) && areSizes(offsets) && offsets.length === 2;
    require(isEntry, `'${name}' is ${JSON.stringify(entry)}, expected dtype, shape and data_offsets`);
    const type = TYPES[dtype];
    if (type === undefined) throw new StepError(`'${name}' in ${what} is of dtype ${dtype}, which has no typed array`);
    const bytesOfAll = elementCount(shape) * elementsOf(type).size;
    require(offsets[1] - offsets[0] === bytesOfAll, `'${name}' has ${offsets[1] - offsets[0]} bytes`);
    const [start, end] = offsets.map((offset) => LENGTH + length + offset);
    return { type, dims: shape, start, end };
  });
  let end = LENGTH + length;
  for (const tensor of Object.values(tensors).sort((one, other) => one.start - other.start || one.end - other.end)) {
    require(tensor.start === end, "its tensors do not follow one another");
    end = tensor.end;
  }
  require(end === size, `its tensors end at byte ${end}, the file at ${size}`);
  return { tensors, metadata, read };
}

function parsed(bytes, require) {
  let header;
  try {
    header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch (error) {
    require(false, `its header is no JSON: ${error.message}`);
  }
  require(isObject(header), "its header is no object");
  return header;
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function areSizes(value) {
  return Array.isArray(value) && value.every((size) => Number.isSafeInteger(size) && size >= 0);
}

/** The entries of an object, in the order of the code points of the keys, as Python sorts strings. */
export function sortedEntries(object) {
  return Object.entries(object).sort(([one], [other]) => byCodePoints(one, other));
}

function byCodePoints(one, other) {
  const [mine, its] = [Array.from(one, codePoint), Array.from(other, codePoint)];
  const at = mine.findIndex((point, index) => point !== its[index]);
  return at < 0 ? mine.length - its.length : mine[at] - (its[at] ?? -1);
}

function codePoint(character) {
  return character.codePointAt(0);
}
