"""Losses and layers of this domain within PyTorch: operators that a capture keeps whole, with their gradients."""
