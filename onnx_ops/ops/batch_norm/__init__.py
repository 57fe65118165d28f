"""Synchronized batch normalization, step by step."""
