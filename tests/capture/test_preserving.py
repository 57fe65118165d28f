"""A capture leaves the model as it was, also one that keeps tensors between calls, and also if it fails."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onnx_ops.torch import CaptureError, gradients
from onnx_ops.torch.tracing.preserving import preserved


class Attention(nn.Module):
    """What LeViT and EfficientFormer do: in evaluation mode they look a bias up once, and keep it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.bias = nn.Parameter(torch.arange(5.0))
        self.register_buffer("places", torch.tensor([2, 0, 4]), persistent=False)
        self.cache: dict[str, Tensor] = {}
        self.calls: list[list[int]] = [[]]

    def train(self, mode: bool = True) -> Attention:
        super().train(mode)
        if mode:
            self.cache = {}
            self.__dict__.pop("kept", None)
        else:
            self.kept = self.bias.detach()[self.places]
        return self

    def forward(self, x: Tensor) -> Tensor:
        self.calls[0].append(len(x))
        if self.training:
            return self.layer(x) + 2 * self.bias[self.places]
        if "cpu" not in self.cache:
            self.cache["cpu"] = self.bias[self.places]
        return self.layer(x) + self.cache["cpu"] + self.kept


def kept(model: Attention) -> list[Any]:
    return [model.training, model.cache, dict(model.cache), vars(model).get("kept"), list(model.calls[0])]


@pytest.mark.parametrize("training", [True, False])
def test_a_model_computes_the_same_after_a_capture(training: bool) -> None:
    x = torch.ones(2, 3)
    model = Attention().eval()
    wanted = {False: model(x), True: model.train()(x)}
    model.train(training)
    before = kept(model)
    capture = gradients(model, lambda model, x: model(x).sum(), (x,))
    assert all(one is other or one == other for one, other in zip(kept(model), before, strict=True))
    for mode in (training, not training):
        assert torch.equal(model.train(mode)(x), wanted[mode])
    assert capture.inference is not None
    assert "bias" in {tensor.name for tensor in capture.inference.graph.initializer}, "a constant in its place"


def test_a_capture_that_fails_leaves_no_tensor_behind() -> None:
    model = Attention().eval()
    before = kept(model)
    with pytest.raises(CaptureError, match="decides by the numbers"):
        gradients(model, lambda model, x: model(x).sum() if model(x).sum() > 0 else None, (torch.ones(2, 3),))
    assert all(one is other or one == other for one, other in zip(kept(model), before, strict=True))


def test_what_is_preserved() -> None:
    model = Attention()
    model.cache = {"cpu": torch.ones(3)}
    held: Any = {"set": {1}, "tuple": ([2],), "nested": {"list": [3]}}
    model.held = held
    with preserved(model):
        held["set"].add(4)
        held["tuple"][0].clear()
        held["nested"]["list"] += [5]
        held.clear()
        model.eval().layer = nn.Identity()
        model.more = 6
    assert model.held is held
    assert held == {"set": {1}, "tuple": ([2],), "nested": {"list": [3]}}
    assert model.training
    assert isinstance(model.layer, nn.Linear)
    assert not hasattr(model, "more")


class Sized(tuple[int, ...]):
    """A tuple whose length is not that of its elements, as in e3nn."""

    def __len__(self) -> int:
        raise NotImplementedError


def test_containers_of_other_lengths_are_walked() -> None:
    layer = nn.Linear(2, 2)
    layer.kinds, layer.found = Sized((1, 2)), [kept := Sized((3, 4))]
    with preserved(layer):
        layer.found.append(Sized((5, 6)))
    assert len(layer.found) == 1
    assert layer.found[0] is kept
