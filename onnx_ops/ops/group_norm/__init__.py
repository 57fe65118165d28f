"""Gradient of group normalization."""
