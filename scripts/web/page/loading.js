const ARRAYS = { float32: Float32Array, int64: BigInt64Array, uint8: Uint8Array };

/**
 * Fetches a task: its setup, with the arrays in place of what it tells of their places.
 *
 * @param {string} name "digits" or "lines".
 * @throws {Error} That says in words what is missing.
 */
export async function loadSetup(name) {
  const [setup, data] = await Promise.all([
    fetched(`${name}/setup.json`).then((response) => response.json()),
    fetched(`${name}/arrays.bin`).then((response) => response.arrayBuffer()),
  ]);
  const array = ({ type, dims, offset }) => {
    const count = dims.reduce((product, size) => product * size, 1);
    return { type, dims, data: new ARRAYS[type](data, offset, count) };
  };
  setup.arrays = mapped(setup.arrays, (members) => mapped(members, array));
  return setup;
}

/** Fetches a file of the server. Throws an error that says in words that it is missing. */
export async function fetched(name) {
  const response = await fetch(new URL(name, import.meta.url)).catch((error) => {
    throw new Error(`${name} could not be loaded (${error.message}). Is the server still running?`);
  });
  if (!response.ok) throw new Error(`${name} could not be loaded: the server answers ${response.status}.`);
  return response;
}

/** An object of the same keys, each with what is made of its value. */
export function mapped(object, make) {
  return Object.fromEntries(Object.entries(object).map(([key, value]) => [key, make(value)]));
}
