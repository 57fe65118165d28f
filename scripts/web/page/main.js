/** Losses, accuracies and predictions since the start of the training; exported for tests. */
export const history = { losses: [], accuracies: [], predictions: [], reading: null };

/** Settings of the tasks. */
const TASKS = {
  digits: {
    title: "Training a classifier of digits in the browser",
    lowestLoss: 1e-3,
    stepsPerSecond: 100,
    view: async (setup) => new (await import("./grid.js")).Grid(element("digits"), setup.arrays.heldOut, setup),
  },
  lines: {
    title: "Training a reader of lines of digits in the browser",
    lowestLoss: 1e-2,
    stepsPerSecond: Infinity,
    view: async (setup) => new (await import("./lines.js")).Lines(element("lines"), setup.arrays.heldOut, setup),
  },
};

const SMOOTHED = 20; // steps of the moving average

const element = (id) => document.getElementById(id);
const buttons = { start: element("start"), pause: element("pause"), reset: element("reset") };
const asked = new URLSearchParams(location.search).get("task");
const name = Object.hasOwn(TASKS, asked) ? asked : "digits";
const task = TASKS[name];

let worker;
let setup; // of the task, loaded by the worker
let state = "loading";
let means = []; // moving average of the losses
let speed;
let outcome; // evaluation on the held-out samples
let view; // the charts and the held-out samples
let drawing = false;

document.body.dataset.task = name;
document.title = `${task.title} · onnx_ops`;
element("title").textContent = task.title;
for (const label of document.querySelectorAll(".smoothed")) label.textContent = `mean of the last ${SMOOTHED} steps`;
for (const part of document.querySelectorAll("[data-of]")) part.hidden = part.dataset.of !== name;
document.querySelector(`nav a[href="?task=${name}"]`).setAttribute("aria-current", "page");

try {
  worker = new Worker(new URL("worker.js", import.meta.url), { type: "module", name });
  worker.onerror = (event) =>
    fail(event.message || "The worker could not be loaded. Is the server still running?");
  worker.onmessage = ({ data }) => handlers[data.type](data);
  for (const [type, button] of Object.entries(buttons)) button.onclick = () => worker.postMessage({ type });
  const pace = element("pace");
  pace.value = String(task.stepsPerSecond);
  pace.onchange = () => worker.postMessage({ type: "pace", stepsPerSecond: Number(pace.value) });
  pace.onchange();
  element("mistakes").onchange = draw;
} catch (error) {
  fail(`This browser cannot run the training in a worker: ${error.message}`);
}

const handlers = {
  async loaded(message) {
    setup = message.setup;
    describe(message.modelBytes);
    try {
      const { lossChart, accuracyChart } = await import("./charts.js");
      const charts = {
        loss: lossChart(element("loss-chart"), setup.epochs, task.lowestLoss),
        accuracy: accuracyChart(element("accuracy-chart"), setup.epochs),
      };
      view = { ...charts, heldOut: await task.view(setup) };
      if (name === "lines") {
        const { OwnLine } = await import("./own_line.js");
        const read = (line) => worker.postMessage({ type: "read", ...line });
        view.own = new OwnLine(element("own-line"), setup, read);
      }
      draw();
    } catch (error) {
      fail(`A part of the page could not be loaded: ${error.message}`);
    }
  },

  state(message) {
    state = message.state;
    if (state === "ready") {
      Object.assign(history, { losses: [], accuracies: [], predictions: [] });
      means = [];
    } else { // the state "ready" is drawn with its first predictions, which follow
      drawButtons(); // at once: frames are rare while a slow machine trains
      draw();
    }
  },

  progress(message) {
    for (const loss of message.losses) {
      history.losses.push(loss);
      const last = history.losses.slice(-SMOOTHED);
      means.push(last.reduce((sum, value) => sum + value, 0) / last.length);
    }
    history.accuracies.push(...message.accuracies);
    outcome = message.outcome ?? outcome;
    history.predictions = outcome.predictions;
    speed = message.stepsPerSecond;
    draw();
  },

  reading(message) {
    history.reading = message.digits.map(({ digit }) => digit).join("");
    view.own.show(message);
  },

  error({ message }) {
    fail(message);
  },
};

