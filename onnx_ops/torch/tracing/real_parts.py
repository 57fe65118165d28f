"""Represents the complex tensors of a graph of ATen operators by their real and imaginary parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Interpreter, Node
from torch.types import py_sym_types
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_any, tree_leaves

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.base.pairs import Pair, is_complex, parts
from onnx_ops.torch.operators import TABLE
from onnx_ops.torch.tracing.constants import depends_on_data
from onnx_ops.torch.tracing.explanations import Locations

aten = torch.ops.aten

NAMES = """
_reshape_copy _to_copy _unsafe_index_put _unsafe_view add alias alias_copy as_strided cat clone constant_pad_nd copy
cumsum detach diag_embed diagonal diagonal_backward diagonal_scatter empty empty_like expand fill flip full full_like
gather index index_add index_copy index_put index_select lift_fresh lift_fresh_copy masked_fill masked_scatter mean
neg new_empty new_empty_strided new_full new_zeros permute repeat reshape roll rsub scalar_tensor scatter scatter_add
select select_backward select_scatter slice slice_backward slice_scatter split split_with_sizes squeeze stack sub sum
sym_numel sym_size sym_stride t trace transpose tril triu unbind unfold unfold_backward unsqueeze view where zeros
zeros_like
"""
ALIKE = {getattr(aten, name) for name in NAMES.split()}
"""Operators that compute real and imaginary part alike, each from these parts of their arguments."""

RESHAPED = {aten.view.default: aten.reshape.default, aten._unsafe_view.default: aten.reshape.default}
"""Operators that need the strides of a tensor: results of transforms have other ones than in the graph."""

EIGENVALUES = {aten.linalg_eig, aten._linalg_eigvals}
"""Operators whose results are complex where their arguments are real."""

VALUES = {
    "fill_value",
    "grad",
    "grad_output",
    "input",
    "other",
    "s",
    "self",
    "source",
    "src",
    "tensors",
    "value",
    "values",
}
"""The names of their arguments that may be complex; others, such as indices and masks, are the same for both parts."""


def has_complex_numbers(graph: GraphModule) -> bool:
    return any(tree_any(is_complex, node.meta.get("val")) for node in graph.graph.nodes)


class RealParts(Interpreter):
    """Runs a graph of ATen operators in operators on real tensors, each complex tensor as a Pair.

    Raises:
        CaptureError: an operator that is not available for complex numbers, or a complex input or output.
    """

    def __init__(self, graph: GraphModule, where: Locations) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self._where = where
        self._constants: dict[str, Pair] = {}

    def run_node(self, n: Node) -> Any:
        value, target = n.meta.get("val"), RESHAPED.get(n.target, n.target)
        if n.op == "get_attr" and isinstance(n.target, str) and is_complex(found := super().run_node(n)):
            if n.target not in self._constants:
                with _disable_current_modes():  # constants of the new graph
                    kept = found.detach().resolve_conj()
                    self._constants[n.target] = Pair(kept.real.clone(), kept.imag.clone())
            return self._constants[n.target]
        if n.op in ("placeholder", "output"):
            result = super().run_node(n)
            if tree_any(is_complex, result):
                raise CaptureError(
                    "an argument or output of the step is complex, which onnxruntime cannot compute with: give it real"
                    " and imaginary part, as torch.view_as_real returns them, and make a complex tensor of it in the"
                    " model or loss by torch.view_as_complex"
                )
            return result
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if isinstance(target, OpOverload) and tree_any(is_complex, (args, kwargs, value)):
            return self._computed(n, target, args, kwargs)
        result = getattr(self, n.op)(target, args, kwargs)
        if isinstance(target, OpOverload) and depends_on_data(target):
            _enter_values(value, result)
        return result

    def _computed(self, node: Node, target: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        base, name = target.overloadpacket, target._schema.name.removeprefix("aten::")
        in_place = getattr(aten, name[:-1], None) if name.endswith("_") else None
        if base in TABLE.complex_numbers:
            if base is aten.view_as_real:
                self._check_view(node)
            result = TABLE.complex_numbers[base](*args, **kwargs)
        elif base in ALIKE or in_place in ALIKE or base is aten.zero_:
            return _alike(target, args, kwargs, tree_any(is_complex, node.meta.get("val")))
        elif in_place in TABLE.complex_numbers:
            result = TABLE.complex_numbers[in_place](*args, **kwargs)
            for own, new in zip(parts(args[0]), parts(result), strict=True):
                own.copy_(new)
            return args[0]
        else:
            raise CaptureError(self._unavailable(target))
        dtypes = [leaf.dtype for leaf in tree_leaves(node.meta.get("val")) if isinstance(leaf, Tensor)]
        return _with_dtype(result, dtypes[0])

    def _unavailable(self, target: OpOverload) -> str:
        location = self._where.of(str(target).rpartition(".")[0])
        line = "" if location.line is None else f" at {location.line}"
        if target.overloadpacket in EIGENVALUES:
            return (
                f"{location.module} computes {target}{line}, eigenvalues that may be complex, which cannot be captured."
                " Those of symmetric matrices, of torch.linalg.eigh and eigvalsh, and singular values can"
            )
        return (
            f"{location.module} computes {target} of complex numbers{line}, which cannot be captured. Compute it with"
            " real and imaginary parts in tensors of their own"
        )

    def _check_view(self, node: Node) -> None:
        """Check that no operator writes to a complex tensor through its real view, which is a copy here."""
        for user in node.users:
            if not isinstance(user.target, OpOverload):
                continue
            for argument, given in zip(user.target._schema.arguments, user.args, strict=False):
                if given is node and argument.alias_info is not None:
                    if argument.alias_info.is_write:
                        raise CaptureError(
                            f"{self._where.of('view_as_real').module} writes to real or imaginary parts of a complex"
                            " tensor in place; make a new one by torch.complex"
                        )
                    self._check_view(user)


def _enter_values(first: Any, result: Any) -> None:
    """Give the symbols of numbers and sizes that depend on data the values that they have in the first graph."""
    for old, new in zip(_numbers(first), _numbers(result), strict=True):
        if not (isinstance(old, py_sym_types) and isinstance(new, py_sym_types)):  # code has made a number of the size
            continue
        values = new.node.shape_env.real_tensor_prop_unbacked_vals
        if (value := values.get(_symbol(old))) is not None:
            values[_symbol(new)] = value


def _numbers(result: Any) -> list[Any]:
    """The numbers, and sizes of tensors, in a result."""
    return [n for leaf in tree_leaves(result) for n in (leaf.shape if isinstance(leaf, Tensor) else [leaf])]


def _symbol(number: Any) -> sympy.Basic:
    """The symbol of a number; PyTorch has a bool as a symbol that is equal to 1."""
    expr = number.node.expr
    return expr.lhs if isinstance(expr, sympy.Eq) else expr


def _alike(target: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], complex_result: bool) -> Any:
    """The result of an operator that computes both parts alike; only of the real part for a real result."""
    names = [argument.name for argument in target._schema.arguments]

    def of_part(part: int) -> Any:
        def chosen(name: str, value: Any) -> Any:
            if isinstance(value, torch.dtype):
                return value.to_real() if value.is_complex else value
            if name not in VALUES:
                return value
            return [parts(each)[part] for each in value] if isinstance(value, list | tuple) else parts(value)[part]

        given = [chosen(name, value) for name, value in zip(names, args, strict=False)]
        return target(*given, **{name: chosen(name, value) for name, value in kwargs.items()})

    if not complex_result:
        return of_part(0)
    real, imaginary = of_part(0), of_part(1)
    if isinstance(real, Tensor):
        return Pair(real, imaginary)
    return list(map(Pair, real, imaginary))


def _with_dtype(value: object, dtype: torch.dtype) -> Any:
    """A result in the dtype that PyTorch computes: scalars and tensors without axes do not promote."""
    if isinstance(value, Pair):
        return Pair(value.real.to(dtype.to_real()), value.imaginary.to(dtype.to_real()))
    return value.to(dtype) if isinstance(value, Tensor) else value
