"""Models of torchvision."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from scripts.zoo.entries import Case, Models
from scripts.zoo.losses import cross_entropy, images, pixels

MODELS = Models("torchvision")
BOXES = Dim("boxes")


def _classifier(name: str, **options: Any) -> Case:
    import torchvision

    model = getattr(torchvision.models, name)(weights=None, num_classes=5, **options)
    return Case(model, cross_entropy, images(32, times=4), rate=1e-3)


@MODELS("ResNet-18")
def resnet18() -> Case:
    return _classifier("resnet18")


@MODELS("MobileNetV2")
def mobilenet_v2() -> Case:
    return _classifier("mobilenet_v2", width_mult=0.25)


@MODELS("MobileNetV3-small")
def mobilenet_v3_small() -> Case:
    return _classifier("mobilenet_v3_small")


@MODELS("SqueezeNet 1.1")
def squeezenet() -> Case:
    return _classifier("squeezenet1_1")


@MODELS("ShuffleNetV2")
def shufflenet() -> Case:
    return _classifier("shufflenet_v2_x0_5")


@MODELS("MNASNet")
def mnasnet() -> Case:
    return _classifier("mnasnet0_5")


@MODELS("DenseNet")
def densenet() -> Case:
    from torchvision.models.densenet import DenseNet

    return Case(DenseNet(8, (2, 2), 16, num_classes=5), cross_entropy, images(32))


@MODELS("VGG-11 with batch norm, one linear layer")
def vgg() -> Case:
    case = _classifier("vgg11_bn")
    case.model.avgpool, case.model.classifier = nn.AdaptiveAvgPool2d(1), nn.Linear(512, 5)
    return case


@MODELS("ViT")
def vit() -> Case:
    from torchvision.models import VisionTransformer

    return Case(VisionTransformer(32, 8, 2, 4, 32, 48, num_classes=5), cross_entropy, images(32))


@MODELS("Swin V2")
def swin_v2() -> Case:
    from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2

    model = SwinTransformer(
        [4, 4],
        16,
        [2, 2],
        [2, 4],
        [4, 4],
        stochastic_depth_prob=0.0,
        num_classes=5,
        block=SwinTransformerBlockV2,
        downsample_layer=PatchMergingV2,
    )
    return Case(model, cross_entropy, images(32))


@MODELS("MaxViT")
def maxvit() -> Case:
    from torchvision.models import MaxVit

    model = MaxVit((32, 32), 8, 4, [8, 16], [1, 1], 8, stochastic_depth_prob=0.0, num_classes=5)
    return Case(model, cross_entropy, images(32))


@MODELS("DeepLabV3, MobileNetV3")
def deeplab() -> Case:
    import torchvision

    model = torchvision.models.segmentation.deeplabv3_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=4
    )

    def loss(model, inputs, labels):  # type: ignore[no-untyped-def]
        from torch.nn import functional

        return functional.cross_entropy(model(inputs)["out"], labels)

    return Case(model, loss, pixels(32, times=4), rate=1e-3)


@MODELS("FCN, auxiliary loss, ignored pixels")
def fcn() -> Case:
    import torchvision
    from torch.nn import functional
    from torchvision.models._utils import IntermediateLayerGetter
    from torchvision.models.segmentation.fcn import FCN, FCNHead

    backbone = IntermediateLayerGetter(torchvision.models.resnet18(), {"layer2": "out", "layer1": "aux"})
    model = FCN(backbone, FCNHead(128, 4), FCNHead(64, 4))

    def loss(model, inputs, labels):  # type: ignore[no-untyped-def]
        found = model(inputs)
        main, auxiliary = (functional.cross_entropy(found[name], labels, ignore_index=255) for name in ("out", "aux"))
        return main + 0.5 * auxiliary

    def batch(samples: int) -> tuple[torch.Tensor, ...]:
        inputs, labels = pixels(32, times=4)(samples)
        labels[:, :3] = 255
        return inputs, labels

    return Case(model, loss, batch, rate=1e-3)


@MODELS("R(2+1)D, video")
def video() -> Case:
    import torchvision

    model = torchvision.models.video.VideoResNet(
        torchvision.models.video.resnet.BasicBlock,
        [torchvision.models.video.resnet.Conv2Plus1D] * 4,
        [1, 1, 1, 1],
        torchvision.models.video.resnet.R2Plus1dStem,
        num_classes=5,
    )
    return Case(
        model, cross_entropy, lambda n: (torch.randn(2 * n, 3, 4, 32, 32), torch.randint(5, (2 * n,))), rate=1e-3
    )


def _detector(name: str) -> Case:
    """A detector that is trained on two images, with any number of boxes in each."""
    import torchvision
    from torchvision.models import detection
    from torchvision.models.detection.backbone_utils import BackboneWithFPN

    layers = {"layer1": "0", "layer2": "1"}
    backbone = BackboneWithFPN(torchvision.models.resnet18(), layers, [64, 128], out_channels=32)
    model = getattr(detection, name)(
        backbone,
        num_classes=4,
        anchor_generator=detection.anchor_utils.AnchorGenerator(((8,), (16,), (32,)), ((1.0,),) * 3),
        min_size=64,
        max_size=64,
    )

    def loss(model: nn.Module, images: Tensor, boxes: Tensor, labels: Tensor) -> Tensor:
        targets = [{"boxes": boxes[i], "labels": labels[i]} for i in range(2)]
        losses: dict[str, Tensor] = model([images[0], images[1]], targets)
        return torch.stack(list(losses.values())).sum()

    def batch(count: int) -> tuple[Tensor, ...]:
        corners, sizes = 30 * torch.rand(2, count, 2), 8 + 20 * torch.rand(2, count, 2)
        boxes = torch.cat([corners, corners + sizes], dim=2)
        return torch.rand(2, 3, 64, 64), boxes, torch.randint(1, 4, (2, count))

    return Case(model, loss, batch, ({}, {1: BOXES}, {1: BOXES}), BOXES, rate=1e-3, inference=False)


@MODELS("RetinaNet, any number of boxes")
def retinanet() -> Case:
    return _detector("RetinaNet")


@MODELS("FCOS, any number of boxes")
def fcos() -> Case:
    return _detector("FCOS")
