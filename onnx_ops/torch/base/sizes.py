"""What is known of sizes in a trace."""

from __future__ import annotations

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true


def may_be_zero(size: int | torch.SymInt) -> bool:
    return not statically_known_true(size >= 1)
