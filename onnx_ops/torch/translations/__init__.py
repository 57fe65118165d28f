"""Operators of PyTorch that torch.onnx does not translate, or not right, or not well."""
