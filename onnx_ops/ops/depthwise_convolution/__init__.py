"""Convolutions of each channel by itself: their gradient."""
