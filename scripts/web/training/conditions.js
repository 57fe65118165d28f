/** Conditions of a step on the numbers of a batch and the state: `onnx_ops/training/conditions.py`. */
import { StepError } from "./errors.js";
import { CONDITIONS, CONDITION_NUMBERS } from "./format.js";
import { typeText } from "./tensors.js";

/** The kinds of numbers, and their texts, which are those of Python. */
const KINDS = {
  bool: (number) => (number === 0 ? "False" : "True"),
  int: (number) => String(BigInt(Math.trunc(number))),
  float: textOfFloat,
};

/** Whether an entry of a step's metadata is a condition. */
export function isCondition({ line, code, numbers, expected }) {
  const isNumber = ({ place, kind, captured }) => {
    return Number.isInteger(place) && place >= 0 && Object.hasOwn(KINDS, kind) && typeof captured === "string";
  };
  const isText = [line, code, expected].every((text) => typeof text === "string");
  return isText && Array.isArray(numbers) && numbers.every((number) => number !== null && isNumber(number));
}

/**
 * Checks that a step has the outputs which its conditions need.
 *
 * @param {{line: string, code: string, numbers: {place: number, kind: string, captured: string}[], expected: string}[]}
 *   conditions
 * @param {Object<string, {type: string, dims: (number | string | null)[] | null}>} outputs The types of its outputs.
 * @throws {StepError}
 */
export function checkConditionOutputs(conditions, outputs) {
  if (conditions.length === 0 && !Object.hasOwn(outputs, CONDITIONS)) return;
  const places = new Set(conditions.flatMap(({ numbers }) => numbers.map(({ place }) => place)));
  const wanted = {
    [CONDITIONS]: { type: "bool", dims: [conditions.length] },
    [CONDITION_NUMBERS]: { type: "float64", dims: [places.size] },
  };
  for (const [name, type] of Object.entries(wanted)) {
    const what = Object.hasOwn(outputs, name) ? typeText(outputs[name]) : "missing";
    if (what !== typeText(type)) {
      throw new StepError(`output '${name}' is ${what}, expected ${typeText(type)} for the step's conditions`);
    }
  }
  if ([...places].some((place) => place >= places.size)) {
    throw new StepError(`the step's conditions depend on the numbers ${[...places].join(", ")}, expected all from 0 on`);
  }
}

/**
 * Takes the outputs with the conditions out of those of a run.
 *
 * @param conditions As for `checkConditionOutputs`.
 * @param {Object<string, Tensor>} found The outputs.
 * @throws {StepError} A condition is violated.
 */
export async function checkConditions(conditions, found) {
  const { [CONDITIONS]: holds, [CONDITION_NUMBERS]: numbers } = found;
  if (holds === undefined || numbers === undefined) return;
  delete found[CONDITIONS];
  delete found[CONDITION_NUMBERS];
  const [fulfilled, values] = await Promise.all([holds.getData(true), numbers.getData(true)]);
  const violated = conditions.find((_, place) => !fulfilled[place]);
  if (violated !== undefined) throw new StepError(problem(violated, values));
}

function problem({ line, code, numbers, expected }, values) {
  const came = numbers.map(({ place, kind }) => {
    const number = values[place];
    return Number.isFinite(number) ? KINDS[kind](number) : textOfFloat(number);
  });
  const captured = numbers.map((number) => number.captured).filter((text) => text !== "").join(", ");
  const where = code === "" ? line : `${line} (${code})`;
  const read = captured === "" ? "" : `, and read ${captured} in the example of the capture`;
  return (
    `${where} reads ${came.join(", ")} from tensors${read}. The step is valid only for ${expected || captured}, and the ` +
    "state is as before"
  );
}

/** A number as `str` of a float in Python. */
function textOfFloat(number) {
  if (!Number.isFinite(number)) return { Infinity: "inf", "-Infinity": "-inf", NaN: "nan" }[number];
  const [digits, exponent] = number.toExponential().split("e");
  if (number !== 0 && (exponent < -4 || exponent >= 16)) {
    return `${digits}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
  }
  const sign = Object.is(number, -0) ? "-" : "";
  return `${sign}${number}${Number.isInteger(number) ? ".0" : ""}`;
}
