"""The transforms of torch.func: vmap, grad, jvp and those made of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def within_transforms() -> bool:
    """Whether code runs in a function that a transform was applied to."""
    return torch._C._functorch.maybe_current_level() is not None


def replacing(original: Callable[..., Any], replacement: Callable[..., Any], *, within: bool) -> Callable[..., Any]:
    """The replacement of a function within transforms, or outside of them; elsewhere the function itself."""

    @functools.wraps(replacement)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        return (replacement if within_transforms() is within else original)(*args, **kwargs)

    return chosen
