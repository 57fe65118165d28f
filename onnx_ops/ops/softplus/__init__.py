"""Softplus."""
