"""The table of the sweep: layers, losses and functions of PyTorch with their arguments, and what is fed to them.

Each case is an expression, whose value is called with the inputs. An input is a shape, or one of the classes below.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Input:
    """A tensor; by default of normally distributed numbers that require a gradient."""

    shape: Shape
    make: Callable[[np.random.Generator, Shape], np.ndarray] = lambda rng, shape: rng.normal(size=shape)
    differentiable: bool = True

    def tensor(self, rng: np.random.Generator) -> torch.Tensor:
        array = self.make(rng, self.shape)
        tensor = torch.from_numpy(np.asarray(array)).clone()
        return tensor.float() if tensor.is_floating_point() else tensor


def data(*shape: int) -> Input:
    """Numbers without a gradient."""
    return Input(shape, differentiable=False)


def positive(*shape: int) -> Input:
    return Input(shape, lambda rng, shape: rng.uniform(0.2, 2, shape))


def inside(*shape: int) -> Input:
    """Numbers in [-0.95, 0.95]."""
    return Input(shape, lambda rng, shape: rng.uniform(-0.95, 0.95, shape))


def chances(*shape: int) -> Input:
    return Input(shape, lambda rng, shape: rng.uniform(0.05, 0.95, shape))


def distributions(*shape: int) -> Input:
    """Rows that add up to 1, without a gradient."""
    return Input(shape, lambda rng, shape: rng.dirichlet(np.ones(shape[-1]), shape[:-1]), differentiable=False)


def ids(high: int, *shape: int) -> Input:
    return Input(shape, lambda rng, shape: rng.integers(0, high, shape), differentiable=False)


def signs(*shape: int) -> Input:
    return Input(shape, lambda rng, shape: rng.choice([-1.0, 1.0], shape), differentiable=False)


def flags(*shape: int) -> Input:
    return Input(shape, lambda rng, shape: rng.random(shape) < 0.6, differentiable=False)


def fixed(*values: Any) -> Input:
    return Input((), lambda rng, shape: np.array(values), differentiable=False)


@dataclass(frozen=True)
class Case:
    """An expression with its arguments, the reason if it cannot be captured, and whether it can be in float64."""

    text: str
    inputs: tuple[Input, ...]
    refused: str = ""
    double: bool = True

    def build(self) -> Any:
        return eval(self.text, {"nn": nn, "F": F, "torch": torch})


def every(text: str, *inputs: Input | Shape, refused: str = "", double: bool = True, **choices: Any) -> Iterator[Case]:
    """The cases of all combinations of arguments; `{name}` in the text is what is chosen of `name`."""
    made = tuple(given if isinstance(given, Input) else Input(given) for given in inputs)
    for chosen in itertools.product(*choices.values()):
        written = text.format(**dict(zip(choices, chosen, strict=True)))
        yield Case(written, made, refused or REASONS.get(written, ""), double and written not in SINGLE)


NOT_SWEPT = {
    "Container": "holds others and computes nothing itself",
    "DataParallel": "spreads a batch over GPUs",
    "FractionalMaxPool2d": "draws its windows at random",
    "FractionalMaxPool3d": "draws its windows at random",
    "Module": "holds others and computes nothing itself",
    "NLLLoss2d": "an old name of NLLLoss",
    "ParameterDict": "holds others and computes nothing itself",
    "ParameterList": "holds others and computes nothing itself",
    "RNNBase": "what RNN, LSTM and GRU have in common",
    "RNNCellBase": "what the cells have in common",
    "SyncBatchNorm": "needs processes that exchange their statistics",
}
"""Modules of torch.nn that no case has, and why."""

_NO_FUNCTION = "no operator of ONNX computes the function or its gradient"
REASONS: dict[str, str] = {
    "nn.EmbeddingBag(10, 4, scale_grad_by_freq=True, mode='sum')": "scales its gradient otherwise than an embedding",
    "nn.CrossMapLRN2d(3)": "changes the storage of tensors",
    **{
        f"lambda x: {text}": reason
        for reason, texts in {
            "computes eigenvalues that may be complex": ("torch.linalg.eigvals(x[:, :6]).abs()",),
            _NO_FUNCTION: ("torch.special.zeta(2.5, x.exp())",),
        }.items()
        for text in texts
    },
}
"""Cases that cannot be captured, and why."""

SINGLE = (
    "lambda x: torch.baddbmm((x @ x.t())[None], x[None], x.t()[None], beta=0.3, alpha=0.7)",
    "lambda x: x.digamma()",
)
"""Cases whose gradients in float64 are off by more than is allowed: by 1.2e-8, and PyTorch's own polygamma by 5e-10."""

ROWS, SEQUENCE = (6, 8), (2, 5, 8)
LINE, IMAGE, VOLUME = (2, 4, 11), (2, 4, 9, 8), (2, 4, 6, 7, 5)
INPUTS = {1: LINE, 2: IMAGE, 3: VOLUME}


