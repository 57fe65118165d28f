import { Reading } from "./lines.js";

const FINER = 4; // canvas pixels per pixel of the image, along both axes
const PEN = 6.5; // width of a stroke in canvas pixels
const FIRST = "31415";

/**
 * A line composed by the visitor, of images of digits and of strokes. As in the data set, a pixel is the share of ink in
 * a square of the canvas.
 */
export class OwnLine {
  #setup;
  #hands;
  #canvas;
  #context;
  #before = []; // contents of the canvas before each change
  #picked = 0;
  #changed;
  #reading;
  #left = 0; // columns before the line
  #width = 0; // columns of the line

  /**
   * @param {HTMLElement} panel
   * @param setup Of the task.
   * @param {(line: ?{image: Float32Array, width: number}) => void} changed Called when the line changes.
   */
  constructor(panel, setup, changed) {
    this.#setup = setup;
    this.#hands = setup.arrays.hands.images;
    this.#changed = changed;
    this.#canvas = panel.querySelector("canvas");
    [this.#canvas.width, this.#canvas.height] = [FINER * setup.width, FINER * setup.height];
    this.#context = this.#canvas.getContext("2d", { willReadFrequently: true });
    Object.assign(this.#context, { lineWidth: PEN, lineCap: "round", lineJoin: "round", imageSmoothingEnabled: false });
    this.#reading = new Reading(setup, setup.width);
    panel.querySelector(".reading").replaceChildren(...this.#reading.elements);
    this.#listen(panel);
    for (const digit of FIRST) this.#put(Number(digit));
  }

  show({ logProbs, digits }) {
    const { classes, width } = this.#setup;
    // The columns before the line have probability 0.
    const moved = new Float32Array(width * classes).fill(-Infinity);
    moved.set(logProbs.subarray(0, this.#width * classes), this.#left * classes);
    this.#reading.show(moved, digits.map(({ digit, column }) => ({ digit, column: column + this.#left })));
  }

  #listen(panel) {
    for (const button of panel.querySelectorAll("button[data-digit]")) {
      button.onclick = () => this.#put(Number(button.dataset.digit));
    }
    panel.querySelector("[data-action=undo]").onclick = () => this.#undo();
    panel.querySelector("[data-action=clear]").onclick = () => this.#clear();
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select, input")) return;
      if (/^[0-9]$/.test(event.key)) this.#put(Number(event.key));
      else if (event.key === "Backspace") this.#undo();
    });

    const place = (event) => {
      const { left, top, width, height } = this.#canvas.getBoundingClientRect();
      const [x, y] = [(event.clientX - left) / width, (event.clientY - top) / height];
      return [x * this.#canvas.width, y * this.#canvas.height];
    };
    let last = null;
    const stroke = (event) => {
      const next = place(event);
      this.#context.beginPath();
      this.#context.moveTo(...last);
      this.#context.lineTo(...next);
      this.#context.stroke();
      last = next;
      this.#notify();
    };
    this.#canvas.onpointerdown = (event) => {
      this.#canvas.setPointerCapture(event.pointerId);
      this.#remember();
      last = place(event);
      stroke(event);
    };
    this.#canvas.onpointermove = (event) => last && stroke(event);
    this.#canvas.onpointerup = this.#canvas.onpointercancel = () => (last = null);
  }

  /** Appends an image of a digit, if there is room; each time by another writer. */
  #put(digit) {
    const { side, height, width } = this.#setup;
    const [, end] = this.#extent(this.#brightness());
    const column = end + 1;
    if (column + side > width) return;
    this.#remember();
    const hands = this.#hands.dims[1];
    const start = (digit * hands + (this.#picked++ % hands)) * side ** 2;
    const row = (height - side) / 2;
    for (let index = 0; index < side ** 2; index++) {
      this.#context.globalAlpha = this.#hands.data[start + index];
      const [x, y] = [column + (index % side), row + Math.floor(index / side)];
      this.#context.fillRect(FINER * x, FINER * y, FINER, FINER);
    }
    this.#context.globalAlpha = 1;
    this.#notify();
  }

  #clear() {
    this.#remember();
    this.#context.clearRect(0, 0, this.#canvas.width, this.#canvas.height);
    this.#notify();
  }

  #undo() {
    const before = this.#before.pop();
    if (before === undefined) return;
    this.#context.putImageData(before, 0, 0);
    this.#notify();
  }

  #remember() {
    this.#before.push(this.#context.getImageData(0, 0, this.#canvas.width, this.#canvas.height));
  }

  /** Passes the line to `changed`, from two columns before its first ink to two after its last. */
  #notify() {
    const { height, width } = this.#setup;
    const brightness = this.#brightness();
    const [begin, end] = this.#extent(brightness);
    this.#left = Math.max(0, begin - 2);
    this.#width = Math.min(width, end + 2) - this.#left;
    if (end === 0) {
      this.#reading.show(new Float32Array(width * this.#setup.classes).fill(-Infinity), []);
      this.#changed(null);
      return;
    }
    const image = new Float32Array(height * width);
    for (let row = 0; row < height; row++) {
      image.set(brightness.subarray(row * width + this.#left, (row + 1) * width), row * width);
    }
    this.#changed({ image, width: this.#width });
  }

  /** The share of ink in each pixel of the line. */
  #brightness() {
    const { height, width } = this.#setup;
    const { data } = this.#context.getImageData(0, 0, this.#canvas.width, this.#canvas.height);
    const brightness = new Float32Array(height * width);
    for (let y = 0; y < FINER * height; y++) {
      for (let x = 0; x < FINER * width; x++) {
        const pixel = Math.floor(y / FINER) * width + Math.floor(x / FINER);
        brightness[pixel] += data[4 * (y * FINER * width + x) + 3] / 255 / FINER ** 2;
      }
    }
    return brightness;
  }

  /** [first column with ink, last one + 1]; [0, 0] without ink. */
  #extent(brightness) {
    const { height, width } = this.#setup;
    const inked = (column) => {
      for (let row = 0; row < height; row++) if (brightness[row * width + column] > 0.05) return true;
      return false;
    };
    const columns = Array.from({ length: width }, (_, column) => column).filter(inked);
    return columns.length ? [columns[0], columns.at(-1) + 1] : [0, 0];
  }
}
