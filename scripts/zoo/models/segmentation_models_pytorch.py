"""Models of segmentation_models_pytorch, with the smallest encoders."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from scripts.zoo.entries import Case, Models
from scripts.zoo.losses import cross_entropy, pixels

MODELS = Models("segmentation-models-pytorch")


def _segmentation(name: str, **options: Any) -> Case:
    import segmentation_models_pytorch as smp

    settings = {"encoder_name": "resnet18", "encoder_weights": None, "classes": 4} | options
    return Case(getattr(smp, name)(**settings), cross_entropy, pixels(64, times=4), rate=1e-3)


@MODELS("U-Net, MobileNetV2, Dice loss")
def unet() -> Case:
    import segmentation_models_pytorch as smp

    case = _segmentation("Unet", encoder_name="mobilenet_v2", encoder_depth=3, decoder_channels=(16, 16, 8))
    dice = smp.losses.DiceLoss("multiclass")

    def loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        return dice(model(inputs), labels)

    return Case(case.model, loss, case.batch, rate=case.rate)


@MODELS("U-Net, focal loss")
def unet_focal() -> Case:
    import segmentation_models_pytorch as smp

    case = _segmentation("Unet", encoder_depth=3, decoder_channels=(16, 16, 8))
    focal = smp.losses.FocalLoss("multiclass")

    def loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        return focal(model(inputs), labels)

    return Case(case.model, loss, case.batch, rate=case.rate)


@MODELS("U-Net, Lovasz loss")
def unet_lovasz() -> Case:
    import segmentation_models_pytorch as smp

    case = _segmentation("Unet", encoder_depth=3, decoder_channels=(16, 16, 8))
    lovasz = smp.losses.LovaszLoss("multiclass")

    def loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        return lovasz(model(inputs), labels)

    return Case(case.model, loss, case.batch, rate=case.rate)


@MODELS("FPN")
def fpn() -> Case:
    return _segmentation("FPN")


@MODELS("LinkNet")
def linknet() -> Case:
    return _segmentation("Linknet", encoder_depth=3)


@MODELS("PSPNet")
def pspnet() -> Case:
    return _segmentation("PSPNet")


@MODELS("MAnet")
def manet() -> Case:
    return _segmentation("MAnet", encoder_depth=3, decoder_channels=(16, 16, 8))


@MODELS("SegFormer, MiT-B0")
def segformer() -> Case:
    return _segmentation("Segformer", encoder_name="mit_b0")
