"""Models of diffusers, trained to predict noise, or the velocity of flow matching."""

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


@MODELS("UNet2DConditionModel, Stable Diffusion XL, min-SNR weights")
def unet2d_condition_xl() -> Case:
    from diffusers import DDPMScheduler, UNet2DConditionModel

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
        attention_head_dim=(2, 4),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=64,
    )
    scheduler = DDPMScheduler()

    def loss(  # type: ignore[no-untyped-def]
        model, latents, noise, steps, text, pooled, sizes
    ):
        conditions = {"text_embeds": pooled, "time_ids": sizes}
        noisy = scheduler.add_noise(latents, noise, steps)
        found = model(noisy, steps, text, added_cond_kwargs=conditions).sample
        alphas = scheduler.alphas_cumprod[steps]
        ratios = alphas / (1 - alphas)
        weights = torch.stack([ratios, torch.full_like(ratios, 5.0)]).min(0).values / ratios
        return (functional.mse_loss(found, noise, reduction="none").mean((1, 2, 3)) * weights).mean()

    def batch(samples: int) -> tuple[Tensor, ...]:
        latents, steps, noise = _noisy(4, 16, samples)
        pooled, sizes = torch.randn(samples, 16), torch.randint(16, (samples, 6)).float()
        return latents, noise, steps, torch.randn(samples, 7, 16), pooled, sizes

    return Case(model, loss, batch)


def _moved(model: nn.Module, latents: Tensor, noise: Tensor, indices: Tensor, **conditions: Tensor) -> Tensor:
    """The loss of flow matching, as in the training scripts of diffusers."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    scheduler = FlowMatchEulerDiscreteScheduler()
    sigmas = scheduler.sigmas[indices].view(-1, *[1] * (latents.ndim - 1))
    noisy = (1 - sigmas) * latents + sigmas * noise
    found = model(hidden_states=noisy, timestep=scheduler.timesteps[indices], **conditions).sample
    return (found - (noise - latents)).square().mean()


@MODELS("Stable Diffusion 3 transformer, flow matching")
def sd3() -> Case:
    from diffusers import SD3Transformer2DModel

    model = SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=16,
        caption_projection_dim=16,
        pooled_projection_dim=16,
        out_channels=4,
        pos_embed_max_size=8,
        qk_norm="rms_norm",
        dual_attention_layers=(0,),
    )

    def loss(model: nn.Module, latents: Tensor, noise: Tensor, indices: Tensor, text: Tensor, pooled: Tensor) -> Tensor:
        return _moved(model, latents, noise, indices, encoder_hidden_states=text, pooled_projections=pooled)

    def batch(samples: int) -> tuple[Tensor, ...]:
        latents, indices, noise = _noisy(4, 8, samples)
        return latents, noise, indices, torch.randn(samples, 7, 16), torch.randn(samples, 16)

    return Case(model, loss, batch)


@MODELS("Wan transformer, video, flow matching")
def wan() -> Case:
    from diffusers import WanTransformer3DModel

    model = WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=12,
        freq_dim=8,
        ffn_dim=24,
        num_layers=2,
        rope_max_seq_len=16,
    )

    def loss(model: nn.Module, latents: Tensor, noise: Tensor, indices: Tensor, text: Tensor) -> Tensor:
        return _moved(model, latents, noise, indices, encoder_hidden_states=text)

    def batch(samples: int) -> tuple[Tensor, ...]:
        latents, noise = torch.randn(2, samples, 4, 2, 8, 8)
        return latents, noise, torch.randint(1000, (samples,)), torch.randn(samples, 7, 12)

    return Case(model, loss, batch)
