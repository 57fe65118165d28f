"""`make demo`: trains a reader of handwritten digits with the ops, and checks and times each op on its data.

Run it from the repository's root: `python -m scripts.demo`. It exits with status 1 if the classifier's accuracy or the
accuracy of an op is not what it should be.
"""

import functools
import sys
import textwrap
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from rich import box
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

import onnx_ops
from models import digit_lines, digit_training, digits
from models.digit_training import REQUIRED_ACCURACY, Digits
from models.single_op import single_op_model

# float32 carries 7 digits: a result may be off by this share of its largest value.
TOLERANCE = 1e-6
TIMED_RUNS = 100
# Where the output is no terminal, a line for every so many epochs takes the place of the progress bar.
EPOCHS_PER_LINE = 10

console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)

Arrays = dict[str, np.ndarray]


def main() -> int:
    """Runs the demo and returns the exit status."""
    start = time.perf_counter()
    heading("onnx_ops: losses, layers and their gradients as operators of an ONNX graph")
    say(
        f"The {len(onnx_ops.OPS)} ops of the domain 'aclnn' compute losses, two kinds of layers, and the gradients of "
        "all of them inside ONNX models. First a loss and its gradient train a neural network on real handwritten "
        "digits; then each op is checked and timed on data from that network. Kernels that this machine has not run "
        "before are compiled when they are first needed."
    )
    data = digit_training.load()

    heading("\n1. Training")
    classifier, beginner, accuracy = train(data)
    if accuracy < REQUIRED_ACCURACY:
        return fail(f"held-out accuracy is {accuracy:.1%}, expected at least {REQUIRED_ACCURACY:.0%}")

    heading("\n2. Every op on real data")
    say(
        "First, what the ops of each family are tried on; gradients start from what the forward ops return. Then a "
        "table. It says how far an op's result is from the same formula computed by NumPy in float64, and how long one "
        "run takes: with the compiled kernel, and with the portable body, which the same model falls back on in an "
        "onnxruntime that does not have the kernel."
    )
    images = data.images
    targets = digits.one_hot(data.labels)
    logits = classifier.logits(images)
    grad_images = classifier.pixel_gradient(images, targets)
    cases = [
        *cross_entropy(logits, targets),
        *noise_gate(images, grad_images),
        *synchronized_batch_norm(images, grad_images),
        *distillation(logits, beginner.logits(images)),
        *digit_line_reading(classifier, data.held_out_images, data.held_out_labels),
    ]
    measurements = [measure(case) for case in cases]
    print_table(measurements)

    wrong = [m for m in measurements if not m.difference <= m.allowed]  # so written that NaN counts as wrong
    for m in wrong:
        fail(f"{m.case.op_type} is off its float64 reference by {m.difference:.1e}, allowed is {m.allowed:.1e}")
    if wrong:
        return 1
    seconds = time.perf_counter() - start
    say(f"Done in {seconds:.0f} s: the network learned, and every result is right to within float32 rounding.")
    return 0


# Training


