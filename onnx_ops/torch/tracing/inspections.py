"""Models that ask whether a tensor is a FakeTensor, as those of transformers do before they branch on its elements.

For a FakeTensor they take the branch that is valid for all data, such as computing an attention mask which the data at
hand do not need. Where the two branches are not equivalent, PyTorch's results are those of real tensors.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType

import torch
from torch._subclasses.fake_tensor import FakeTensor

from onnx_ops.torch.tracing.frames import is_library


class Inspections:
    """Whether code outside PyTorch looks up the class FakeTensor.

    Attributes:
        found: whether it has done so.
    """

    def __init__(self) -> None:
        self.found = False

    @contextlib.contextmanager
    def watched(self, *, hidden: bool) -> Iterator[None]:
        """A context that records look-ups of `torch._subclasses.FakeTensor`.

        Args:
            hidden: whether they find a class that no tensor is an instance of.
        """

        def found(module: ModuleType) -> type[torch.Tensor]:
            if is_library(sys._getframe(1).f_code.co_filename):
                return FakeTensor
            self.found = True
            return _NoTensor if hidden else FakeTensor

        module, kind = torch._subclasses, type(torch._subclasses)
        # A property precedes the attribute of the module, which stays as it is.
        module.__class__ = type(kind.__name__, (kind,), {"FakeTensor": property(found)})
        try:
            yield
        finally:
            module.__class__ = kind


class _NoTensor(torch.Tensor):
    """A class without instances."""
