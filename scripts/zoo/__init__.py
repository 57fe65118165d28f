"""Captures models of other packages, compared with PyTorch: `make zoo` writes docs/models.md."""
