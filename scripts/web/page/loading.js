const ARRAYS = { float32: Float32Array, int64: BigInt64Array, uint8: Uint8Array };

/**
 * Fetches the setup of a task, with the arrays in place of their offsets.
 *
 * @param {string} name "digits" or "lines".
 * @throws {Error} A file cannot be loaded.
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

/** Fetches a file of the server; throws an error if it cannot be loaded. */
export async function fetched(name) {
  const response = await fetch(new URL(name, import.meta.url)).catch((error) => {
    throw new Error(`${name} could not be loaded (${error.message}). Is the server still running?`);
  });
  if (!response.ok) throw new Error(`${name} could not be loaded: HTTP status ${response.status}.`);
  return response;
}

/** An object with the same keys and the values `make(value)`. */
export function mapped(object, make) {
  return Object.fromEntries(Object.entries(object).map(([key, value]) => [key, make(value)]));
}
