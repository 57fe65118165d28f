"""Attention without a matrix of all scores in memory."""
