"""Declarations of kernels as plain data, and the functions that kernels call."""
