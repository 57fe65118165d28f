"""Captures with dynamic spatial and time axes, compared at several sizes with PyTorch in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from captures import compared
from torch import Tensor, nn
from torch.export import Dim

import onnx_ops
from onnx_ops.torch import Capture, CaptureError, gradients, training_step, whole_ops

# Of the largest entry of a tensor: sums of some hundred terms in another order.
OFF = {torch.float32: 1e-5, torch.float64: 1e-11}


def loss(network: nn.Module, x: Tensor) -> Tensor:
    y = network(x)
    return (y * (0.7 * y).sin()).mean()


def captured(network: nn.Module, x: Tensor, *axes: int, least: int = 2) -> Capture:
    dims = {axis: Dim(f"D{axis}", min=least) for axis in axes}
    return gradients(network, loss, (x.requires_grad_(),), dynamic_shapes=({0: Dim("N"), **dims},))


def same_as_torch(capture: Capture, network: nn.Module, x: Tensor) -> None:
    """Loss, all gradients, and the output of the model in evaluation mode."""
    dtype = x.dtype
    exact, given = copy.deepcopy(network).double(), x.detach().double().requires_grad_()
    value = loss(exact, given)
    value.backward()
    wanted = {"loss": value, "grad.x": given.grad}
    wanted |= {f"grad.{name}": parameter.grad for name, parameter in exact.named_parameters()}
    session = onnx_ops.InferenceSession(capture.model)
    got = session.run(list(wanted), capture.state | {"x": x.detach().numpy()})
    assert capture.inference is not None
    exact.eval()
    wanted["output"] = exact(given)
    inference = onnx_ops.InferenceSession(capture.inference)
    got.append(inference.run(None, {inference.get_inputs()[0].name: x.detach().numpy()})[0])
    for (name, tensor), array in zip(wanted.items(), got, strict=True):
        assert tensor is not None
        truth = tensor.detach().numpy()
        assert array.shape == truth.shape, name
        np.testing.assert_allclose(array, truth, rtol=0, atol=OFF[dtype] * np.abs(truth).max(), err_msg=name)


def check(network: nn.Module, sizes: Sequence[tuple[int, ...]], dtype: torch.dtype, channels: int = 4) -> None:
    """Capture with the first sizes (batch, *space), and compare at all."""
    torch.manual_seed(0)
    network = network.to(dtype)
    examples = [torch.randn(size[0], channels, *size[1:], dtype=dtype) for size in sizes]
    capture = captured(network, examples[0], *range(2, examples[0].dim()), least=4)
    for x in examples:
        same_as_torch(capture, network, x)


def test_bounds_of_dimensions_are_kept_for_the_trainer() -> None:
    dims = {0: Dim("N"), 1: Dim("channels", max=8), 2: Dim("time", min=16, max=64)}
    network = nn.Linear(1, 1)
    x = torch.randn(2, 4, 20, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    trainer = onnx_ops.Trainer(training_step(network, loss, (x,), optimizer, dynamic_shapes=(dims,), inference=False))
    for shape, problem in [
        ((2, 4, 15, 1), "with time from 16 to 64"),
        ((2, 4, 65, 1), "with time from 16 to 64"),
        ((2, 9, 16, 1), "with channels from 0 to 8"),
        ((0, 4, 16, 1), "the batch has no sample"),
    ]:
        with pytest.raises(onnx_ops.StepError, match=problem):
            trainer.step(x=np.ones(shape, np.float32))
    for shape in ((1, 1, 16, 1), (2, 8, 64, 1)):
        trainer.step(x=np.ones(shape, np.float32))


@pytest.mark.parametrize(
    ("network", "axis"),
    [(nn.BatchNorm1d(3), 0), (nn.Conv1d(3, 3, 5, padding=2, padding_mode="circular"), 2)],
    ids=["batch norm", "circular padding"],
)
def test_a_size_of_one_that_pytorch_refuses(network: nn.Module, axis: int) -> None:
    x = torch.randn(4, 3, 6) if axis else torch.randn(4, 3)
    trainer = onnx_ops.Trainer(gradients(network, loss, (x,), dynamic_shapes=({axis: Dim("N")},), inference=False))
    two, one = (x.narrow(axis, 0, size) for size in (2, 1))
    wanted = loss(network, two).detach().numpy()
    np.testing.assert_allclose(trainer.step(x=two.numpy())["loss"], wanted, rtol=1e-4)
    with pytest.raises((ValueError, RuntimeError)):
        loss(network, one)
    with pytest.raises(onnx_ops.StepError, match="with N >= 2"):
        trainer.step(x=one.numpy())


@pytest.mark.parametrize(
    ("mode", "pads", "axis", "least"),
    [
        ("circular", [1, 1], 2, 1),
        ("circular", [0, 3], 2, 3),
        ("circular", [0, 3], 1, 0),
        ("reflect", [2, 1], 2, 3),
        ("reflect", [2, 1], 1, 1),
        ("replicate", [2, 1], 2, 1),
    ],
)
def test_sizes_that_are_less_than_a_pad_needs_are_refused(mode: str, pads: list[int], axis: int, least: int) -> None:
    """Before the state changes; onnxruntime runs some of them."""

    def padded(network: nn.Module, x: Tensor) -> Tensor:
        return network(F.pad(x, pads, mode)[..., None]).square().sum()

    network, x = nn.Linear(1, 1), torch.randn(2, 4, 4)
    trainer = onnx_ops.Trainer(gradients(network, padded, (x,), dynamic_shapes=({axis: Dim("N")},), inference=False))
    if least:
        small = x.narrow(axis, 0, least - 1)
        with pytest.raises(RuntimeError):
            padded(network, small)
        with pytest.raises(onnx_ops.StepError, match=f"with N >= {least}"):
            trainer.step(x=small.numpy())
    smallest = x.narrow(axis, 0, least)
    wanted = padded(network, smallest).detach()
    np.testing.assert_allclose(trainer.step(x=smallest.numpy())["loss"], wanted, rtol=1e-5)


@pytest.mark.parametrize("dynamic_shapes", [None, ({2: Dim("N")},)], ids=["static", "dynamic"])
@pytest.mark.parametrize("pads", [[4, 4], [5, 0], [0, 7]])
def test_a_replication_pad_may_be_longer_than_the_axis(pads: list[int], dynamic_shapes: object) -> None:
    def padded(network: nn.Module, x: Tensor) -> Tensor:
        filled = F.pad(network(x), pads, "replicate")
        return (filled * torch.arange(filled.shape[2])).square().mean()

    network, x = nn.Conv1d(2, 2, 1), torch.randn(2, 2, 3)
    trainer = onnx_ops.Trainer(gradients(network, padded, (x,), dynamic_shapes=dynamic_shapes, inference=False))
    for size in [3] if dynamic_shapes is None else [3, 1, 2, 9]:
        x = torch.randn(2, 2, size)
        found = trainer.step(x=x.numpy())
        network.zero_grad()
        wanted = padded(network, x)
        wanted.backward()
        np.testing.assert_allclose(found["loss"], wanted.detach(), rtol=1e-5)
        np.testing.assert_allclose(found["grad.weight"], network.weight.grad, rtol=1e-4, atol=1e-5)


def test_a_size_of_one_that_pytorch_refuses_for_the_numbers_of_the_example() -> None:
    """The lengths of the example are above 2 as well; with others a single step is right."""

    def packed(network: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
        rows = nn.utils.rnn.pack_padded_sequence(network(x), lengths, True, False)
        return rows.data.square().sum()

    torch.manual_seed(0)
    network, shapes = nn.Linear(3, 2), ({0: Dim("N"), 1: Dim("time")}, {0: Dim("N")})
    example = torch.randn(2, 5, 3), torch.tensor([5, 4])
    trainer = onnx_ops.Trainer(gradients(network, packed, example, dynamic_shapes=shapes, inference=False))
    x, lengths = torch.randn(2, 1, 3), torch.tensor([1, 1])
    found = trainer.step(x=x.numpy(), lengths=lengths.numpy())["loss"]
    np.testing.assert_allclose(found, packed(network, x, lengths).detach(), rtol=1e-5)


@pytest.mark.parametrize(
    ("are_many", "most"),
    [
        # As pytorch-metric-learning asks whether there are fewer than 2**31 triplets, and diffusers of elements of
        # images whether to copy those of 64 and more.
        (lambda y: y.shape[0] * y.shape[0] * y.shape[0] >= torch.iinfo(torch.int32).max, 1290),
        (lambda y: len(y) >= 64 and 2**20 * len(y) > 2**31, 2048),
        (lambda y: len(y) < 1500 and 2**21 * len(y) > 2**31, 1024),
        (lambda y: 768 * len(y) >= 4194304, 5461),  # as kornia asks for the limit of torch.quantile
    ],
    ids=["triplets", "elements of large batches", "elements of small batches", "elements of a limit"],
)
def test_bounds_that_code_sets_are_kept_for_the_trainer(are_many: Callable[[Tensor], bool], most: int) -> None:
    def limited(network: nn.Module, x: Tensor) -> Tensor:
        return network(x).square().mean() * (2.0 if are_many(x) else 1.0)

    network, x = nn.Linear(1, 1), torch.randn(2, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    step = training_step(network, limited, (x,), optimizer, dynamic_shapes=({0: Dim("N")},), inference=False)
    trainer = onnx_ops.Trainer(step)
    trainer.step(x=np.ones((most, 1), np.float32))
    with pytest.raises(onnx_ops.StepError, match=f"with N from 0 to {most}"):
        trainer.step(x=np.ones((most + 1, 1), np.float32))
    with pytest.raises(CaptureError, match="is right only where"):
        gradients(network, limited, (x,), dynamic_shapes=({0: Dim("N", max=9000)},))


@pytest.mark.parametrize(
    ("are_as_in_the_example", "least", "most"),
    [
        (lambda x: 3 < len(x) < 40, 4, 39),
        (lambda x: len(x.split(4)) == 2, 5, 8),
        (lambda x: len(x) ** 2 < 99, 0, 9),
        (lambda x: len(x.chunk(3)) == 3, 5, None),
    ],
)
def test_steps_are_specialized_to_sizes(
    are_as_in_the_example: Callable[[Tensor], bool], least: int, most: int | None
) -> None:
    def branching(network: nn.Module, x: Tensor) -> Tensor:
        return network(x).square().mean() * (2.0 if are_as_in_the_example(x) else 1.0)

    network, x, shapes = nn.Linear(1, 1), torch.randn(6, 1), ({0: Dim("N")},)
    bounds = [f"min={least}"] * bool(least) + [f"max={most}"] * bool(most)
    with pytest.raises(CaptureError, match=f"{' and '.join(bounds)} of its torch.export.Dim, by specialize=True"):
        gradients(network, branching, (x,), dynamic_shapes=shapes, inference=False)
    capture = gradients(network, branching, (x,), dynamic_shapes=shapes, inference=False, specialize=True)
    assert onnx_ops.Step.of(capture.model).bounds["N"][:2] == (least, most)


SIZES = {
    1: [(2, 16), (3, 24), (1, 13)],
    2: [(2, 12, 16), (3, 9, 8), (1, 11, 21)],
    3: [(2, 6, 8, 7), (1, 8, 5, 10)],
}
CONVOLUTION = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


def convolutions(rank: int) -> nn.Module:
    """One after the other: padded, pointwise, grouped with a stride, depthwise, dilated, transposed with a stride."""
    kind, transposed = CONVOLUTION[rank], TRANSPOSED[rank]
    return nn.Sequential(
        kind(4, 10, 3, padding=1),
        nn.Tanh(),
        kind(10, 6, 1),
        kind(6, 6, 2, stride=2, padding=1, groups=2),
        nn.Tanh(),
        kind(6, 6, 3, padding=1, groups=6),
        kind(6, 3, 2, stride=3, padding=2, dilation=2),
        transposed(3, 4, 3, 2, 1, output_padding=1),
        nn.Tanh(),
        transposed(4, 2, 2, groups=2),
    )


def test_convolutions() -> None:
    check(convolutions(2), SIZES[2], torch.float64)


@pytest.mark.full
@pytest.mark.parametrize("dtype", OFF, ids=str)
@pytest.mark.parametrize("rank", CONVOLUTION)
def test_convolutions_of_any_rank(rank: int, dtype: torch.dtype) -> None:
    check(convolutions(rank), SIZES[rank], dtype)


@pytest.mark.full
@pytest.mark.parametrize("rank", CONVOLUTION)
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_padding_modes(rank: int, mode: Any) -> None:
    check(CONVOLUTION[rank](4, 6, 4, padding="same", padding_mode=mode), SIZES[rank], torch.float32)


def test_copies_of_a_single_place() -> None:
    """Its gradient is the sum of all."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReplicationPad2d((1, 2, 2, 0)))
    capture = captured(network, torch.randn(2, 4, 5, 4), 2, 3, least=1)
    for size in ((5, 4), (1, 4), (3, 1), (1, 1)):
        same_as_torch(capture, network, torch.randn(2, 4, *size))


