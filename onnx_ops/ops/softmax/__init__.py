"""Softmax along an axis, and its gradient."""
