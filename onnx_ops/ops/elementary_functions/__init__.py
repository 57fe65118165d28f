"""Logarithm, sine and cosine."""
