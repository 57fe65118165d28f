/** Graphs that the model of a step carries as functions: the trained network, and the loss in evaluation mode. */
import { StepError } from "./errors.js";
import { CARRIED_DOMAIN, STEP_METADATA, WEIGHTS_METADATA } from "./format.js";
import { Message, field, integerField, joined } from "./protobuf.js";
import { bytesOfTensor, elementNumber, typesOf } from "./tensors.js";

const METADATA_OF_STEPS = [STEP_METADATA, WEIGHTS_METADATA];

/**
 * A carried graph as a model, whose inputs are the state that it reads, then the batch. Nodes and types are copied as
 * bytes.
 *
 * @param {Message} model The step.
 * @param {string} name Of the graph.
 * @returns {?{model: Uint8Array, inputs: Object<string, {type: string, dims: (number | string | null)[] | null}>}} Null if
 *   the step has no graph of that name.
 * @throws {StepError} An input or output has no type.
 */
export function carriedModel(model, name) {
  const functions = model.of(25).map(({ value, whole }) => ({ whole, message: new Message(value, "a function") }));
  const found = functions.find(({ message }) => message.text(10) === CARRIED_DOMAIN && message.text(1) === name);
  if (found === undefined) return null;
  const graph = found.message;
  const infos = new Map(graph.of(12).map((one) => [new Message(one.value, "a type").text(1), one.value]));
  const info = (value) => {
    if (!infos.has(value)) throw new StepError(`'${value}' of the ${name} graph has no type`);
    return infos.get(value);
  };
  const names = graph.texts(4);
  const imported = new Set(graph.messages(9, "an import").map((message) => message.text(1)).concat(CARRIED_DOMAIN));
  const whole = joined([
    ...graph.of(7).map(({ value }) => field(1, value)),
    field(2, new TextEncoder().encode(name)),
    ...names.map((value) => field(11, info(value))),
    ...graph.texts(5).map((value) => field(12, info(value))),
  ]);
  const chunks = [
    ...model.of(1).map((one) => one.whole),
    ...graph.of(9).map(({ value }) => field(8, value)),
    ...model.of(8).filter(({ value }) => !imported.has(new Message(value, "an import").text(1))).map((one) => one.whole),
    ...model.of(14).filter(({ value }) => !METADATA_OF_STEPS.includes(new Message(value, "metadata").text(1))).map((one) => one.whole),
    ...called(graph.messages(7, "a node"), functions).map((one) => one.whole),
    field(7, whole),
  ];
  const inputs = typesOf(names.map((value) => new Message(info(value), "an input")));
  return { model: joined(chunks), inputs };
}

/** The functions that nodes call, also within functions, in their order in the model. */
function called(nodes, functions) {
  const byKey = new Map(functions.map((one) => [keyOf(one.message, 1, 10, 13), one]));
  const needed = new Set();
  const visit = (node) => {
    for (const attribute of node.messages(5, "an attribute")) {
      for (const graph of [...attribute.messages(6, "a graph"), ...attribute.messages(11, "a graph")]) {
        graph.messages(1, "a node").forEach(visit);
      }
    }
    const one = byKey.get(keyOf(node, 4, 7, 8));
    if (one === undefined || needed.has(one)) return;
    needed.add(one);
    one.message.messages(7, "a node").forEach(visit);
  };
  nodes.forEach(visit);
  return functions.filter((one) => needed.has(one));
}

/** The name of a function and those that call it, of the given fields: name, domain, overload. */
function keyOf(message, ...fields) {
  return JSON.stringify(fields.map((number) => message.text(number)));
}

/**
 * A model in which tensors are initializers instead of inputs.
 *
 * @param {Uint8Array} bytes The model.
 * @param {Object<string, {type: string, data: TypedArray, dims: number[]}>} tensors By the names of the inputs.
 */
export function withInitializers(bytes, tensors) {
  const model = new Message(bytes, "the model");
  const [graph] = model.messages(7, "the graph");
  const kept = graph.fields.filter(({ number, value }) => {
    return number !== 11 || !Object.hasOwn(tensors, new Message(value, "an input").text(1));
  });
  const initializers = Object.entries(tensors).map(([name, tensor]) => field(5, tensorProto(name, tensor)));
  const chunks = model.fields.map(({ number, whole }) => {
    return number === 7 ? field(7, joined([...kept.map((one) => one.whole), ...initializers])) : whole;
  });
  return joined(chunks);
}

function tensorProto(name, tensor) {
  return joined([
    ...tensor.dims.map((dim) => integerField(1, dim)),
    integerField(2, elementNumber(tensor.type)),
    field(8, new TextEncoder().encode(name)),
    field(9, bytesOfTensor(tensor)),
  ]);
}
