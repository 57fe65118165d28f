/**
 * Names and version of the format of step files, as in onnx_ops/core/step_format.py; a test compares the constants, for
 * which each is a string in one line.
 */

/** The newest supported version. */
export const FORMAT = "2.0";

/** The version of checkpoints. */
export const UNCONDITIONAL = "1.1";

/** The version of files without one. */
export const UNVERSIONED = "1.0";

/** The key of the model metadata with the roles of the inputs. */
export const STEP_METADATA = "onnx_ops.step";

/** The key of the model metadata with the file of its external data and the checksum in that. */
export const WEIGHTS_METADATA = "onnx_ops.weights";

/** The keys of a checkpoint's metadata with the version of its format and the checksum of its contents. */
export const FORMAT_METADATA = "onnx_ops.format";
export const CHECKSUM_METADATA = "onnx_ops.sha256";

/** Domain of functions that are graphs, and the names of those: the trained network, the loss in evaluation mode. */
export const CARRIED_DOMAIN = "onnx_ops.training";
export const INFERENCE = "inference";
export const EVALUATION = "evaluation";

/** The roles of inputs. */
export const PARAMETER = "parameter";
export const BUFFER = "buffer";
export const OPTIMIZER = "optimizer";
export const SEED = "seed";
export const SETTING = "setting";

/** The setting with the learning rate; `learning_rate.0` and so on with several parameter groups. */
export const LEARNING_RATE = "learning_rate";

/** The factor of the loss in a step that scales it. */
export const GRAD_SCALE = "grad_scaler.scale";

/** Prefix of the averages of weights, before `module.` and the name of a parameter or buffer. */
export const AVERAGED = "averaged.";

/** The outputs of a step with conditions: which of them hold, and the numbers that they depend on. */
export const CONDITIONS = "condition.holds";
export const CONDITION_NUMBERS = "condition.numbers";

/** Prefix of outputs that are the next value of an input. */
export const NEXT = "next.";

/** Prefix of outputs that are gradients. */
export const GRADIENT = "grad.";
