"""Severities of onnxruntime's log."""

FATAL = 4
"""The highest: what is below it, exceptions of onnxruntime report too."""
