"""Training steps in PyTorch as functions of named tensors: loss, gradients, and the update after them."""
