"""Layer normalization and normalization by the root mean square."""
