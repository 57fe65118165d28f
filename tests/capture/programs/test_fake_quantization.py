"""Quantization-aware training: fake quantization and observers are nodes of the step, their buffers its state."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
import torch.ao.quantization as quantization
from captures import gradients, training_step
from torch import Tensor, nn
from torch.ao.quantization import quantize_fx
from torch.export import Dim
from torch.nn import functional

from onnx_ops import StepError, Trainer
from onnx_ops.torch import Capture, CaptureError
from onnx_ops.torch.operators import TABLE

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max to specify the range:UserWarning"),
]

aten = torch.ops.aten
LIMITS = [(-128, 127), (0, 255), (0, 15)]


def same(found: Any, wanted: Any, message: object) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype, message
        np.testing.assert_array_equal(one.float().numpy(), other.float().numpy(), err_msg=str(message))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_quantization_has_the_bits_of_pytorch(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for low, high in LIMITS * 3:
        size = 10 ** float(torch.empty(()).uniform_(-4, 1))
        x = (100 * size * torch.randn(5, 4, 3)).to(dtype)
        point = int(torch.randint(low, high, ()))
        numbers = torch.tensor([size]), torch.tensor([point], dtype=torch.int32), torch.tensor([1])
        special = torch.cat([x.flatten(), torch.tensor([math.nan, 0.0]).to(dtype)])
        calls: list[tuple[Any, tuple[Any, ...]]] = [
            (aten.fake_quantize_per_tensor_affine_cachemask.default, (special, size, point, low, high)),
            (aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default, (special, *numbers, low, high)),
        ]
        for axis in range(3):
            scale = size * (0.5 + torch.rand(x.shape[axis]))
            points = torch.randint(low, high, scale.shape, dtype=torch.int32)
            for own in (points, points + torch.rand(scale.shape)):
                calls.append(
                    (aten.fake_quantize_per_channel_affine_cachemask.default, (x, scale, own, axis, low, high))
                )
        for operator, args in calls:
            same(TABLE.decompositions[operator](*args), operator(*args), (operator, args))


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("channels", [False, True])
def test_observers_have_the_bits_of_pytorch(channels: bool, symmetric: bool) -> None:
    """Ranges of all sizes, below, above and around 0, with each combination of the two flags."""
    torch.manual_seed(0)
    operator = aten._fused_moving_avg_obs_fq_helper.default
    for trial in range(120):
        size = 10 ** float(torch.empty(()).uniform_(-10, 5)) if trial % 5 else 1e-40
        x = size * (torch.randn(4, 3) + 3 * torch.randn(()))
        x = (x, x.abs(), -x.abs(), 0 * x)[trial % 4]
        found = (x.amin(1), x.amax(1)) if channels else (x.min(), x.max())
        fresh = trial % 3 == 0
        first = [
            torch.full_like(v, sign * math.inf) if fresh else 0.9 * v for v, sign in zip(found, (1, -1), strict=True)
        ]
        flags = (1, 1) if trial % 10 else divmod(trial // 10 % 4, 2)
        count = 4 if channels else 1
        state = [torch.tensor([flag]) for flag in flags] + first
        state += [torch.full((count,), 0.5), torch.full((count,), 3, dtype=torch.int32)]
        rest = 0.01, *LIMITS[trial % 3], 0 if channels else -1, channels, symmetric
        mine, theirs = ([tensor.clone() for tensor in state] for _ in range(2))
        same(TABLE.decompositions[operator](x, *mine, *rest), operator(x, *theirs, *rest), trial)
        same(mine, theirs, trial)


@pytest.mark.parametrize("channels", [False, True])
def test_learnable_quantization_is_that_of_pytorch(channels: bool) -> None:
    """Zero points outside of the limits and halfway between integers too."""
    torch.manual_seed(0)
    kind = "channel" if channels else "tensor"
    forward = getattr(aten, f"_fake_quantize_learnable_per_{kind}_affine").default
    backward = getattr(aten, f"_fake_quantize_learnable_per_{kind}_affine_backward").default
    for trial, (low, high) in enumerate(LIMITS * 10):
        x, grad = 100 * torch.randn(5, 4, 3), torch.randn(5, 4, 3)
        scale = 0.5 + torch.rand(4 if channels else 1)
        point = torch.randint(low - 20, high + 20, scale.shape) + (0.5 if trial % 3 else torch.rand(scale.shape))
        rest = *([1] if channels else []), low, high, 0.3
        args = x, scale, point, *rest
        same([TABLE.decompositions[forward](*args)], [forward(*args)], trial)
        found, wanted = TABLE.decompositions[backward](grad, *args), backward(grad, *args)
        same(found[:1], wanted[:1], trial)
        for one, other in zip(found[1:], wanted[1:], strict=True):
            # Sums of up to 60 terms of up to 100, each with an error of 2**-24.
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=6000 * 2**-24)


def test_in_float64_as_in_float32() -> None:
    """What captures are verified with where PyTorch has float32 only: on a grid of quarters both have the same bits."""
    torch.manual_seed(0)
    x = torch.randint(-60, 60, (4, 5)) / 4 + 0.0625
    numbers = [torch.full((4,), 0.25), torch.tensor([3, -2, 0, 7], dtype=torch.int32)]
    one = [numbers[0][:1], numbers[1][:1]]
    learned = [torch.tensor([3.0, -2, 0, 7]), torch.tensor([3.0])]
    flags = [torch.ones(1, dtype=torch.int64)] * 2
    limits = (-16, 15)
    observer = [torch.full((4,), -4.0), torch.full((4,), 3.75), *numbers, 0.0, *limits, 0, True, False]
    calls: list[tuple[Callable[..., Tensor], list[Any]]] = [
        (torch.fake_quantize_per_tensor_affine, [*one, *limits]),
        (torch.fake_quantize_per_channel_affine, [*numbers, 0, *limits]),
        (torch._fake_quantize_learnable_per_tensor_affine, [one[0], learned[1], *limits, 0.5]),
        (torch._fake_quantize_learnable_per_channel_affine, [numbers[0], learned[0], 0, *limits, 0.5]),
        (torch.fused_moving_avg_obs_fake_quant, [*flags, *observer]),
    ]
    for function, args in calls:
        results = []
        for dtype, run in ((torch.float32, function), (torch.float64, TABLE.missing[function])):
            trained = "learnable" in function.__name__
            given: list[Any] = [
                arg.to(dtype, copy=True).requires_grad_(trained)
                if isinstance(arg, Tensor) and arg.is_floating_point()
                else arg
                for arg in args
            ]
            leaf = x.to(dtype, copy=True).requires_grad_()
            output = run(leaf, *given)
            leaves = [leaf, *(arg for arg in given if isinstance(arg, Tensor) and arg.requires_grad)]
            found = torch.autograd.grad(output.square().sum(), leaves)
            results.append([tensor.detach().float() for tensor in (output, *found)])
        same(*results, function)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm, self.rectifier = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.squashed, self.layer = nn.Sigmoid(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.rectifier(self.norm(self.convolution(x)))
        return self.layer(self.squashed(hidden).mean((2, 3)))


def prepared() -> nn.Module:
    torch.manual_seed(0)
    mapping = quantization.get_default_qat_qconfig_mapping("x86")
    model = quantize_fx.prepare_qat_fx(Network().train(), mapping, (torch.randn(2, 2, 6, 6),))
    model(torch.randn(4, 2, 6, 6))
    return model


def loss(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), labels)


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    for rows in (3, 7, 5, 4):
        yield torch.randn(rows, 2, 6, 6), torch.randint(3, (rows,))


def observed(model: nn.Module, x: Tensor) -> Tensor:
    """The prediction with the ranges that training has found."""
    model.apply(quantization.disable_observer)
    return model(x)


@pytest.fixture(scope="module")
def captured() -> tuple[nn.Module, Capture]:
    model = prepared()
    rows = {0: Dim("rows")}
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    capture = training_step(model, loss, next(batches()), optimizer, dynamic_shapes=(rows, rows), inference=observed)
    return model, capture


def train(model: nn.Module, optimizer: torch.optim.Optimizer, trainer: Trainer) -> None:
    """Steps of PyTorch and of a trainer; losses, parameters and buffers, those of the observers among them, agree."""
    for x, labels in batches():
        reported = trainer.step(x=x.numpy(), labels=labels.numpy())
        optimizer.zero_grad()
        wanted = loss(model, x, labels)
        wanted.backward()
        optimizer.step()
        np.testing.assert_allclose(reported["loss"], wanted.detach(), rtol=1e-4)
    weights = trainer.weights()
    for name, tensor in model.state_dict().items():
        np.testing.assert_allclose(weights[name], tensor, rtol=1e-4, atol=1e-5, err_msg=name)


def test_steps_and_buffers_are_those_of_pytorch(captured: tuple[nn.Module, Capture], tmp_path: Any) -> None:
    """The flags are state: without observers, then without quantization, the same step trains on."""
    model, capture = captured
    twin, trainer = copy.deepcopy(model), Trainer(capture)
    optimizer = torch.optim.SGD(twin.parameters(), 0.1, momentum=0.9)
    torch.manual_seed(1)
    train(twin, optimizer, trainer)
    for disable, flag in (
        (quantization.disable_observer, "observer_enabled"),
        (quantization.disable_fake_quant, "fake_quant_enabled"),
    ):
        # The observer of a sigmoid's range, which is known, is one that code branches on, so that it must stay.
        for name, module in twin.named_modules():
            if isinstance(module, quantization.FusedMovingAvgObsFakeQuantize):
                module.apply(disable)
                trainer.load_state_dict(trainer.state_dict() | {f"{name}.{flag}": np.zeros(1, np.int64)})
        train(twin, optimizer, trainer)

    trainer.export(tmp_path / "network.onnx")
    x = torch.randn(6, 2, 6, 6)
    found = ort.InferenceSession(tmp_path / "network.onnx").run(None, {"x": x.numpy()})[0]
    np.testing.assert_allclose(found, observed(twin.eval(), x).detach(), rtol=1e-4, atol=1e-5)


def test_flags_that_code_branches_on_are_conditions(captured: tuple[nn.Module, Capture]) -> None:
    """FakeQuantize reads its flags in Python; no option is needed, as no step changes them."""
    trainer = Trainer(captured[1])
    state = trainer.state_dict()
    (name,) = (name for name in state if name.endswith("observer_enabled") and state[name].dtype == np.uint8)
    trainer.load_state_dict(state | {name: np.zeros(1, np.uint8)})
    x, labels = next(batches())
    with pytest.raises(StepError, match="reads False from tensors, and read True in the example"):
        trainer.step(x=x.numpy(), labels=labels.numpy())


class Quantized(nn.Module):
    """A layer between fake quantizations of other kinds."""

    def __init__(self, activation: Callable[[], nn.Module], weight: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.layer, self.activation, self.weight = nn.Linear(4, 3), activation(), weight()

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.activation(x), self.weight(self.layer.weight), self.layer.bias)


def squares(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean()


def test_observers_that_branch_need_the_option() -> None:
    model = Quantized(quantization.default_fake_quant, quantization.default_per_channel_weight_fake_quant)
    torch.manual_seed(0)
    x = torch.randn(3, 5, 4)
    model(x[0])
    capture = gradients(model, squares, (x[1],), specialize=True)
    changed = {value.name for value in capture.model.graph.output}
    assert {"next.activation.scale", "next.weight.activation_post_process.min_val"} <= changed
    with pytest.raises(CaptureError, match=r"activation.*specialize=True"):
        gradients(model, squares, (x[1],))


class Learnable(nn.Module):
    def __init__(self, channels: int | None) -> None:
        super().__init__()
        self.channels = channels
        self.scale = nn.Parameter(0.01 + 0.02 * torch.rand(channels or 1))
        self.zero_point = nn.Parameter(torch.rand(channels or 1))

    def forward(self, x: Tensor) -> Tensor:
        numbers = x, self.scale, self.zero_point
        if self.channels:
            return torch._fake_quantize_learnable_per_channel_affine(*numbers, 0, -128, 127, 0.5)
        return torch._fake_quantize_learnable_per_tensor_affine(*numbers, -128, 127, 0.5)


def test_learnable_scales_are_trained() -> None:
    torch.manual_seed(0)
    model = Quantized(lambda: Learnable(None), lambda: Learnable(3))
    x = 3 * torch.randn(3, 5, 4)
    trainer = Trainer(training_step(model, squares, (x[0],), torch.optim.Adam(model.parameters(), 1e-2)))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for batch in x:
        optimizer.zero_grad()
        wanted = squares(model, batch)
        wanted.backward()
        optimizer.step()
        np.testing.assert_allclose(trainer.step(x=batch.numpy())["loss"], wanted.detach(), rtol=1e-4)


def test_buffers_without_a_shape_are_refused() -> None:
    model = Quantized(nn.Identity, quantization.default_fused_per_channel_wt_fake_quant)
    with pytest.raises(
        CaptureError, match=r"shape of the buffer 'weight\.scale' from \(1,\) to \(3,\).*call the model once"
    ):
        gradients(model, squares, (torch.randn(5, 4),))
