/**
 * The batches that training runs on: every epoch all images once, in random order, each moved by up to one pixel.
 * The same seed gives the same batches.
 */
export class Batches {
  #random;
  #order;
  #drawn = 0;

  /**
   * @param {{images: number[], labels: number[]}} learned images one after the other, and the digit that each shows
   * @param {{seed: number, batch: number, side: number, digits: number}} setup
   */
  constructor(learned, { seed, batch, side, digits }) {
    Object.assign(this, { learned, side, digits, pixels: side * side });
    this.perEpoch = Math.floor(learned.labels.length / batch);
    this.#random = random(seed);
    this.#order = learned.labels.map((_, index) => index);
  }

  /** @returns {{images: Float32Array, targets: Float32Array, count: number}} targets are one-hot */
  next() {
    const position = this.#drawn++ % this.perEpoch;
    if (position === 0) this.#shuffle();
    const bound = (batch) => Math.round((batch * this.#order.length) / this.perEpoch);
    const indices = this.#order.slice(bound(position), bound(position + 1));

    const images = new Float32Array(indices.length * this.pixels);
    const targets = new Float32Array(indices.length * this.digits);
    indices.forEach((index, row) => {
      this.#copyNudged(index, images.subarray(row * this.pixels, (row + 1) * this.pixels));
      targets[row * this.digits + this.learned.labels[index]] = 1;
    });
    return { images, targets, count: indices.length };
  }

  #copyNudged(index, target) {
    const [down, right] = [this.#below(3) - 1, this.#below(3) - 1];
    for (let y = Math.max(0, down); y < this.side + Math.min(0, down); y++) {
      for (let x = Math.max(0, right); x < this.side + Math.min(0, right); x++) {
        target[y * this.side + x] = this.learned.images[index * this.pixels + (y - down) * this.side + (x - right)];
      }
    }
  }

  /** Fisher and Yates. */
  #shuffle() {
    for (let last = this.#order.length - 1; last > 0; last--) {
      const other = this.#below(last + 1);
      [this.#order[last], this.#order[other]] = [this.#order[other], this.#order[last]];
    }
  }

  #below(bound) {
    return Math.floor(this.#random() * bound);
  }
}

/** Numbers from 0 to 1, exclusive, from a 32-bit seed: the generator mulberry32. */
function random(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let bits = Math.imul(seed ^ (seed >>> 15), seed | 1);
    bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
    return ((bits ^ (bits >>> 14)) >>> 0) / 2 ** 32;
  };
}
