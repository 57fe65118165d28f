"""Sparse coding: dictionary learning for patches of photographs, with `Hardshrink`.

A patch is approximated by codes @ dictionary, with few nonzero codes. The codes come from iterative hard thresholding:
a gradient step on the squared error, then `Hardshrink`, repeated. The iterations are unrolled in the network, so that
the gradients with respect to dictionary and step sizes are backpropagated through all of them (`HardshrinkBackward`).
The patches are from scikit-learn's two photographs, whose upper halves are held out; there are no labels.

References:
    Blumensath and Davies, 2008, "Iterative Thresholding for Sparse Approximations".
"""
