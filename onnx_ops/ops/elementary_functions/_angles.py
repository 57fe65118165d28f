"""Up to which angles InplaceSin and InplaceCos reduce them themselves."""

REDUCED = 2.0**20
"""The largest angle of `primitives.sin` and `primitives.cos`."""
