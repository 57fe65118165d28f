"""Runs a step in PyTorch and traces it to a graph of ATen operators."""
