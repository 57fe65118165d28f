"""Factorizations of matrices, systems of linear equations, inverses and determinants."""
