/** The metadata of a step: the entry that `onnx_ops/training/step.py` writes. */
import { formatProblem } from "./checkpoint.js";
import { isCondition } from "./conditions.js";
import { StepError } from "./errors.js";
import { BUFFER, OPTIMIZER, PARAMETER, SEED, SETTING, STEP_METADATA } from "./format.js";

const ROLES = [PARAMETER, BUFFER, OPTIMIZER, SEED, SETTING];

/**
 * Reads the entry of a model, a Message.
 *
 * @returns {{
 *   roles: Object<string, string>,
 *   tied: Object<string, string>,
 *   bounds: Object<string, {min: number, max: ?number, worker_min: (number|undefined)}>,
 *   ranges: {input: string, low: number, high: number, ignored: ?number, cuts: ?number[][]}[],
 *   conditions: {line: string, code: string, numbers: {place: number, kind: string, captured: string}[], expected: string}[],
 * }} The role of each input of the state; other names of tied parameters and buffers; the sizes that named dimensions of
 *   the batch may have; the ranges of indices among its inputs; and what the outputs with the conditions of the step say.
 * @throws {StepError} The model is no training step, or the entry is invalid.
 */
export function recordOf(model) {
  const entry = model.messages(14, "the metadata").findLast((message) => message.text(1) === STEP_METADATA);
  if (entry === undefined) {
    throw new StepError(`the model is no training step: its metadata have no entry '${STEP_METADATA}'`);
  }
  const cannot = (why) => new StepError(`the entry '${STEP_METADATA}' of the model's metadata cannot be read: ${why}`);
  let found;
  try {
    found = JSON.parse(entry.text(2));
  } catch (error) {
    throw cannot(error.message);
  }
  const problem = formatProblem(found?.format);
  if (problem !== null) throw cannot(problem);
  for (const key of ["roles", "tied"]) {
    const texts = found?.[key];
    if (typeof texts !== "object" || texts === null || !Object.values(texts).every((t) => typeof t === "string")) {
      throw cannot(`'${key}' is no object of strings`);
    }
  }
  for (const [name, role] of Object.entries(found.roles)) {
    if (!ROLES.includes(role)) throw cannot(`'${name}' has the role '${role}', expected one of ${ROLES.join(", ")}`);
  }
  for (const [other, first] of Object.entries(found.tied)) {
    if (![PARAMETER, BUFFER].includes(found.roles[first])) {
      throw cannot(`'${other}' is tied to '${first}', which is no parameter and no buffer`);
    }
  }
  const { roles, tied, bounds = {}, ranges = [], conditions = [] } = found;
  if (typeof bounds !== "object" || bounds === null || !Object.values(bounds).every(isBounds)) {
    throw cannot("'bounds' is no object of ranges of sizes");
  }
  for (const [key, entries, isEntry] of [
    ["ranges", ranges, isRange],
    ["conditions", conditions, isCondition],
  ]) {
    if (!Array.isArray(entries) || !entries.every((one) => one !== null && isEntry(one))) {
      throw cannot(`'${key}' is no list of ${key}`);
    }
  }
  return { roles, tied, bounds, ranges, conditions };
}

/** The bounds where batch norm has other statistics than those of the batch, as in evaluation mode. */
export function boundsOfOtherStatistics({ min, max, worker_min }) {
  return { min: worker_min ?? min, max };
}

function isBounds(bounds) {
  const isSize = (size) => size === null || Number.isInteger(size);
  return Number.isInteger(bounds?.min) && isSize(bounds.max) && isSize(bounds.worker_min ?? null);
}

function isRange({ input, low, high, ignored = 0, cuts = [] }) {
  const isCut = (cut) => Array.isArray(cut) && [2, 4].includes(cut.length) && cut.every(Number.isInteger);
  return typeof input === "string" && [low, high, ignored].every(Number.isInteger) && Array.isArray(cuts) && cuts.every(isCut);
}
