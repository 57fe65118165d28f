/** What has happened since training began, for those who look from outside. */
export const history = { losses: [], accuracies: [], predictions: [], reading: null };

/** What differs between the tasks. */
const TASKS = {
  digits: {
    title: "A network learns to name digits in this browser",
    lowestLoss: 1e-3,
    stepsPerSecond: 100,
    view: async (setup) => new (await import("./grid.js")).Grid(element("digits"), setup.arrays.heldOut, setup),
  },
  lines: {
    title: "A network learns to read lines of digits in this browser",
    lowestLoss: 1e-2,
    stepsPerSecond: Infinity,
    view: async (setup) => new (await import("./lines.js")).Lines(element("lines"), setup.arrays.heldOut, setup),
  },
};

const SMOOTHED = 20; // steps whose losses make a mean

const element = (id) => document.getElementById(id);
const buttons = { start: element("start"), pause: element("pause"), reset: element("reset") };
const asked = new URLSearchParams(location.search).get("task");
const name = Object.hasOwn(TASKS, asked) ? asked : "digits";
const task = TASKS[name];

let worker;
let setup; // what the worker has loaded
let state = "loading";
let means = []; // of the last losses, after every step
let speed;
let outcome; // what the network makes of the held-out samples
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
    fail(event.message || "The program that trains could not be loaded. Is the server still running?");
  worker.onmessage = ({ data }) => handlers[data.type](data);
  for (const [type, button] of Object.entries(buttons)) button.onclick = () => worker.postMessage({ type });
  const pace = element("pace");
  pace.value = String(task.stepsPerSecond);
  pace.onchange = () => worker.postMessage({ type: "pace", stepsPerSecond: Number(pace.value) });
  pace.onchange();
  element("mistakes").onchange = draw;
} catch (error) {
  fail(`This browser cannot run the training beside the page: ${error.message}`);
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
    } else {
      draw(); // what is ready is shown with its first predictions, which follow
    }
  },

  progress(message) {
    for (const loss of message.losses) {
      history.losses.push(loss);
      const last = history.losses.slice(-SMOOTHED);
      means.push(last.reduce((sum, value) => sum + value, 0) / last.length);
    }
    history.accuracies.push(...message.accuracies);
    outcome = message.outcome;
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

/** Says what is trained, and on what. */
function describe(modelBytes) {
  const { epochs, stepsPerEpoch, learningRates, arrays, copies, hidden } = setup;
  const count = (members) => Object.values(members)[0].dims[0];
  element("epochs").textContent = `of ${epochs}`;
  element("held-out").textContent = ` ${count(arrays.heldOut)}`;
  const learned = count(arrays.learned);
  const told = `${epochs} epochs of ${stepsPerEpoch} steps, with ${batchSizes(learned, stepsPerEpoch)}`;
  const largest = Number(Math.max(...learningRates).toPrecision(3));
  if (name === "digits") {
    element("counts").textContent = `${learned / copies} images to learn from, ${count(arrays.heldOut)} held out`;
    element("settings").textContent =
      `An epoch shows each image ${copies} times, each time moved by up to one pixel. The network has one layer of ` +
      `${hidden.join()} hidden units. It learns for ${told} images in a step, and at a learning rate that falls in a ` +
      `straight line from ${largest} towards 0.`;
  } else {
    element("line-settings").textContent =
      `${learned} lines to learn from, and ${count(arrays.heldOut)} held out, of writers whose digits are in none of ` +
      `the others. The network learns for ${told} lines in a step, at a learning rate of up to ${largest}.`;
  }
  element("file").href = `${name}/step.onnx`;
  element("size").textContent = `, ${(modelBytes / 1000).toFixed(0)} kB`;
}

/** Shows the present state at the browser's next picture; there is none before the first predictions. */
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
  // Who works with the keyboard should not lose the place when the button under it goes out of use.
  if (focused?.disabled) Object.values(buttons).find((button) => !button.disabled)?.focus();

  const accuracy = percent(history.accuracies.at(-1)?.accuracy);
  const text = {
    ready: `Ready: untrained, the network reads ${accuracy} of the digits right.`,
    running: "Training …",
    paused: `Paused after ${steps} steps: the network reads ${accuracy} of the digits right.`,
    done: `Done: the network reads ${accuracy} of the digits right.`,
    failed: "Stopped.",
  }[state];
  // Unchanged text is not set again, for screen readers would read it again.
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

/** How many samples a step has: all of an epoch in `steps` parts, as equal as can be. */
function batchSizes(count, steps) {
  const [least, most] = [Math.floor(count / steps), Math.ceil(count / steps)];
  return least === most ? `${least}` : `${least} or ${most}`;
}

/** Seconds in words: "9 s", "1 min 5 s". */
function duration(seconds) {
  const whole = Math.ceil(seconds);
  return (whole < 60 ? "" : `${Math.floor(whole / 60)} min `) + `${whole % 60} s`;
}

function percent(share) {
  return share === undefined ? "–" : `${(100 * share).toFixed(1)} %`;
}

/** Says what went wrong, in place of training. */
function fail(message) {
  state = "failed";
  element("error").textContent = message;
  element("error").hidden = false;
  element("status").textContent = "Stopped.";
  for (const button of document.querySelectorAll("button")) button.disabled = true;
}
