"""Seeds of batches that are parts of one step."""

from __future__ import annotations

import numpy as np


def derived_seed(seed: int, worker: int, batch: int) -> np.int64:
    """The seed of the random numbers in a batch; `seed` itself for the first batch of a step on worker 0.

    Args:
        seed: of the step.
        worker: rank of the worker.
        batch: number of batches that were accumulated before it.
    """
    if not worker and not batch:
        return np.int64(seed)
    entropy = [seed % 2**64, worker, *([batch] if batch else [])]
    return np.random.SeedSequence(entropy).generate_state(1, np.uint64).view(np.int64)[0]
