"""What cannot be captured is an error that names the operator, the module it comes from, and what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from onnx_ops.torch import CaptureError, gradients


class Layer(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(1.0, 10.0).reshape(3, 3))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.weight * x)


class Model(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Identity(), Layer(function))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def capture(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    gradients(Model(function), lambda model, x: model(x).sum(), (torch.ones(3, 3),))


WHERE = r"body\.1 \(Layer\)"
REFUSED = {
    "no translation": (lambda x: x.lgamma(), rf"lgamma, which {WHERE} needs, has no translation.*docs/capture\.md"),
    "branch on data": (lambda x: x if x.sum() > 0 else -x, rf"{WHERE} decides by the numbers.*torch\.where"),
    "max_norm": (
        lambda x: torch.nn.functional.embedding(torch.tensor([1]), x, max_norm=1.0),
        "max_norm rewrites its weights",
    ),
}


def _written(x: torch.Tensor) -> torch.Tensor:
    made = torch.zeros(3)
    seen = made.view(3, 1).expand(3, 3)
    made[0] = x.sum()
    return x if seen.sum() > 0 else -x


REFUSED |= {
    "constant that becomes another": (_written, rf"{WHERE} decides by the numbers"),
    "drawn number": (lambda x: x if torch.rand(3).sum() > 0 else -x, rf"{WHERE} decides by the numbers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(CaptureError, match=message):
        capture(function)


def test_an_error_that_is_being_handled_explains_nothing() -> None:
    """The causes of an error end at the one that the caller handles."""
    try:
        capture(REFUSED["branch on data"][0])
    except CaptureError:
        with pytest.raises(CaptureError, match=REFUSED["no translation"][1]):
            capture(REFUSED["no translation"][0])
