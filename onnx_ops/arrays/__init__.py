"""The ops on NumPy arrays: running one, comparing results, and the files that arrays are in."""
