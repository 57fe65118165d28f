"""Models and losses of MONAI."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scripts.zoo.entries import Case, Models
from scripts.zoo.losses import first

MODELS = Models("monai")


def _segmentation(model: nn.Module, *sizes: int) -> Case:
    """Trained with the Dice and cross entropy loss, on volumes of one channel and three classes."""
    from monai.losses import DiceCELoss

    criterion = DiceCELoss(to_onehot_y=True, softmax=True)

    def loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        return criterion(first(model(inputs)), labels)

    return Case(model, loss, lambda n: (torch.randn(n, 1, *sizes), torch.randint(3, (n, 1, *sizes))))


@MODELS("U-Net 2D")
def unet() -> Case:
    from monai.networks.nets import UNet

    return _segmentation(UNet(2, 1, 3, channels=(8, 16, 16), strides=(2, 2), num_res_units=1), 32, 32)


@MODELS("U-Net 3D")
def unet_3d() -> Case:
    from monai.networks.nets import UNet

    return _segmentation(UNet(3, 1, 3, channels=(8, 16, 16), strides=(2, 2), num_res_units=1), 16, 16, 16)


@MODELS("SegResNet")
def segresnet() -> Case:
    from monai.networks.nets import SegResNet

    return _segmentation(
        SegResNet(2, init_filters=8, in_channels=1, out_channels=3, blocks_down=(1, 1), blocks_up=(1,)), 32, 32
    )


@MODELS("Attention U-Net")
def attention_unet() -> Case:
    from monai.networks.nets import AttentionUnet

    return _segmentation(AttentionUnet(2, 1, 3, channels=(8, 16, 16), strides=(2, 2)), 32, 32)


@MODELS("UNETR")
def unetr() -> Case:
    from monai.networks.nets import UNETR

    model = UNETR(1, 3, (32, 32), feature_size=8, hidden_size=32, mlp_dim=48, num_heads=4, spatial_dims=2)
    return _segmentation(model, 32, 32)


@MODELS("SwinUNETR")
def swin_unetr() -> Case:
    from monai.networks.nets import SwinUNETR

    return _segmentation(
        SwinUNETR(1, 3, feature_size=12, depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2), spatial_dims=2), 64, 64
    )


@MODELS("Autoencoder KL")
def autoencoder_kl() -> Case:
    from monai.networks.nets import AutoencoderKL
    from torch.nn import functional

    model = AutoencoderKL(
        2,
        1,
        1,
        num_res_blocks=(1, 1),
        channels=(8, 16),
        attention_levels=(False, True),
        latent_channels=2,
        norm_num_groups=4,
    )

    def loss(model: nn.Module, inputs: Tensor, noise: Tensor) -> Tensor:
        mean, sigma = model.encode(inputs)
        return functional.mse_loss(model.decode(mean + sigma * noise), inputs) + 0.01 * mean.square().mean()

    return Case(model, loss, lambda n: (torch.randn(n, 1, 16, 16), torch.randn(n, 2, 8, 8)))
