"""Synchronized batch norm: a classifier of handwritten digits, trained data-parallel by several workers.

The data are scikit-learn's digits with random brightness and contrast. Each worker has a few samples of a batch, too
few to estimate the statistics of the batch. With BatchNormStats, BatchNormGatherStatsWithCounts,
BatchNormReduceBackward and BatchNormElemtBackward the workers normalize with the statistics of the whole batch, and
compute the same training as one worker that has the whole batch.
"""
