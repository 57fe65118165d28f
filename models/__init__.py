"""Example models around the `aclnn` ops, for the scripts and the tests; not part of the installed package.

- `single_op`: a graph of one node, for any of the ops, dtypes and shapes.
- `digits`: a classifier of 8x8 digit images: its training step, its inference, its gradient on the pixels.
- `digit_training`: the images and the settings that it is trained with.
- `synchronized_batch_norm`: batch normalization over a batch that several workers share, and its gradient.
- `digit_lines`: the windows of columns that a classifier of digits slides over a line of them.
"""
