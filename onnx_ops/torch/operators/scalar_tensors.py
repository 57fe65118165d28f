"""Tensors without dimensions along their axis 0, which PyTorch takes for that of a vector and ONNX refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, ops
from torch._ops import OpOverload
from torch.utils._pytree import tree_map_only

aten = ops.aten

ALONG_AN_AXIS = (
    aten._log_softmax.default,
    aten._softmax.default,
    aten._softmax_backward_data.default,
    aten.all.dim,
    aten.all.dims,
    aten.amax.default,
    aten.amin.default,
    aten.aminmax.default,
    aten.any.dim,
    aten.any.dims,
    aten.cummax.default,
    aten.cummin.default,
    aten.cumprod.default,
    aten.cumsum.default,
    aten.flip.default,
    aten.gather.default,
    aten.index_add.default,
    aten.index_copy.default,
    aten.index_fill.int_Scalar,
    aten.index_fill.int_Tensor,
    aten.index_select.default,
    aten.linalg_vector_norm.default,
    aten.logcumsumexp.default,
    aten.logsumexp.default,
    aten.mean.dim,
    aten.mode.default,
    aten.norm.ScalarOpt_dim,
    aten.renorm.default,
    aten.scatter.reduce,
    aten.scatter.src,
    aten.scatter.value,
    aten.scatter.value_reduce,
    aten.scatter_add.default,
    aten.scatter_reduce.two,
    aten.sum.dim_IntList,
    aten.topk.default,
)
"""Operators whose result has no dimensions for a tensor that has none, or those of the index."""


def for_scalars(decompositions: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Decompositions of these operators that take tensors without dimensions for vectors.

    Args:
        decompositions: of other tensors.
    """
    return {operator: _OfVector(operator, decompositions.get(operator)) for operator in ALONG_AN_AXIS}


class _OfVector:
    def __init__(self, operator: OpOverload, decomposition: Callable[..., Any] | None) -> None:
        self._operator, self._decomposition = operator, decomposition

    def __call__(self, self_: Tensor, *args: Any, **options: Any) -> Any:
        if self_.dim():
            return NotImplemented if self._decomposition is None else self._decomposition(self_, *args, **options)
        shapes = [arg.shape for arg in args if isinstance(arg, Tensor) and arg.dim()]
        vectors = [arg.view(1) if isinstance(arg, Tensor) and not arg.dim() else arg for arg in args]
        if self._operator is aten.index_fill.int_Tensor:
            vectors[-1] = args[-1]
        result = self._operator(self_.view(1), *vectors, **options)
        shape = shapes[0] if shapes and self._operator is aten.gather.default else ()
        return tree_map_only(Tensor, lambda part: part.view(shape), result)
