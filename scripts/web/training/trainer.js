import { withInitializers } from "./carried.js";
import { checkpoint, openCheckpoint } from "./checkpoint.js";
import { checkConditions } from "./conditions.js";
import { StepError } from "./errors.js";
import {
  AVERAGED,
  BUFFER,
  CONDITIONS,
  CONDITION_NUMBERS,
  EVALUATION,
  GRADIENT,
  GRAD_SCALE,
  INFERENCE,
  LEARNING_RATE,
  NEXT,
  PARAMETER,
  SEED,
  SETTING,
} from "./format.js";
import { filtered, mapped } from "./objects.js";
import { checkRanges } from "./ranges.js";
import { boundsOfOtherStatistics } from "./record.js";
import { openStep } from "./step_file.js";
import { bytesOfTensor, checkTensors, ownData } from "./tensors.js";
import { checkWebgpu, checkedRun, hasWebgpu } from "./webgpu.js";

export { StepError } from "./errors.js";

const SHARED = [PARAMETER, BUFFER];
const FLOATS = ["float16", "float32", "float64"];

/**
 * Runs a training step in onnxruntime-web or onnxruntime-node; the counterpart of onnx_ops.Trainer in Python. The types
 * of all methods are in trainer.d.ts, with their documentation.
 */
export class Trainer {
  #ort;
  #device;
  #step;
  #session;
  #options;
  #loss;
  #graphs = {};
  #state;
  #busy = false;

  static async create(ort, file, given = {}) {
    const { weights = null, checkFinite = true, executionProviders, sessionOptions = {}, ...others } = given;
    const [unknown] = Object.keys(others);
    if (unknown !== undefined) {
      const known = "weights, checkFinite, executionProviders, sessionOptions";
      throw new StepError(`there is no option '${unknown}', expected one of ${known}`);
    }
    const options = executionProviders === undefined ? sessionOptions : { ...sessionOptions, executionProviders };
    const onGpu = hasWebgpu(options.executionProviders ?? []);
    const { model, ...step } = await openStep(file, weights);
    if (onGpu) await checkWebgpu();
    const session = await ort.InferenceSession.create(model, options);
    const device = onGpu ? await ort.env.webgpu.device : null;
    return new Trainer(ort, step, session, options, checkFinite, device);
  }

  /** Use `create`. */
  constructor(ort, step, session, options, checkFinite, device) {
    this.#ort = ort;
    this.#device = device;
    this.#step = step;
    this.#session = session;
    this.#options = options;
    this.#state = mapped(step.state, ({ type, data, dims }) => new ort.Tensor(type, data, dims));
    step.state = null; // the tensors have its memory
    const { roles } = step.record;
    const [loss] = this.#reported();
    // Steps that scale their loss skip the update instead.
    const isChecked = checkFinite && !Object.hasOwn(roles, GRAD_SCALE) && FLOATS.includes(step.outputs[loss]?.type);
    this.#loss = isChecked ? loss : null;
    this.batchInputs = this.#ownInputs(step.inputs);
    const inference = step.carried[INFERENCE];
    this.inferenceInputs = inference && this.#ownInputs(inference.inputs);
    this.hasEvaluationGraph = step.carried[EVALUATION] !== null;
  }

