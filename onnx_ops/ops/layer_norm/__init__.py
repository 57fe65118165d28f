"""Gradient of layer normalization."""
