"""Functions of PyTorch that become operators of this domain while a model is captured, whatever code calls them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode

from onnx_ops.torch.whole import adam, binary_cross_entropy, ctc, hardshrink, kl_div, recurrent

FAMILIES = (adam, binary_cross_entropy, ctc, hardshrink, kl_div, recurrent)

FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    function: ours for family in FAMILIES for function, ours in family.FUNCTIONS.items()
}
"""What takes the place of a function of PyTorch; it has the same parameters."""


class whole_ops(TorchFunctionMode):
    """While it is entered, losses and layers of this domain run as operators that torch.onnx can keep whole.

    Used together with `translation_table` by those who call torch.onnx.export themselves.
    """

    def __torch_function__(
        self, func: Any, types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return FUNCTIONS.get(func, func)(*args, **(kwargs or {}))
