"""The windows of columns that the classifier of `digits` slides over a line of `line_reader.data`.

A line has one time step per column: the 8x8 window centred there, which the classifier calls one of the ten digits or,
where all of its outputs are low, no digit (the CTC blank). So the classes are the digits 0..9 and BLANK.

Letters: M digit images, N lines, W columns of the widest line, P = 64 pixels.
"""

import numpy as np

from models.line_reader.data import SIDE

MAX_GAP = 3


def windows(pixels: np.ndarray) -> np.ndarray:
    """Every window of a batch of lines: from (N, 8, W) to (W, N, P); window w has column w at its centre."""
    padded = np.pad(pixels, ((0, 0), (0, 0), (SIDE // 2, SIDE // 2 - 1)))
    sliding = np.lib.stride_tricks.sliding_window_view(padded, SIDE, axis=2)  # (N, 8, W, 8)
    return sliding.transpose(2, 0, 1, 3).reshape(pixels.shape[2], len(pixels), SIDE * SIDE)


def off_centre_windows(images: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Windows (count, P) that straddle two digits. They teach a classifier that what lies between is none."""
    left, right = images[rng.integers(len(images), size=(2, count))].reshape(2, count, SIDE, SIDE)
    gap = rng.integers(MAX_GAP + 1, size=count)
    start = rng.integers(2, SIDE - 1 + gap)  # at least two columns away from either digit
    pair = np.zeros((count, SIDE, 2 * SIDE + MAX_GAP), images.dtype)
    pair[:, :, :SIDE] = left
    np.put_along_axis(pair, _columns_from(SIDE + gap), right, axis=2)
    return np.take_along_axis(pair, _columns_from(start), axis=2).reshape(count, SIDE * SIDE)


def _columns_from(start: np.ndarray) -> np.ndarray:
    """Column numbers (count, 8, 8) of a window that starts at column start[i], the same in each row."""
    columns = start[:, None, None] + np.arange(SIDE)
    return np.broadcast_to(columns, (len(start), SIDE, SIDE))


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """From the classifier's logits (..., 10) to log-probabilities (..., 11) of the digits and BLANK.

    A logit of 0 means that the digit is there with probability 1/2, so 0 is the score of the blank.
    """
    scores = np.concatenate([logits, np.zeros_like(logits[..., :1])], axis=-1)
    return scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True)
