"""Sparse coding: patches of photographs told with a few atoms of a dictionary, which is learnt, with `Hardshrink`.

A code of a patch says how much of each atom is in it, and nearly all of its numbers are to be 0. It is found by
iterative hard thresholding (Blumensath and Davies, 2008, "Iterative Thresholding for Sparse Approximations"): a step
down the gradient of the error, then `Hardshrink`, which makes what is small 0, again and again. These iterations are
unrolled: they are part of the network, and the gradient goes back through all of them, by `HardshrinkBackward`, to the
dictionary and to the lengths of the steps. The patches are from scikit-learn's two photographs, whose upper
halves are held out. No label is needed: what is learnt is what photographs are made of, edges and textures.
"""
