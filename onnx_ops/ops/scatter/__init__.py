"""Rows at the indices of a tensor."""
