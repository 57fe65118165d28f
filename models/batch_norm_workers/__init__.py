"""Synchronized batch norm: handwritten digits, read by a network that several workers train together.

The data are scikit-learn's digits, each under a light of its own: its brightness and its contrast are random. Workers
share each batch, so that each of them has a few samples, too few to tell what light there is on average. Batch
norm with the statistics of these few is another network at each worker and in each step; with the statistics of all
workers' samples, by BatchNormStats, BatchNormGatherStatsWithCounts, BatchNormReduceBackward and BatchNormElemtBackward,
the workers make the training of one that has the whole batch.
"""
