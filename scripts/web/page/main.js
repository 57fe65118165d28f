/** What has happened since training began, for those who look from outside. */
export const history = { losses: [], accuracies: [], predictions: [] };

const element = (id) => document.getElementById(id);
const buttons = { start: element("start"), pause: element("pause"), reset: element("reset") };

let loaded; // what the worker said of the model and the data
let state = "loading";
let means = []; // of the last epoch's losses, after every step
let speed;
let view; // the charts and the digits
let drawing = false;

try {
  const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
  worker.onerror = (event) =>
    fail(event.message || "The program that trains could not be loaded. Is the server still running?");
  worker.onmessage = ({ data }) => handlers[data.type](data);
  for (const [type, button] of Object.entries(buttons)) button.onclick = () => worker.postMessage({ type });
  const pace = element("pace");
  pace.onchange = () => worker.postMessage({ type: "pace", epochsPerSecond: Number(pace.value) });
  pace.onchange(); // browsers keep a choice when the page is loaded again
  element("mistakes").onchange = draw;
} catch (error) {
  fail(`This browser cannot run the training beside the page: ${error.message}`);
}

const handlers = {
  async loaded(message) {
    loaded = message;
    const { epochs, heldOut, hidden, learnedCount, learningRate, modelBytes, stepsPerEpoch } = loaded;
    element("counts").textContent = `${learnedCount} images to learn from, ${heldOut.labels.length} held out`;
    element("settings").textContent =
      `The network has one layer of ${hidden} hidden units. It learns for ${epochs} epochs of ${stepsPerEpoch} steps, ` +
      `with ${batchSizes(learnedCount, stepsPerEpoch)} images in a step, and at a learning rate that falls in a ` +
      `straight line from ${learningRate} towards 0.`;
    element("held-out").textContent = ` ${heldOut.labels.length}`;
    element("epochs").textContent = `of ${epochs}`;
    element("size").textContent = `, ${(modelBytes / 1000).toFixed(1)} kB`;
    try {
      const [{ lossChart, accuracyChart }, { Grid }] = await Promise.all([import("./charts.js"), import("./grid.js")]);
      view = {
        loss: lossChart(element("loss-chart"), epochs),
        accuracy: accuracyChart(element("accuracy-chart"), epochs),
        grid: new Grid(element("digits"), heldOut, loaded.side),
      };
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

  progress({ losses, accuracies, predictions, epochsPerSecond }) {
    for (const loss of losses) {
      history.losses.push(loss);
      const last = history.losses.slice(-loaded.stepsPerEpoch);
      means.push(last.reduce((sum, value) => sum + value, 0) / last.length);
    }
    history.accuracies.push(...accuracies);
    history.predictions = predictions;
    speed = epochsPerSecond;
    draw();
  },

  error({ message }) {
    fail(message);
  },
};

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
    drawDigits();
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
    ready: `Ready: untrained, the network names ${accuracy} of the digits right.`,
    running: "Training …",
    paused: `Paused after ${steps} steps: the network names ${accuracy} of the digits right.`,
    done: `Done: the network names ${accuracy} of the digits right.`,
    failed: "Stopped.",
  }[state];
  // Unchanged text is not set again, for screen readers would read it again.
  if (element("status").textContent !== text) element("status").textContent = text;
  document.body.dataset.state = state;
}

function drawFigures() {
  const steps = history.losses.length;
  const { epochs, stepsPerEpoch } = loaded;
  element("accuracy").textContent = percent(history.accuracies.at(-1)?.accuracy);
  element("loss").textContent = means.at(-1)?.toFixed(4) ?? "–";
  element("epoch").textContent = (steps / stepsPerEpoch).toFixed(1);
  element("speed").textContent = speed > 0 ? speed.toFixed(1) : "–";
  element("progress").value = steps / (stepsPerEpoch * epochs);
}

function drawCurves() {
  const { losses, accuracies } = history;
  const epoch = (step) => step / loaded.stepsPerEpoch;
  view.loss.setData([losses.map((_, index) => epoch(index + 1)), losses, means]);
  view.accuracy.setData([accuracies.map(({ step }) => epoch(step)), accuracies.map(({ accuracy }) => accuracy)]);
  for (const name of ["loss", "accuracy"]) {
    element(`${name}-chart`).setAttribute("aria-label", `Curve of the ${name}, now ${element(name).textContent}`);
  }
}

function drawDigits() {
  view.grid.show(history.predictions);
  const onlyMistakes = element("mistakes").checked;
  element("digits").classList.toggle("only-mistakes", onlyMistakes);
  element("no-mistakes").hidden = !onlyMistakes || document.querySelector(".digits .wrong") !== null;
}

/** How many images a step has: all of an epoch in `steps` parts, as equal as can be. */
function batchSizes(count, steps) {
  const [least, most] = [Math.floor(count / steps), Math.ceil(count / steps)];
  return least === most ? `${least}` : `${least} or ${most}`;
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
  for (const button of Object.values(buttons)) button.disabled = true;
}
