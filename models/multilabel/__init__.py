"""Multi-label classification with class imbalance, trained with `BinaryCrossEntropyWithLogits` and its `pos_weight`.

Each picture has several of scikit-learn's images of handwritten digits at random positions; the labels say which of the
ten digits it has. Digit k is in a share of 0.5 * 0.7**k of the pictures, so that a 9 is in one of fifty, and predicting
that there is none has an accuracy of 98%. `pos_weight`, the ratio of negatives to positives of each class, balances
the loss. One captured step computes both, for `pos_weight` is an input: the unweighted loss has ones.
"""