def _activations() -> Iterator[Case]:
    for text in [
        "CELU()",
        "CELU(0.7)",
        "ELU()",
        "ELU(0.7)",
        "GELU()",
        "GELU('tanh')",
        "Hardshrink()",
        "Hardshrink(0.3)",
        "Hardsigmoid()",
        "Hardswish()",
        "Hardtanh()",
        "Hardtanh(-0.5,0.25)",
        "LeakyReLU()",
        "LeakyReLU(0.3)",
        "LogSigmoid()",
        "Mish()",
        "PReLU()",
        "PReLU(8)",
        "RReLU().eval()",
        "ReLU()",
        "ReLU6()",
        "SELU()",
        "SiLU()",
        "Sigmoid()",
        "Softplus()",
        "Softplus(2.5,1.0)",
        "Softshrink()",
        "Softshrink(0.3)",
        "Softsign()",
        "Tanh()",
        "Tanhshrink()",
        "Threshold(0.1,-0.3)",
        "Softmax(-1)",
        "Softmax(0)",
        "LogSoftmax(-1)",
        "LogSoftmax(0)",
        "Softmin(1)",
        "GLU()",
        "GLU(0)",
        "ReLU(inplace=True)",
        "SiLU(inplace=True)",
        "Mish(inplace=True)",
        "Identity()",
        "Flatten()",
        "Dropout(0.3).eval()",
    ]:
        yield from every(f"nn.{text}" if "inplace" not in text else f"lambda x: nn.{text}(x * 1.5)", ROWS)
    yield from every("nn.Softmax2d()", IMAGE)
    yield from every("nn.{layer}(0.3).eval()", IMAGE, layer=("Dropout2d", "AlphaDropout", "FeatureAlphaDropout"))
    yield from every("nn.Dropout1d(0.3).eval()", LINE)
    yield from every("nn.Dropout3d(0.3).eval()", VOLUME)
    yield from every("F.{f}", ROWS, f=("rrelu", "normalize", "softsign", "relu6"))
    yield from every("lambda x: F.threshold(x, 0.2, 1.5)", ROWS)


def _linear() -> Iterator[Case]:
    yield from every("nn.Linear(8, 5{bias})", ROWS, bias=("", ", bias=False"))
    yield from every("nn.Linear(8, 5)", SEQUENCE)
    yield from every("nn.Bilinear(8, 6, 5{bias})", ROWS, (6, 6), bias=("", ", bias=False"))
    yield from every("nn.Unflatten(1, (2, 4))", ROWS)
    yield from every(
        "nn.Embedding(10, 4{rest})", ids(10, 3, 5), rest=("", ", padding_idx=2", ", scale_grad_by_freq=True")
    )
    yield from every("nn.Embedding(10, 4, max_norm=1.0)", ids(10, 3, 5))
    for mode in ("sum", "mean", "max"):
        yield from every(f"nn.EmbeddingBag(10, 4, mode='{mode}'{{rest}})", ids(10, 3, 5), rest=("", ", padding_idx=2"))
        yield from every(
            f"nn.EmbeddingBag(10, 4, mode='{mode}'{{rest}})", ids(10, 7), fixed(0, 3, 3), rest=("", ", padding_idx=2")
        )
        yield from every(f"nn.EmbeddingBag(10, 4, mode='{mode}', include_last_offset=True)", ids(10, 7), fixed(0, 3, 7))
    yield from every("nn.EmbeddingBag(10, 4, scale_grad_by_freq=True, mode='sum')", ids(10, 3, 5))
    yield from every(
        "(lambda m: lambda x, w: m(x, per_sample_weights=w))(nn.EmbeddingBag(10, 4, mode='sum'))", ids(10, 3, 5), (3, 5)
    )
    yield from every("nn.utils.parametrizations.weight_norm(nn.Linear(8, 5), dim={dim})", ROWS, dim=(0, 1, None))
    yield from every("nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 6, 3))", LINE)
    yield from every("nn.utils.parametrizations.spectral_norm(nn.Linear(8, 5))", ROWS)
    yield from every("nn.utils.parametrizations.spectral_norm(nn.Linear(8, 5)).eval()", ROWS)
    yield from every("nn.utils.parametrizations.orthogonal(nn.Linear(8, 5), orthogonal_map='cayley')", ROWS)


