/**
 * The names in a step's file, and the version of its format. onnx_ops/core/step_format.py says what they are; a test
 * reads the constants here, each a string in one line, and compares them.
 */

/** The newest version that can be read. */
export const FORMAT = "1.0";

/** The version of files that do not name one. */
export const UNVERSIONED = "1.0";

/** The key of a model's metadata under which a step says what its inputs are. */
export const STEP_METADATA = "onnx_ops.step";

/** The function that is the inference graph, and its domain. */
export const CARRIED_DOMAIN = "onnx_ops.training";
export const INFERENCE = "inference";

/** The roles of inputs. */
export const PARAMETER = "parameter";
export const BUFFER = "buffer";
export const OPTIMIZER = "optimizer";
export const SEED = "seed";
export const SETTING = "setting";

/** The setting of a step's only group of parameters; of several groups `learning_rate.0` and so on. */
export const LEARNING_RATE = "learning_rate";

/** What the name of an output begins with that is an input's next value. */
export const NEXT = "next.";
