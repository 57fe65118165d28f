"""Models of timm, in small sizes."""

from __future__ import annotations

from typing import Any

from scripts.zoo.entries import Case, Models
from scripts.zoo.losses import cross_entropy, images

MODELS = Models("timm")


def _classifier(name: str, size: int = 32, **options: Any) -> Case:
    import timm

    return Case(timm.create_model(name, num_classes=5, **options), cross_entropy, images(size))


def _batch_normalized(name: str) -> Case:
    case = _classifier(name)
    return Case(case.model, case.loss, images(32, times=4), rate=1e-3)


@MODELS("EfficientNet-B0")
def efficientnet() -> Case:
    return _batch_normalized("efficientnet_b0")


@MODELS("ConvNeXt")
def convnext() -> Case:
    return _classifier("convnext_tiny", depths=(1, 1, 1, 1), dims=(8, 16, 16, 16))


@MODELS("RegNetY")
def regnet() -> Case:
    return _batch_normalized("regnety_002")


@MODELS("GhostNet")
def ghostnet() -> Case:
    return _batch_normalized("ghostnet_050")


@MODELS("MLP-Mixer")
def mixer() -> Case:
    from timm.models.mlp_mixer import MlpMixer

    return Case(MlpMixer(5, 32, patch_size=8, num_blocks=2, embed_dim=16), cross_entropy, images(32))


@MODELS("CaiT")
def cait() -> Case:
    return _classifier("cait_xxs24_224", img_size=32, patch_size=8, depth=2, embed_dim=32, num_heads=2)


@MODELS("Twins-SVT")
def twins() -> Case:
    return _classifier(
        "twins_svt_small", 64, img_size=64, embed_dims=(8, 16, 16, 16), num_heads=(1, 2, 2, 2), depths=(1, 1, 2, 2)
    )


@MODELS("XCiT")
def xcit() -> Case:
    return _classifier("xcit_nano_12_p8_224", img_size=32, depth=2, embed_dim=32, num_heads=2)


@MODELS("EVA-02")
def eva() -> Case:
    return _classifier("eva02_tiny_patch14_224", img_size=32, patch_size=8, depth=2, embed_dim=32, num_heads=2)
