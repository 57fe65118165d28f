"""The phases of a capture are logged for programs that ask for it."""

from __future__ import annotations

import logging

import pytest
import torch

from onnx_ops.torch import gradients


def test_phases_are_logged_at_level_info(logged: list[logging.LogRecord], capsys: pytest.CaptureFixture[str]) -> None:
    def loss(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x).square().sum()

    logger = logging.getLogger("onnx_ops.torch")
    logger.setLevel(logging.INFO)
    try:
        gradients(torch.nn.Linear(2, 2), loss, (torch.randn(3, 2),))
    finally:
        logger.setLevel(logging.NOTSET)
    phases = [record.getMessage().split(":")[0] for record in logged if record.name == "onnx_ops.torch"]
    assert phases[0] == "steps of PyTorch"
    assert phases[1].startswith("trace of ")
    assert phases[2:] == ["translation to ONNX", "comparison with PyTorch", "graphs in evaluation mode"]
    assert capsys.readouterr() == ("", "")
