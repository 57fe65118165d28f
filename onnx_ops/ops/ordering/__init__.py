"""Ordering of execution where data alone does not determine it."""