def _convolutions() -> Iterator[Case]:
    for rank in (1, 2, 3):
        yield from every(
            f"nn.Conv{rank}d(4, 6, 3, {{stride}}, {{padding}}{{rest}})",
            INPUTS[rank],
            stride=(1, 2),
            padding=(0, 1),
            rest=("", ", dilation=2", ", groups=2", ", bias=False"),
        )
        yield from every(
            f"nn.Conv{rank}d(4, 8, 3, groups=4, padding=1, stride={{stride}})", INPUTS[rank], stride=(1, 2)
        )
        yield from every(
            f"nn.Conv{rank}d(4, 6, 3, padding={{padding}}, padding_mode={{mode}})",
            INPUTS[rank],
            padding=(1, 2),
            mode=("'reflect'", "'replicate'", "'circular'"),
        )
        yield from every(f"nn.Conv{rank}d(4, 6, {{kernel}}, padding='same')", INPUTS[rank], kernel=(3, 4))
        yield from every(f"nn.Conv{rank}d(4, 6, 1{{rest}})", INPUTS[rank], rest=("", ", stride=2", ", groups=2"))
        yield from every(f"nn.Conv{rank}d(4, 6, 3)", INPUTS[rank][1:])
        yield from every(
            f"nn.ConvTranspose{rank}d(4, 6, 3, {{stride}}, {{padding}}{{rest}})",
            INPUTS[rank],
            stride=(1, 2),
            padding=(0, 1),
            rest=("", ", dilation=2", ", groups=2", ", bias=False"),
        )
        yield from every(
            f"nn.ConvTranspose{rank}d(4, 6, 3, 2, 1, output_padding=1{{rest}})", INPUTS[rank], rest=("", ", groups=2")
        )
    yield from every("nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2))", IMAGE)
    yield from every("nn.ConvTranspose2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 0), dilation=(1, 2))", IMAGE)
    yield from every("nn.Fold((9, 8), (3, 2){rest})", (2, 24, 49), rest=("",))
    yield from every("nn.Fold((9, 8), 3, 2, 1, 2)", (2, 36, 12))
    yield from every("nn.Unfold({rest})", IMAGE, rest=("3", "(3, 2)", "3, 2, 1, 2"))


def _pools() -> Iterator[Case]:
    for rank in (1, 2, 3):
        shape = INPUTS[rank]
        yield from every(
            f"nn.MaxPool{rank}d({{rest}})",
            shape,
            rest=(
                "2",
                "3, 2",
                "3, 2, 1",
                "3, 1, 1",
                "2, ceil_mode=True",
                "2, 1, dilation=2",
                "3, 2, 1, ceil_mode=True",
            ),
        )
        yield from every(f"(lambda m: lambda x: m(x)[0])(nn.MaxPool{rank}d(2, return_indices=True))", shape)
        yield from every(
            "(lambda m, u: lambda x: u(*m(x), output_size=x.shape))"
            f"(nn.MaxPool{rank}d(2, return_indices=True), nn.MaxUnpool{rank}d(2))",
            shape,
        )
        yield from every(
            f"nn.AvgPool{rank}d({{rest}})",
            shape,
            rest=(
                "2",
                "3, 2",
                "3, 2, 1",
                "3, 2, 1, count_include_pad=False",
                "2, ceil_mode=True",
                "3, 2, 1, ceil_mode=True",
                "3, 2, 1, ceil_mode=True, count_include_pad=False",
                *(() if rank == 1 else ("2, divisor_override=3", "3, 2, 1, divisor_override=5")),
            ),
        )
        for kind in ("Avg", "Max"):
            yield from every(f"nn.Adaptive{kind}Pool{rank}d({{size}})", shape, size=(1, 3, 4))
    for kind in ("Avg", "Max"):
        yield from every(f"nn.Adaptive{kind}Pool2d((None, 4))", IMAGE)
    yield from every("nn.LPPool1d({p}, 3, 2)", positive(*LINE), p=(1, 2, 3))
    yield from every("nn.LPPool2d({p}, 3, 2)", positive(*IMAGE), p=(1, 2, 3))
    yield from every("nn.LPPool3d({p}, 3, 2)", positive(*VOLUME), p=(1, 2, 3))
    yield from every("lambda x: F.adaptive_avg_pool2d(x, 5)", IMAGE)
    yield from every("lambda x: F.max_pool2d(x, 2) + F.max_pool2d(x, 2)", (4, 9, 8))


