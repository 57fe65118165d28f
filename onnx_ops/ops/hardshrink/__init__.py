"""Hardshrink and its gradient."""
