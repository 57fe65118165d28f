/** Runs on a GPU whose errors are not lost: onnxruntime-web goes on with wrong numbers where a shader is invalid. */
import { StepError } from "./errors.js";

const FILTERS = ["validation", "out-of-memory", "internal"];

/** Whether a list of execution providers has WebGPU. */
export function hasWebgpu(executionProviders) {
  return executionProviders.some((provider) => (provider.name ?? provider) === "webgpu");
}

/** Throws a StepError where WebGPU is missing. */
export async function checkWebgpu() {
  const missing = (why) => {
    return new StepError(`WebGPU is not available: ${why}. Leave "webgpu" out of executionProviders to train on the CPU`);
  };
  if (globalThis.navigator?.gpu === undefined) {
    throw missing("there is no navigator.gpu, which browsers have on pages of https or localhost; Node has none");
  }
  if ((await navigator.gpu.requestAdapter()) === null) throw missing("the browser has no adapter for a GPU");
}

/**
 * The result of a run.
 *
 * @param {GPUDevice} device That of onnxruntime-web.
 * @param {() => Promise<Object>} run
 * @throws {StepError} The device reports an error.
 */
export async function checkedRun(device, run) {
  for (const filter of FILTERS) device.pushErrorScope(filter);
  let result;
  let errors;
  try {
    result = await run();
  } finally {
    errors = await Promise.all(FILTERS.map(() => device.popErrorScope()));
  }
  const error = errors.find((one) => one !== null);
  if (error !== undefined) {
    throw new StepError(`the GPU cannot run the step, and the state is as before: ${error.message}`);
  }
  return result;
}
