// Runs ONNX models on the CPU, controlled by another process through pipes: in onnxruntime-web (WebAssembly), or in the
// package that is the program's argument, onnxruntime-node.
//
// It reads requests from stdin, one JSON object per line, and writes a response for each to stdout, in the same order:
//
//   {"load": model, "options"?: session options}     -> {"session": number, "outputs": names}
//   {"run": number, "feeds": {name: tensor}}         -> {"results": {name: tensor}}
//   {"release": number}                              -> {}
//   {"train": model, "weights"?: safetensors file, "blob"?: whether to pass it as Blob, "options"?: session options}
//                                                    -> {"trainer": number, "inputs": types of the batch}
//   {"ask": number, "method": name, "tensors"?: {name: tensor}, "options"?: second argument}
//                                                    -> {"results": {name: tensor}} of a method of the trainer
//   {"write": number, "method": "save" or "export", "options"?: argument}
//                                                    -> {"file": file}
//   {"read": number, "file": file, "blob"?: whether to pass it as Blob, "options"?: second argument of load}
//                                                    -> {"metadata": that of the checkpoint}
//   {"rates": number, "values"?: numbers}            -> {"rates": learning rates}, set before if values are given
//   {"seed": number, "value"?: text}                 -> {"seed": text}, set before if a value is given
//
// or {"error": text}. A model or file is its bytes in base64; a tensor is {"type", "dims", "data"} with the type's name in
// onnxruntime-web and the little-endian bytes of the elements in base64. The program ends at the end of stdin.

import { createInterface } from "node:readline";
import { Trainer } from "./training/trainer.js";

const ARRAYS = {
  bool: Uint8Array,
  int8: Int8Array,
  uint8: Uint8Array,
  int16: Int16Array,
  uint16: Uint16Array,
  int32: Int32Array,
  uint32: Uint32Array,
  int64: BigInt64Array,
  uint64: BigUint64Array,
  float16: Uint16Array, // its bits
  float32: Float32Array,
  float64: Float64Array,
};

const [runtime = "onnxruntime-web"] = process.argv.slice(2);
const executionProviders = [runtime === "onnxruntime-web" ? "wasm" : "cpu"];
const ort = await import(runtime);

const QUIET = { logSeverityLevel: 4 }; // errors are in the response
ort.env.logLevel = "fatal";
Object.assign(ort.env.wasm, { numThreads: 1, proxy: false });
console.log = console.error; // stdout is for responses

const sessions = new Map(); // sessions and trainers
let loaded = 0;

const HANDLERS = {
  async load({ load, options }) {
    const session = await ort.InferenceSession.create(bytes(load), settings(options));
    sessions.set(++loaded, session);
    return { session: loaded, outputs: session.outputNames };
  },

  async run({ run, feeds }) {
    const results = await known(run).run(mapped(feeds, tensor), QUIET);
    return { results: mapped(results, plain) };
  },

  async release({ release }) {
    await known(release).release();
    sessions.delete(release);
    return {};
  },

  async train({ train, weights, blob, options }) {
    const second = weights === undefined ? null : file(weights, blob);
    const trainer = await Trainer.create(ort, file(train), { weights: second, sessionOptions: settings(options) });
    sessions.set(++loaded, trainer);
    return { trainer: loaded, inputs: trainer.batchInputs };
  },

  async ask({ ask, method, tensors = {}, options }) {
    const results = await known(ask)[method](mapped(tensors, tensor), options);
    return { results: method === "loadState" ? {} : mapped(results, plain) };
  },

  async write({ write, method, options }) {
    return { file: Buffer.from(await known(write)[method](options)).toString("base64") };
  },

  async read({ read, file: checkpoint, blob, options }) {
    return { metadata: await known(read).load(file(checkpoint, blob), options) };
  },

  async rates({ rates, values }) {
    const trainer = known(rates);
    if (values !== undefined) trainer.learningRate = values;
    return { rates: trainer.learningRate };
  },

  async seed({ seed, value }) {
    const trainer = known(seed);
    if (value !== undefined) trainer.seed = BigInt(value);
    return { seed: String(trainer.seed) };
  },
};

function settings(options) {
  return { ...QUIET, ...options, executionProviders };
}

function known(number) {
  const session = sessions.get(number);
  if (session === undefined) throw new Error(`no session ${number}`);
  return session;
}

function bytes(base64) {
  return new Uint8Array(Buffer.from(base64, "base64")); // a copy: the offset of a Buffer may be unaligned
}

function file(base64, asBlob = false) {
  const content = Buffer.from(base64, "base64");
  return asBlob ? new Blob([content]) : content;
}

function tensor({ type, dims, data }) {
  const TypedArray = ARRAYS[type];
  if (TypedArray === undefined) throw new Error(`no array for tensors of type ${type}`);
  return new ort.Tensor(type, new TypedArray(bytes(data).buffer), dims);
}

function plain({ type, dims, data }) {
  return { type, dims, data: Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString("base64") };
}

function mapped(object, change) {
  return Object.fromEntries(Object.entries(object).map(([name, value]) => [name, change(value)]));
}

async function respond(request) {
  const name = Object.keys(HANDLERS).find((key) => key in request);
  if (name === undefined) return { error: `expected one of ${Object.keys(HANDLERS).join(", ")}` };
  try {
    return await HANDLERS[name](request);
  } catch (error) {
    return { error: String(error?.message ?? error) };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await respond(JSON.parse(line)))}\n`);
}
