import { LINES_SHOWN, writtenIn } from "./tasks.js";

/** Held-out lines with the probabilities of each column and the decoded digits. */
export class Lines {
  #rows;

  /** @param heldOut The arrays of the held-out lines. */
  constructor(list, { images, widths, digits, lengths }, setup) {
    const { height, width: columns } = setup;
    this.#rows = Array.from({ length: LINES_SHOWN }, (_, line) => {
      const width = Number(widths.data[line]);
      const start = line * height * columns;
      const image = canvas(columns, height);
      image.className = "ink";
      ink(image, images.data.subarray(start, start + height * columns));
      const row = document.createElement("li");
      const reading = new Reading(setup, width, writtenIn(digits, lengths, line).join(""));
      row.append(image, ...reading.elements);
      list.append(row);
      return reading;
    });
    this.setup = setup;
  }

  show({ readings, logProbs }) {
    const size = this.setup.width * this.setup.classes;
    this.#rows.forEach((row, line) => row.show(logProbs.subarray(line * size, (line + 1) * size), readings[line]));
  }
}

/** The probabilities of each column of a line, with the decoded digits below. */
export class Reading {
  #setup;
  #map;
  #digits = document.createElement("p");
  #said = document.createElement("p");

  /**
   * @param {number} width Number of columns of the line.
   * @param {?string} truth The label, null if unknown.
   */
  constructor(setup, width, truth = null) {
    this.#setup = setup;
    this.#map = canvas(setup.width, setup.classes);
    this.#map.className = "probabilities";
    this.#digits.className = "places";
    this.#digits.setAttribute("aria-hidden", "true"); // repeated in the text below
    this.#said.className = "said";
    this.width = width;
    this.truth = truth;
    this.elements = [this.#map, this.#digits, this.#said];
  }

  show(logProbs, found) {
    const { width: columns, classes } = this.#setup;
    const opacity = new Float32Array(classes * columns);
    for (let column = 0; column < this.width; column++) {
      for (let one = 0; one < classes; one++) opacity[one * columns + column] = Math.exp(logProbs[column * classes + one]);
    }
    ink(this.#map, opacity, rgb("--curve"));

    const text = found.map(({ digit }) => digit).join("");
    const right = this.truth === null || text === this.truth;
    this.#digits.classList.toggle("wrong", !right);
    this.#digits.replaceChildren(
      ...found.map(({ digit, column }) => {
        const place = document.createElement("span");
        place.textContent = digit;
        place.style.left = `${(100 * (column + 0.5)) / columns}%`;
        return place;
      }),
    );
    this.#said.textContent = (right ? "" : `written ${this.truth}, `) + `reads ${text || "nothing"}`;
  }
}

export function canvas(width, height) {
  const made = document.createElement("canvas");
  [made.width, made.height] = [width, height];
  return made;
}

/** Draws numbers in [0, 1], row by row, as opacity of a color. */
export function ink(target, opacity, [red, green, blue] = [0, 0, 0]) {
  const picture = new ImageData(target.width, target.height);
  opacity.forEach((share, index) => picture.data.set([red, green, blue, Math.round(255 * share)], 4 * index));
  target.getContext("2d").putImageData(picture, 0, 0);
}

/** The components of a color "#rrggbb" of the page's style sheet. */
function rgb(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
}
