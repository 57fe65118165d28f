import { CONDITIONS, CONDITION_NUMBERS, LEARNING_RATE, NEXT, SETTING } from "./format.js";
import { StepError, checkTensors, openStep, ownData } from "./step_file.js";

export { StepError } from "./step_file.js";

/**
 * Runs a training step in onnxruntime-web, in a browser or in Node; the counterpart of onnx_ops.Trainer in Python.
 *
 * A step that is refused or fails does not change the state. Calls must not overlap: await each promise before the next
 * call.
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
   * @param {Uint8Array | ArrayBuffer} file The bytes of a step's file; in Node also a Buffer.
   * @param options Session options of onnxruntime-web.
   * @param {?(Uint8Array | ArrayBuffer | Blob)} weights The step's second file, if it was saved with `external`; of a
   *   Blob, such as a File, one tensor is read at a time.
   * @throws {StepError} The file is no training step, or has types that onnxruntime-web does not support; weights that do
   *   not belong to it.
   */
  static async create(ort, file, options = {}, weights = null) {
    const { model, ...step } = await openStep(file, weights);
    const session = await ort.InferenceSession.create(model, options);
    return new Trainer(ort, options, step, session);
  }

  /** Use `create`. */
  constructor(ort, options, step, session) {
    this.#ort = ort;
    this.#options = options;
    this.#step = step;
    this.#session = session;
    this.#state = mapped(step.state, ({ type, data, dims }) => new ort.Tensor(type, data, dims));
    step.state = null; // the tensors have its memory
    const batch = Object.entries(step.inputs).filter(([name]) => !Object.hasOwn(step.roles, name));
    /** The types of the inputs of `step`, by name: {type, dims}; a dynamic dimension is a string or null. */
    this.batchInputs = Object.freeze(Object.fromEntries(batch));
  }

  /**
   * Runs one step.
   *
   * @param batch A tensor for each of `batchInputs`, by name.
   * @returns The reported outputs, including the loss: tensors by name.
   * @throws {StepError} Names, types or shapes of the tensors are wrong, dimensions of the same name differ, or a
   *   condition of the step is violated.
   */
  async step(batch = {}) {
    checkTensors("the batch", this.batchInputs, batch);
    return this.#alone(async () => {
      const reported = await this.#session.run({ ...this.#state, ...batch });
      const problem = this.#violated(reported);
      if (problem !== null) {
        for (const tensor of Object.values(reported)) tensor.dispose();
        throw new StepError(problem);
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

  /** The message about a condition that the outputs of a step violate, null if all hold; takes out these outputs. */
  #violated(reported) {
    const { [CONDITIONS]: holds, [CONDITION_NUMBERS]: numbers } = reported;
    delete reported[CONDITIONS];
    delete reported[CONDITION_NUMBERS];
    const condition = this.#step.conditions.find((_, place) => !holds.data[place]);
    if (condition === undefined) return null;
    const { line, code, expected } = condition;
    const captured = condition.numbers.map((number) => number.captured).join(", ");
    const came = condition.numbers.map(({ place }) => numbers.data[place]).join(", ");
    return (
      `${line}${code && ` (${code})`} reads ${came} from tensors${captured && `, and read ${captured} in the example of ` +
      "the capture"}: the step is valid for ${expected || captured} only, and the state is as before`
    );
  }

  /**
   * Runs the inference graph, in evaluation mode, with the current parameters.
   *
   * @param inputs A tensor for each input of the network, by name.
   * @returns Its outputs, by name.
   * @throws {StepError} The step has no inference graph, or names, types or shapes of the tensors are wrong.
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

  /** Copies of the state: tensors of parameters, buffers, optimizer state, seed and settings, by name. */
  async state() {
    return this.#alone(async () => {
      const parts = Object.entries(this.#state).map(async ([name, tensor]) => {
        return [name, { type: tensor.type, data: await tensor.getData(), dims: tensor.dims }];
      });
      return this.#tensors(Object.fromEntries(await Promise.all(parts)));
    });
  }

  /**
   * Replaces the state.
   *
   * @param state A tensor, or an object {type, data, dims}, for each name in `state()`. The data of objects can also be
   *   bytes: a Uint8Array, such as a Buffer of Node, or an ArrayBuffer. Tied parameters can have any of their names.
   * @throws {StepError} Names, types, shapes or data are wrong, or values of tied parameters differ. The state is then
   *   unchanged.
   */
  loadState(state) {
    this.#refuseWhileBusy();
    const untied = this.#untied(state);
    const { roles, inputs } = this.#step;
    checkTensors("the state", filtered(inputs, (name) => Object.hasOwn(roles, name)), untied);
    this.#replace(this.#tensors(untied));
  }

  /**
   * The learning rate: a number, or with several parameter groups an array with one number per group. A number sets that
   * of all groups.
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

  /** Frees the memory. The trainer cannot be used afterwards. */
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

  /** The state by name of the inputs, without other names of tied parameters. */
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

  /** Tensors with copies of the data. */
  #tensors(parts) {
    return mapped(parts, (one, name) => new this.#ort.Tensor(one.type, ownData(one, name), one.dims));
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
    if (this.#busy) throw new StepError("the trainer is busy; await the previous call");
  }
}

function mapped(object, change) {
  return Object.fromEntries(Object.entries(object).map(([name, value]) => [name, change(value, name)]));
}

function filtered(object, wanted) {
  return Object.fromEntries(Object.entries(object).filter(([name]) => wanted(name)));
}

/** Whether two tensors are bitwise equal; `name` is for errors. */
function same(one, other, name) {
  const shape = ({ type, dims }) => JSON.stringify([type, dims]);
  if (shape(one) !== shape(other)) return false;
  const bytes = (tensor) => new Uint8Array(ownData(tensor, name).buffer);
  const [mine, its] = [bytes(one), bytes(other)];
  return mine.length === its.length && mine.every((byte, at) => byte === its[at]);
}
