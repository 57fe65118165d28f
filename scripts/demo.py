"""`make demo`: trains a reader of handwritten digits with the gradient ops, and checks and times each op on its data.

Run it from the repository's root: `python -m scripts.demo`. It exits with status 1 if the classifier's accuracy or the
accuracy of an op is not what it should be.
"""

import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort
from rich import box
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import onnx_ops
from models import ctc, digit_lines, digits
from scripts.cases import Case, portable_session

SEED = 0
HIDDEN = (256,)
EPOCHS = 100
BATCH = 64
LEARNING_RATE = 1.0
REQUIRED_ACCURACY = 0.95

# float32 carries 7 digits: an op may be off by this share of the largest value in its result.
TOLERANCE = 1e-6
TIMED_RUNS = 100
# Where the output is no terminal, a line for every so many epochs takes the place of the progress bar.
EPOCHS_PER_LINE = 10

console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)

State = dict[str, np.ndarray]


def main() -> int:
    """Runs the demo and returns the exit status."""
    start = time.perf_counter()
    heading("onnx_ops: gradients of losses and layers as operators of an ONNX graph")
    say(
        "Five ops of the domain 'aclnn' compute gradients inside ONNX models. First one of them trains a neural "
        "network on real handwritten digits; then each is checked and timed on data from that network."
    )
    images, labels = load_images()
    data = split(images, labels)

    heading("\n1. Training")
    classifier, beginner, accuracy = train(*data)
    if accuracy < REQUIRED_ACCURACY:
        return fail(f"held-out accuracy is {accuracy:.1%}, expected at least {REQUIRED_ACCURACY:.0%}")

    heading("\n2. The five gradients on real data")
    say(
        "First, what each op is tried on. Then a table. It says how far the op's result is from the same formula "
        "computed by NumPy in float64, and how long one run takes: with the compiled kernel, and with the portable "
        "body, which the same model falls back on in an onnxruntime that does not have the kernel."
    )
    targets = one_hot(labels)
    grad_images = classifier.pixel_gradient(images, targets)
    cases = [
        loss_gradient(classifier.logits(images), targets),
        hardshrink(images, grad_images),
        *synchronized_batch_norm(images, grad_images),
        distillation(classifier.logits(images), beginner.logits(images)),
        digit_line_reading(classifier, data[1], data[3]),
    ]
    measurements = [measure(case) for case in cases]
    print_table(measurements)

    wrong = [m for m in measurements if not m.difference <= m.allowed]  # so written that NaN counts as wrong
    for m in wrong:
        fail(f"{m.case.title} is off its float64 reference by {m.difference:.1e}, allowed is {m.allowed:.1e}")
    if wrong:
        return 1
    seconds = time.perf_counter() - start
    say(f"Done in {seconds:.0f} s: the network learned, and every gradient is right to within float32 rounding.")
    return 0


# Training


def load_images() -> tuple[np.ndarray, np.ndarray]:
    """All images (N, 64), brightness from 0 to 1, and their labels (N)."""
    images, labels = load_digits(return_X_y=True)
    return (images / 16).astype(np.float32), labels


