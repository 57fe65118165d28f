"""Writes portable bodies: what an op computes, in standard ONNX operators."""
