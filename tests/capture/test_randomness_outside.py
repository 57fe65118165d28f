"""Random numbers that are drawn outside of PyTorch are reported as such, with check=False too."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from captures import gradients
from torch import Tensor, nn

from onnx_ops.torch import CaptureError

GENERATOR = np.random.default_rng(0)
DRAWS: dict[str, tuple[Callable[[], float], str]] = {
    "numpy": (lambda: float(np.random.rand()), r"draws random numbers by numpy\.random"),  # noqa: NPY002
    "python": (random.random, "draws random numbers by random"),
    "own generator": (lambda: float(GENERATOR.random()), "draws random numbers outside of PyTorch"),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_outside_of_pytorch_are_refused(name: str) -> None:
    draw, message = DRAWS[name]

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x) * draw()).sum()

    for check in (True, False):
        with pytest.raises(CaptureError, match=f"two runs of the loss.*{message}"):
            gradients(nn.Linear(3, 2), loss, (torch.ones(2, 3),), check=check)


def test_draws_that_change_nothing_are_warned_of() -> None:
    """As those of a layer drop whose probability is 0."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).sum() * (2 if random.random() < 0 else 1) * nn.functional.dropout(x, 0.5).sum()

    with pytest.warns(UserWarning, match="draws random numbers by random. They have changed nothing"):
        gradients(nn.Linear(3, 2), loss, (torch.ones(2, 3),))