@pytest.mark.parametrize("dtype", OFF, ids=str)
def test_room_for_more_places_than_there_are(dtype: torch.dtype) -> None:
    """An output_padding as large as the stride."""
    network = nn.Sequential(
        nn.ConvTranspose1d(4, 4, 3, 1, dilation=2, output_padding=1, groups=4),
        nn.Tanh(),
        nn.ConvTranspose1d(4, 2, 2, 2, padding=3, dilation=3, output_padding=2),
    )
    check(network, SIZES[1], dtype)


class Autoencoder(nn.Module):
    """Transposed convolutions back to the sizes of what was convolved, or pooled."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(4, 3, 3, 2, 1), nn.ConvTranspose2d(3, 4, 3, 2, 1)
        self.dilated = nn.ConvTranspose2d(4, 2, 2, 2, dilation=3)

    def forward(self, x: Tensor) -> Tensor:
        found = self.up(self.down(x).tanh(), output_size=x.shape)
        pooled = nn.functional.max_pool2d(found, 2)
        return self.dilated(pooled, output_size=[pooled.shape[2] * 2 + 2, pooled.shape[3] + x.shape[3] // 2 + 3])


@pytest.mark.parametrize("dtype", OFF, ids=str)
def test_output_sizes_of_transposed_convolutions(dtype: torch.dtype) -> None:
    check(Autoencoder(), SIZES[2], dtype)


class Pools(nn.Module):
    """A linear layer over the channels, pooled, padded and resized in many ways."""

    def __init__(self, ways: Sequence[Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.mixing = nn.Linear(4, 4)
        self.ways = ways

    def forward(self, x: Tensor) -> Tensor:
        x = self.mixing(x.movedim(1, -1)).movedim(-1, 1)
        results = [way(x) for way in self.ways]
        return torch.stack([(y * y.cos()).mean() for y in results])


def pools_of(rank: int) -> list[Callable[[Tensor], Tensor]]:
    maximum, average = getattr(nn, f"MaxPool{rank}d"), getattr(nn, f"AvgPool{rank}d")
    return [
        maximum(2),
        maximum(3, 2, 1),
        average(2),
        average(3, 2, 1),
        average(3, 1, 1, count_include_pad=False),
        average(3, 2, 1, ceil_mode=True),
        average(2, 3, ceil_mode=True),
        getattr(nn, f"AdaptiveAvgPool{rank}d")(1),
        getattr(nn, f"AdaptiveAvgPool{rank}d")(3),
        getattr(nn, f"AdaptiveMaxPool{rank}d")(1),
        lambda x: getattr(F, f"avg_pool{rank}d")(x, x.shape[2:]),
        lambda x: getattr(F, f"max_pool{rank}d")(torch.cat([x, x.detach()], -1), [*x.shape[2:-1], 2 * x.shape[-1]]),
        lambda x: F.max_pool2d(x.flatten(2).unsqueeze(-1), (x[0, 0].numel(), 1)),
    ]


def resizings_of(rank: int) -> list[Callable[[Tensor], Tensor]]:
    linear = {1: "linear", 2: "bilinear", 3: "trilinear"}[rank]
    pads = [partial(F.pad, pad=[1, 2] * rank, mode=mode) for mode in ("constant", "reflect", "replicate", "circular")]
    return [
        *pads,
        nn.Upsample(scale_factor=2),
        nn.Upsample(scale_factor=1.7, mode="nearest-exact"),
        nn.Upsample(scale_factor=2, mode=linear),
        nn.Upsample(scale_factor=2, mode=linear, align_corners=True),
        nn.Upsample(size=7),
        lambda x: F.interpolate(x[..., ::2], size=x.shape[2:], mode=linear),
    ]


def others_of(rank: int) -> list[Callable[[Tensor], Tensor]]:
    """Norms, and windows as columns, which PyTorch has for planes only."""
    norms = [
        partial(F.batch_norm, running_mean=None, running_var=None, training=True),
        F.instance_norm,
        partial(F.group_norm, num_groups=2),
        lambda x: F.layer_norm(x.movedim(1, -1), [4]).movedim(-1, 1),
    ]
    columns = [partial(F.unfold, kernel_size=3, stride=2, padding=1), folded]
    return norms + columns if rank == 2 else norms


def folded(x: Tensor) -> Tensor:
    return F.fold(F.unfold(x, 3, 1, 1, 2), x.shape[2:], 3, 1, 1, 2)


@pytest.mark.parametrize("axes", [(1,), (1, 2, 3)], ids=str)
def test_columns_of_a_dynamic_number_of_channels(axes: tuple[int, ...]) -> None:
    network = nn.Sequential(nn.PReLU(), nn.Unfold((3, 2), padding=1, stride=2))
    capture = captured(network, torch.randn(2, 4, 6, 5), *axes)
    for channels in (4, 3, 7):
        same_as_torch(capture, network, torch.randn(2, channels, 6, 5))


def test_means_of_resized_tensors() -> None:
    """Their number of elements is that of a size that is computed as a floating number."""
    check(nn.Sequential(nn.Conv1d(4, 2, 3), nn.Upsample(scale_factor=1.7, mode="linear")), SIZES[1], torch.float32)


def test_resizing_by_any_kernel() -> None:
    """Of images and to sizes that are dynamic, among them those that a factor leaves as they are."""
    places = torch.randn(1, 4, 6, 6, generator=torch.Generator().manual_seed(0))
    smooth = partial(F.interpolate, antialias=True)
    ways: list[Callable[[Tensor], Tensor]] = [
        partial(F.interpolate, scale_factor=1.2, mode="bilinear"),
        partial(F.interpolate, scale_factor=1.5, mode="bicubic"),
        partial(smooth, scale_factor=0.7, mode="bicubic"),
        lambda x: smooth(places.to(x.dtype), size=x.shape[2:], mode="bilinear") * x,
    ]
    model = nn.Linear(1, 1)

    def loss(model: nn.Linear, x: Tensor) -> Tensor:
        return torch.stack([way(x * model.weight).sin().mean() for way in ways]).sum() + model.bias.sum()

    sizes = [(2, 4, 8, 9), (3, 4, 3, 4), (1, 4, 6, 3), (1, 4, 17, 6)]
    compared(model, loss, [torch.randn(size) for size in sizes], {0: Dim("N"), 2: Dim("H", min=2), 3: Dim("W", min=2)})


def test_factors_that_leave_a_size() -> None:
    """PyTorch's kernels copy along such an axis, its decompositions do not."""
    x = torch.randn(2, 3, 4, 9)

    def loss(model: nn.Linear, x: Tensor) -> Tensor:
        x = x * model.weight
        ways = [F.interpolate(x, scale_factor=1.2, mode=mode) for mode in ("nearest", "bilinear", "bicubic")]
        return torch.stack([way.sin().mean() for way in ways]).sum() + model.bias.sum()

    compared(nn.Linear(1, 1), loss, [x], {})