class Classifier:
    """The trained network in sessions: what it makes of images, and how its loss depends on their pixels."""

    def __init__(self, state: Arrays) -> None:
        self.parameters = {name: state[name] for name in digits.parameter_shapes(digit_training.HIDDEN)}
        self.inference = onnx_ops.InferenceSession(digits.inference(digit_training.HIDDEN))
        self.gradient = onnx_ops.InferenceSession(digits.pixel_gradient(digit_training.HIDDEN))

    def logits(self, images: np.ndarray) -> np.ndarray:
        """From images (N, 64) to logits (N, 10)."""
        return self.inference.run(["logits"], {"images": images, **self.parameters})[0]

    def pixel_gradient(self, images: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """From images (N, 64) and targets (N, 10) to the gradient of the loss on the pixels, (N, 64)."""
        return self.gradient.run(None, {"images": images, "targets": targets, **self.parameters})[0]


def train(data: Digits) -> tuple[Classifier, Classifier, float]:
    """Trains the classifier; returns it, what it was after one epoch, and its accuracy on the held-out images."""
    images, epochs = data.images, digit_training.EPOCHS
    say(
        f"{len(images)} images of 8x8 pixels to learn from, {len(data.held_out_images)} held out. The whole training "
        "step (forward, loss, gradient, update) is one ONNX graph. Its loss is the op BinaryCrossEntropyWithLogits, "
        "and the gradient of the loss BinaryCrossEntropyWithLogitsBackward."
    )
    rng = np.random.default_rng(digit_training.SEED)
    # Windows that straddle two digits are none of the ten. With them it learns to find the digits of a line.
    n_straddling = 2 * len(images)
    targets = np.concatenate([digits.one_hot(data.labels), np.zeros((n_straddling, digits.DIGITS), np.float32)])

    step = onnx_ops.InferenceSession(digits.training_step(digit_training.HIDDEN))
    state = digits.initial_state(digit_training.HIDDEN, digit_training.SEED)
    beginner = None
    # Without a terminal (disable=None finds out) tqdm draws nothing.
    with tqdm(range(epochs), desc="Training", unit="epoch", file=sys.stdout, disable=None) as progress:
        for epoch in progress:
            rate = np.array(digit_training.learning_rate(epoch), np.float32)
            straddling = digit_lines.off_centre_windows(images, n_straddling, rng)
            shown = np.concatenate([digits.nudged(images, rng), straddling])
            losses = []
            for batch in np.array_split(rng.permutation(len(shown)), len(shown) // digit_training.BATCH):
                feeds = {"images": shown[batch], "targets": targets[batch], "learning_rate": rate}
                batch_loss, *next_state = step.run(None, feeds | state)
                state = dict(zip(state, next_state, strict=True))
                losses.append(batch_loss)
            loss = f"{np.mean(losses):.4f}"
            progress.set_postfix(loss=loss, refresh=False)
            if progress.disable and (epoch == 0 or (epoch + 1) % EPOCHS_PER_LINE == 0):
                say(f"Epoch {epoch + 1:3} of {epochs}: loss {loss}")
            beginner = beginner or Classifier(state)

    classifier = Classifier(state)
    accuracy = float(np.mean(classifier.logits(data.held_out_images).argmax(axis=1) == data.held_out_labels))
    say(f"It names {accuracy:.1%} of the held-out digits correctly.")
    return classifier, beginner or classifier, accuracy


# The data of each family


@dataclass(frozen=True)
class Case:
    """One op on one set of inputs, by name."""

    op_type: str
    inputs: Mapping[str, np.ndarray]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def arrays(self) -> list[np.ndarray | None]:
        """The inputs in the op's order; None for one that is left out."""
        return [self.inputs.get(name) for name in onnx_ops.OPS[self.op_type].input_names]

    @functools.cached_property
    def model(self) -> onnx.ModelProto:
        """The op alone in a graph."""
        types = [None if array is None else (array.dtype, array.shape) for array in self.arrays]
        return single_op_model(self.op_type, types, self.attributes)

    @functools.cached_property
    def session(self) -> ort.InferenceSession:
        return onnx_ops.InferenceSession(self.model)

    @functools.cached_property
    def results(self) -> Arrays:
        """All outputs by name."""
        names = [output.name for output in self.session.get_outputs()]
        return dict(zip(names, self.session.run(names, dict(self.inputs)), strict=True))


def cross_entropy(logits: np.ndarray, targets: np.ndarray) -> list[Case]:
    """The loss that the network was trained on, and its gradients, (N, 10)."""
    explain("binary cross entropy", "the trained network's outputs for all images, against the truth.")
    inputs = {"self": logits, "target": targets}
    attributes = {"reduction": onnx_ops.Reduction.MEAN}
    return [
        Case("BinaryCrossEntropyWithLogits", inputs, attributes),
        Case("BinaryCrossEntropyWithLogitsBackward", inputs | {"grad_output": one()}, attributes),
        Case("BinaryCrossEntropyWithLogitsTargetBackward", inputs | {"grad_output": one()}, attributes),
    ]


def noise_gate(images: np.ndarray, grad_images: np.ndarray) -> list[Case]:
    """A noise gate on the contrast of every pixel, (N, 64)."""
    lambd = 0.25
    contrast = images - images.mean(axis=0)
    forward = Case("Hardshrink", {"self": contrast}, {"lambd": lambd})
    explain(
        "hardshrink",
        f"the layer zeroes the pixels within {lambd} of their average brightness, so the gradient passes through the "
        f"other {np.mean(forward.results['out'] != 0):.0%} only.",
    )
    return [forward, Case("HardshrinkBackward", {"grad_output": grad_images, "self": contrast}, {"lambd": lambd})]


def synchronized_batch_norm(images: np.ndarray, grad_images: np.ndarray) -> list[Case]:
    """Batch norm with the rows of an image as channels, (N, 8, 8), on two workers; what the first of them runs."""
    split = [len(images) // 2 + 100]
    xs = np.split(images.reshape(-1, 8, 8), split)
    grads = np.split(grad_images.reshape(-1, 8, 8), split)
    counts = np.array([x.size // 8 for x in xs], np.int32)

    own = [Case("BatchNormStats", {"input": x}) for x in xs]
    gathered = {name: np.stack([case.results[name] for case in own]) for name in ("mean", "invstd")}
    running = {"running_mean": np.zeros(8, np.float32), "running_var": np.ones(8, np.float32)}
    merged = Case("BatchNormGatherStatsWithCounts", {"input": xs[0], **gathered, **running, "counts": counts})
    shared = {"mean": merged.results["mean_all"], "invstd": merged.results["invstd_all"]}

    normalized = [Case("BatchNormElemt", {"input": x, **shared}) for x in xs]
    reduced = [
        Case("BatchNormReduceBackward", {"grad_out": g, "input": x, **shared}) for g, x in zip(grads, xs, strict=True)
    ]
    sums = {name: reduced[0].results[name] + reduced[1].results[name] for name in ("sum_dy", "sum_dy_xmu")}
    finished = [
        Case("BatchNormElemtBackward", {"grad_out": g, "input": x, **shared, **sums, "counter": counts})
        for g, x in zip(grads, xs, strict=True)
    ]

    outputs = [
        np.concatenate([case.results[name] for case in cases])
        for cases, name in ((normalized, "out"), (finished, "grad_input"))
    ]
    whole = whole_batch_norm(np.concatenate(xs), np.concatenate(grads))
    off = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(outputs, whole, strict=True))
    explain(
        "synchronized batch norm",
        "the images normalized row by row, split over two workers. They merge their statistics, add up their sums, and "
        "each finish the gradient of their own images. Forward and backward, what the two return is within "
        f"{off:.0e} of batch norm of the whole batch.",
    )
    return [own[0], merged, normalized[0], reduced[0], finished[0]]


def whole_batch_norm(x: np.ndarray, grad: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Batch norm over the axes 0 and 2, and the gradient by its input, in float64."""
    x, grad = x.astype(np.float64), grad.astype(np.float64)

    def mean(array: np.ndarray) -> np.ndarray:
        return array.mean(axis=(0, 2), keepdims=True)

    deviation = np.sqrt(mean((x - mean(x)) ** 2) + 1e-5)
    out = (x - mean(x)) / deviation
    return out, (grad - mean(grad) - out * mean(grad * out)) / deviation


def distillation(teacher_logits: np.ndarray, student_logits: np.ndarray) -> list[Case]:
    """A student's log-probabilities and a teacher's softened probabilities, both (N, 10)."""
    explain(
        "KL divergence",
        "the network as it was after one epoch learns from the softened predictions of the trained one.",
    )
    inputs = {"self": log_softmax(student_logits), "target": np.exp(log_softmax(teacher_logits / 4))}
    attributes = {"reduction": onnx_ops.Reduction.BATCHMEAN}
    return [
        Case("KlDiv", inputs, attributes),
        Case("KlDivBackward", inputs | {"grad_output": one()}, attributes),
        Case("KlDivTargetBackward", inputs | {"grad_output": one()}, attributes),
    ]


def digit_line_reading(classifier: Classifier, images: np.ndarray, labels: np.ndarray) -> list[Case]:
    """The CTC loss of lines of held-out digits, (W, N, 11), one time step per column."""
    rng = np.random.default_rng(digit_training.SEED)
    lines = digit_lines.compose(images, labels, rng.integers(3, 7, size=32), rng)
    windows = digit_lines.windows(lines.pixels)
    logits = classifier.logits(windows.reshape(-1, digits.PIXELS)).reshape(*windows.shape[:2], -1)
    log_probs = digit_lines.log_probabilities(logits)

    written = [list(map(int, row[:length])) for row, length in zip(lines.digits, lines.lengths, strict=True)]
    readings = digit_lines.read(log_probs, lines.widths)
    correct = [n for n in range(len(written)) if readings[n] == written[n]]
    explain(
        "CTC",
        f"{len(written)} lines of 3 to 6 held-out digits, over which the network slides column by column. The loss is "
        "how unlikely it finds the right digits, wherever in the line each of them stands. "
        f"It reads {len(correct)} lines without a mistake"
        + (f", such as this {''.join(map(str, readings[correct[0]]))}:" if correct else "."),
    )
    if correct:
        console.print(drawing(lines.pixels[correct[0], :, : lines.widths[correct[0]]]), markup=False)

    inputs = {
        "log_probs": log_probs,
        "targets": lines.digits,
        "input_lengths": lines.widths,
        "target_lengths": lines.lengths,
    }
    blank = {"blank": digit_lines.BLANK}
    forward = Case("CtcLoss", inputs, blank | {"stash_type": onnx.TensorProto.DOUBLE})
    kept = {name: forward.results[name] for name in ("neg_log_likelihood", "log_alpha")}
    return [forward, Case("CtcLossBackward", inputs | kept | {"grad_out": np.ones(len(written), np.float32)}, blank)]


# Checking and timing


@dataclass
class Measurement:
    """What came of one case: of its outputs the one that is off by most of what is allowed; times in seconds."""

    case: Case
    difference: float
    allowed: float
    kernel_time: float
    portable_time: float


def measure(case: Case) -> Measurement:
    """Runs a one-node model of the case with the kernels and without."""
    portable = ort.InferenceSession(onnx_ops.link(case.model).SerializeToString())
    op = onnx_ops.OPS[case.op_type]
    expected = op.compute(case.arrays, dtype=np.float64, **case.attributes)
    errors = [
        error(case.results[name], value)
        for name, value in zip(op.output_names, expected, strict=True)
        if value is not None
    ]
    kernel_time, portable_time = median_times([case.session, portable], dict(case.inputs))
    # A share of NaN counts as the largest.
    difference, allowed = max(errors, key=lambda pair: np.nan_to_num(pair[0] / max(pair[1], 1e-300), nan=np.inf))
    return Measurement(case, difference, allowed, kernel_time, portable_time)


def error(result: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    """The largest difference, and the largest one that is allowed."""
    finite = np.isfinite(expected)
    if result.shape != expected.shape or not np.array_equal(result[~finite], expected[~finite]):
        return np.inf, 0.0
    return (
        float(np.max(np.abs(result[finite] - expected[finite]), initial=0.0)),
        TOLERANCE * float(np.max(np.abs(expected[finite]), initial=0.0)),
    )


def median_times(sessions: list[ort.InferenceSession], feeds: Arrays) -> list[float]:
    """Median seconds of a run of each session; they take turns, so that what disturbs one disturbs all."""
    times: list[list[float]] = [[] for _ in sessions]
    for _ in range(TIMED_RUNS):
        for session, seconds in zip(sessions, times, strict=True):
            start = time.perf_counter()
            session.run(None, feeds)
            seconds.append(time.perf_counter() - start)
    return [float(np.median(seconds)) for seconds in times]


# Printing


def print_table(measurements: list[Measurement]) -> None:
    """One row per measurement, and what the columns mean."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("Op", no_wrap=True)
    for header in ("Off by", "Allowed", "Kernel", "Portable body"):
        table.add_column(header, justify="right")
    for m in measurements:
        times = milliseconds(m.kernel_time), milliseconds(m.portable_time)
        table.add_row(m.case.op_type, f"{m.difference:.1e}", f"{m.allowed:.1e}", *times)
    console.print()
    console.print(table)
    say(f"Allowed: {TOLERANCE:.0e} of the largest value in the result. Times: median of {TIMED_RUNS} runs.")
    console.print()


def drawing(pixels: np.ndarray) -> str:
    """A picture (8, W) in characters, darker for brighter pixels."""
    shades = np.array(list(" .:*#"))
    rows = shades[np.clip(pixels * len(shades), 0, len(shades) - 1).astype(int)]
    return "\n".join("    " + "".join(row).rstrip() for row in rows)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"


def heading(text: str) -> None:
    console.print(f"[bold]{text}[/bold]")


def say(text: str) -> None:
    console.print(wrapped(text), markup=False, soft_wrap=True)


def explain(family: str, text: str) -> None:
    console.print(wrapped(f"- {family}: {text}", "  ").replace(family, f"[bold]{family}[/bold]", 1), soft_wrap=True)


def wrapped(text: str, indent: str = "") -> str:
    """The text in lines of the console's width, without the spaces that rich leaves at their ends."""
    lines = textwrap.wrap(text, console.width, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join(lines)


def fail(message: str) -> int:
    """Prints why the demo failed; returns the exit status."""
    console.print(f"[bold red]FAILED[/bold red]: {message}")
    return 1


# Small maths


def one() -> np.ndarray:
    """The gradient that a scalar loss starts from."""
    return np.array(1, np.float32)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities along the last axis."""
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


if __name__ == "__main__":
    sys.exit(main())
