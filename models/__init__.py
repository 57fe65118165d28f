"""Example models around the `aclnn` ops, for the scripts and the tests; not part of the installed package.

- `single_op`: a graph of one node, for any of the ops, dtypes and shapes.
- `digits`: images of single handwritten digits.
- `digit_training`: the images, and the settings that a classifier of them is trained with.
- `perceptron`: a training step for such a classifier, and others of its kind.
- `synchronized_batch_norm`: batch normalization over a batch that several workers share, and its gradient.
- `training`: what the trainings in the folders here are: captured steps, and the samples they are made with.
"""
