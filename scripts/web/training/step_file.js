/**
 * Splits the file of a training step, as written by `Capture.save` of `onnx_ops.torch`, into a model whose state is
 * required inputs, and the initial state.
 *
 * In the file the initial state is initializers with the names of inputs, which onnxruntime cannot feed in JavaScript. They are
 * removed with a minimal protobuf reader; field numbers are those of onnx.proto.
 */
import { carriedModel } from "./carried.js";
import { checkConditionOutputs } from "./conditions.js";
import { StepError } from "./errors.js";
import { CHECKSUM_METADATA, EVALUATION, INFERENCE, NEXT, WEIGHTS_METADATA } from "./format.js";
import { mapped } from "./objects.js";
import { Message, bytesOf, field, joined } from "./protobuf.js";
import { recordOf } from "./record.js";
import { openSafetensors } from "./safetensors.js";
import { TYPES, checkTensors, kind, noTensors, ownData, typeText, typesOf, viewed } from "./tensors.js";

/**
 * Splits a step's file.
 *
 * @param {Uint8Array | ArrayBuffer} file Its bytes; in Node also a Buffer.
 * @param {?(Uint8Array | ArrayBuffer | Blob)} weights The safetensors file of the step, if its state is in a second file. Of
 *   a Blob, such as a File, one tensor is read at a time.
 * @returns {Promise<{
 *   model: Uint8Array,
 *   state: Object<string, {type: string, data: TypedArray, dims: number[]}>,
 *   record: Object,
 *   inputs: Object<string, {type: string, dims: (number | string | null)[] | null}>,
 *   outputs: Object<string, {type: string, dims: (number | string | null)[] | null}>,
 *   carried: Object<string, ?{model: Uint8Array, inputs: Object}>,
 * }>} The step without its state; the initial state; what `recordOf` returns; the types of all inputs and outputs; and what
 *   `carriedModel` returns of the inference graph and the loss in evaluation mode. A dynamic dimension is a string or null;
 *   dims are null for an unknown rank.
 * @throws {StepError} The arguments are not bytes, or the file is no ONNX model, no training step or damaged, has types
 *   that JavaScript does not support, or external data that `weights` is not the file of.
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
  const record = recordOf(model);
  const { roles } = record;
  const inputs = typesOf(graph.messages(11, "an input"));
  const outputs = typesOf(graph.messages(12, "an output"));
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
  const start = [];
  for (const name of Object.keys(roles)) start.push([name, await started(starts.get(name), name, external)]);
  const state = Object.fromEntries(start);
  checkTensors("the state", mapped(roles, (_, name) => inputs[name]), state);
  for (const { input } of record.ranges) {
    if (!Object.hasOwn(inputs, input) || Object.hasOwn(roles, input)) {
      throw new StepError(`'${input}' has a range of indices, but is no input of the batch`);
    }
  }
  for (const name of Object.keys(outputs).filter((output) => output.startsWith(NEXT))) {
    if (!Object.hasOwn(roles, name.slice(NEXT.length))) {
      throw new StepError(`output '${name}' is the next value of '${name.slice(NEXT.length)}', which is no state`);
    }
  }
  checkConditionOutputs(record.conditions, outputs);
  const stateless = joined(kept.map(({ whole }) => whole));
  const chunks = model.fields.map(({ number, whole }) => (number === 7 ? field(7, stateless) : whole));
  const carried = Object.fromEntries([INFERENCE, EVALUATION].map((name) => [name, carriedModel(model, name)]));
  return { model: joined(chunks), state, record, inputs, outputs, carried };
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

// External data

/**
 * The safetensors file of a step: its name in the model, and its contents.
 *
 * @throws {StepError} It is not the file that was saved with the step.
 */
async function openWeights(model, weights) {
  const entry = model.messages(14, "the metadata").findLast((message) => message.text(1) === WEIGHTS_METADATA);
  if (entry === undefined) throw new StepError("weights are given, and the step was saved as one file");
  const contents = await openSafetensors(weights, "the file of weights");
  const { file, sha256 } = JSON.parse(entry.text(2));
  if (contents.metadata[CHECKSUM_METADATA] !== sha256) {
    throw new StepError("the weights are not the file that was saved with the step: it has another checksum");
  }
  return { file, ...contents };
}

/** The data of a TensorProto message that are in the safetensors file, as ArrayBuffer. */
async function externalData(tensor, name, external) {
  const entries = new Map(tensor.messages(13, name).map((message) => [message.text(1), message.text(2)]));
  const file = entries.get("location");
  if (external === null || file !== external.file) {
    throw new StepError(`'${name}' has its data in another file, '${file}'; pass that of the step as weights`);
  }
  const [offset, length] = ["offset", "length"].map((key) => Number(entries.get(key)));
  const { start, end } = external.tensors[name] ?? {};
  if (start !== offset || end - start !== length) {
    throw new StepError(`the weights are not the file that was saved with the step: '${name}' is not where it was`);
  }
  return external.read(start, end);
}
