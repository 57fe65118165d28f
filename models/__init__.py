"""Example models around the `aclnn` ops, for the scripts and the tests; not part of the installed package.

- `single_op`: a graph of one node, for any op, dtypes and shapes.
- `digits`: sizes, one-hot labels and augmentation of images of single handwritten digits.
- `digit_training`: data set and hyperparameters of a classifier of these images.
- `perceptron`: a training step for multilayer perceptrons, such as this classifier.
- `synchronized_batch_norm`: batch normalization over a batch that several workers share, and its gradient.
- `training`: the class `Training`, a captured step with its data set; each folder here has one or two of them.
"""
