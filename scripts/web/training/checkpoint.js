/** Checkpoints: tensors in a safetensors file with a checksum, as onnx_ops in Python writes and reads them. */
import { StepError } from "./errors.js";
import { CHECKSUM_METADATA, FORMAT, FORMAT_METADATA, UNCONDITIONAL, UNVERSIONED } from "./format.js";
import { filtered } from "./objects.js";
import { openSafetensors, safetensors, sortedEntries } from "./safetensors.js";
import { sha256 } from "./sha256.js";
import { bytesOfTensor, ownData } from "./tensors.js";

/**
 * The bytes of a checkpoint.
 *
 * @param {Object<string, {type: string, data: TypedArray, dims: number[]}>} tensors
 * @param {Object<string, string>} metadata
 * @throws {StepError} The metadata are no strings.
 */
export function checkpoint(tensors, metadata) {
  for (const [key, text] of Object.entries(metadata)) {
    if (typeof text !== "string") throw new StepError(`the metadata have ${typeof text} for '${key}', expected a string`);
  }
  const texts = { ...metadata, [FORMAT_METADATA]: UNCONDITIONAL };
  return safetensors(tensors, { ...texts, [CHECKSUM_METADATA]: checksum(tensors, texts) });
}

/**
 * The tensors of a checkpoint, and its metadata without checksum and format version.
 *
 * @param {Uint8Array | ArrayBuffer | Blob} file
 * @throws {StepError} It is no safetensors file, has a dtype that JavaScript does not have, a format version that is not
 *   supported, or a wrong checksum. Files of other programs, without format version and checksum, are read too.
 */
export async function openCheckpoint(file) {
  const { tensors: places, metadata, read } = await openSafetensors(file, "the checkpoint");
  const problem = formatProblem(metadata[FORMAT_METADATA]);
  if (problem !== null) throw new StepError(`the checkpoint cannot be read: ${problem}`);
  const entries = [];
  for (const [name, { type, dims, start, end }] of Object.entries(places)) {
    entries.push([name, { type, dims, data: ownData({ type, dims, data: await read(start, end) }, name, false) }]);
  }
  const tensors = Object.fromEntries(entries);
  const texts = filtered(metadata, (key) => key !== CHECKSUM_METADATA);
  const expected = metadata[CHECKSUM_METADATA];
  if (expected !== undefined && expected !== checksum(tensors, texts)) {
    throw new StepError("the checkpoint is damaged: its contents do not have the checksum that it was written with");
  }
  return { tensors, metadata: filtered(texts, (key) => key !== FORMAT_METADATA) };
}

/** Why a version of the format is not supported; null if it is. */
export function formatProblem(version = UNVERSIONED) {
  const [, major] = (typeof version === "string" && /^([1-9][0-9]{0,8})\.[0-9]{1,9}$/.exec(version)) || [];
  if (major === undefined) {
    return `its format version is ${JSON.stringify(version)}, expected a string such as "${FORMAT}"`;
  }
  if (Number(major) <= Number.parseInt(FORMAT, 10)) return null;
  return `its format version is ${version}, expected at most ${FORMAT}: update onnx_ops`;
}

/** SHA-256 of names, types, shapes and bytes of the tensors, and of the metadata. */
function checksum(tensors, metadata) {
  const sorted = sortedEntries(tensors);
  const types = sorted.map(([name, { type, dims }]) => [name, type, dims]);
  const described = new TextEncoder().encode(jsonOfPython([types, sortedEntries(metadata)]));
  return sha256([described, ...sorted.map(([, tensor]) => bytesOfTensor(tensor))]);
}

/** Arrays, strings and integers as `json.dumps` of Python writes them. */
function jsonOfPython(value) {
  if (Array.isArray(value)) return `[${value.map(jsonOfPython).join(", ")}]`;
  const escaped = (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return JSON.stringify(value).replace(/[\x7f-\uffff]/g, escaped);
}
