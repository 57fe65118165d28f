"""The phases of a capture are logged for programs that ask for it."""

from __future__ import annotations

import logging

import pytest
import torch

from onnx_ops.torch import gradients


def test_phases_are_logged_at_level_info(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    def loss(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x).square().sum()

    with caplog.at_level(logging.INFO, "onnx_ops.torch"):
        gradients(torch.nn.Linear(2, 2), loss, (torch.randn(3, 2),))
    phases = [record.getMessage().split(":")[0] for record in caplog.records if record.name == "onnx_ops.torch"]
    assert phases[0] == "steps of PyTorch"
    assert phases[1].startswith("trace of ")
    assert phases[2:] == ["translation to ONNX", "comparison with PyTorch", "graphs in evaluation mode"]
    assert capsys.readouterr() == ("", "")
