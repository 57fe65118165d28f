// Runs ONNX models in onnxruntime-web, on the CPU by WebAssembly, for a process that talks to it through a pipe.
//
// One JSON object per line comes in on stdin, one per line goes out on stdout, in the same order:
//
//   {"load": model, "options"?: session options}     -> {"session": number, "outputs": names}
//   {"run": number, "feeds": {name: tensor}}         -> {"results": {name: tensor}}
//   {"release": number}                              -> {}
//   {"train": model, "options"?: session options}    -> {"trainer": number, "inputs": types of the batch}
//   {"ask": number, "method": name, "tensors"?: {name: tensor}}
//                                                    -> {"results": {name: tensor}} of a method of the trainer
//   {"rates": number, "values"?: tensor}             -> {"rates": learning rates}, set before if values are given
//
// and where that fails {"error": text}. A model is its bytes in base64; a tensor is {"type", "dims", "data"}, its type
// as onnxruntime-web spells it and its data the elements' bytes, little-endian, in base64. It ends when stdin does.

import { createInterface } from "node:readline";
import * as ort from "onnxruntime-web";
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

const QUIET = { logSeverityLevel: 4 }; // what fails is answered
ort.env.logLevel = "fatal";
ort.env.wasm.numThreads = 1;
ort.env.wasm.proxy = false;
console.log = console.error; // stdout is for answers

const sessions = new Map(); // trainers too
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

  async train({ train, options }) {
    const trainer = await Trainer.create(ort, Buffer.from(train, "base64"), settings(options));
    sessions.set(++loaded, trainer);
    return { trainer: loaded, inputs: trainer.batchInputs };
  },

  async ask({ ask, method, tensors = {} }) {
    return { results: mapped((await known(ask)[method](mapped(tensors, tensor))) ?? {}, plain) };
  },

  async rates({ rates, values }) {
    const trainer = known(rates);
    if (values !== undefined) trainer.learningRate = values;
    return { rates: trainer.learningRate };
  },
};

function settings(options) {
  return { ...QUIET, ...options, executionProviders: ["wasm"] };
}

function known(number) {
  const session = sessions.get(number);
  if (session === undefined) throw new Error(`no session ${number}`);
  return session;
}

function bytes(base64) {
  return new Uint8Array(Buffer.from(base64, "base64")); // a copy: a Buffer may begin anywhere in its memory
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

async function answer(request) {
  const name = Object.keys(HANDLERS).find((key) => key in request);
  if (name === undefined) return { error: `expected one of ${Object.keys(HANDLERS).join(", ")}` };
  try {
    return await HANDLERS[name](request);
  } catch (error) {
    return { error: String(error?.message ?? error) };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await answer(JSON.parse(line)))}\n`);
}
