"""Verification of a capture: two chained steps of the graph beside PyTorch, in float64 where rounding matters.

`trials` runs the steps in PyTorch, `verify` compares the graph with them, within `tolerances`; `widening` converts the
graph to float64.
"""
