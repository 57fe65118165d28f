import uPlot from "./uplot/uPlot.esm.js";

const FONT = "12px system-ui, sans-serif";

/** The loss of each step, and its moving average. Data: [epochs, losses, means]. The axis includes `lowest`. */
export function lossChart(element, epochs, lowest) {
  return chart(element, epochs, {
    name: "Loss (logarithmic)",
    scale: { distr: 3, range: (_, low, high) => [Math.min(lowest, decade(low)), Math.max(1, 10 * decade(high))] },
    series: [
      { stroke: () => color("--curve-faint"), width: 1, points: { show: false } },
      { stroke: () => color("--curve"), width: 2, points: { show: false } },
    ],
    ticks: (from, to) => {
      const ticks = [];
      for (let tick = from; tick <= 1.01 * to; tick *= 10) ticks.push(Number(tick.toPrecision(1)));
      return ticks;
    },
    label: String,
  });
}

/** The accuracy on held-out samples. Data: [epochs, accuracies]. */
export function accuracyChart(element, epochs) {
  return chart(element, epochs, {
    name: "Accuracy",
    scale: { range: [0, 1] },
    series: [{ stroke: () => color("--right"), width: 2, points: { show: false } }],
    ticks: () => [0, 0.2, 0.4, 0.6, 0.8, 1],
    label: (value) => `${Math.round(100 * value)} %`,
  });
}

/** A chart of the size of its element, in the colors of the page. */
function chart(element, epochs, { name, scale, series, ticks, label }) {
  const axis = (more) => ({
    stroke: () => color("--muted"),
    grid: { stroke: () => color("--line"), width: 1 },
    ticks: { show: false },
    font: FONT,
    labelFont: FONT,
    labelSize: 18,
    ...more,
  });
  const plot = new uPlot(
    {
      ...size(element),
      padding: [10, 12, 0, 0],
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { time: false, range: [0, epochs] }, y: scale },
      series: [{}, ...series],
      axes: [
        axis({ label: "Epoch", size: 26 }),
        axis({
          label: name,
          size: 48,
          splits: (_, axisIndex, from, to) => ticks(from, to),
          values: (_, values) => values.map(label),
        }),
      ],
    },
    [[], ...series.map(() => [])],
    element,
  );
  new ResizeObserver(() => plot.setSize(size(element))).observe(element);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plot.redraw());
  return plot;
}

function size(element) {
  return { width: element.clientWidth, height: element.clientHeight };
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name);
}

/** The largest power of ten up to the value; 0.1 without a value. */
function decade(value) {
  return 10 ** Math.floor(Math.log10(value ?? 0.1));
}
