"""The gradient of threshold, and of ReLU."""