def _resizing() -> Iterator[Case]:
    modes = {1: ("linear",), 2: ("bilinear", "bicubic"), 3: ("trilinear",)}
    for rank in (1, 2, 3):
        shape = INPUTS[rank]
        sizes = ("scale_factor=2", "scale_factor=1.7", "scale_factor=0.6", f"size={(5, 13, 4)[:rank]}", "size=3")
        yield from every("nn.Upsample({size}, mode='{mode}')", shape, size=sizes, mode=("nearest", "nearest-exact"))
        yield from every(
            "nn.Upsample({size}, mode='{mode}', align_corners={align})",
            shape,
            size=sizes,
            mode=modes[rank],
            align=(False, True),
        )
    yield from every(
        "lambda x: F.interpolate(x, scale_factor=1.7, recompute_scale_factor=True, mode='bilinear')", IMAGE
    )
    yield from every(
        "lambda x: F.interpolate(x, size=(4, 5), mode='{mode}', antialias=True)", IMAGE, mode=("bilinear", "bicubic")
    )
    yield from every("lambda x: F.interpolate(x, size=(4, 5), mode='area')", IMAGE)
    yield from every("nn.UpsamplingNearest2d(scale_factor=2)", IMAGE)
    yield from every("nn.UpsamplingBilinear2d(scale_factor=2)", IMAGE)
    yield from every("nn.PixelShuffle(2)", IMAGE)
    yield from every("nn.PixelUnshuffle(2)", (2, 4, 6, 8))
    yield from every("nn.ChannelShuffle(2)", IMAGE)
    for kind in ("Reflection", "Replication", "Circular", "Zero"):
        yield from every(f"nn.{kind}Pad1d({{pad}})", LINE, pad=(2, (0, 3), (3, 1)))
        yield from every(f"nn.{kind}Pad2d({{pad}})", IMAGE, pad=(2, (0, 3, 1, 2)))
        yield from every(f"nn.{kind}Pad3d({{pad}})", VOLUME, pad=(2, (0, 3, 1, 2, 2, 1)))
    for rank in (1, 2, 3):
        yield from every(f"nn.ConstantPad{rank}d(2, 0.7)", INPUTS[rank])
    for mode, padding, align in itertools.product(
        ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (False, True)
    ):
        yield from every(
            f"lambda x, g: F.grid_sample(x, g * 1.3, '{mode}', '{padding}', {align})", IMAGE, inside(2, 5, 6, 2)
        )
        if mode != "bicubic":
            yield from every(
                f"lambda x, g: F.grid_sample(x, g * 1.3, '{mode}', '{padding}', {align})", VOLUME, inside(2, 3, 4, 5, 3)
            )
    yield from every(
        "lambda x, t: F.grid_sample(x, F.affine_grid(t, (2, 4, 5, 6), {align}), align_corners={align})",
        IMAGE,
        (2, 2, 3),
        align=(False, True),
    )
    yield from every("lambda t: F.affine_grid(t, (2, 4, 3, 5, 6), False)", (2, 3, 4))


def _normalizations() -> Iterator[Case]:
    for rank in (1, 2, 3):
        for affine in ("", ", affine=True"):
            yield from every(
                f"nn.InstanceNorm{rank}d(4{affine}{{rest}})", INPUTS[rank], rest=("", ", track_running_stats=True")
            )
        yield from every(
            f"nn.BatchNorm{rank}d(4{{rest}})",
            INPUTS[rank],
            rest=("", ", affine=False", ", track_running_stats=False", ", momentum=None"),
        )
        yield from every(f"nn.BatchNorm{rank}d(4).eval()", INPUTS[rank])
        yield from every(f"nn.InstanceNorm{rank}d(4, affine=True, track_running_stats=True).eval()", INPUTS[rank])
    yield from every("nn.BatchNorm1d(8)", ROWS)
    yield from every(
        "nn.GroupNorm({groups}, 4{rest})", IMAGE, groups=(1, 2, 4), rest=("", ", affine=False", ", eps=1e-2")
    )
    yield from every(
        "nn.LayerNorm({shape}{rest})",
        SEQUENCE,
        shape=("8", "(5, 8)"),
        rest=("", ", bias=False", ", elementwise_affine=False", ", eps=1e-2"),
    )
    yield from every(
        "nn.RMSNorm({shape}{rest})",
        SEQUENCE,
        shape=("8", "(5, 8)"),
        rest=("", ", elementwise_affine=False", ", eps=1e-2"),
    )
    yield from every("nn.LocalResponseNorm({rest})", IMAGE, rest=("2", "3, 0.1, 0.5, 2.0"))
    yield from every("nn.CrossMapLRN2d(3)", IMAGE)


def _recurrent() -> Iterator[Case]:
    for kind in ("RNN", "LSTM", "GRU"):
        yield from every(
            f"(lambda m: lambda x: m(x)[0])(nn.{kind}(8, 3{{rest}}))",
            SEQUENCE,
            rest=("", ", num_layers=2", ", bidirectional=True", ", batch_first=True", ", bias=False"),
        )
        yield from every(f"nn.{kind}Cell(8, 3{{rest}})", ROWS, rest=("", ", bias=False"))
    yield from every("(lambda m: lambda x: m(x)[0])(nn.RNN(8, 3, nonlinearity='relu'))", SEQUENCE)
    yield from every("(lambda m: lambda x: m(x)[0])(nn.LSTM(8, 6, proj_size=3))", SEQUENCE)


