"""The models whose speed is compared with PyTorch's: random weights, constant sizes, AdamW."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from scripts.zoo.entries import Case
from scripts.zoo.losses import cross_entropy, images

TOKENS, TIME, BATCH = 1000, 128, 8
LAYERS: dict[str, Any] = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4}


def linear() -> Case:
    """A layer whose steps load what the libraries load at their first use."""
    return Case(nn.Linear(4, 4), cross_entropy, lambda _: (torch.randn(4, 4), torch.randint(4, (4,))))


def _vision(name: str, size: int, samples: int) -> Case:
    import torchvision

    model = getattr(torchvision.models, name)(weights=None, num_classes=10)
    return Case(model, cross_entropy, lambda _: images(size, 10)(samples))


def _labelled(model: nn.Module, input_ids: Tensor, labels: Tensor) -> Tensor:
    return model(input_ids=input_ids, labels=labels).loss


def _texts(samples: int = BATCH, time: int = TIME) -> Tensor:
    return torch.randint(3, TOKENS, (samples, time))


def _language(name: str, config: str, **options: Any) -> Case:
    import transformers

    settings = LAYERS | {"vocab_size": TOKENS, "intermediate_size": 1024, "use_cache": False} | options
    model = getattr(transformers, name)(getattr(transformers, config)(**settings))
    return Case(model, _labelled, lambda _: (ids := _texts(), ids))


def vit() -> Case:
    from torchvision.models import VisionTransformer

    return Case(VisionTransformer(64, 8, 4, 4, 256, 1024, num_classes=10), cross_entropy, lambda _: images(64, 10)(16))


def swin() -> Case:
    from torchvision.models import SwinTransformer

    model = SwinTransformer([4, 4], 48, [2, 2], [3, 6], [4, 4], num_classes=10, stochastic_depth_prob=0.0)
    return Case(model, cross_entropy, lambda _: images(64, 10)(16))


def unet() -> Case:
    from monai.networks.nets import UNet

    def loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(model(inputs), labels)

    model = UNet(2, 1, 3, channels=(16, 32, 64, 128), strides=(2, 2, 2), num_res_units=2)
    return Case(model, loss, lambda _: (torch.randn(4, 1, 96, 96), torch.randint(3, (4, 96, 96))))


def _graph(name: str, **options: Any) -> Case:
    from torch_geometric.nn import models

    def loss(model: nn.Module, x: Tensor, edge_index: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(model(x, edge_index), labels)

    def batch(_: int) -> tuple[Tensor, ...]:
        return torch.randn(2000, 64), torch.randint(2000, (2, 10_000)), torch.randint(7, (2000,))

    return Case(getattr(models, name)(64, 64, 2, 7, **options), loss, batch)


def bert() -> Case:
    import transformers

    config = transformers.BertConfig(vocab_size=TOKENS, intermediate_size=1024, num_labels=4, **LAYERS)
    model = transformers.BertForSequenceClassification(config)
    return Case(model, _labelled, lambda _: (_texts(), torch.randint(4, (BATCH,))))


def t5() -> Case:
    import transformers

    config = transformers.T5Config(
        vocab_size=TOKENS, d_model=256, d_kv=64, d_ff=1024, num_layers=4, num_heads=4, use_cache=False,
        decoder_start_token_id=0,
    )  # fmt: skip
    return Case(transformers.T5ForConditionalGeneration(config), _labelled, lambda _: (_texts(), _texts(time=64)))


def whisper() -> Case:
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=TOKENS, num_mel_bins=80, d_model=256, encoder_layers=4, decoder_layers=4, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=1024, decoder_ffn_dim=1024, max_source_positions=200,
        max_target_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        use_cache=False,
    )  # fmt: skip

    def loss(model: nn.Module, input_features: Tensor, labels: Tensor) -> Tensor:
        return model(input_features=input_features, labels=labels).loss

    model = transformers.WhisperForConditionalGeneration(config)
    return Case(model, loss, lambda _: (torch.randn(4, 80, 400), torch.randint(3, TOKENS, (4, 32))))


def wav2vec2() -> Case:
    import transformers

    config = transformers.Wav2Vec2Config(
        vocab_size=32, intermediate_size=1024, conv_dim=(128,) * 7, num_conv_pos_embeddings=32, mask_time_prob=0.0,
        num_conv_pos_embedding_groups=4, layerdrop=0.0, ctc_loss_reduction="mean", pad_token_id=0, **LAYERS,
    )  # fmt: skip

    class Recognizer(nn.Module):
        """The encoder and head, whose loss is computed without the package's check of the labels' values."""

        def __init__(self) -> None:
            super().__init__()
            self.network = transformers.Wav2Vec2ForCTC(config)

        def forward(self, audio: Tensor) -> Tensor:
            return self.network(audio).logits

    def loss(model: nn.Module, audio: Tensor, labels: Tensor) -> Tensor:
        scores = model(audio).log_softmax(-1).transpose(0, 1)
        sizes = torch.full((scores.shape[1],), scores.shape[0]), torch.full((labels.shape[0],), labels.shape[1])
        return functional.ctc_loss(scores, labels, *sizes)

    return Case(Recognizer(), loss, lambda _: (torch.randn(4, 16_000), torch.randint(1, 32, (4, 12))))


def unet2d() -> Case:
    from diffusers import UNet2DModel

    model = UNet2DModel(
        32, 3, 3, block_out_channels=(32, 64, 64), layers_per_block=1, norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip

    def loss(model: nn.Module, inputs: Tensor, steps: Tensor, noise: Tensor) -> Tensor:
        return functional.mse_loss(model(inputs, steps).sample, noise)

    return Case(
        model, loss, lambda _: (torch.randn(8, 3, 32, 32), torch.randint(1000, (8,)), torch.randn(8, 3, 32, 32))
    )


def lstm() -> Case:
    class LanguageModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(TOKENS, 128), nn.Linear(256, TOKENS)
            self.network = nn.LSTM(128, 256, num_layers=2, batch_first=True)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.network(self.words(tokens))[0])

    def loss(model: nn.Module, tokens: Tensor, following: Tensor) -> Tensor:
        return functional.cross_entropy(model(tokens).flatten(0, 1), following.flatten())

    return Case(LanguageModel(), loss, lambda _: (_texts(16, 64), _texts(16, 64)))


SPEED: Mapping[str, Callable[[], Case]] = {
    "ResNet-18, 64x64, batch 16": lambda: _vision("resnet18", 64, 16),
    "ResNet-18, 224x224, batch 4": lambda: _vision("resnet18", 224, 4),
    "MobileNetV2, 64x64, batch 16": lambda: _vision("mobilenet_v2", 64, 16),
    "MobileNetV3-small, 64x64, batch 16": lambda: _vision("mobilenet_v3_small", 64, 16),
    "EfficientNet-B0, 64x64, batch 8": lambda: _vision("efficientnet_b0", 64, 8),
    "ConvNeXt-tiny, 64x64, batch 4": lambda: _vision("convnext_tiny", 64, 4),
    "ViT, 64x64, batch 16": vit,
    "Swin, 64x64, batch 16": swin,
    "U-Net 2D (MONAI), 96x96, batch 4": unet,
    "GCN, 2,000 nodes": lambda: _graph("GCN"),
    "GAT, 2,000 nodes": lambda: _graph("GAT"),
    "GPT-2, 4 layers of 256": lambda: _language("GPT2LMHeadModel", "GPT2Config", n_inner=1024),
    "Llama, 4 layers of 256": lambda: _language("LlamaForCausalLM", "LlamaConfig"),
    "BERT, 4 layers of 256": bert,
    "T5, 4 layers of 256": t5,
    "Whisper, 4 layers of 256": whisper,
    "Wav2Vec2 with CTC, 1 s": wav2vec2,
    "UNet2DModel, 32x32, batch 8": unet2d,
    "LSTM language model, 64 tokens": lstm,
}
"""Builders by name. Texts have 128 tokens, batch 8."""