def split(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images to learn from, images held out, and the labels of the ones and the others."""
    learned, held_out, learned_labels, held_out_labels = train_test_split(
        images, labels, test_size=0.2, stratify=labels, random_state=SEED
    )
    return learned, held_out, learned_labels, held_out_labels


def learning_rate(epoch: int) -> float:
    """Falls in a straight line, to 0 where training ends."""
    return LEARNING_RATE * (1 - epoch / EPOCHS)


class Classifier:
    """The trained network in sessions: what it makes of images, and how its loss depends on their pixels."""

    def __init__(self, state: State) -> None:
        self.parameters = {name: state[name] for name in digits.parameter_shapes(HIDDEN)}
        self.inference = onnx_ops.InferenceSession(digits.inference(HIDDEN))
        self.gradient = onnx_ops.InferenceSession(digits.pixel_gradient(HIDDEN))

    def logits(self, images: np.ndarray) -> np.ndarray:
        """From images (N, 64) to logits (N, 10)."""
        return self.inference.run(["logits"], {"images": images, **self.parameters})[0]

    def pixel_gradient(self, images: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """From images (N, 64) and targets (N, 10) to the gradient of the loss on the pixels, (N, 64)."""
        return self.gradient.run(None, {"images": images, "targets": targets, **self.parameters})[0]


def train(
    images: np.ndarray, test_images: np.ndarray, labels: np.ndarray, test_labels: np.ndarray
) -> tuple[Classifier, Classifier, float]:
    """Trains the classifier; returns it, what it was after one epoch, and its accuracy on the held-out images."""
    say(
        f"{len(images)} images of 8x8 pixels to learn from, {len(test_images)} held out. The whole training step "
        "(forward, loss, gradient, update) is one ONNX graph; the gradient of its loss is the op "
        "BinaryCrossEntropyWithLogitsBackward, whose kernel is compiled now if this machine has not run it before."
    )
    rng = np.random.default_rng(SEED)
    # Windows that straddle two digits are none of the ten. With them it learns to find the digits of a line.
    n_straddling = 2 * len(images)
    targets = np.concatenate([one_hot(labels), np.zeros((n_straddling, digits.DIGITS), np.float32)])

    step = onnx_ops.InferenceSession(digits.training_step(HIDDEN))
    state = digits.initial_state(HIDDEN, SEED)
    beginner = None
    # Without a terminal (disable=None finds out) tqdm draws nothing.
    with tqdm(range(EPOCHS), desc="Training", unit="epoch", file=sys.stdout, disable=None) as progress:
        for epoch in progress:
            rate = np.array(learning_rate(epoch), np.float32)
            straddling = digit_lines.off_centre_windows(images, n_straddling, rng)
            shown = np.concatenate([digits.nudged(images, rng), straddling])
            losses = []
            for batch in np.array_split(rng.permutation(len(shown)), len(shown) // BATCH):
                feeds = {"images": shown[batch], "targets": targets[batch], "learning_rate": rate}
                batch_loss, *next_state = step.run(None, feeds | state)
                state = dict(zip(state, next_state, strict=True))
                losses.append(batch_loss)
            loss = f"{np.mean(losses):.4f}"
            progress.set_postfix(loss=loss, refresh=False)
            if progress.disable and (epoch == 0 or (epoch + 1) % EPOCHS_PER_LINE == 0):
                say(f"Epoch {epoch + 1:3} of {EPOCHS}: loss {loss}")
            beginner = beginner or Classifier(state)

    classifier = Classifier(state)
    accuracy = float(np.mean(classifier.logits(test_images).argmax(axis=1) == test_labels))
    say(f"It names {accuracy:.1%} of the held-out digits correctly.")
    return classifier, beginner or classifier, accuracy


# The data of each op


def loss_gradient(logits: np.ndarray, targets: np.ndarray) -> Case:
    """The gradient of the loss that the network was trained on, (N, 10)."""
    explain("BinaryCrossEntropyWithLogitsBackward", "the trained network's outputs for all images, against the truth.")
    attributes = {"reduction": onnx_ops.Reduction.MEAN}
    return Case("BinaryCrossEntropyWithLogitsBackward", [one(), logits, targets], attributes)


def hardshrink(images: np.ndarray, grad_images: np.ndarray) -> Case:
    """A noise gate on the contrast of every pixel, (N, 64)."""
    lambd = 0.25
    contrast = images - images.mean(axis=0)
    passed = float(np.mean(np.abs(contrast) > np.float32(lambd)))
    explain(
        "HardshrinkBackward",
        f"the layer zeroes the pixels within {lambd} of their average brightness, so the gradient passes through the "
        f"other {passed:.0%} only.",
    )
    return Case("HardshrinkBackward", [grad_images, contrast], {"lambd": lambd})


def synchronized_batch_norm(images: np.ndarray, grad_images: np.ndarray) -> list[Case]:
    """Batch norm with the rows of an image as channels, (N, 8, 8), on two workers that share the batch."""
    explain(
        "BatchNormElemtBackward",
        "the images normalized row by row, split over two workers, who add up their sums and counts and then each "
        "finish the gradient of their own images.",
    )
    split = [len(images) // 2 + 100]
    xs = np.split(images.reshape(-1, 8, 8), split)
    grads = np.split(grad_images.reshape(-1, 8, 8), split)

    def over_workers(per_worker: Callable[[int], np.ndarray]) -> np.ndarray:
        return sum(per_worker(worker).astype(np.float64).sum(axis=(0, 2)) for worker in range(2))

    counts = np.array([x.size // 8 for x in xs], np.int32)
    mean = over_workers(lambda w: xs[w]) / counts.sum()
    variance = over_workers(lambda w: (xs[w] - mean[:, None]) ** 2) / counts.sum()
    statistics = [
        mean,
        1 / np.sqrt(variance + 1e-5),
        None,
        over_workers(lambda w: grads[w]),
        over_workers(lambda w: grads[w] * (xs[w] - mean[:, None])),
    ]
    shared = [None if value is None else value.astype(np.float32) for value in statistics]
    return [
        Case("BatchNormElemtBackward", [grads[w], xs[w], *shared, counts], note=f"(worker {w + 1})") for w in range(2)
    ]


def distillation(teacher_logits: np.ndarray, student_logits: np.ndarray) -> Case:
    """The gradient on a student's log-probabilities, given a teacher's softened probabilities, both (N, 10)."""
    explain(
        "KlDivBackward",
        "the network as it was after one epoch learns from the softened predictions of the trained one.",
    )
    softened = np.exp(log_softmax(teacher_logits / 4))
    return Case(
        "KlDivBackward",
        [one(), log_softmax(student_logits), softened],
        {"reduction": onnx_ops.Reduction.BATCHMEAN},
    )


def digit_line_reading(classifier: Classifier, images: np.ndarray, labels: np.ndarray) -> Case:
    """The gradient of the CTC loss of lines of held-out digits, (W, N, 11), one time step per column."""
    rng = np.random.default_rng(SEED)
    lines = digit_lines.compose(images, labels, rng.integers(3, 7, size=32), rng)
    windows = digit_lines.windows(lines.pixels)
    logits = classifier.logits(windows.reshape(-1, digits.PIXELS)).reshape(*windows.shape[:2], -1)
    log_probs = digit_lines.log_probabilities(logits)

    written = [list(map(int, row[:length])) for row, length in zip(lines.digits, lines.lengths, strict=True)]
    readings = digit_lines.read(log_probs, lines.widths)
    correct = [n for n in range(len(written)) if readings[n] == written[n]]
    explain(
        "CtcLossBackward",
        f"{len(written)} lines of 3 to 6 held-out digits, over which the network slides column by column. The loss is "
        "how unlikely it finds the right digits, wherever in the line each of them stands. "
        f"It reads {len(correct)} lines without a mistake"
        + (f", such as this {''.join(map(str, readings[correct[0]]))}:" if correct else "."),
    )
    if correct:
        console.print(drawing(lines.pixels[correct[0], :, : lines.widths[correct[0]]]), markup=False)

    neg_log_likelihood, log_alpha = ctc.forward(log_probs, lines.digits, lines.widths, lines.lengths, digit_lines.BLANK)
    return Case(
        "CtcLossBackward",
        [
            np.ones(len(written), np.float32),
            log_probs,
            lines.digits,
            lines.widths,
            lines.lengths,
            neg_log_likelihood.astype(np.float32),
            log_alpha.astype(np.float32),
        ],
        {"blank": digit_lines.BLANK},
    )


# Checking and timing


@dataclass
class Measurement:
    """What came of one case; times in seconds."""

    case: Case
    difference: float
    allowed: float
    kernel_time: float
    portable_time: float


def measure(case: Case) -> Measurement:
    """Runs a one-node model of the case with the kernels and without."""
    sessions = [onnx_ops.InferenceSession(case.model), portable_session(case, ort.SessionOptions())]
    expected = reference(case)
    (result,) = sessions[0].run(None, case.feeds)
    kernel_time, portable_time = median_times(sessions, case.feeds)
    return Measurement(
        case,
        difference=float(np.max(np.abs(result - expected))) if result.shape == expected.shape else np.inf,
        allowed=TOLERANCE * float(np.max(np.abs(expected))),
        kernel_time=kernel_time,
        portable_time=portable_time,
    )


def reference(case: Case) -> np.ndarray:
    """The op's definition in NumPy, computed in float64 from the same inputs."""
    op = onnx_ops.ops.OPS[case.op_type]
    return op.reference(*case.inputs, dtype=np.float64, **case.attributes)


def median_times(sessions: list[ort.InferenceSession], feeds: State) -> list[float]:
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
        table.add_row(m.case.title, f"{m.difference:.1e}", f"{m.allowed:.1e}", *times)
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


def explain(op_type: str, text: str) -> None:
    console.print(wrapped(f"- {op_type}: {text}", "  ").replace(op_type, f"[bold]{op_type}[/bold]"), soft_wrap=True)


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


def one_hot(labels: np.ndarray) -> np.ndarray:
    """From labels (N) to (N, 10)."""
    return np.eye(digits.DIGITS, dtype=np.float32)[labels]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities along the last axis."""
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


if __name__ == "__main__":
    sys.exit(main())
