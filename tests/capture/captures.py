"""Captures without the inference graph, in two thirds of the time, for tests that do not look at it."""

from __future__ import annotations

import functools

import onnx_ops.torch

gradients = functools.partial(onnx_ops.torch.gradients, inference=False)
training_step = functools.partial(onnx_ops.torch.training_step, inference=False)
