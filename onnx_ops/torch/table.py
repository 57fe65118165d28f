"""All translations, as torch.onnx.export takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnx_ops.torch.base import custom_ops
from onnx_ops.torch.translations import axes, convolution, copies, double, matrices, max_pool, threshold
from onnx_ops.torch.whole import dropout, embedding, labels
from onnx_ops.torch.whole.substitution import FAMILIES

TRANSLATIONS = (
    axes,
    convolution,
    copies,
    custom_ops,
    double,
    dropout,
    embedding,
    labels,
    matrices,
    max_pool,
    threshold,
)


def translation_table() -> dict[Any, Callable[..., Any]]:
    """Translations for `torch.onnx.export(..., dynamo=True, custom_translation_table=translation_table())`.

    They cover the operators that `whole_ops` puts in place, and those of backward passes that torch.onnx lacks or
    translates to wrong numbers. The dictionary is the caller's to change.
    """
    return {operator: translate for part in (*FAMILIES, *TRANSLATIONS) for operator, translate in part.TABLE.items()}
