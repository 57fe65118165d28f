"""NumPy arrays of dynamic sizes, and of numbers that depend on data: tensors, by PyTorch's own functions of NumPy."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import _numpy
from torch.utils._pytree import tree_map_only

from onnx_ops.torch.operators.numpy_arrays import array_of
from onnx_ops.torch.tracing.importers import Importers
from onnx_ops.torch.tracing.mathematics import SIZES
from onnx_ops.torch.tracing.modes import leaves_of

NAMES = (
    *("arange", "empty", "eye", "full", "identity", "indices", "linspace", "logspace", "ones", "tri", "zeros"),
    *("broadcast_to", "repeat", "reshape", "tile"),
)
"""NumPy's functions of sizes."""


@contextlib.contextmanager
def symbolic_arrays() -> Iterator[None]:
    """A context in which NumPy's functions take dynamic sizes and such arrays, and PyTorch's take such arrays."""
    methods: Mapping[str, Any] = {
        "__array__": array_of,
        "__array_function__": _array_function,
        "__array_ufunc__": _array_ufunc,
        "__getattr__": _attribute,
        "__torch_function__": classmethod(_torch_function),
    }
    own = {name: _of_sizes(getattr(np, name), getattr(_numpy, name)) for name in NAMES}
    with contextlib.ExitStack() as stack:
        for name, method in methods.items():
            stack.enter_context(mock.patch.object(_numpy.ndarray, name, method, create=True))
        stack.enter_context(mock.patch.object(_numpy._dtypes.DType, "__init__", _make_dtype))
        stack.enter_context(_IMPORTERS.replaced(own))
        stack.enter_context(_IMPORTERS_OF_TORCH.replaced(CONVERSIONS))
        yield


def _of_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        given = args[0] if args else None
        tensor = given.tensor if isinstance(given, _numpy.ndarray) else given
        if name == FROM_NUMPY and isinstance(tensor, torch.Tensor):  # as SciPy's function of a tensor returns
            return tensor
        if isinstance(tensor, np.ndarray) and tensor.dtype == object and tensor.size:  # of numbers read from data
            return (torch.as_tensor if name == FROM_NUMPY else function)(tensor.tolist(), *args[1:], **options)
        return function(tensor, *args[1:], **options) if args else function(**options)

    name = function.__name__
    return called


FROM_NUMPY = "from_numpy"
CONVERSIONS = {name: _of_arrays(getattr(torch, name)) for name in (FROM_NUMPY, "tensor", "as_tensor", "asarray")}
"""PyTorch's functions of arrays."""
_IMPORTERS = Importers({name: getattr(np, name) for name in NAMES})
_IMPORTERS_OF_TORCH = Importers({name: getattr(torch, name) for name in CONVERSIONS})


def _of_sizes(function: Callable[..., Any], symbolic: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        is_symbolic = any(isinstance(leaf, SIZES) for leaf in leaves_of((args, options)))
        return (symbolic if is_symbolic else function)(*args, **options)

    return called


def _array_function(
    array: _numpy.ndarray,
    func: Callable[..., Any],
    types: Sequence[type],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """PyTorch's function of that name; NumPy's own, which requires the numbers, if there is none."""
    module = {"numpy.fft": _numpy.fft, "numpy.linalg": _numpy.linalg}.get(func.__module__, _numpy)
    own = getattr(module, func.__name__, None)
    return func(*_of_numbers(args), **_of_numbers(kwargs)) if own is None else own(*args, **kwargs)


def _array_ufunc(array: _numpy.ndarray, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
    own = getattr(_numpy, ufunc.__name__, None) if method == "__call__" else None
    if own is None:
        return getattr(ufunc, method)(*_of_numbers(inputs), **_of_numbers(kwargs))
    return own(*inputs, **kwargs)


_make_own_dtype = _numpy._dtypes.DType.__init__


def _make_dtype(dtype: _numpy._dtypes.DType, given: Any) -> None:
    """As PyTorch's, of NumPy's dtypes too."""
    is_numpys = isinstance(given, np.dtype) or (isinstance(given, type) and issubclass(given, np.generic))
    _make_own_dtype(dtype, np.dtype(given).name if is_numpys else given)


def _attribute(array: _numpy.ndarray, name: str) -> Any:
    """Of NumPy's own array, for attributes that PyTorch's has not."""
    if name.startswith("__") or name == "tensor":
        raise AttributeError(name)
    return getattr(array_of(array), name)


def _of_numbers(arguments: Any) -> Any:
    return tree_map_only(_numpy.ndarray, array_of, arguments)


def _torch_function(
    cls: type,
    func: Callable[..., Any],
    types: Sequence[type],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    args, kwargs = tree_map_only(_numpy.ndarray, lambda array: array.tensor, (args, dict(kwargs or {})))
    return func(*args, **kwargs)
