"""Which digits are in a picture: ten labels at once, the rare ones too, learnt with `BinaryCrossEntropyWithLogits`.

On each picture some of scikit-learn's images of handwritten digits are strewn. A 0 is in half of the pictures, and each
further digit in three tenths fewer than the one before, so that a 9 is in one of fifty. Each of ten outputs says
whether its digit is there. As a 9 so rarely is, an output that always denies it is right 98 times in 100, and for long
that is all that the plain loss teaches. `pos_weight` makes the loss of a digit that is there count as much in all as
that of the pictures without it. One captured step serves both, for `pos_weight` is an input: all 1 is the plain loss.
"""
