import { canvas, ink } from "./lines.js";

/** The held-out digits with their predictions. */
export class Grid {
  #cells;
  #labels;

  /** @param heldOut Images `x` (N, side * side) and `labels` (N). */
  constructor(list, { x, labels }, { side }) {
    this.#labels = labels.data;
    this.#cells = Array.from(labels.data, (_, index) => {
      const cell = document.createElement("li");
      const image = canvas(side, side);
      ink(image, x.data.subarray(index * side ** 2, (index + 1) * side ** 2));
      cell.append(image, document.createElement("span"));
      return cell;
    });
    list.replaceChildren(...this.#cells);
  }

  show({ predictions }) {
    predictions.forEach((digit, index) => {
      const cell = this.#cells[index];
      if (cell.dataset.predicted === String(digit)) return;
      cell.dataset.predicted = digit;
      const label = this.#labels[index];
      cell.className = digit === label ? "right" : "wrong";
      cell.lastChild.textContent = digit === label ? digit : `${digit}≠${label}`;
      cell.title = digit === label ? `label ${label}` : `label ${label}, predicted ${digit}`;
    });
  }
}
