"""Models of transformers, from configurations of two small layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from scripts.zoo.entries import ROWS, Case, Models
from scripts.zoo.losses import images, normal, pixels, tokens

MODELS = Models("transformers")
VOCABULARY, TIME = 61, 10
CHUNK = 4
"""Tokens that state space models compute together."""
TEXT = ({0: ROWS, 1: Dim("time", max=64)},)


def _text(samples: int) -> tuple[Tensor, ...]:
    return (torch.randint(3, VOCABULARY, (samples, TIME + samples)),)


def _next_token(model: nn.Module, input_ids: Tensor) -> Tensor:
    return model(input_ids=input_ids, labels=input_ids).loss


def _labelled(model: nn.Module, input_ids: Tensor, labels: Tensor) -> Tensor:
    return model(input_ids=input_ids, labels=labels).loss


def _labelled_pixels(model: nn.Module, pixel_values: Tensor, labels: Tensor) -> Tensor:
    return model(pixel_values=pixel_values, labels=labels).loss


def _decoder(name: str, config: str, **options: Any) -> Case:
    """A language model `name` of two layers with the class and further options of its configuration."""
    import transformers

    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings = sizes | {"intermediate_size": 48, "use_cache": False, "pad_token_id": 0} | options
    model = getattr(transformers, name)(getattr(transformers, config)(**settings))
    return Case(model, _next_token, _text, TEXT)


def _unrolled(case: Case) -> Case:
    """A model whose code is a Python loop over the tokens, which fixes their number."""
    return Case(case.model, case.loss, tokens(VOCABULARY, TIME))


def _encoder(name: str, config: str, **options: Any) -> Case:
    """A classifier of texts."""
    import transformers

    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings = sizes | {"intermediate_size": 48, "num_labels": 3, "pad_token_id": 0} | options
    model = getattr(transformers, name)(getattr(transformers, config)(**settings))
    return Case(model, _labelled, lambda n: (*_text(n), torch.randint(3, (n,))), (*TEXT, {0: ROWS}))


def _vision(name: str, config: str, size: int = 32, **options: Any) -> Case:
    """A classifier of images."""
    import transformers

    model = getattr(transformers, name)(getattr(transformers, config)(num_labels=5, **options))
    return Case(model, _labelled_pixels, images(size))


VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}


# --- language models -------------------------------------------------------------------------------------------------


@MODELS("GPT-2")
def gpt2() -> Case:
    return _decoder("GPT2LMHeadModel", "GPT2Config", n_inner=48)


@MODELS("GPT-Neo")
def gpt_neo() -> Case:
    return _decoder(
        "GPTNeoForCausalLM", "GPTNeoConfig", num_layers=2, attention_types=[[["global", "local"], 1]], num_heads=4
    )


@MODELS("GPT-NeoX")
def gpt_neox() -> Case:
    return _decoder("GPTNeoXForCausalLM", "GPTNeoXConfig")


@MODELS("OPT")
def opt() -> Case:
    return _decoder("OPTForCausalLM", "OPTConfig", ffn_dim=48, word_embed_proj_dim=32)


@MODELS("BLOOM")
def bloom() -> Case:
    return _decoder("BloomForCausalLM", "BloomConfig", n_layer=2, n_head=4)


@MODELS("Llama")
def llama() -> Case:
    return _decoder("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=2)


@MODELS("Mistral, sliding window")
def mistral() -> Case:
    return _decoder("MistralForCausalLM", "MistralConfig", num_key_value_heads=2, sliding_window=4, head_dim=8)


@MODELS("Qwen2")
def qwen2() -> Case:
    return _decoder("Qwen2ForCausalLM", "Qwen2Config", num_key_value_heads=2)


@MODELS("Qwen3")
def qwen3() -> Case:
    return _decoder("Qwen3ForCausalLM", "Qwen3Config", num_key_value_heads=2, head_dim=8)


@MODELS("Gemma 2")
def gemma2() -> Case:
    return _decoder("Gemma2ForCausalLM", "Gemma2Config", num_key_value_heads=2, head_dim=8, sliding_window=4)


@MODELS("Gemma 3")
def gemma3() -> Case:
    return _decoder("Gemma3ForCausalLM", "Gemma3TextConfig", num_key_value_heads=2, head_dim=8, sliding_window=4)


@MODELS("Gemma 4")
def gemma4() -> Case:
    case = _decoder(
        "Gemma4ForCausalLM",
        "Gemma4TextConfig",
        num_key_value_heads=2,
        head_dim=8,
        global_head_dim=8,
        sliding_window=4,
        layer_types=["sliding_attention", "full_attention"],
        vocab_size_per_layer_input=VOCABULARY,
        hidden_size_per_layer_input=8,
    )
    return replace(case, rate=1e-3)  # at 0.01 PyTorch's own steps in float32 and float64 diverge


@MODELS("Phi")
def phi() -> Case:
    return _decoder("PhiForCausalLM", "PhiConfig")


@MODELS("Falcon")
def falcon() -> Case:
    return _decoder("FalconForCausalLM", "FalconConfig")


@MODELS("Mixtral, mixture of experts")
def mixtral() -> Case:
    return _decoder("MixtralForCausalLM", "MixtralConfig", num_key_value_heads=2, num_local_experts=3)


@MODELS("Qwen2-MoE, mixture of experts")
def qwen2_moe() -> Case:
    return _decoder(
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        num_key_value_heads=2,
        num_experts=3,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    )


@MODELS("Mamba, static length")
def mamba() -> Case:
    return _unrolled(_decoder("MambaForCausalLM", "MambaConfig", state_size=4))


@MODELS("Mamba 2")
def mamba2() -> Case:
    return _decoder(
        "Mamba2ForCausalLM", "Mamba2Config", num_heads=8, head_dim=8, state_size=8, n_groups=2, chunk_size=CHUNK
    )


@MODELS("Bamba")
def bamba() -> Case:
    sizes = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "num_key_value_heads": 2}
    return _decoder("BambaForCausalLM", "BambaConfig", mamba_chunk_size=CHUNK, attn_layer_indices=[1], **sizes)


@MODELS("Zamba 2")
def zamba2() -> Case:
    sizes = {"mamba_d_state": 8, "n_mamba_heads": 4, "mamba_headdim": 16, "mamba_ngroups": 1, "num_mem_blocks": 1}
    layers = ["mamba", "hybrid"]
    return _decoder("Zamba2ForCausalLM", "Zamba2Config", chunk_size=CHUNK, layers_block_type=layers, **sizes)


@MODELS("Falcon-H1")
def falcon_h1() -> Case:
    """With a multiple of its chunk as the number of tokens, which other numbers are padded to."""
    sizes = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "head_dim": 8}
    case = _decoder("FalconH1ForCausalLM", "FalconH1Config", mamba_chunk_size=CHUNK, num_key_value_heads=2, **sizes)
    texts = ({0: ROWS, 1: CHUNK * Dim("chunks", max=16)},)
    return Case(case.model, case.loss, lambda n: (torch.randint(3, VOCABULARY, (n, CHUNK * (n + 1))),), texts)


@MODELS("RWKV, static length")
def rwkv() -> Case:
    return _unrolled(_decoder("RwkvForCausalLM", "RwkvConfig", context_length=32, attention_hidden_size=32))


# --- encoders of text ------------------------------------------------------------------------------------------------


@MODELS("BERT, classification")
def bert() -> Case:
    return _encoder("BertForSequenceClassification", "BertConfig")


@MODELS("BERT, masked language model")
def bert_masked() -> Case:
    case = _encoder("BertForMaskedLM", "BertConfig")

    def batch(samples: int) -> tuple[Tensor, ...]:
        (ids,) = _text(samples)
        return ids, torch.where(torch.rand(ids.shape) < 0.3, ids, -100)

    return Case(case.model, _labelled, batch, (*TEXT, *TEXT))


@MODELS("RoBERTa, classification")
def roberta() -> Case:
    return _encoder("RobertaForSequenceClassification", "RobertaConfig", pad_token_id=1)


@MODELS("DistilBERT, classification")
def distilbert() -> Case:
    return _encoder(
        "DistilBertForSequenceClassification", "DistilBertConfig", dim=32, n_layers=2, n_heads=4, hidden_dim=48
    )


@MODELS("ALBERT, classification")
def albert() -> Case:
    return _encoder("AlbertForSequenceClassification", "AlbertConfig", embedding_size=16)


@MODELS("ELECTRA, classification")
def electra() -> Case:
    return _encoder("ElectraForSequenceClassification", "ElectraConfig", embedding_size=16)


@MODELS("DeBERTa v2, classification")
def deberta() -> Case:
    return _encoder(
        "DebertaV2ForSequenceClassification",
        "DebertaV2Config",
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=4,
    )


@MODELS("ModernBERT, classification")
def modernbert() -> Case:
    return _encoder(
        "ModernBertForSequenceClassification",
        "ModernBertConfig",
        eos_token_id=1,
        bos_token_id=2,
        cls_token_id=2,
        sep_token_id=1,
        local_attention=4,
    )


@MODELS("MobileBERT, classification")
def mobilebert() -> Case:
    return _encoder(
        "MobileBertForSequenceClassification",
        "MobileBertConfig",
        embedding_size=16,
        intra_bottleneck_size=16,
        num_feedforward_networks=2,
    )


# --- encoder and decoder ---------------------------------------------------------------------------------------------


@MODELS("T5")
def t5() -> Case:
    return _pair("T5ForConditionalGeneration", "T5Config", d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)


@MODELS("BART")
def bart() -> Case:
    return _pair("BartForConditionalGeneration", "BartConfig", **_PAIR)


@MODELS("Marian")
def marian() -> Case:
    return _pair("MarianMTModel", "MarianConfig", **_PAIR)


@MODELS("Pegasus")
def pegasus() -> Case:
    return _pair("PegasusForConditionalGeneration", "PegasusConfig", **_PAIR)


_PAIR: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
}


def _pair(name: str, config: str, **options: Any) -> Case:
    """A model from text to text."""
    import transformers

    settings = {"vocab_size": VOCABULARY, "pad_token_id": 0, "decoder_start_token_id": 0, "use_cache": False} | options
    model = getattr(transformers, name)(getattr(transformers, config)(**settings))

    def batch(samples: int) -> tuple[Tensor, ...]:
        return torch.randint(3, VOCABULARY, (samples, 9)), torch.randint(3, VOCABULARY, (samples, 7))

    return Case(model, _labelled, batch)


# --- speech ----------------------------------------------------------------------------------------------------------


@MODELS("Whisper")
def whisper() -> Case:
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=8,
        max_source_positions=12,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        use_cache=False,
        **{name: value for name, value in _PAIR.items() if name != "max_position_embeddings"},
    )
    model = transformers.WhisperForConditionalGeneration(config)

    def loss(model: nn.Module, input_features: Tensor, labels: Tensor) -> Tensor:
        return model(input_features=input_features, labels=labels).loss

    def batch(samples: int) -> tuple[Tensor, ...]:
        return torch.randn(samples, 8, 24), torch.randint(3, VOCABULARY, (samples, 7))

    return Case(model, loss, batch)


_SPEECH: dict[str, Any] = {
    "vocab_size": 12,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "conv_dim": (16, 16),
    "conv_kernel": (8, 3),
    "conv_stride": (4, 2),
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_prob": 0.0,
    "layerdrop": 0.0,
    "ctc_loss_reduction": "mean",
    "pad_token_id": 0,
}


def _speech(name: str, config: str, **options: Any) -> Case:
    """A recognizer of speech with CTC."""
    import transformers

    model = getattr(transformers, name)(getattr(transformers, config)(**(_SPEECH | options)))

    def loss(model: nn.Module, input_values: Tensor, labels: Tensor) -> Tensor:
        return model(input_values=input_values, labels=labels).loss

    return Case(model, loss, lambda n: (torch.randn(n, 400), torch.randint(1, 12, (n, 4))))


@MODELS("Wav2Vec2 with CTC")
def wav2vec2() -> Case:
    return _speech("Wav2Vec2ForCTC", "Wav2Vec2Config")


@MODELS("HuBERT with CTC")
def hubert() -> Case:
    return _speech("HubertForCTC", "HubertConfig")


@MODELS("WavLM with CTC")
def wavlm() -> Case:
    return _speech("WavLMForCTC", "WavLMConfig", num_buckets=8, max_bucket_distance=16)


@MODELS("Audio Spectrogram Transformer")
def ast() -> Case:
    import transformers

    sizes = {name: value for name, value in VIT.items() if name != "image_size"}
    config = transformers.ASTConfig(num_labels=5, max_length=32, num_mel_bins=16, **sizes)

    def loss(model: nn.Module, input_values: Tensor, labels: Tensor) -> Tensor:
        return model(input_values=input_values, labels=labels).loss

    return Case(
        transformers.ASTForAudioClassification(config),
        loss,
        lambda n: (torch.randn(n, 32, 16), torch.randint(5, (n,))),
    )


# --- vision ----------------------------------------------------------------------------------------------------------


@MODELS("ViT")
def vit() -> Case:
    return _vision("ViTForImageClassification", "ViTConfig", **VIT)


@MODELS("DeiT")
def deit() -> Case:
    return _vision("DeiTForImageClassification", "DeiTConfig", **VIT)


@MODELS("BEiT")
def beit() -> Case:
    return _vision("BeitForImageClassification", "BeitConfig", use_relative_position_bias=True, **VIT)


@MODELS("DINOv2")
def dinov2() -> Case:
    sizes = {name: value for name, value in VIT.items() if name != "intermediate_size"}
    return _vision("Dinov2ForImageClassification", "Dinov2Config", mlp_ratio=2, **sizes)


@MODELS("Swin")
def swin() -> Case:
    return _vision(
        "SwinForImageClassification",
        "SwinConfig",
        image_size=32,
        patch_size=4,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        drop_path_rate=0.0,
    )


@MODELS("ConvNeXt V2")
def convnextv2() -> Case:
    return _vision(
        "ConvNextV2ForImageClassification",
        "ConvNextV2Config",
        hidden_sizes=[8, 16, 16, 16],
        depths=[1, 1, 1, 1],
    )


@MODELS("SegFormer")
def segformer() -> Case:
    import transformers

    config = transformers.SegformerConfig(
        num_labels=4,
        depths=[1, 1, 1, 1],
        hidden_sizes=[8, 16, 16, 16],
        num_attention_heads=[1, 2, 2, 2],
        decoder_hidden_size=16,
        drop_path_rate=0.0,
    )
    return Case(transformers.SegformerForSemanticSegmentation(config), _labelled_pixels, pixels(64))


@MODELS("MAE, pretraining", workaround="pass the noise as an argument of the loss")
def mae() -> Case:
    import transformers

    config = transformers.ViTMAEConfig(
        decoder_hidden_size=16,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=24,
        **VIT,
    )

    def loss(model: nn.Module, pixel_values: Tensor, noise: Tensor) -> Tensor:
        return model(pixel_values=pixel_values, noise=noise).loss

    return Case(
        transformers.ViTMAEForPreTraining(config), loss, lambda n: (torch.randn(n, 3, 32, 32), torch.rand(n, 16))
    )


@MODELS("CLIP")
def clip() -> Case:
    import transformers

    config = transformers.CLIPConfig(
        text_config={
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "max_position_embeddings": 16,
            "eos_token_id": VOCABULARY - 1,
        },
        vision_config=VIT,
        projection_dim=16,
    )

    def loss(model: nn.Module, input_ids: Tensor, pixel_values: Tensor) -> Tensor:
        return model(input_ids=input_ids, pixel_values=pixel_values, return_loss=True).loss

    return Case(
        transformers.CLIPModel(config),
        loss,
        lambda n: (torch.randint(VOCABULARY, (n, 9)), torch.randn(n, 3, 32, 32)),
    )


@MODELS("SigLIP")
def siglip() -> Case:
    import transformers

    text = {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 16,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    sizes = {
        name: VIT[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    }
    config = transformers.SiglipConfig(text_config=text | sizes, vision_config=VIT)

    def loss(model: nn.Module, input_ids: Tensor, pixel_values: Tensor) -> Tensor:
        return model(input_ids=input_ids, pixel_values=pixel_values, return_loss=True).loss

    return Case(
        transformers.SiglipModel(config),
        loss,
        lambda n: (torch.randint(VOCABULARY, (n, 16)), torch.randn(n, 3, 32, 32)),
    )


@MODELS("DETR")
def detr() -> Case:
    import transformers

    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    config = transformers.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        num_queries=4,
        num_labels=4,
        **{name: value for name, value in _PAIR.items() if name != "max_position_embeddings"},
    )

    def loss(model: nn.Module, pixel_values: Tensor, labels: Tensor, boxes: Tensor) -> Tensor:
        out = model(pixel_values=pixel_values)
        return functional.cross_entropy(out.logits.transpose(1, 2), labels) + functional.l1_loss(out.pred_boxes, boxes)

    return Case(
        transformers.DetrForObjectDetection(config),
        loss,
        lambda n: (torch.randn(n, 3, 64, 64), torch.randint(4, (n, 4)), torch.rand(n, 4, 4)),
    )


@MODELS("VideoMAE, pretraining")
def videomae() -> Case:
    import transformers

    config = transformers.VideoMAEConfig(
        num_frames=4,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2,
        decoder_hidden_size=16,
        decoder_intermediate_size=24,
        **VIT,
    )

    def loss(model: nn.Module, pixel_values: Tensor, bool_masked_pos: Tensor) -> Tensor:
        return model(pixel_values=pixel_values, bool_masked_pos=bool_masked_pos).loss

    def batch(samples: int) -> tuple[Tensor, ...]:
        masks = torch.rand(samples, 32).argsort(1) < 16
        return torch.randn(samples, 4, 3, 32, 32), masks

    return Case(transformers.VideoMAEForPreTraining(config), loss, batch)


@MODELS("PatchTST, prediction")
def patchtst() -> Case:
    import transformers

    config = transformers.PatchTSTConfig(
        num_input_channels=2,
        context_length=16,
        patch_length=4,
        patch_stride=4,
        prediction_length=4,
        d_model=16,
        num_attention_heads=2,
        num_hidden_layers=2,
        ffn_dim=24,
    )

    def loss(model: nn.Module, past_values: Tensor, future_values: Tensor) -> Tensor:
        return model(past_values=past_values, future_values=future_values).loss

    return Case(transformers.PatchTSTForPrediction(config), loss, normal((16, 2), (4, 2)))
