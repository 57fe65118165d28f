"""The models of the zoo, one file for a package, or for some that have few.

Packages are imported in the builders, so that the table exists without them.
"""

from collections.abc import Mapping

from scripts.zoo.entries import Entry
from scripts.zoo.models import (
    decisions,
    diffusers,
    monai,
    peft,
    science,
    segmentation_models_pytorch,
    text_and_images,
    timm,
    torch_geometric,
    torchvision,
    transformers,
)

PACKAGES = (
    transformers.MODELS,
    peft.MODELS,
    text_and_images.OPEN_CLIP,
    text_and_images.WHISPER,
    text_and_images.X_TRANSFORMERS,
    text_and_images.VIT_PYTORCH,
    diffusers.MODELS,
    decisions.DENOISING,
    torchvision.MODELS,
    timm.MODELS,
    decisions.EFFICIENTNET,
    segmentation_models_pytorch.MODELS,
    monai.MODELS,
    torch_geometric.MODELS,
    science.NFLOWS,
    science.FREIA,
    science.GPYTORCH,
    science.NEURALOP,
    science.TORCHDIFFEQ,
    science.E3NN,
    science.ENTMAX,
    decisions.TABNET,
    decisions.RTDL,
    decisions.STABLE_BASELINES3,
    decisions.METRIC_LEARNING,
)
"""In the order of docs/models.md."""
ENTRIES: Mapping[str, Entry] = {entry.key: entry for models in PACKAGES for entry in models.entries}
"""All entries by key."""