def _attention() -> Iterator[Case]:
    yield from every(
        "(lambda m: lambda x: m(x, x, x{call})[0])(nn.MultiheadAttention(8, 2, batch_first=True{rest}))",
        SEQUENCE,
        call=("", ", need_weights=False"),
        rest=("", ", bias=False", ", add_bias_kv=True", ", add_zero_attn=True"),
    )
    yield from every(
        "(lambda m: lambda x, k: m(x, k, k)[0])(nn.MultiheadAttention(8, 2, kdim=6, vdim=6))", SEQUENCE, (7, 5, 6)
    )
    yield from every(
        "(lambda m: lambda x, p: m(x, x, x, key_padding_mask=p, need_weights=False)[0])"
        "(nn.MultiheadAttention(8, 2, batch_first=True))",
        SEQUENCE,
        Input((2, 5), lambda rng, shape: np.arange(5) >= np.array([[5], [3]]), differentiable=False),
    )
    yield from every(
        "nn.TransformerEncoderLayer(8, 2, 16, 0.0, {activation}, batch_first={first}, norm_first={norm})",
        SEQUENCE,
        activation=("F.relu", "F.gelu"),
        first=(True, False),
        norm=(True, False),
    )
    yield from every(
        "nn.TransformerDecoderLayer(8, 2, 16, 0.0, norm_first={norm})", SEQUENCE, (3, 5, 8), norm=(True, False)
    )
    yield from every("nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2)", SEQUENCE)
    yield from every("nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, 0.0), 2)", SEQUENCE, (3, 5, 8))
    yield from every("nn.Transformer(8, 2, 1, 1, 16, 0.0)", SEQUENCE, (3, 5, 8))
    yield from every(
        "lambda q, k, v: F.scaled_dot_product_attention(q, k, v{rest})",
        (2, 2, 5, 4),
        (2, 2, 5, 4),
        (2, 2, 5, 4),
        rest=("", ", is_causal=True", ", scale=0.3"),
    )
    yield from every(
        "lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)",
        (2, 4, 5, 4),
        (2, 2, 6, 4),
        (2, 2, 6, 4),
    )
    yield from every(
        "lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m)",
        (2, 2, 5, 4),
        (2, 2, 6, 4),
        (2, 2, 6, 4),
        (5, 6),
    )


def _losses() -> Iterator[Case]:
    reductions = ("mean", "sum", "none")
    for loss in ("MSE", "L1", "SmoothL1", "Huber"):
        yield from every(f"nn.{loss}Loss(reduction='{{r}}')", ROWS, ROWS, r=reductions)
    yield from every("nn.SmoothL1Loss(beta=0.4)", ROWS, ROWS)
    yield from every("nn.HuberLoss(delta=0.4)", ROWS, ROWS)
    yield from every(
        "nn.CrossEntropyLoss(reduction='{r}'{rest})",
        ROWS,
        ids(8, 6),
        r=reductions,
        rest=("", ", ignore_index=3", ", label_smoothing=0.1", ", weight=torch.arange(1., 9.)"),
    )
    yield from every(
        "nn.CrossEntropyLoss({rest})",
        ROWS,
        distributions(6, 8),
        rest=("", "label_smoothing=0.1", "weight=torch.arange(1., 9.)"),
    )
    yield from every(
        "nn.CrossEntropyLoss({rest})",
        (2, 8, 3, 4),
        ids(8, 2, 3, 4),
        rest=("", "ignore_index=3", "weight=torch.arange(1., 9.)"),
    )
    yield from every(
        "nn.NLLLoss(reduction='{r}'{rest})",
        ROWS,
        ids(8, 6),
        r=reductions,
        rest=("", ", ignore_index=3", ", weight=torch.arange(1., 9.)"),
    )
    yield from every("nn.NLLLoss()", (2, 8, 3, 4), ids(8, 2, 3, 4))
    yield from every(
        "nn.BCELoss(reduction='{r}'{rest})",
        chances(6, 8),
        Input((6, 8), lambda rng, s: rng.random(s), False),
        r=reductions,
        rest=("", ", weight=torch.arange(1., 9.)"),
    )
    yield from every(
        "nn.BCEWithLogitsLoss(reduction='{r}'{rest})",
        ROWS,
        Input((6, 8), lambda rng, s: rng.random(s), False),
        r=reductions,
        rest=("", ", pos_weight=torch.arange(1., 9.)", ", weight=torch.arange(1., 9.)"),
    )
    yield from every(
        "nn.KLDivLoss(reduction='{r}'{rest})",
        ROWS,
        distributions(6, 8),
        r=(*reductions, "batchmean"),
        rest=("", ", log_target=True"),
    )
    yield from every(
        "nn.CTCLoss({rest})",
        (7, 2, 5),
        fixed([1, 2, 2], [3, 4, 1]),
        fixed(7, 6),
        fixed(3, 2),
        rest=("", "reduction='sum'", "zero_infinity=True"),
    )
    yield from every("nn.CosineEmbeddingLoss({rest})", ROWS, ROWS, signs(6), rest=("", "0.3", "reduction='none'"))
    yield from every("nn.HingeEmbeddingLoss({rest})", ROWS, signs(6, 8), rest=("", "0.3", "reduction='none'"))
    yield from every("nn.MarginRankingLoss({rest})", (6,), (6,), signs(6), rest=("", "0.3", "reduction='none'"))
    yield from every(
        "nn.MultiLabelMarginLoss({rest})",
        ROWS,
        fixed(*([[1, 3, -1, 0, 0, 0, 0, 0]] * 6)),
        rest=("", "reduction='sum'", "reduction='none'"),
    )
    yield from every(
        "nn.MultiLabelSoftMarginLoss({rest})",
        ROWS,
        Input((6, 8), lambda rng, s: rng.integers(0, 2, s).astype(float), False),
        rest=("", "reduction='none'", "weight=torch.arange(1., 9.)"),
    )
    yield from every(
        "nn.MultiMarginLoss({rest})",
        ROWS,
        ids(8, 6),
        rest=("", "p=2", "margin=0.4", "weight=torch.arange(1., 9.)", "reduction='none'"),
    )
    yield from every("nn.SoftMarginLoss(reduction='{r}')", ROWS, signs(6, 8), r=reductions)
    yield from every(
        "nn.TripletMarginLoss({rest})", ROWS, ROWS, ROWS, rest=("", "0.5, p=1", "swap=True", "reduction='none'")
    )
    yield from every(
        "nn.TripletMarginWithDistanceLoss({rest})",
        ROWS,
        ROWS,
        ROWS,
        rest=("", "distance_function=nn.CosineSimilarity()", "swap=True"),
    )
    yield from every("nn.PoissonNLLLoss({rest})", ROWS, positive(6, 8), rest=("", "full=True", "reduction='none'"))
    yield from every("nn.PoissonNLLLoss(log_input=False)", positive(6, 8), positive(6, 8))
    yield from every(
        "nn.GaussianNLLLoss({rest})", ROWS, ROWS, positive(6, 8), rest=("", "full=True", "eps=0.5", "reduction='none'")
    )
    yield from every("nn.GaussianNLLLoss()", ROWS, ROWS, positive(6, 1))
    yield from every("nn.CosineSimilarity({rest})", ROWS, ROWS, rest=("", "dim=0"))
    yield from every("nn.PairwiseDistance({rest})", ROWS, ROWS, rest=("", "p=1", "p=3", "keepdim=True"))
    yield from every(
        "(lambda m: lambda x, t: m(x, t).loss)(nn.AdaptiveLogSoftmaxWithLoss(8, 10, [3, 6]))", ROWS, ids(10, 6)
    )
    yield from every("(lambda m: lambda x: m.log_prob(x))(nn.AdaptiveLogSoftmaxWithLoss(8, 10, [3, 6]))", ROWS)
    yield from every("nn.LinearCrossEntropyLoss(8, 5)", ROWS, ids(5, 6))