  async step(batch = {}) {
    return this.#alone(async () => {
      await this.#checkBatch("the batch", this.batchInputs, batch);
      const reported = await this.#run(this.#session, { ...this.#state, ...batch });
      try {
        await checkConditions(this.#step.record.conditions, reported);
        await this.#checkLoss(reported);
      } catch (error) {
        for (const tensor of Object.values(reported)) tensor.dispose();
        throw error;
      }
      for (const name of Object.keys(reported).filter((output) => output.startsWith(NEXT))) {
        const before = name.slice(NEXT.length);
        this.#state[before].dispose();
        this.#state[before] = reported[name];
        delete reported[name];
      }
      return reported;
    });
  }

  async evaluate(batch = {}, mode = "eval") {
    if (!["eval", "train"].includes(mode)) throw new StepError(`the mode is '${mode}', expected 'eval' or 'train'`);
    if (mode === "eval") return this.#forward(EVALUATION, "the batch", batch);
    return this.#alone(async () => {
      await this.#checkBatch("the batch", this.batchInputs, batch);
      const wanted = this.#reported().filter((name) => !name.startsWith(GRADIENT));
      const conditions = Object.keys(this.#step.outputs).filter((name) => [CONDITIONS, CONDITION_NUMBERS].includes(name));
      const fetches = [...wanted, ...conditions];
      const reported = await this.#run(this.#session, { ...this.#state, ...batch }, fetches);
      const misnamed = fetches.find((name) => !Object.hasOwn(reported, name));
      if (misnamed !== undefined) {
        throw new StepError(
          `onnxruntime returned ${Object.keys(reported).join(", ")} where '${misnamed}' was requested: onnxruntime-node ` +
            "before 1.24 gives outputs the names of others",
        );
      }
      await checkConditions(this.#step.record.conditions, reported);
      return reported;
    });
  }

  async infer(inputs = {}) {
    return this.#forward(INFERENCE, "the input", inputs);
  }

  async state() {
    return this.#alone(async () => this.#tensors(await this.#copied()));
  }

  loadState(state, { strict = true } = {}) {
    this.#refuseWhileBusy();
    const untied = this.#untied(state);
    const { roles } = this.#step.record;
    const types = filtered(this.#step.inputs, (name) => Object.hasOwn(roles, name));
    const missing = Object.keys(types).filter((name) => untied[name] === undefined);
    const unexpected = Object.keys(untied).filter((name) => !Object.hasOwn(types, name));
    const known = strict ? untied : filtered(untied, (name) => Object.hasOwn(types, name));
    checkTensors("the state", strict ? types : filtered(types, (name) => known[name] !== undefined), known);
    const loaded = this.#tensors(known);
    this.#checkRates(filtered(loaded, (name) => this.#rateNames().includes(name)));
    for (const name of Object.keys(loaded)) this.#state[name].dispose();
    Object.assign(this.#state, loaded);
    return { missing, unexpected };
  }

  async save({ metadata = {}, frozen = true } = {}) {
    return this.#alone(async () => {
      const { roles } = this.#step.record;
      const isFrozen = (name) => SHARED.includes(roles[name]) && !Object.hasOwn(this.#step.outputs, NEXT + name);
      return checkpoint(await this.#copied((name) => frozen || !isFrozen(name)), metadata);
    });
  }

  async load(file, { strict = true } = {}) {
    const { tensors, metadata } = await openCheckpoint(file);
    const { roles, tied } = this.#step.record;
    const [first, ...others] = Object.keys(tensors);
    const isKnown = (name) => Object.hasOwn(roles, name) || Object.hasOwn(tied, name);
    if (first !== undefined && !strict && !Object.keys(tensors).some(isKnown)) {
      throw new StepError(
        `the checkpoint has no name of the step: it has '${first}' and ${others.length} others, expected names such as ` +
          `'${Object.keys(roles)[0]}'`,
      );
    }
    this.loadState(tensors, { strict });
    return metadata;
  }

  async export({ averaged = false } = {}) {
    const { model, inputs } = this.#graph(INFERENCE);
    const { roles } = this.#step.record;
    const average = (name) => `${AVERAGED}module.${name}`;
    const hasAverage = (name) => averaged && Object.hasOwn(roles, average(name));
    if (averaged && !Object.keys(roles).some(hasAverage)) {
      throw new StepError("the step has no averages of weights: capture it with training_step(..., averaged=)");
    }
    return this.#alone(async () => {
      const names = Object.keys(inputs).filter((name) => Object.hasOwn(roles, name));
      const sources = Object.fromEntries(names.map((name) => [name, hasAverage(name) ? average(name) : name]));
      const state = await this.#copied((name) => Object.values(sources).includes(name));
      return withInitializers(model, mapped(sources, (source) => state[source]));
    });
  }

  get learningRate() {
    const rates = this.#groups().map((name) => this.#state[name].data[0]);
    return rates.length > 1 ? rates : rates[0];
  }

  set learningRate(rate) {
    this.#refuseWhileBusy();
    const names = this.#groups();
    const rates = Array.isArray(rate) ? rate : names.map(() => rate);
    if (rates.length !== names.length) {
      throw new StepError(`${rates.length} learning rates are given, expected ${names.length}, one for each group`);
    }
    const wrong = rates.findIndex((one) => typeof one !== "number");
    if (wrong >= 0) throw new StepError(`a learning rate is ${rates[wrong]}, ${RATE_EXPECTED}`);
    const tensors = names.map((name, group) => {
      const { type, data, dims } = this.#state[name];
      return [name, { type, data: data.constructor.of(rates[group]), dims }];
    });
    this.#checkRates(Object.fromEntries(tensors));
    for (const [name, { data }] of tensors) this.#state[name].data.set(data);
  }

  get seed() {
    return this.#state[this.#seedName()].data[0];
  }

  set seed(seed) {
    this.#refuseWhileBusy();
    const isInteger = typeof seed === "bigint" || Number.isSafeInteger(seed);
    if (!isInteger || BigInt.asIntN(64, BigInt(seed)) !== BigInt(seed)) {
      throw new StepError(`the seed is ${seed}, expected an integer of 64 bits`);
    }
    this.#state[this.#seedName()].data[0] = BigInt(seed);
  }

  async release() {
    await this.#alone(async () => {
      for (const tensor of Object.values(this.#state)) tensor.dispose();
      this.#state = {};
      const graphs = await Promise.all(Object.values(this.#graphs));
      for (const session of [...graphs, this.#session]) await session.release();
      this.#session = null;
    });
  }

  // Batches

  #ownInputs(types) {
    return Object.freeze(filtered(types, (name) => !Object.hasOwn(this.#step.record.roles, name)));
  }

  async #checkBatch(what, types, batch, bounds = this.#step.record.bounds) {
    const { ranges } = this.#step.record;
    checkTensors(what, types, batch, bounds);
    const own = ranges.filter(({ input }) => Object.hasOwn(types, input));
    const parts = own.map(async ({ input }) => [input, { data: await batch[input].getData(), dims: batch[input].dims }]);
    checkRanges(own, Object.fromEntries(await Promise.all(parts)));
  }

  // Runs

  async #run(session, ...given) {
    const run = () => session.run(...given);
    return this.#device === null ? run() : checkedRun(this.#device, run);
  }

  /** The names of the outputs that steps return, the loss first. */
  #reported() {
    const internal = (name) => name.startsWith(NEXT) || [CONDITIONS, CONDITION_NUMBERS].includes(name);
    return Object.keys(this.#step.outputs).filter((name) => !internal(name));
  }

  #graph(name) {
    const graph = this.#step.carried[name];
    if (graph === null) throw new StepError(`the step has no ${name} graph; ${HOW_TO_CAPTURE[name]}`);
    return graph;
  }

  async #forward(name, what, inputs) {
    const { model, inputs: types } = this.#graph(name);
    return this.#alone(async () => {
      const bounds = mapped(this.#step.record.bounds, boundsOfOtherStatistics);
      await this.#checkBatch(what, this.#ownInputs(types), inputs, bounds);
      this.#graphs[name] ??= await this.#ort.InferenceSession.create(model, this.#options);
      const taken = filtered(this.#state, (one) => Object.hasOwn(types, one));
      const found = await this.#run(this.#graphs[name], { ...taken, ...inputs });
      await checkConditions(this.#step.record.conditions, found);
      return found;
    });
  }

  /** Throws a StepError for a loss of one number that is NaN or infinite. */
  async #checkLoss(reported) {
    if (this.#loss === null) return;
    const { type, size } = reported[this.#loss];
    if (size !== 1) return;
    const [bits] = await reported[this.#loss].getData();
    const isFinite = type === "float16" && Number.isInteger(bits) ? (bits & 0x7c00) !== 0x7c00 : Number.isFinite(bits);
    if (isFinite) return;
    throw new StepError(
      `'${this.#loss}' is ${bits}, and the state is as before the step: expected a finite number; look for NaN and ` +
        "infinity in the batch, or lower the learning rate. Steps with such a loss are made with { checkFinite: false }",
    );
  }

  // The state

  /** {type, data, dims} of the tensors of the state that are wanted; the data are not always copies. */
  async #copied(wanted = () => true) {
    const parts = Object.entries(filtered(this.#state, wanted)).map(async ([name, tensor]) => {
      return [name, { type: tensor.type, data: await tensor.getData(), dims: tensor.dims }];
    });
    return Object.fromEntries(await Promise.all(parts));
  }

  #seedName() {
    const [name] = this.#names(SEED);
    if (name === undefined) throw new StepError("the step has no seed: it draws no random numbers");
    return name;
  }

  #names(role) {
    return Object.entries(this.#step.record.roles).filter(([, one]) => one === role).map(([name]) => name);
  }

  #rateNames() {
    return this.#names(SETTING).filter((name) => name === LEARNING_RATE || name.startsWith(`${LEARNING_RATE}.`));
  }

  #groups() {
    const found = this.#rateNames();
    if (found.length === 0) throw new StepError(`the step has no setting '${LEARNING_RATE}'`);
    return found;
  }

  #checkRates(tensors) {
    for (const [name, { type, data }] of Object.entries(tensors)) {
      if (Number.isFinite(data[0]) && data[0] >= 0) continue;
      throw new StepError(`a learning rate is ${data[0]}, ${RATE_EXPECTED} ('${name}', ${type})`);
    }
  }

  /** The state by name of the inputs, without other names of tied parameters. */
  #untied(state) {
    const { tied } = this.#step.record;
    const { inputs } = this.#step;
    const untied = filtered(state, (name) => !Object.hasOwn(tied, name));
    for (const [other, first] of Object.entries(tied)) {
      if (state[other] === undefined) continue;
      checkTensors("the state", { [other]: inputs[first] }, { [other]: state[other] });
      untied[first] ??= state[other];
      if (!same(untied[first], state[other], other)) {
        throw new StepError(`'${other}' differs from '${first}', to which it is tied`);
      }
    }
    return untied;
  }

  /** Tensors with copies of the data. */
  #tensors(parts) {
    return mapped(parts, (one, name) => new this.#ort.Tensor(one.type, ownData(one, name), one.dims));
  }

  async #alone(work) {
    this.#refuseWhileBusy();
    this.#busy = true;
    try {
      return await work();
    } finally {
      this.#busy = false;
    }
  }

  #refuseWhileBusy() {
    if (this.#busy) throw new StepError("the trainer is busy; await the previous call");
    if (this.#session === null) throw new StepError("the trainer is released, and cannot be used any more");
  }
}

const RATE_EXPECTED = "expected a finite number of at least 0";
const HOW_TO_CAPTURE = {
  [INFERENCE]: "capture it with inference=, a function of the model",
  [EVALUATION]: "capture it with evaluation=True",
};

/** Whether two tensors are bitwise equal; `name` is for errors. */
function same(one, other, name) {
  const shape = ({ type, dims }) => JSON.stringify([type, dims]);
  if (shape(one) !== shape(other)) return false;
  const [mine, its] = [one, other].map((tensor) => bytesOfTensor({ data: ownData(tensor, name) }));
  return mine.length === its.length && mine.every((byte, at) => byte === its[at]);
}
