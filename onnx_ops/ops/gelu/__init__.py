"""The gradient of GELU."""
