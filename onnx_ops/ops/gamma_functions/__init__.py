"""The logarithm of the gamma function, and its derivative."""
