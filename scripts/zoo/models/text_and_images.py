"""Models of open_clip, openai-whisper, x-transformers and vit-pytorch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from scripts.zoo.entries import Case, Models
from scripts.zoo.losses import cross_entropy, images

OPEN_CLIP = Models("open_clip_torch")
WHISPER = Models("openai-whisper")
X_TRANSFORMERS = Models("x-transformers")
VIT_PYTORCH = Models("vit-pytorch")
VOCABULARY = 61


# --- open_clip -------------------------------------------------------------------------------------------------------


def _open_clip() -> nn.Module:
    from open_clip.model import CLIP

    return CLIP(
        16,
        {"layers": 2, "width": 32, "head_width": 16, "patch_size": 8, "image_size": 32},
        {"context_length": 9, "vocab_size": VOCABULARY, "width": 32, "heads": 2, "layers": 2},
    )


def _pairs(samples: int) -> tuple[Tensor, ...]:
    return torch.randn(samples, 3, 32, 32), torch.randint(VOCABULARY, (samples, 9))


@OPEN_CLIP("CLIP, its own loss")
def clip() -> Case:
    from open_clip.loss import ClipLoss

    criterion = ClipLoss()

    def loss(model: nn.Module, image: Tensor, text: Tensor) -> Tensor:
        return criterion(*model(image, text))

    return Case(_open_clip(), loss, _pairs)


@OPEN_CLIP("CLIP, SigLIP loss")
def siglip() -> Case:
    def loss(model: nn.Module, image: Tensor, text: Tensor) -> Tensor:
        images, texts, scale = model(image, text)
        logits = scale * images @ texts.T
        signs = 2 * torch.eye(logits.shape[0]) - 1
        return -functional.logsigmoid(signs * logits).mean()

    return Case(_open_clip(), loss, _pairs)


# --- whisper ---------------------------------------------------------------------------------------------------------


@WHISPER("Whisper")
def whisper() -> Case:
    from whisper.model import ModelDimensions, Whisper

    model = Whisper(ModelDimensions(8, 12, 32, 4, 2, VOCABULARY, 16, 32, 4, 2))
    nn.init.normal_(model.decoder.positional_embedding)  # which the package leaves uninitialized

    def loss(model: nn.Module, mel: Tensor, tokens: Tensor) -> Tensor:
        logits = model(mel, tokens[:, :-1])
        return functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:])

    return Case(model, loss, lambda n: (torch.randn(n, 8, 24), torch.randint(VOCABULARY, (n, 9))))


# --- x-transformers --------------------------------------------------------------------------------------------------


def _x_decoder(**options: object) -> Case:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    network = TransformerWrapper(
        num_tokens=VOCABULARY,
        max_seq_len=32,
        attn_layers=Decoder(dim=32, depth=2, heads=2, attn_dim_head=16, **options),
    )

    def loss(model: nn.Module, tokens: Tensor) -> Tensor:
        return model(tokens)

    return Case(AutoregressiveWrapper(network), loss, lambda n: (torch.randint(VOCABULARY, (n, 10)),))


@X_TRANSFORMERS("Decoder")
def decoder() -> Case:
    return _x_decoder()


@X_TRANSFORMERS("Decoder, rotary positions, SwiGLU, RMSNorm")
def decoder_rotary() -> Case:
    return _x_decoder(rotary_pos_emb=True, ff_swish=True, ff_glu=True, use_rmsnorm=True)


@X_TRANSFORMERS("Decoder, ALiBi, talking heads")
def decoder_alibi() -> Case:
    return _x_decoder(alibi_pos_bias=True, attn_pre_talking_heads=True, attn_post_talking_heads=True)


@X_TRANSFORMERS("Encoder for images")
def encoder() -> Case:
    from x_transformers import Encoder, ViTransformerWrapper

    model = ViTransformerWrapper(
        image_size=32, patch_size=8, num_classes=5, attn_layers=Encoder(dim=32, depth=2, heads=2, attn_dim_head=16)
    )
    return Case(model, cross_entropy, images(32))


# --- vit-pytorch -----------------------------------------------------------------------------------------------------


@VIT_PYTORCH("SimpleViT")
def simple_vit() -> Case:
    from vit_pytorch import SimpleViT

    return Case(
        SimpleViT(image_size=32, patch_size=8, num_classes=5, dim=32, depth=2, heads=2, mlp_dim=48),
        cross_entropy,
        images(32),
    )


@VIT_PYTORCH("CCT")
def cct() -> Case:
    from vit_pytorch.cct import CCT

    model = CCT(
        img_size=32,
        embedding_dim=32,
        n_conv_layers=1,
        num_layers=2,
        num_heads=2,
        mlp_ratio=2,
        num_classes=5,
        stochastic_depth_rate=0.0,
        dropout_rate=0.0,
        attention_dropout=0.0,
    )
    return Case(model, cross_entropy, images(32))


@VIT_PYTORCH("CvT")
def cvt() -> Case:
    from vit_pytorch.cvt import CvT

    model = CvT(
        num_classes=5,
        s1_emb_dim=8,
        s1_heads=1,
        s2_emb_dim=16,
        s2_heads=2,
        s2_depth=1,
        s3_emb_dim=16,
        s3_heads=2,
        s3_depth=1,
    )
    return Case(model, cross_entropy, images(32, times=4), rate=1e-3)


@VIT_PYTORCH("MobileViT")
def mobile_vit() -> Case:
    from vit_pytorch.mobile_vit import MobileViT

    model = MobileViT(image_size=(64, 64), dims=[16, 16, 16], channels=[8] * 10 + [16], num_classes=5)
    return Case(model, cross_entropy, images(64))
