"""Adds function bodies to models with nodes of the domain."""
