/** An invalid training step or checkpoint, or arguments that do not match them. */
export class StepError extends Error {
  name = "StepError";
}
