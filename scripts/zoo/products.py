"""The share of a captured step that is matrix products, convolutions and attention, by a profile of onnxruntime."""

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort

PRODUCTS = (
    "MatMul", "FusedMatMul", "Gemm", "FusedGemm", "Conv", "FusedConv", "ConvTranspose", "Convolution",
    "ConvolutionBackward", "DepthwiseConv2D", "DepthwiseConv2DBackpropFilter", "DepthwiseConv2DBackpropInput",
    "DynamicRNN", "DynamicRNNGrad", "FlashAttentionScore", "FlashAttentionScoreGrad",
)  # fmt: skip
"""The operators whose time is that of multiplications and additions."""
STEPS, WARM_UP = 6, 2
"""Steps of a profile, and those of them that do not count."""


def share_of_products(load: Callable[[ort.SessionOptions], Callable[[], Any]], options: ort.SessionOptions) -> float:
    """The time of `PRODUCTS` in that of all nodes.

    Args:
        load: makes a trainer with session options and returns its step.
        options: those that are changed and given to it.
    """
    with tempfile.TemporaryDirectory() as folder:
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "profile")
        step = load(options)
        for _ in range(STEPS):
            step()
        del step
        gc.collect()  # a session writes its profile when it is deleted
        seconds = [_seconds(json.loads(path.read_text())) for path in Path(folder).iterdir()]
    products, total = map(sum, zip(*seconds, strict=True))
    return products / total


def _seconds(events: list[Mapping[str, Any]]) -> tuple[float, float]:
    """The time of products and of all nodes in the events of a profile."""
    runs = [event["ts"] for event in events if event["name"] == "model_run"]
    begin = runs[WARM_UP] if len(runs) > WARM_UP else float("inf")
    spent = [
        (event["args"]["op_name"], event["dur"])
        for event in events
        if event["name"].endswith("_kernel_time") and event["ts"] >= begin
    ]
    products = sum(duration for name, duration in spent if _is_product(name))
    return products, sum(duration for _, duration in spent)


def _is_product(kernel: str) -> bool:
    """Whether a kernel is of `PRODUCTS`; this package's kernels have names such as aclnn_Convolution_v1."""
    return kernel.removeprefix("aclnn_").rpartition("_v")[0] in PRODUCTS or kernel in PRODUCTS
