/**
 * Trains beside the page, so that it never waits. The page sends commands ("start", "pause", "reset", and "pace" with
 * `epochsPerSecond`); from here come "loaded", then "state" and "progress", and "error" with a message in words.
 */
import { Training } from "./training.js";

const REPORT_INTERVAL = 40; // ms: 25 pictures a second

const commands = [];
let wake = () => {};
const channel = new MessageChannel();
channel.port1.onmessage = () => wake();
self.onmessage = ({ data }) => {
  commands.push(data);
  wake();
};

/** Waits for a command, or for so many milliseconds; with 0 it only lets messages in, without the delay of a timer. */
function idle(milliseconds) {
  return new Promise((resolve) => {
    wake = resolve;
    if (commands.length > 0) resolve();
    else if (milliseconds === 0) channel.port2.postMessage(null);
    else if (milliseconds < Infinity) setTimeout(resolve, milliseconds);
  });
}

let training;
let state;
let interval = 0; // ms between steps
let due = 0; // when the next step may begin
let reported = 0; // when the last report was made
let clock; // since when, and since which step, the speed is measured
let losses = [];
let accuracies = [];

async function main() {
  training = await Training.load();
  const { setup, stepsPerEpoch, modelBytes } = training;
  const { side, digits, hidden, heldOut, learned, learningRates } = setup;
  postMessage({
    type: "loaded",
    ...{ side, digits, hidden, heldOut, stepsPerEpoch, modelBytes },
    ...{ epochs: learningRates.length, learningRate: learningRates[0], learnedCount: learned.labels.length },
  });
  await begin();
  for (;;) {
    await idle(state === "running" ? Math.max(0, due - performance.now()) : Infinity);
    for (const command of commands.splice(0)) await obey(command);
    if (state === "running") await work();
  }
}

async function obey({ type, epochsPerSecond }) {
  if (type === "start" && state !== "done") {
    restartClock();
    enter("running");
  } else if (type === "pause" && state === "running") {
    report(await training.predictions());
    enter("paused");
  } else if (type === "reset") {
    await begin();
  } else if (type === "pace") {
    interval = 1000 / (epochsPerSecond * training.stepsPerEpoch);
    restartClock();
  }
}

async function begin() {
  training.reset();
  const predictions = await training.predictions();
  losses = [];
  accuracies = [];
  restartClock();
  enter("ready");
  report(predictions);
}

function enter(next) {
  state = next;
  postMessage({ type: "state", state });
}

function restartClock() {
  due = performance.now();
  clock = { time: due, steps: training.steps };
}

/** Trains until the next step is not due yet or messages have waited long enough. */
async function work() {
  const start = performance.now();
  for (let now = start; now >= due && now < start + REPORT_INTERVAL && !training.done; now = performance.now()) {
    losses.push(await training.step());
    due = Math.max(due + interval, now - REPORT_INTERVAL); // what a sleeping computer missed is not made up for
    // Accuracy rises in the first epoch; after it one look per epoch is enough, and one for each report.
    const { steps, stepsPerEpoch } = training;
    const epochEnds = steps % stepsPerEpoch === 0;
    const reporting = performance.now() > reported + REPORT_INTERVAL;
    if (steps < stepsPerEpoch || epochEnds || reporting) {
      const predictions = await training.predictions();
      if (reporting || training.done) report(predictions);
      else note(predictions);
    }
  }
  if (training.done) enter("done");
}

function note(predictions) {
  const { labels } = training.setup.heldOut;
  const right = predictions.filter((digit, index) => digit === labels[index]).length;
  accuracies.push({ step: training.steps, accuracy: right / labels.length });
}

function report(predictions) {
  note(predictions);
  reported = performance.now();
  const { time, steps } = clock;
  const epochsPerSecond = (1000 * (training.steps - steps)) / training.stepsPerEpoch / (reported - time);
  postMessage({ type: "progress", losses, accuracies, predictions, epochsPerSecond });
  losses = [];
  accuracies = [];
}

main().catch((error) => postMessage({ type: "error", message: error.message ?? String(error) }));
