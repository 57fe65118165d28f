/**
 * Greedy (best path) decoding: the most probable class of each column, without repetitions and blanks.
 *
 * @param {Float32Array} logProbs (columns, classes).
 * @param {number} width Number of columns of the line.
 * @param {{classes: number, blank: number}} setup
 * @returns {{digit: number, column: number}[]} Each digit with the middle of its columns.
 */
export function read(logProbs, width, { classes, blank }) {
  const found = [];
  for (let column = 0, before = blank, start = 0; column <= width; column++) {
    const best = column < width ? largest(logProbs, column * classes, classes) : blank;
    if (best === before) continue;
    if (before !== blank) found.push({ digit: before, column: (start + column - 1) / 2 });
    [before, start] = [best, column];
  }
  return found;
}

/** The index of the largest of `count` values, relative to `start`. */
export function largest(values, start, count) {
  let best = 0;
  for (let index = 1; index < count; index++) if (values[start + index] > values[start + best]) best = index;
  return best;
}

/** The Levenshtein distance of two arrays. */
export function editDistance(one, other) {
  let row = Array.from({ length: other.length + 1 }, (_, index) => index);
  for (const [index, a] of one.entries()) {
    const next = [index + 1];
    for (const [at, b] of other.entries()) {
      next.push(Math.min(row[at] + (a === b ? 0 : 1), row[at + 1] + 1, next[at] + 1));
    }
    row = next;
  }
  return row.at(-1);
}
