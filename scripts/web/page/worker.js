/**
 * Trains in a web worker, whose name is that of the task. It receives commands ("start", "pause", "reset", "pace" with
 * `stepsPerSecond`, and "read" with an `image` and its `width`), and sends "loaded", then "state", "progress" and
 * "reading", or "error" with a message.
 */
import { Batches } from "./batches.js";
import { fetched, loadSetup, mapped } from "./loading.js";
import { read } from "./reading.js";
import { TASKS } from "./tasks.js";
import { Trainer } from "./training/trainer.js";

const REPORT_INTERVAL = 40; // ms: 25 reports per second
const MEASURING_SHARE = 0.2; // maximal share of the time for the evaluation on held-out samples

const commands = [];
let wake = () => {};
const channel = new MessageChannel();
channel.port1.onmessage = () => wake();
self.onmessage = ({ data }) => {
  commands.push(data);
  wake();
};

/** Waits for a command or a timeout; 0 only processes messages, without the minimal delay of timers. */
function idle(milliseconds) {
  return new Promise((resolve) => {
    wake = resolve;
    if (commands.length > 0) resolve();
    else if (milliseconds === 0) channel.port2.postMessage(null);
    else if (milliseconds < Infinity) setTimeout(resolve, milliseconds);
  });
}

const task = TASKS[self.name];
let ort;
let setup;
let trainer;
let start; // the initial state
let batches;
let steps = 0; // number of steps so far
let state;
let interval = 0; // ms between steps
let due = 0; // when the next step may begin
let reported = 0; // time of the last report
let measured = 0; // time of the last evaluation
let measuring = 0; // ms of the last evaluation
let clock; // time and step from which the speed is measured
let losses = [];
let accuracies = [];
let line; // composed by the visitor

async function main() {
  const bytes = await load();
  postMessage({ type: "loaded", setup, modelBytes: bytes });
  await begin();
  for (;;) {
    await idle(state === "running" ? Math.max(0, due - performance.now()) : Infinity);
    for (const command of commands.splice(0)) await obey(command);
    if (state === "running") await work();
  }
}

/** Fetches runtime, step and samples; throws an error if something is missing. */
async function load() {
  if (typeof WebAssembly === "undefined") {
    throw new Error("This browser has no WebAssembly, or it is disabled; the page requires it.");
  }
  const file = fetched(`${self.name}/step.onnx`).then((response) => response.arrayBuffer());
  const [found, step] = await Promise.all([loadSetup(self.name), file]);
  setup = found;
  try {
    ort = await import("./ort/ort.wasm.min.mjs");
    ort.env.wasm.wasmPaths = new URL("ort/", import.meta.url).href;
    ort.env.wasm.numThreads = 1; // a step is too short for more threads
    trainer = await Trainer.create(ort, step);
  } catch (error) {
    throw new Error(`onnxruntime-web could not be started: ${error.message ?? error}`);
  }
  start = await trainer.state();
  return step.byteLength;
}

async function obey({ type, stepsPerSecond, image, width }) {
  if (type === "start" && state !== "done") {
    restartClock();
    enter("running");
  } else if (type === "pause" && state === "running") {
    await measure();
    enter("paused");
  } else if (type === "reset") {
    await begin();
  } else if (type === "pace") {
    interval = 1000 / stepsPerSecond;
    restartClock();
  } else if (type === "read") {
    line = image && { image, width };
    await readLine();
  }
}

async function begin() {
  steps = 0;
  trainer.loadState(start);
  batches = new Batches(setup.arrays.learned, setup);
  losses = [];
  accuracies = [];
  restartClock();
  enter("ready");
  await measure();
}

function enter(next) {
  state = next;
  postMessage({ type: "state", state });
}

function restartClock() {
  due = performance.now();
  clock = { time: due, steps };
}

/** Trains until no step is due, or for REPORT_INTERVAL, for messages to be processed. */
async function work() {
  const began = performance.now();
  const total = setup.learningRates.length;
  for (let now = began; now >= due && now < began + REPORT_INTERVAL && steps < total; now = performance.now()) {
    trainer.learningRate = setup.learningRates[steps];
    const { loss } = await trainer.step(tensors(batches.next()));
    losses.push(loss.data[0]);
    steps++;
    due = Math.max(due + interval, now - REPORT_INTERVAL); // does not catch up after the computer was suspended
    const pause = Math.max(REPORT_INTERVAL, measuring / MEASURING_SHARE);
    if (steps % setup.stepsPerEpoch === 0 || performance.now() > measured + pause) await measure();
    else if (performance.now() > reported + REPORT_INTERVAL) report();
  }
  if (steps === total) enter("done");
}

/** Evaluates on the held-out samples, and reports. */
async function measure() {
  const began = performance.now();
  const { heldOut } = setup.arrays;
  const outcome = task.evaluate(await trainer.infer(tensors({ [task.input]: heldOut[task.input] })), heldOut, setup);
  accuracies.push({ step: steps, accuracy: outcome.accuracy });
  await readLine();
  measured = performance.now();
  measuring = measured - began;
  report(outcome);
}

/** Sends the losses since the last report, and the outcome of an evaluation if there is a new one. */
function report(outcome) {
  reported = performance.now();
  const stepsPerSecond = (1000 * (steps - clock.steps)) / (reported - clock.time);
  postMessage({ type: "progress", losses, accuracies, outcome, stepsPerSecond });
  losses = [];
  accuracies = [];
}

/** Sends the decoded digits of the visitor's line. */
async function readLine() {
  if (!line) return;
  const image = { type: "float32", data: line.image, dims: [1, setup.height, setup.width] };
  const { output } = await trainer.infer(tensors({ images: image }));
  postMessage({ type: "reading", logProbs: output.data, digits: read(output.data, line.width, setup) });
}

function tensors(parts) {
  return mapped(parts, ({ type, data, dims }) => new ort.Tensor(type, data, dims));
}

main().catch((error) => postMessage({ type: "error", message: error.message ?? String(error) }));
