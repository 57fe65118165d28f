"""Attaches portable bodies to the nodes of a model."""
