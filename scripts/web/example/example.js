// In a project with npm: import * as ort from "onnxruntime-web"; import { Trainer } from "onnx-ops-trainer";
import * as ort from "../ort/ort.wasm.min.mjs";
import { Trainer } from "../training/trainer.js";

const STEPS = 1500;
const STEPS_PER_PICTURE = 25;
const RATE = 0.2;
const POINTS = 400;
const SIDE = 64; // predictions along each side of the picture

ort.env.wasm.wasmPaths = new URL("../ort/", import.meta.url).href;
ort.env.wasm.numThreads = 1; // the step is too short for more

const element = (id) => document.getElementById(id);
const learned = spirals(POINTS);
export const heldOut = spirals(POINTS); // for tests
const places = grid(SIDE);
let trainer;

/** A batch of points (count, 2), and for each 1 if it is on the second spiral, (count, 1). */
function spirals(count) {
  const labels = Float32Array.from({ length: count }, (_, point) => point % 2);
  const points = Array.from(labels).flatMap((label) => {
    const turned = Math.random();
    const angle = 2 * Math.PI * (1.25 * turned + label / 2);
    const noise = () => 0.03 * (Math.random() - 0.5);
    const radius = 0.1 + 0.85 * turned;
    return [radius * Math.cos(angle) + noise(), radius * Math.sin(angle) + noise()];
  });
  return {
    x: new ort.Tensor("float32", Float32Array.from(points), [count, 2]),
    labels: new ort.Tensor("float32", labels, [count, 1]),
  };
}

/** The places of a picture of side * side pixels, row by row, from -1 to 1. */
function grid(side) {
  const at = (index) => (2 * index + 1) / side - 1;
  const points = Array.from({ length: side * side }, (_, pixel) => [at(pixel % side), at(Math.floor(pixel / side))]);
  return { x: new ort.Tensor("float32", Float32Array.from(points.flat()), [side * side, 2]) };
}

async function train() {
  element("train").disabled = element("export").disabled = true;
  element("status").textContent = "Training …";
  for (let step = 0; step < STEPS; step++) {
    trainer.learningRate = RATE * (1 - step / STEPS);
    const { loss } = await trainer.step(learned);
    if ((step + 1) % STEPS_PER_PICTURE === 0) await show(loss.data[0], (step + 1) / STEPS);
  }
  element("train").disabled = element("export").disabled = false;
  element("status").textContent = "Done.";
}

/** Shows how far the training is, and lets the browser draw. */
async function show(loss, done) {
  const { loss: heldOutLoss } = await trainer.evaluate(heldOut, "train"); // in a step with dropout: "eval"
  const { logits } = await trainer.infer({ x: heldOut.x });
  const right = heldOut.labels.data.filter((label, point) => label === Number(logits.data[point] > 0)).length;
  element("loss").textContent = loss.toFixed(4);
  element("held-out-loss").textContent = heldOutLoss.data[0].toFixed(4);
  element("accuracy").textContent = `${((100 * right) / POINTS).toFixed(1)} %`;
  element("progress").value = done;
  await draw();
  await new Promise((resolve) => setTimeout(resolve));
}

async function draw() {
  const canvas = element("plane");
  const context = canvas.getContext("2d");
  const { logits } = await trainer.infer(places);
  const size = canvas.width / SIDE;
  logits.data.forEach((logit, pixel) => {
    const confidence = Math.abs(Math.tanh(logit / 2)); // the difference of the two probabilities
    context.fillStyle = `hsl(${logit > 0 ? 30 : 215} 80% ${96 - 32 * confidence}%)`;
    context.fillRect((pixel % SIDE) * size, Math.floor(pixel / SIDE) * size, size, size);
  });
  learned.labels.data.forEach((label, point) => {
    const [x, y] = learned.x.data.subarray(2 * point);
    context.fillStyle = label ? "#8a3b00" : "#003a8c";
    context.fillRect(((x + 1) * canvas.width) / 2 - 1.5, ((y + 1) * canvas.height) / 2 - 1.5, 3, 3);
  });
}

async function download() {
  const model = await trainer.export(); // a model for any ONNX runtime
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([model]));
  link.download = "spirals.onnx";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function fail(error) {
  element("status").textContent = `Stopped: ${error.message}`;
}

element("train").onclick = () => train().catch(fail);
element("export").onclick = () => download().catch(fail);
try {
  const file = await fetch("step.onnx");
  if (!file.ok) throw new Error(`step.onnx could not be loaded: HTTP status ${file.status}`);
  trainer = await Trainer.create(ort, await file.arrayBuffer());
  await draw();
  element("train").disabled = false;
  element("status").textContent = "Ready.";
} catch (error) {
  fail(error);
}
