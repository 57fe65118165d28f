"""Sequence recognition of lines of handwritten digits, trained with connectionist temporal classification, `CtcLoss`.

The data are lines of three to seven of scikit-learn's images of handwritten digits, side by side, some of them
touching, with random vertical offsets. A convolutional network classifies each column of a line: one of the ten digits,
or the blank. The labels are the digits of a line without their positions: CTC sums the probabilities of all alignments
of the digits with the columns. The test set has digits of other writers than the training set.

References:
    Graves, Fernández, Gomez and Schmidhuber, 2006, "Connectionist Temporal Classification".
"""
