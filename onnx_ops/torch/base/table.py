"""The table of PyTorch's operators: what each becomes on its way to ONNX. The files in `operators/` fill it.

A captured function passes through the table in this order: `replacements` while it runs in PyTorch,
`second_derivatives` where gradients are differentiated again, `draws` where it draws random numbers, `requirements`,
`checks` and `decompositions` while make_fx traces it, `complex_numbers` where the trace has some, `translations` when
the trace is exported, `rewrites` when the nodes are simplified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch._ops import OpOverload

from onnx_ops.torch.base.transforms import replacing

Function = TypeVar("Function", bound=Callable[..., Any])
Entries = dict[Any, Callable[..., Any]]


@dataclass(frozen=True)
class Table:
    """What becomes of PyTorch's functions and operators, and of nodes.

    Attributes:
        replacements: functions of PyTorch, and functions with the same parameters that run in their place.
        missing: those of them that PyTorch does not have on a CPU.
        corrections: functions of PyTorch whose results on a CPU are wrong in some cases, and functions with the same
            parameters that graphs are compared with.
        second_derivatives: operators of a backward pass, and functions from the gradients with respect to their results
            (None for those that nothing depends on) and their arguments to those with respect to the first arguments.
        decompositions: operators, and functions in other operators, which may return NotImplemented for a call that
            remains as it is.
        translations: operators, and functions from their arguments to nodes, as torch.onnx.export takes them.
        draws: operators that draw random numbers, and functions of a Generator and the operator's arguments.
        checks: operators that raise an error for some data, and functions from their arguments to a tensor that is 0
            where they do not, and what it is called in messages; or None for a call that raises none.
        requirements: operators that raise an error for some sizes, and functions of their arguments that require
            others.
        float64_nodes: ONNX operators without a float64 kernel in onnxruntime, and functions from inputs and attributes
            to nodes that have one.
        complex_numbers: operators without overload, and functions that compute them for Pairs of real tensors.
        rewrites: op_types of this domain, and functions that may replace such a node of a simplified graph.
    """

    replacements: Entries = field(default_factory=dict)
    missing: Entries = field(default_factory=dict)
    corrections: Entries = field(default_factory=dict)
    second_derivatives: Entries = field(default_factory=dict)
    decompositions: Entries = field(default_factory=dict)
    translations: Entries = field(default_factory=dict)
    draws: Entries = field(default_factory=dict)
    checks: Entries = field(default_factory=dict)
    requirements: Entries = field(default_factory=dict)
    float64_nodes: Entries = field(default_factory=dict)
    complex_numbers: Entries = field(default_factory=dict)
    rewrites: Entries = field(default_factory=dict)


TABLE = Table()


def _enters(entries: Entries, keys: Iterable[Any]) -> Callable[[Function], Function]:
    def enter(function: Function) -> Function:
        for key in keys:
            if key in entries:
                raise ValueError(f"{key} is entered twice: {entries[key]} and {function}")
            entries[key] = function
        return function

    return enter


def replaces(*functions: Any, within_transforms: bool | None = None) -> Callable[[Function], Function]:
    """Run the decorated function in place of functions of PyTorch.

    Args:
        functions: such as torch.kl_div.
        within_transforms: True for only within the transforms of torch.func, False for only outside of them, as it has
            no rules for them; None for both.
    """

    def enter(function: Function) -> Function:
        for original in functions:
            if within_transforms is None:
                entry: Callable[..., Any] = function
            else:
                entry = replacing(original, function, within=within_transforms)
            _enters(TABLE.replacements, [original])(entry)
        return function

    return enter


def provides(*functions: Any) -> Callable[[Function], Function]:
    """As `replaces`, for functions that PyTorch does not have on a CPU, so that it runs in eager mode too."""

    def enter(function: Function) -> Function:
        return _enters(TABLE.missing, functions)(replaces(*functions)(function))

    return enter


def corrects(*functions: Any) -> Callable[[Function], Function]:
    """Run the decorated function in place of functions of PyTorch where graphs are compared with it."""
    return _enters(TABLE.corrections, functions)


def differentiates(*operators: Any) -> Callable[[Function], Function]:
    """Differentiate operators of a backward pass, such as torch.ops.aten.convolution_backward.default.

    For those whose second derivative in PyTorch takes sizes as numbers, which then cannot be dynamic.
    """
    return _enters(TABLE.second_derivatives, operators)


def decomposes(*operators: Any, only: torch.dtype | None = None) -> Callable[[Function], Function]:
    """Write operators in others, as the decorated function does.

    Args:
        operators: overloads, such as torch.ops.aten.index_add.default.
        only: decompose only calls with a tensor of this dtype among the positional arguments.
    """

    def enter(function: Function) -> Function:
        _enters(TABLE.decompositions, operators)(function if only is None else _ForDtype(only, function))
        return function

    return enter


def decomposed_by_pytorch(*operators: Any, only: torch.dtype | None = None) -> None:
    """As `decomposes`, by PyTorch's own decompositions."""
    for operator in operators:
        decomposes(operator, only=only)(torch._decomp.decomposition_table[operator])


@dataclass(frozen=True)
class _ForDtype:
    """A decomposition of calls with a tensor of a dtype among the positional arguments."""

    dtype: torch.dtype
    decomposition: Callable[..., Any]

    def applies(self, args: Iterable[Any]) -> bool:
        return any(isinstance(arg, torch.Tensor) and arg.dtype is self.dtype for arg in args)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.decomposition(*args, **kwargs) if self.applies(args) else NotImplemented


def is_decomposed(operator: OpOverload, args: Iterable[Any]) -> bool:
    """Whether a call of an operator with these positional arguments has an entry of `decomposes`."""
    decomposition = TABLE.decompositions.get(operator)
    return decomposition is not None and (not isinstance(decomposition, _ForDtype) or decomposition.applies(args))


def translates(*operators: Any) -> Callable[[Function], Function]:
    """Write the nodes of operators, as the decorated function of their arguments does."""
    return _enters(TABLE.translations, operators)


def draws(*operators: Any) -> Callable[[Function], Function]:
    """Draw the random numbers of operators from the Generator that the decorated function gets first."""
    return _enters(TABLE.draws, operators)


def checks(*operators: Any) -> Callable[[Function], Function]:
    """Refuse a step in which the first result of the decorated function, of an operator's arguments, is not 0."""
    return _enters(TABLE.checks, operators)


def requires(*operators: Any) -> Callable[[Function], Function]:
    """Run the decorated function, of an operator's arguments, which requires sizes, before the operator."""
    return _enters(TABLE.requirements, operators)


def computes_float64(*op_types: str) -> Callable[[Function], Function]:
    """Write standard nodes that onnxruntime cannot compute in float64 in others."""
    return _enters(TABLE.float64_nodes, op_types)


def on_pairs(*operators: Any) -> Callable[[Function], Function]:
    """Compute operators, such as torch.ops.aten.mul, for complex numbers.

    Each complex tensor among arguments and results of the decorated function is a Pair of real ones.
    """
    return _enters(TABLE.complex_numbers, operators)


def rewrites(*op_types: str) -> Callable[[Function], Function]:
    """Pass nodes of this domain in a simplified graph to the decorated function, which may replace them."""
    return _enters(TABLE.rewrites, op_types)