FUNCTIONS = """
x.exp(); x.sin(); x.cos(); x.tanh(); x.sigmoid(); x.abs(); x.neg(); x.square(); x.erf(); x.atan(); x.sinh();
x.cosh(); x.asinh(); x.expm1(); x.exp2(); x.sign() * x; x.relu(); x.round() * x; x.floor() * x; x.ceil() * x;
x.trunc() * x; x.frac(); x.sinc(); x.clamp(-0.5, 0.7); x.clamp(min=0); x.clamp(max=0.3); x.pow(3); x ** 2; 2.5 ** x;
torch.addcmul(x, x, x, value=0.3); torch.addcdiv(x, x, 2 + x * x, value=0.3); torch.lerp(x, x * x, 0.3);
torch.where(x > 0, x, x * 0.1); x.masked_fill(x > 0, 0.3); x.sum(); x.sum(1); x.sum((0, 1)); x.mean(0);
x.mean(1, keepdim=True); x.mean(None); x.var(1); x.var(0, correction=0); x.std(1); x.std(); torch.var_mean(x, 1)[0];
torch.std_mean(x, 1)[0]; x.prod(); x.prod(1); x.logsumexp(1); x.logsumexp((0, 1)); x.amax(1); x.amax(); x.amin(1);
x.max(); x.min(); x.max(1)[0]; x.min(1)[0]; x.aminmax(dim=1)[0]; x.median(1)[0]; x.norm(); x.norm(dim=1);
x.norm(p=1, dim=1); x.norm(p=3); torch.linalg.vector_norm(x, 3, dim=1);
torch.linalg.vector_norm(x, float('inf'), dim=1);
torch.linalg.matrix_norm(x); x.cumsum(1); x.cumprod(1); x.logcumsumexp(1); x.cummax(1)[0]; x.cummin(1)[0]; x.diff();
x.sort(1)[0]; x.sort(1, descending=True)[0]; x.topk(3, 1)[0]; x.topk(3, 1, largest=False)[0]; x.kthvalue(3, 1)[0];
x.msort(); x.flip(0); x.roll(1, 0); x.roll((1, 2), (0, 1)); x.t(); x.transpose(0, 1); x.permute(1, 0);
x.reshape(4, 12); x.view(-1); x.unsqueeze(1); x.squeeze(); x.expand(2, 6, 8); x.repeat(2, 1);
x.repeat_interleave(2, 1); x.tile(2); x[1]; x[:, 2]; x[1:4, ::2]; x[..., -1]; x[:, None]; x[[0, 2, 2]];
x[:, [1, 1, 3]]; x[[0, 1, 1], [2, 3, 3]];
x[torch.arange(3).int(), [1, 0, 2]]; x.narrow(1, 2, 3); x.select(0, 1); x.unbind(0)[1]; x.split(2)[1];
x.chunk(2, 1)[0]; x.tensor_split(3)[2]; x.diagonal(); x.diag(); torch.diag_embed(x); x.tril(); x.triu(1);
x.unfold(1, 3, 2); torch.cat([x, x * x]); torch.stack([x, x * x], 1); torch.stack([x, x > 0, x.long()]) * x;
torch.hstack([x, x]); torch.outer(x[0], x[1]);
torch.dot(x[0], x[1]); torch.kron(x[:2, :2], x[:2, :3]); torch.einsum('ij,kj->ik', x, x); torch.einsum('ij->j', x);
torch.einsum('ij,ij->i', x, x); x @ x.t(); x.mm(x.t()); x.mv(x[0]); x[None].bmm(x.t()[None]);
torch.addmm(x @ x.t(), x, x.t(), beta=0.3, alpha=0.7);
torch.baddbmm((x @ x.t())[None], x[None], x.t()[None], beta=0.3, alpha=0.7); torch.tensordot(x, x, ([1], [1]));
torch.cdist(x, x.flip(0)); torch.cdist(x, x[:3] + 1, p=1); torch.cdist(x, x[:3] + 1, p=3);
torch.cdist(x, x[:3] + 1, p=float('inf')); torch.cdist(x, x[:3] + 1, compute_mode='donot_use_mm_for_euclid_dist');
torch.nn.functional.pdist(x); torch.pdist(x, 1); torch.maximum(x, x.flip(0)); torch.minimum(x, x.flip(0));
torch.fmax(x, x.flip(0)); torch.atan2(x, x.flip(0) + 3); torch.hypot(x, x.flip(0)); torch.logaddexp(x, x.flip(0));
torch.logaddexp2(x, x.flip(0)); torch.copysign(x, x.flip(0)); x.fmod(0.7); x.remainder(0.7);
torch.xlogy(x, x * x + 1); x - 2 * x; torch.sub(x, x * x, alpha=0.3); torch.add(x, x * x, alpha=0.3);
torch.rsub(x, 1.5); 1 / (x + 5); x / 3; x.float().to(x.dtype); x.nan_to_num(); x.softmax(1); x.log_softmax(0);
F.softmin(x, 1); F.logsigmoid(x); torch.special.erfc(x); torch.special.expit(x); torch.special.i0(x);
torch.special.i0e(x); torch.special.i1(9 * x); torch.special.i1e(x); torch.special.erfcx(x);
torch.special.log_ndtr(3 * x); torch.special.ndtri(x.sigmoid()); (x - 3).lgamma(); torch.mvlgamma(x.exp() + 2, 3);
torch.special.xlog1py(x, x.exp()); torch.special.entr(x.exp());
torch.special.gammainc(torch.ones_like(x), x.exp()); torch.special.gammaincc(x.sigmoid().detach(), x.exp());
torch.special.zeta(2.5, x.exp()); torch.mul(0.3, x); x * torch.special.bessel_j0(x.detach());
torch.polygamma(2, x.exp()); x.clamp(0, 0.7);
torch.trapezoid(x); torch.cross(x[:, :3], x[:, 3:6], dim=1); torch.renorm(x, 2, 0, 1.0); x.cov(); x.corrcoef();
torch.cumulative_trapezoid(x); torch.combinations(x[0]); torch.combinations(x[0], 3);
torch.segment_reduce(x, 'sum', lengths=torch.tensor([2, 4])); x.mode(1)[0]; torch.cartesian_prod(x[0], x[1]);
torch.block_diag(x, x);
torch.linalg.multi_dot([x, x.t(), x]); torch.matrix_power(x @ x.t(), 2);
F.one_hot(torch.arange(6), 8).to(x.dtype) * x; F.glu(x, 1); x.swapaxes(0, 1); x.movedim(0, 1); torch.atleast_3d(x);
torch.rot90(x); x.take(torch.tensor([0, 5, 5])); torch.take_along_dim(x, x.argsort(1), 1); x.quantile(0.3, 1);
torch.meshgrid(x[0], x[1], indexing='ij')[0]; x.index_fill(1, torch.tensor([0, 2]), 0.5); x.deg2rad();
x.logit(0.01); torch.polar(x, x).real; torch.fft.rfft(x).abs(); torch.stft(x[0], 4, return_complex=True).abs();
torch.fft.irfft2(torch.fft.rfft2(x, norm='ortho') ** 2); torch.fft.hfft(torch.complex(x, x + 1), n=13);
torch.fft.ifftn(torch.fft.fftn(x) * 1j).imag;
torch.det(x @ x.t() + x[:, :6]); torch.linalg.inv(x @ x.t() + 9 * torch.eye(6, dtype=x.dtype));
torch.linalg.solve(x[:, :6] + 9 * torch.eye(6, dtype=x.dtype), x);
torch.linalg.solve_triangular(x[:, :6].triu(1) + 3 * torch.eye(6, dtype=x.dtype), x, upper=True);
torch.linalg.cholesky(x @ x.t() + 9 * torch.eye(6, dtype=x.dtype)); torch.linalg.qr(x.t())[1];
torch.linalg.svdvals(x); torch.linalg.eigvalsh(x @ x.t()); torch.linalg.eigvals(x[:, :6]).abs();
torch.linalg.pinv(x); torch.linalg.lstsq(x.t(), x.t().sin())[0]; torch.linalg.matrix_norm(x, 'nuc');
torch.matrix_exp(x @ x.t() / 9);
torch.logdet(x @ x.t() + 9 * torch.eye(6, dtype=x.dtype));
torch.linalg.slogdet(x[:, :6]).logabsdet; torch.cholesky_inverse(x[:, :6].tril() + 3 * torch.eye(6, dtype=x.dtype));
torch.linalg.lu(x)[2]; torch.linalg.matrix_power(x @ x.t() + 9 * torch.eye(6, dtype=x.dtype), -2)
"""
"""Expressions of x, a matrix of 6 by 8."""


