"""What captures are built on: the ops of this domain as operators of PyTorch."""
