/** The batches of a training: in each epoch all samples once, shuffled; the order depends on the seed only. */
export class Batches {
  #random;
  #order;
  #drawn = 0;

  /**
   * @param {Object<string, {type: string, data: TypedArray, dims: number[]}>} learned The training set by name of the
   *   step's inputs; axis 0 is the batch axis.
   * @param {{seed: number, stepsPerEpoch: number}} setup
   */
  constructor(learned, { seed, stepsPerEpoch }) {
    Object.assign(this, { learned, stepsPerEpoch });
    this.#random = random(seed);
    const [{ dims }] = Object.values(learned);
    this.#order = Array.from({ length: dims[0] }, (_, index) => index);
  }

  /** @returns {Object<string, {type: string, data: TypedArray, dims: number[]}>} */
  next() {
    const position = this.#drawn++ % this.stepsPerEpoch;
    if (position === 0) this.#shuffle();
    const bound = (batch) => Math.round((batch * this.#order.length) / this.stepsPerEpoch);
    const indices = this.#order.slice(bound(position), bound(position + 1));
    const parts = Object.entries(this.learned).map(([name, { type, data, dims }]) => {
      const size = data.length / dims[0];
      const taken = new data.constructor(indices.length * size);
      indices.forEach((index, row) => taken.set(data.subarray(index * size, (index + 1) * size), row * size));
      return [name, { type, data: taken, dims: [indices.length, ...dims.slice(1)] }];
    });
    return Object.fromEntries(parts);
  }

  /** Fisher-Yates shuffle. */
  #shuffle() {
    for (let last = this.#order.length - 1; last > 0; last--) {
      const other = Math.floor(this.#random() * (last + 1));
      [this.#order[last], this.#order[other]] = [this.#order[other], this.#order[last]];
    }
  }
}

/** The random generator mulberry32, uniform in [0, 1), with a 32-bit seed. */
function random(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let bits = Math.imul(seed ^ (seed >>> 15), seed | 1);
    bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
    return ((bits ^ (bits >>> 14)) >>> 0) / 2 ** 32;
  };
}