def _functions() -> Iterator[Case]:
    for text in re.split(r";\s", FUNCTIONS.strip()):
        yield from every(f"lambda x: {text}", ROWS)
    yield from every(
        "lambda x: x.{f}()",
        positive(*ROWS),
        f=("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "lgamma", "digamma"),
    )
    yield from every("lambda x: x ** {p}", positive(*ROWS), p=("0.5", "1.7", "-1"))
    yield from every("lambda x, y: x ** y", positive(*ROWS), ROWS)
    yield from every("lambda x: x.{f}()", inside(*ROWS), f=("asin", "acos", "atanh", "tan", "erfinv"))
    yield from every("lambda x: x.gather(1, torch.tensor([[0, 0, 3]] * 6))", ROWS)
    yield from every("lambda x, i: x.{f}", ROWS, ids(6, 4), f=("index_select(0, i)", "take(i)", "gather(1, i[None])"))
    yield from every(
        "lambda x, i, y: x.{f}",
        ROWS,
        ids(6, 4),
        (4, 8),
        f=(
            "index_add(0, i, y)",
            "index_add(0, i, y, alpha=0.3)",
            "scatter_add(0, i[:, None].expand(4, 8), y)",
            "index_put((i,), y, accumulate=True)",
            "scatter_reduce(0, i[:, None].expand(4, 8), y, 'sum')",
            "scatter_reduce(0, i[:, None].expand(4, 8), y, 'amax')",
            "scatter_reduce(0, i[:, None].expand(4, 8), y, 'mean')",
            "index_reduce(0, i, y, 'mean')",
            "index_reduce(0, i, y, 'amax', include_self=False)",
        ),
    )
    yield from every(
        "lambda x, y: x.{f}",
        ROWS,
        (3, 8),
        f=(
            "index_copy(0, torch.tensor([0, 4, 1]), y)",
            "scatter(0, torch.tensor([[0], [4], [1]]).expand(3, 8), y)",
            "index_put((torch.tensor([0, 4, 1]),), y)",
            "slice_scatter(y, 0, 1, 4)",
            "select_scatter(y[0], 0, 2)",
            "masked_scatter(torch.arange(48).view(6, 8) % 2 == 0, y)",
        ),
    )
    yield from every("lambda x, m: torch.where(m, x, x * 0.3)", ROWS, flags(*ROWS))
    yield from every("lambda a, b: a {f} b", (6, 1, 8), (5, 1), f=tuple("+-*"))
    yield from every("lambda a, b: a / b", (6, 1, 8), positive(5, 1))
    yield from every("lambda a, b: a @ b", (2, 1, 3, 4), (5, 4, 2))
    yield from every(
        "lambda a, b: torch.cdist(a, b{p})", (2, 5, 3), (2, 4, 3), p=("", ", p=1", ", p=3", ", p=float('inf')")
    )
    yield from every("lambda x: x[torch.arange(48).view(6, 8) % 3 == 0]", ROWS)
    yield from every("lambda x, m: x[m]", ROWS, flags(*ROWS))
    yield from every("lambda x, m: x.masked_select(m)", ROWS, flags(*ROWS))


SECTIONS: dict[str, Callable[[], Iterator[Case]]] = {
    "Activations": _activations,
    "Linear layers and embeddings": _linear,
    "Convolutions": _convolutions,
    "Pools": _pools,
    "Resizing, padding, sampling": _resizing,
    "Normalizations": _normalizations,
    "Recurrent layers": _recurrent,
    "Attention": _attention,
    "Losses and distances": _losses,
    "Functions of tensors": _functions,
}


def cases() -> dict[str, list[Case]]:
    return {name: list(section()) for name, section in SECTIONS.items()}