/** Shows the settings of the training. */
function describe(modelBytes) {
  const { epochs, stepsPerEpoch, learningRates, arrays, copies, hidden } = setup;
  const count = (members) => Object.values(members)[0].dims[0];
  element("epochs").textContent = `of ${epochs}`;
  element("held-out").textContent = ` ${count(arrays.heldOut)}`;
  const learned = count(arrays.learned);
  const length = epochs === 1 ? "1 epoch" : `${epochs} epochs`;
  const training = `${length} of ${stepsPerEpoch} steps, with ${batchSizes(learned, stepsPerEpoch)}`;
  const largest = Number(Math.max(...learningRates).toPrecision(3));
  if (name === "digits") {
    element("counts").textContent = `${learned / copies} training images, ${count(arrays.heldOut)} held out`;
    element("settings").textContent =
      `Each epoch has ${copies} copies of each image, shifted by up to one pixel. The network has one layer of ` +
      `${hidden.join()} hidden units. It is trained for ${training} images each, with a learning rate that decreases ` +
      `linearly from ${largest} to 0.`;
  } else {
    element("line-settings").textContent =
      `${learned} training lines, and ${count(arrays.heldOut)} held out, by other writers. The network is trained for ` +
      `${training} lines each, with a learning rate of up to ${largest}.`;
  }
  element("file").href = `${name}/step.onnx`;
  element("size").textContent = `, ${(modelBytes / 1000).toFixed(0)} kB`;
}

/** Draws the state in the next animation frame, after the first predictions. */
function draw() {
  if (drawing || !view) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    if (history.predictions.length === 0) return;
    drawButtons();
    drawFigures();
    drawCurves();
    view.heldOut.show(outcome);
    if (name === "digits") drawMistakes();
  });
}

function drawButtons() {
  const focused = document.activeElement;
  const steps = history.losses.length;
  buttons.start.textContent = state === "paused" ? "Resume" : "Start";
  buttons.start.disabled = !["ready", "paused"].includes(state);
  buttons.pause.disabled = state !== "running";
  buttons.reset.disabled = !["running", "paused", "done"].includes(state);
  // Keep the keyboard focus when the focused button is disabled.
  if (focused?.disabled) Object.values(buttons).find((button) => !button.disabled)?.focus();

  const accuracy = percent(history.accuracies.at(-1)?.accuracy);
  const text = {
    ready: `Ready. Accuracy of the untrained network: ${accuracy}.`,
    running: "Training …",
    paused: `Paused after ${steps} steps. Accuracy: ${accuracy}.`,
    done: `Done. Accuracy: ${accuracy}.`,
    failed: "Stopped.",
  }[state];
  // Screen readers repeat a text that is set again.
  if (element("status").textContent !== text) element("status").textContent = text;
  document.body.dataset.state = state;
}

function drawFigures() {
  const steps = history.losses.length;
  const { epochs, stepsPerEpoch } = setup;
  element("accuracy").textContent = percent(history.accuracies.at(-1)?.accuracy);
  element("loss").textContent = history.losses.at(-1)?.toFixed(4) ?? "–";
  element("mean-loss").textContent = means.at(-1)?.toFixed(4) ?? "–";
  element("epoch").textContent = (steps / stepsPerEpoch).toFixed(1);
  element("speed").textContent = speed > 0 ? speed.toFixed(1) : "–";
  element("time-left").textContent = speed > 0 ? duration((stepsPerEpoch * epochs - steps) / speed) : "–";
  element("progress").value = steps / (stepsPerEpoch * epochs);
}

function drawCurves() {
  const { losses, accuracies } = history;
  const epoch = (step) => step / setup.stepsPerEpoch;
  view.loss.setData([losses.map((_, index) => epoch(index + 1)), losses, means]);
  view.accuracy.setData([accuracies.map(({ step }) => epoch(step)), accuracies.map(({ accuracy }) => accuracy)]);
  for (const curve of ["loss", "accuracy"]) {
    element(`${curve}-chart`).setAttribute("aria-label", `Curve of the ${curve}, now ${element(curve).textContent}`);
  }
}

function drawMistakes() {
  const onlyMistakes = element("mistakes").checked;
  element("digits").classList.toggle("only-mistakes", onlyMistakes);
  element("no-mistakes").hidden = !onlyMistakes || document.querySelector(".digits .wrong") !== null;
}

/** The batch sizes of `count` samples in `steps` batches. */
function batchSizes(count, steps) {
  const [least, most] = [Math.floor(count / steps), Math.ceil(count / steps)];
  return least === most ? `${least}` : `${least} or ${most}`;
}

/** A duration as text: "9 s", "1 min 5 s". */
function duration(seconds) {
  const whole = Math.ceil(seconds);
  return (whole < 60 ? "" : `${Math.floor(whole / 60)} min `) + `${whole % 60} s`;
}

function percent(share) {
  return share === undefined ? "–" : `${(100 * share).toFixed(1)} %`;
}

/** Shows an error and disables the page. */
function fail(message) {
  state = "failed";
  element("error").textContent = message;
  element("error").hidden = false;
  element("status").textContent = "Stopped.";
  for (const button of document.querySelectorAll("button")) button.disabled = true;
}
