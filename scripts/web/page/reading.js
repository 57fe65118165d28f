/**
 * What a reader's log-probabilities tell of a line: of each column the most probable class, of equal ones in a row one,
 * and no blanks.
 *
 * @param {Float32Array} logProbs Of all columns, one after the other.
 * @param {number} width The number of columns of the line.
 * @param {{classes: number, blank: number}} setup
 * @returns {{digit: number, column: number}[]} Each digit, and the middle of the columns in which it is told.
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

/** The place of the largest of so many numbers, counted from the first of them. */
export function largest(values, start, count) {
  let best = 0;
  for (let index = 1; index < count; index++) if (values[start + index] > values[start + best]) best = index;
  return best;
}

/** How many entries have to be put in, taken out or replaced to make one sequence of the other (Levenshtein). */
export function editDistance(one, other) {
  let row = Array.from({ length: other.length + 1 }, (_, index) => index);
  for (const [index, mine] of one.entries()) {
    const next = [index + 1];
    for (const [at, its] of other.entries()) {
      next.push(Math.min(row[at] + (mine === its ? 0 : 1), row[at + 1] + 1, next[at] + 1));
    }
    row = next;
  }
  return row.at(-1);
}
