"""The forward pass of the CTC loss, in NumPy.

`CtcLossBackward` takes the loss and the forward variables of the sequences as inputs; this is where examples get them.
Source: A. Graves et al., "Connectionist Temporal Classification", ICML 2006, equations 5 to 8, in log space.

Letters: T time steps, N sequences, C classes, S labels of the longest target, A = 2·S + 1.
"""

import numpy as np


def forward(
    log_probs: np.ndarray,
    targets: np.ndarray,
    input_lengths: np.ndarray,
    target_lengths: np.ndarray,
    blank: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """The negative log-likelihood of each target, and the forward variables it is the sum of, in float64.

    A target is spelled by every path that gives it once repeats are merged and blanks dropped. log_alpha[n, t, s] is
    the log of the summed probability of all paths that stand on label s of the extended target (blank, first label,
    blank, ..., last label, blank) at time t; -inf where no path does, and for every t from the input's length on.

    Args:
        log_probs: (T, N, C), log-probabilities of the classes.
        targets: (N, S), the labels, of which the first target_lengths[n] count.
        input_lengths, target_lengths: (N), integers.
        blank: the class that stands for "no label here".

    Returns:
        neg_log_likelihood (N), +inf where the input is too short to spell the target, and log_alpha (N, T, A).
    """
    n_steps, n_sequences, _ = log_probs.shape
    log_probs = log_probs.astype(np.float64)
    log_alpha = np.full((n_sequences, n_steps, 2 * targets.shape[1] + 1), -np.inf)
    neg_log_likelihood = np.empty(n_sequences)
    for n in range(n_sequences):
        extended = np.full(2 * int(target_lengths[n]) + 1, blank)
        extended[1::2] = targets[n, : target_lengths[n]]
        # A blank between two different labels may be skipped; between equal ones it is what keeps them apart.
        may_skip = np.zeros(len(extended), bool)
        may_skip[2:] = (extended[2:] != blank) & (extended[2:] != extended[:-2])

        steps = int(input_lengths[n])
        if steps == 0:
            neg_log_likelihood[n] = 0.0 if len(extended) == 1 else np.inf
            continue
        alpha = np.full(len(extended), -np.inf)
        alpha[:2] = log_probs[0, n, extended[:2]]  # a path starts on the first blank or on the first label
        log_alpha[n, 0, : len(extended)] = alpha
        for t in range(1, steps):
            padded = np.concatenate([[-np.inf, -np.inf], alpha])  # padded[s + 2] is alpha[s]
            arriving = np.logaddexp(padded[2:], padded[1:-1])
            arriving = np.logaddexp(arriving, np.where(may_skip, padded[:-2], -np.inf))
            alpha = arriving + log_probs[t, n, extended]
            log_alpha[n, t, : len(extended)] = alpha
        neg_log_likelihood[n] = -np.logaddexp.reduce(alpha[-2:])  # and ends on the last label or the blank after it
    return neg_log_likelihood, log_alpha
