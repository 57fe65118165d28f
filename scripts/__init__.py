"""Programs to run: `python -m scripts.NAME` from the root of the repository."""
