"""Models of diffusers, trained to predict noise."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from scripts.zoo.entries import Case, Models

MODELS = Models("diffusers")


def _denoising(model: nn.Module, inputs: Tensor, steps: Tensor, noise: Tensor) -> Tensor:
    return functional.mse_loss(model(inputs, steps).sample, noise)


def _noisy(channels: int, size: int, samples: int) -> tuple[Tensor, ...]:
    shape = (samples, channels, size, size)
    return torch.randn(shape), torch.randint(1000, (samples,)), torch.randn(shape)


@MODELS("UNet2DModel")
def unet2d() -> Case:
    from diffusers import UNet2DModel

    model = UNet2DModel(
        16,
        3,
        3,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        attention_head_dim=8,
    )
    return Case(model, _denoising, lambda n: _noisy(3, 16, n))


@MODELS("UNet2DConditionModel, Stable Diffusion")
def unet2d_condition() -> Case:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        16,
        4,
        4,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
        norm_num_groups=4,
        attention_head_dim=2,
    )

    def loss(model: nn.Module, inputs: Tensor, steps: Tensor, text: Tensor, noise: Tensor) -> Tensor:
        return functional.mse_loss(model(inputs, steps, text).sample, noise)

    def batch(samples: int) -> tuple[Tensor, ...]:
        inputs, steps, noise = _noisy(4, 16, samples)
        return inputs, steps, torch.randn(samples, 7, 16), noise

    return Case(model, loss, batch)


@MODELS("AutoencoderKL")
def autoencoder_kl() -> Case:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        latent_channels=2,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )

    def loss(model: nn.Module, inputs: Tensor, noise: Tensor) -> Tensor:
        latent = model.encode(inputs).latent_dist
        return functional.mse_loss(model.decode(latent.mean + latent.std * noise).sample, inputs) + latent.kl().mean()

    return Case(model, loss, lambda n: (torch.randn(n, 3, 16, 16), torch.randn(n, 2, 8, 8)), rate=1e-5)


@MODELS("VQModel")
def vq() -> Case:
    from diffusers import VQModel

    model = VQModel(
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        latent_channels=2,
        num_vq_embeddings=8,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )

    def loss(model: nn.Module, inputs: Tensor) -> Tensor:
        out = model(inputs)
        return functional.mse_loss(out.sample, inputs) + out.commit_loss.mean()

    return Case(model, loss, lambda n: (torch.randn(n, 3, 16, 16),))


@MODELS("DiT")
def dit() -> Case:
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        num_layers=2,
        sample_size=8,
        num_embeds_ada_norm=10,
        norm_num_groups=4,
    )

    def loss(model: nn.Module, inputs: Tensor, steps: Tensor, labels: Tensor, noise: Tensor) -> Tensor:
        return functional.mse_loss(model(inputs, steps, labels).sample, noise)

    def batch(samples: int) -> tuple[Tensor, ...]:
        inputs, steps, noise = _noisy(4, 8, samples)
        return inputs, steps, torch.randint(10, (samples,)), noise

    model.eval()  # in training mode labels are dropped at random
    return Case(model, loss, batch)


@MODELS("Flux transformer")
def flux() -> Case:
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(
        in_channels=8,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        pooled_projection_dim=16,
        axes_dims_rope=(4, 6, 6),
    )
    text_ids, image_ids = torch.zeros(5, 3), torch.cartesian_prod(torch.zeros(1), torch.arange(4.0), torch.arange(4.0))

    def loss(model: nn.Module, inputs: Tensor, steps: Tensor, text: Tensor, pooled: Tensor, noise: Tensor) -> Tensor:
        out = model(
            inputs,
            encoder_hidden_states=text,
            pooled_projections=pooled,
            timestep=steps,
            img_ids=image_ids,
            txt_ids=text_ids,
        )
        return functional.mse_loss(out.sample, noise)

    def batch(samples: int) -> tuple[Tensor, ...]:
        inputs, noise = torch.randn(2, samples, 16, 8)
        return inputs, torch.rand(samples), torch.randn(samples, 5, 16), torch.randn(samples, 16), noise

    return Case(model, loss, batch)


@MODELS("ControlNet")
def controlnet() -> Case:
    from diffusers import ControlNetModel

    model = ControlNetModel(
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        cross_attention_dim=16,
        norm_num_groups=4,
        attention_head_dim=2,
        conditioning_embedding_out_channels=(4, 8),
    )

    def loss(model: nn.Module, inputs: Tensor, steps: Tensor, text: Tensor, image: Tensor) -> Tensor:
        out = model(inputs, steps, text, image)
        return sum(((part - 1).square().mean() for part in out.down_block_res_samples), torch.zeros(()))

    def batch(samples: int) -> tuple[Tensor, ...]:
        inputs, steps, _ = _noisy(4, 16, samples)
        return inputs, steps, torch.randn(samples, 7, 16), torch.rand(samples, 3, 32, 32)

    return Case(model, loss, batch)