@pytest.mark.full
@pytest.mark.parametrize("ways", [pools_of, resizings_of])
def test_pools_and_resizing(ways: Any) -> None:
    check(Pools(ways(1)), SIZES[1], torch.float32)


@pytest.mark.full
@pytest.mark.parametrize("dtype", OFF, ids=str)
@pytest.mark.parametrize("rank", CONVOLUTION)
@pytest.mark.parametrize("ways", [pools_of, resizings_of])
def test_layers_of_any_rank(ways: Any, rank: int, dtype: torch.dtype) -> None:
    check(Pools(ways(rank)), SIZES[rank], dtype)


@pytest.mark.full
@pytest.mark.parametrize("rank", CONVOLUTION)
def test_norms_and_columns(rank: int) -> None:
    check(Pools(others_of(rank)), SIZES[rank], torch.float32)


def test_adaptive_pools() -> None:
    """Resizing by area is one too."""
    ways = [
        nn.AdaptiveMaxPool2d((3, 5)),
        nn.AdaptiveMaxPool2d((None, 2)),
        lambda x: 0.01 * torch.mul(*F.adaptive_max_pool2d(x, (x.shape[2] // 2, 3), return_indices=True)),
        partial(F.interpolate, scale_factor=0.5, mode="area"),
    ]
    check(Pools(ways), SIZES[2], torch.float32)


class AdaptivePools(nn.Module):
    """Some axes of space keep their sizes."""

    def forward(self, x: Tensor) -> Tensor:
        wide = F.adaptive_avg_pool2d(x, (x.shape[2] // 2 + 1, 5)) + F.adaptive_avg_pool2d(x, (1, 5))
        largest, places = F.adaptive_max_pool2d(x, (None, 4), return_indices=True)
        volume = F.adaptive_max_pool3d(x[..., None], (None, 1, 1), return_indices=True)
        return torch.cat(
            [
                wide.flatten(2),
                F.adaptive_avg_pool2d(x, (None, 3)).flatten(2),
                F.adaptive_avg_pool3d(x[..., None], (None, 2, 1)).flatten(2),
                (largest * (places + 1)).flatten(2),
                (volume[0] * (volume[1] + 1)).flatten(2),
            ],
            2,
        )


def test_adaptive_pools_along_some_axes() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 2, 1), AdaptivePools())
    capture = captured(network, torch.randn(2, 2, 7, 9), 2)
    for rows in (7, 4, 1):
        same_as_torch(capture, network, torch.randn(3, 2, rows, 9))


def test_slices_of_a_known_length() -> None:
    """They are shorter where the axis is, for which the sum with six numbers is an error of PyTorch."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x).T[:, :6] + torch.arange(6)).square().mean()

    capture = compared(nn.Linear(3, 2), loss, [torch.randn(rows, 3) for rows in (9, 6, 7)], {0: Dim("N")})
    with pytest.raises(onnx_ops.StepError, match="N >= 6"):
        onnx_ops.Trainer(capture).step(x=np.ones((5, 3), np.float32))


def of_padded(network: nn.Module, x: Tensor) -> Tensor:
    """Of at least 5 rows, by the filter, and 3 columns."""
    y = network(F.pad(x, (1, 2, 0, 0), mode="reflect"))
    return (y if x.shape[2] < 100 else y.clone()).square().mean()


def test_sizes_that_pytorch_refuses_too() -> None:
    torch.manual_seed(0)
    network, dims = nn.Conv2d(4, 4, (5, 1)), {0: Dim("N"), 2: Dim("H"), 3: Dim("W", max=20)}
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    x = torch.randn(2, 4, 9, 8)
    step = training_step(network, of_padded, (x,), optimizer, dynamic_shapes=(dims,), inference=False)
    trainer = onnx_ops.Trainer(step)
    for size in ((9, 8), (5, 3), (6, 4)):
        x = torch.randn(1, 4, *size)
        optimizer.zero_grad()
        (wanted := of_padded(network, x)).backward()
        optimizer.step()
        np.testing.assert_allclose(trainer.step(x=x.numpy())["loss"], wanted.item(), rtol=1e-5)
    for size, said in (((4, 8), "H >= 5"), ((9, 2), "W from 3 to 20")):
        x = torch.randn(1, 4, *size)
        with pytest.raises(RuntimeError):
            of_padded(network, x)
        with pytest.raises(onnx_ops.StepError, match=said):
            trainer.step(x=x.numpy())


def test_an_example_of_size_1() -> None:
    with pytest.raises(
        CaptureError, match=r"x\.size\(\)\[2\] is to be dynamic: give an example in which it is 2 or more"
    ):
        captured(nn.Conv1d(4, 4, 3, padding=1), torch.randn(2, 4, 1), 2)


class Recurrent(nn.Module):
    """The sum of all outputs of a recurrent layer, each element with its own weight."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer
        self.start = nn.Parameter(torch.randn(layer.num_layers * (1 + layer.bidirectional), 1, 6))

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0 if self.layer.batch_first else 1]
        hidden = self.start.expand(-1, batch, -1)
        states = (hidden[..., : self.layer.proj_size or None], hidden) if isinstance(self.layer, nn.LSTM) else hidden
        outputs, ends = self.layer(x, states)
        parts = [outputs, *(ends if isinstance(ends, tuple) else [ends])]
        return torch.stack([(part * part.cos()).mean() for part in parts])


RECURRENT: dict[str, Callable[[], nn.RNNBase]] = {
    "lstm": lambda: nn.LSTM(4, 6, num_layers=2, bidirectional=True, batch_first=True),
    "lstm_projected": lambda: nn.LSTM(4, 6, proj_size=3, bidirectional=True),
    "gru": lambda: nn.GRU(4, 6, bidirectional=True),
    "rnn": lambda: nn.RNN(4, 6, batch_first=True),
    "rnn_relu": lambda: nn.RNN(4, 6, nonlinearity="relu", bias=False, bidirectional=True),
}


# PyTorch's warning about its own LSTM in float32.
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", ["lstm_projected", pytest.param("gru", marks=pytest.mark.full)])
def test_recurrent_layers_over_any_number_of_steps(name: str) -> None:
    check_recurrent(name, torch.float64)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("dtype", OFF, ids=str)
@pytest.mark.parametrize("name", RECURRENT)
def test_all_recurrent_layers_over_any_number_of_steps(name: str, dtype: torch.dtype) -> None:
    check_recurrent(name, dtype)


def check_recurrent(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    network = Recurrent(RECURRENT[name]()).to(dtype)
    capture = captured(network, torch.randn(3, 5, 4, dtype=dtype), 1)
    assert {node.op_type for node in capture.model.graph.node} & {"Scan", "DynamicRNN"}
    for shape in ((3, 5), (2, 8), (1, 3), (4, 1)):
        same_as_torch(capture, network, torch.randn(*shape, 4, dtype=dtype))


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", RECURRENT)
def test_loops_run_by_pytorch(name: str) -> None:
    """As in an exported program that PyTorch itself runs."""
    torch.manual_seed(0)
    network = Recurrent(RECURRENT[name]()).double()
    x = torch.randn(3, 4, 4, dtype=torch.float64, requires_grad=True)
    wanted = torch.autograd.grad(loss(network, x), [x, *network.parameters()])
    with whole_ops():
        got = torch.autograd.grad(loss(network, x), [x, *network.parameters()])
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.full
def test_attention_over_any_length() -> None:
    torch.manual_seed(0)
    network = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    capture = captured(network, torch.randn(2, 5, 4), 1)
    for shape in ((2, 5), (3, 9), (1, 2)):
        same_as_torch(capture, network, torch.randn(*shape, 4))


class Speech(nn.Module):
    """A speech net: convolutions over time, then an LSTM, for CTC."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.Conv1d(4, 6, 3, stride=2, padding=1), nn.BatchNorm1d(6), nn.ReLU())
        self.layer = nn.LSTM(6, 5, batch_first=True)
        self.after = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.layer(self.before(x).mT)
        return self.after(hidden).log_softmax(-1)


def test_a_speech_net() -> None:
    """With targets of any length, as a whole step of training that runs without PyTorch."""

    def ctc(model: nn.Module, x: Tensor, labels: Tensor, frames: Tensor, lengths: Tensor) -> Tensor:
        return F.ctc_loss(model(x).transpose(0, 1), labels, frames, lengths)

    def batch(samples: int, length: int, longest: int) -> tuple[Tensor, ...]:
        lengths = torch.full((samples,), longest)
        frames = torch.full((samples,), (length + 1) // 2)
        return torch.randn(samples, 4, length), torch.randint(1, 4, (samples, longest)), frames, lengths

    torch.manual_seed(0)
    network = Speech()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    samples = Dim("N")
    dims = {0: samples, 2: Dim("T", min=4)}, {0: samples, 1: Dim("S")}, {0: samples}, {0: samples}
    capture = training_step(network, ctc, batch(3, 20, 4), optimizer, dynamic_shapes=dims, inference=False)
    trainer = onnx_ops.Trainer(capture)
    for sizes in ((2, 31, 5), (3, 20, 4), (4, 14, 2)):
        args = batch(*sizes)
        reported = trainer.step(
            **{n: a.numpy() for n, a in zip(("x", "labels", "frames", "lengths"), args, strict=True)}
        )
        optimizer.zero_grad()
        value = ctc(network, *args)
        value.backward()
        optimizer.step()
        assert abs(float(reported["loss"]) - float(value.detach())) < 1e-4 * float(value.detach())
    state = trainer.state_dict()
    for name, parameter in network.named_parameters():
        np.testing.assert_allclose(state[name], parameter.detach().numpy(), rtol=0, atol=1e-5, err_msg=name)


def made(forward: Callable[[nn.Linear, Tensor], Tensor]) -> nn.Module:
    """A linear layer that does something of its own."""

    class Layer(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return forward(self, x)

    return Layer(4, 4)


def test_what_pytorch_may_limit_itself_is_limited() -> None:
    """With Dim.AUTO a graph that is valid only for some sizes refuses the others."""

    def branch(layer: nn.Linear, x: Tensor) -> Tensor:
        y = F.linear(x, layer.weight)
        return y * 2 if x.shape[0] % 2 else y * x.shape[1]

    x = torch.randn(3, 5, 4)
    capture = gradients(made(branch), loss, (x,), dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO},))
    assert capture.inference is not None
    for model in (capture.model, capture.inference):
        shape = next(value for value in model.graph.input if value.name in ("x", "input")).type.tensor_type.shape
        assert [size.dim_value for size in shape.dim] == [3, 0, 4]
        assert shape.dim[1].dim_param
