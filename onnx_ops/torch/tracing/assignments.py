"""SciPy's linear assignment of tensors, which an operator computes."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, _numpy

from onnx_ops.torch.operators.linear_assignment import MODULE, NAME, scipys_function
from onnx_ops.torch.tracing.importers import Importers


@contextlib.contextmanager
def assignments() -> Iterator[None]:
    """A context in which SciPy's linear_sum_assignment takes tensors, in modules too that have imported it by name."""
    function = scipys_function()
    with contextlib.nullcontext() if function is None else _importers(function).replaced({NAME: _of_tensors(function)}):
        yield


@functools.cache
def _importers(function: Callable[..., Any]) -> Importers:
    return Importers({NAME: function}, sys.modules[MODULE])


def _of_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    def assigned(cost_matrix: Any, maximize: bool = False) -> Any:
        """As SciPy's: the rows, in their order, and a column of each, with the least sum of costs."""
        if isinstance(cost_matrix, _numpy.ndarray):
            return tuple(map(_numpy.ndarray, assigned(cost_matrix.tensor, maximize)))
        if not isinstance(cost_matrix, Tensor):
            return function(cost_matrix, maximize)
        if cost_matrix.dim() != 2:
            raise ValueError(f"expected a matrix (2-D array), got a {cost_matrix.dim()}-D array")
        cost = cost_matrix.detach().double()
        rows, columns = cost.shape
        if rows == 0 or columns == 0:
            return torch.arange(0), torch.arange(0)
        cost = -cost if maximize else cost
        if rows <= columns:
            return torch.arange(rows), torch.ops.onnx_ops.assigned_columns(cost)
        of_columns = torch.ops.onnx_ops.assigned_columns(cost.T)
        order = of_columns.argsort()
        return of_columns[order], order

    return assigned
