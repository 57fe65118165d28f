"""What is traced, with examples of its inputs, and other examples and sizes of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch

from onnx_ops.torch.base.arguments import Dimension
from onnx_ops.torch.tracing.branches import Multiples
from onnx_ops.torch.tracing.contexts import portable_kernels, substituted
from onnx_ops.torch.tracing.conversions import Conversions
from onnx_ops.torch.tracing.data_dependence import Example, Recording
from onnx_ops.torch.tracing.explanations import Locations
from onnx_ops.torch.tracing.limits import taken_sizes, within
from onnx_ops.torch.tracing.preserving import preserved

Tensors = dict[str, torch.Tensor]
Dynamic = Mapping[str, Mapping[int, Dimension]]
"""The dynamic dimensions of tensors, by the name of the tensor and the axis."""

WITHOUT_NUMBERS = (torch.nn.functional.scaled_dot_product_attention,)
"""Functions whose replacements read no numbers from data, and take longer than PyTorch's own."""


@dataclass(frozen=True)
class Program:
    """What is traced: the arguments of `trace`.

    Attributes:
        conversions: what Python's int() and float() call numbers of the example.
        example: what depends on data in the examples; None before it is needed.
    """

    function: Callable[[Tensors], Tensors]
    examples: Tensors
    dynamic: Dynamic
    where: Locations
    followed: Collection[str]
    constants: Collection[str]
    refuses: Callable[[Mapping[str, Mapping[int, int]]], bool] | None
    conversions: Conversions
    example: Example | None = None

    def taken_sizes(self, valid: Mapping[str, range]) -> dict[str, range]:
        """Some sizes that dimensions are to have, as a trace is valid for these alone; none for an error."""
        if (refuses := self.refuses) is None:
            return {}
        places: dict[str, list[tuple[str, int]]] = {}
        dims: dict[str, Dimension] = {}
        for own, axes in self.dynamic.items():
            for axis, dim in axes.items():
                name = getattr(dim, "__name__", "")
                places.setdefault(name, []).append((own, axis))
                dims[name] = dim

        def example(name: str) -> int:
            own, axis = places[name][0]
            return self.examples[own].shape[axis]

        def are_refused(name: str, size: int) -> bool:
            sizes: dict[str, dict[int, int]] = {}
            for own, axis in places[name]:
                sizes.setdefault(own, {})[axis] = size
            return refuses(sizes)

        return taken_sizes(valid, dims, example, are_refused, specialize=self.where.specialize)

    def within(self, sizes: Mapping[str, range]) -> Program:
        """The program, whose dimensions have sizes within ranges, by name."""
        dynamic = {
            name: {axis: within(dim, sizes) for axis, dim in axes.items()} for name, axes in self.dynamic.items()
        }
        return dataclasses.replace(self, dynamic=dynamic)

    def on_one_way(self, branch: Multiples, *, multiple: bool) -> Program | None:
        """The program with examples that take one way of a branch, for multiples alone if it is that of multiples.

        None if no size takes that way.
        """
        if (examples := branch.examples(self.examples, self.dynamic, multiple=multiple)) is None:
            return None
        dynamic = branch.dimensions(self.dynamic) if multiple else self.dynamic
        program = dataclasses.replace(self, examples=examples, dynamic=dynamic)
        return program if self.example is None else dataclasses.replace(program, example=program.recorded())

    def recorded(self) -> Example:
        """What depends on data in a run of the function with its examples, by the operators of a trace."""
        recording = Recording(tensor for name, tensor in self.examples.items() if name not in self.constants)
        with preserved(self.where.model), portable_kernels(), recording, substituted(WITHOUT_NUMBERS):
            self.function(self.examples)
        return recording.example
