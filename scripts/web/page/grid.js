/** The held-out digits, each with what the network takes it for. */
export class Grid {
  #cells;
  #labels;

  /** @param {{images: number[], labels: number[]}} heldOut images one after the other, and the digit that each shows */
  constructor(list, { images, labels }, side) {
    this.#labels = labels;
    this.#cells = labels.map((_, index) => {
      const cell = document.createElement("li");
      const name = document.createElement("span");
      cell.append(picture(images.slice(index * side ** 2, (index + 1) * side ** 2), side), name);
      return cell;
    });
    list.replaceChildren(...this.#cells);
  }

  show(predictions) {
    predictions.forEach((digit, index) => {
      const cell = this.#cells[index];
      if (cell.dataset.named === String(digit)) return;
      cell.dataset.named = digit;
      const label = this.#labels[index];
      cell.className = digit === label ? "right" : "wrong";
      cell.lastChild.textContent = digit === label ? digit : `${digit}≠${label}`;
      cell.title = digit === label ? `a ${label}, named right` : `a ${label}, taken for a ${digit}`;
    });
  }
}

/** An image (side, side) in ink, as opaque as a pixel is bright. */
function picture(pixels, side) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = side;
  const ink = new ImageData(side, side);
  pixels.forEach((brightness, index) => (ink.data[4 * index + 3] = Math.round(255 * brightness)));
  canvas.getContext("2d").putImageData(ink, 0, 0);
  return canvas;
}
