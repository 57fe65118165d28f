"""The ops as a shared library that runs without Python."""
