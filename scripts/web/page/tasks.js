import { editDistance, largest, read } from "./reading.js";

/** The tasks of the worker: the input of the network, and its evaluation on the held-out samples. */
export const TASKS = {
  digits: {
    input: "x",

    evaluate({ logits }, { labels }) {
      const classes = logits.dims[1];
      const predictions = Array.from(labels.data, (_, index) => largest(logits.data, index * classes, classes));
      const right = predictions.filter((digit, index) => digit === labels.data[index]).length;
      return { accuracy: right / predictions.length, predictions };
    },
  },

  lines: {
    input: "images",

    evaluate({ output }, { digits, widths, lengths }, setup) {
      const [count, columns, classes] = output.dims;
      const readings = [];
      let [wrong, total] = [0, 0];
      for (let line = 0; line < count; line++) {
        const own = output.data.subarray(line * columns * classes, (line + 1) * columns * classes);
        readings.push(read(own, Number(widths.data[line]), setup));
        const written = writtenIn(digits, lengths, line);
        wrong += editDistance(readings[line].map(({ digit }) => digit), written);
        total += written.length;
      }
      const shown = output.data.slice(0, LINES_SHOWN * columns * classes);
      const predictions = readings.map((reading) => reading.map(({ digit }) => digit).join(""));
      // The character error rate can exceed 1.
      const accuracy = Math.max(0, 1 - wrong / total);
      return { accuracy, predictions, readings: readings.slice(0, LINES_SHOWN), logProbs: shown };
    },
  },
};

/** Number of held-out lines on the page. */
export const LINES_SHOWN = 5;

/** The label of a line. */
export function writtenIn(digits, lengths, line) {
  const start = line * digits.dims[1];
  return Array.from(digits.data.subarray(start, start + Number(lengths.data[line])), Number);
}
