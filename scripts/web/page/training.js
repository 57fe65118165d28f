import { Batches } from "./batches.js";

/** The network as it learns: its state, and the two sessions that change it and ask it. */
export class Training {
  #ort;
  #sessions;
  #batches;
  #state;

  /** Fetches the runtime, the models and the data. Throws an error that says in words what is missing. */
  static async load() {
    if (typeof WebAssembly === "undefined") {
      throw new Error("This browser has no WebAssembly, or it is switched off; the network cannot run without it.");
    }
    const [setup, stepModel, inferenceModel] = await Promise.all([
      fetched("setup.json").then((response) => response.json()),
      fetched("training_step.onnx").then((response) => response.arrayBuffer()),
      fetched("inference.onnx").then((response) => response.arrayBuffer()),
    ]);
    try {
      const ort = await import("./ort/ort.wasm.min.mjs");
      ort.env.wasm.wasmPaths = new URL("ort/", import.meta.url).href;
      ort.env.wasm.numThreads = 1; // a step is too short to be worth sharing
      const stepBytes = stepModel.byteLength;
      const step = await ort.InferenceSession.create(stepModel);
      const inference = await ort.InferenceSession.create(inferenceModel);
      return new Training(ort, setup, { step, inference }, stepBytes);
    } catch (error) {
      throw new Error(`onnxruntime-web could not be started: ${error.message ?? error}`);
    }
  }

  constructor(ort, setup, sessions, modelBytes) {
    this.#ort = ort;
    this.#sessions = sessions;
    Object.assign(this, { setup, modelBytes });
    this.heldOut = this.#tensor(setup.heldOut.images, [setup.heldOut.labels.length, setup.side ** 2]);
    this.reset();
  }

  get stepsPerEpoch() {
    return this.#batches.perEpoch;
  }

  get done() {
    return this.steps === this.stepsPerEpoch * this.setup.learningRates.length;
  }

  /** Back to the weights and the batches that training begins with. */
  reset() {
    this.steps = 0;
    this.#batches = new Batches(this.setup.learned, this.setup);
    this.#state = Object.fromEntries(
      Object.entries(this.setup.state).map(([name, { shape, values }]) => [name, this.#tensor(values, shape)]),
    );
  }

  /** One step of gradient descent; gives the loss before it. */
  async step() {
    const { images, targets, count } = this.#batches.next();
    const epoch = Math.floor(this.steps / this.stepsPerEpoch);
    const results = await this.#sessions.step.run({
      images: this.#tensor(images, [count, images.length / count]),
      targets: this.#tensor(targets, [count, targets.length / count]),
      learning_rate: this.#tensor([this.setup.learningRates[epoch]], []),
      ...this.#state,
    });
    this.#state = Object.fromEntries(Object.keys(this.#state).map((name) => [name, results[`next_${name}`]]));
    this.steps++;
    return results.loss.data[0];
  }

  /** What the network takes each held-out digit for. */
  async predictions() {
    const inputs = { images: this.heldOut };
    for (const name of this.#sessions.inference.inputNames) inputs[name] ??= this.#state[name];
    const { predictions } = await this.#sessions.inference.run(inputs, ["predictions"]);
    return Array.from(predictions.data, Number);
  }

  #tensor(values, shape) {
    return new this.#ort.Tensor("float32", Float32Array.from(values), shape);
  }
}

async function fetched(name) {
  const response = await fetch(new URL(name, import.meta.url)).catch((error) => {
    throw new Error(`${name} could not be loaded (${error.message}). Is the server still running?`);
  });
  if (!response.ok) throw new Error(`${name} could not be loaded: the server answers ${response.status}.`);
  return response;
}
