import { LEARNING_RATE, NEXT, SETTING } from "./format.js";
import { StepError, checkTensors, openStep, ownData } from "./step_file.js";

export { StepError } from "./step_file.js";

/**
 * Trains with a training step in onnxruntime-web: in a browser, or in Node. What onnx_ops.Trainer is in Python.
 *
 * A step that is refused, or fails, leaves the state as it was. Only one thing can be asked of a trainer at a time: what
 * gives a promise has to be awaited before the next call.
 */
export class Trainer {
  #ort;
  #options;
  #step;
  #session;
  #inference = null;
  #state;
  #busy = false;

  /**
   * @param ort The module onnxruntime-web.
   * @param {Uint8Array | ArrayBuffer} file The bytes of a step's file; in Node a Buffer too.
   * @param options Of onnxruntime-web's sessions.
   * @throws {StepError} What is no training step, or has types that onnxruntime-web has no tensors of.
   */
  static async create(ort, file, options = {}) {
    const { model, ...step } = openStep(file);
    const session = await ort.InferenceSession.create(model, options);
    return new Trainer(ort, options, step, session);
  }

  /** Use `create`. */
  constructor(ort, options, step, session) {
    this.#ort = ort;
    this.#options = options;
    this.#step = step;
    this.#session = session;
    this.#state = this.#tensors(step.state);
    step.state = null; // as large as the network
    const batch = Object.entries(step.inputs).filter(([name]) => !Object.hasOwn(step.roles, name));
    /** The types that `step` takes, by name: {type, dims}, where a dimension of any size is a string or null. */
    this.batchInputs = Object.freeze(Object.fromEntries(batch));
  }

  /**
   * Makes one step.
   *
   * @param batch A tensor for each of `batchInputs`, by name.
   * @returns What the step reports, the loss among it: tensors by the names of its outputs.
   * @throws {StepError} Tensors of wrong names, types or shapes; dimensions of one name that differ among them.
   */
  async step(batch = {}) {
    checkTensors("the batch", this.batchInputs, batch);
    return this.#alone(async () => {
      const reported = await this.#session.run({ ...this.#state, ...batch });
      for (const name of Object.keys(reported).filter((output) => output.startsWith(NEXT))) {
        const before = name.slice(NEXT.length);
        this.#state[before].dispose();
        this.#state[before] = reported[name];
        delete reported[name];
      }
      return reported;
    });
  }

  /**
   * Runs the trained network, in evaluation mode, with the parameters as they are now.
   *
   * @param inputs A tensor for each of the network's own inputs, by name.
   * @returns Its outputs, by name.
   * @throws {StepError} A step without an inference graph; tensors that do not fit.
   */
  async infer(inputs = {}) {
    if (this.#step.inference === null) throw new StepError("the step has no inference graph");
    const { model, inputs: types } = this.#step.inference;
    const own = (name) => !Object.hasOwn(this.#step.roles, name);
    checkTensors("the input", filtered(types, own), inputs);
    return this.#alone(async () => {
      this.#inference ??= await this.#ort.InferenceSession.create(model, this.#options);
      const taken = filtered(this.#state, (name) => Object.hasOwn(types, name));
      return this.#inference.run({ ...taken, ...inputs });
    });
  }

  /** Copies of the whole state: tensors of parameters, buffers, optimizer state, seed and settings, by name. */
  async state() {
    return this.#alone(async () => {
      const parts = Object.entries(this.#state).map(async ([name, tensor]) => {
        return [name, { type: tensor.type, data: await tensor.getData(), dims: tensor.dims }];
      });
      return this.#tensors(Object.fromEntries(await Promise.all(parts)));
    });
  }

  /**
   * Goes on from another state.
   *
   * @param state A tensor of the right type and shape, or the parts {type, data, dims} of one, for each name in
   *   `state()`. The data of parts can also be bytes: a Uint8Array, such as a Buffer of Node, or an ArrayBuffer. What is
   *   tied can be given under any of its names.
   * @throws {StepError} Names, types, shapes or data that do not fit; tied names with different values. The state is then
   *   as it was.
   */
  loadState(state) {
    this.#refuseWhileBusy();
    const untied = this.#untied(state);
    const { roles, inputs } = this.#step;
    checkTensors("the state", filtered(inputs, (name) => Object.hasOwn(roles, name)), untied);
    this.#replace(this.#tensors(untied));
  }

  /**
   * The learning rate: a number; for several groups of parameters an array with one for each. Setting a number sets that
   * of all groups, an array that of each.
   */
  get learningRate() {
    const rates = this.#rates().map((name) => this.#state[name].data[0]);
    return rates.length > 1 ? rates : rates[0];
  }

  set learningRate(rate) {
    this.#refuseWhileBusy();
    const names = this.#rates();
    const rates = Array.isArray(rate) ? rate : names.map(() => rate);
    if (rates.length !== names.length) {
      throw new StepError(`${rates.length} learning rates are given, expected ${names.length}, one for each group`);
    }
    const wrong = rates.findIndex((rate) => !(Number.isFinite(rate) && rate >= 0));
    if (wrong >= 0) throw new StepError(`a learning rate is ${rates[wrong]}, expected a finite number of at least 0`);
    names.forEach((name, group) => this.#state[name].data.fill(rates[group]));
  }

  /** Gives the memory back. The trainer cannot be used after it. */
  async release() {
    await this.#alone(async () => {
      this.#replace({});
      await this.#inference?.release();
      await this.#session.release();
    });
  }

  #rates() {
    const names = Object.entries(this.#step.roles).filter(([, role]) => role === SETTING).map(([name]) => name);
    const found = names.filter((name) => name === LEARNING_RATE || name.startsWith(`${LEARNING_RATE}.`));
    if (found.length === 0) throw new StepError(`the step has no setting '${LEARNING_RATE}'`);
    return found;
  }

  /** The state by the names of inputs alone. */
  #untied(state) {
    const { tied, inputs } = this.#step;
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

  /** Tensors with data of their own. */
  #tensors(parts) {
    const tensor = (one, name) => new this.#ort.Tensor(one.type, ownData(one, name), one.dims);
    return Object.fromEntries(Object.entries(parts).map(([name, one]) => [name, tensor(one, name)]));
  }

  #replace(state) {
    for (const tensor of Object.values(this.#state)) tensor.dispose();
    this.#state = state;
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
    if (this.#busy) throw new StepError("the trainer is at work; await what it was asked before");
  }
}

function filtered(object, wanted) {
  return Object.fromEntries(Object.entries(object).filter(([name]) => wanted(name)));
}

/** Whether two tensors agree in every bit. An error names the second one. */
function same(one, other, name) {
  const shape = ({ type, dims }) => JSON.stringify([type, dims]);
  if (shape(one) !== shape(other)) return false;
  const bytes = (tensor) => new Uint8Array(ownData(tensor, name).buffer);
  const [mine, its] = [bytes(one), bytes(other)];
  return mine.length === its.length && mine.every((byte, at) => byte === its[at]);
}
