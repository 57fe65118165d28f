"""Factorizations and exponentials of matrices, systems of linear equations, inverses and determinants."""
