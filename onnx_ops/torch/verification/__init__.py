"""Verification of a capture: compares two steps of the graph with PyTorch, in float64 where rounding matters.

`trials` runs the steps in PyTorch, `verify` compares the graph with them, within `tolerances`; `widening` converts the
graph to float64.
"""
