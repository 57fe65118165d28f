"""Convolutions of each channel by itself, and their gradients."""
