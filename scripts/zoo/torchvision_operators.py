"""Declares torchvision's compiled operators where its wheel is built for another PyTorch.

torchvision registers shape functions for them when it is imported. Only detection models call them.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys

import torch

NAMES = ("nms", "qnms", "roi_align", "qroi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")
GRADIENTS = tuple(
    f"_{name}_backward" for name in ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")
)
_LIBRARIES: list[torch.library.Library] = []
"""A declaration lives as long as its library."""


def declare() -> None:
    """Import torchvision; declare its operators if it does not find them."""
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError:  # operator torchvision::nms does not exist
        for module in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[module]
        library = torch.library.Library("torchvision", "DEF")
        for name in (*NAMES, *GRADIENTS):
            library.define(f"{name}(Tensor input) -> Tensor")
        _LIBRARIES.append(library)
        importlib.import_module("torchvision")
