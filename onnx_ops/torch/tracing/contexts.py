"""Contexts of PyTorch in which functions run eagerly as they are traced, and in which they are traced."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Collection, Iterator
from typing import Any
from unittest import mock

import torch
from torch.autograd.profiler import record_function
from torch.distributions import Distribution
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental import proxy_tensor

from onnx_ops.torch.operators import TABLE
from onnx_ops.torch.operators.attention import causal_biases
from onnx_ops.torch.operators.von_mises import bounded_rejections
from onnx_ops.torch.tracing.assignments import assignments
from onnx_ops.torch.tracing.control_flow import written_control_flow
from onnx_ops.torch.tracing.data_dependence import single_reads
from onnx_ops.torch.tracing.extremes import symbolic_extremes
from onnx_ops.torch.tracing.fake_tensors import unchanged_conversions
from onnx_ops.torch.tracing.mixed_precision import Float32Computation
from onnx_ops.torch.tracing.substitution import Substitution, WholeOps
from onnx_ops.torch.tracing.symbolic_arrays import symbolic_arrays
from onnx_ops.torch.tracing.tensor_types import symbolic_tensor_types
from onnx_ops.torch.tracing.texts import symbolic_texts


@contextlib.contextmanager
def portable_kernels() -> Iterator[None]:
    """PyTorch runs ATen operators whose derivatives are ATen operators too, instead of calls of a CPU library.

    Functions that torch.compile or torch.jit.script has compiled run as they are written.
    """
    with (
        mock.patch.object(torch.jit.ScriptFunction, "__call__", _called_as_written(torch.jit.ScriptFunction.__call__)),
        torch.compiler.set_stance("force_eager"),
        torch._dynamo.config.patch(error_on_nested_fx_trace=False),
        mock.patch.object(torch.backends.mha, "_is_fastpath_enabled", False),  # nested tensors, in evaluation mode
        warnings.catch_warnings(action="ignore"),  # the flags warn of a TF32 setting that stays unchanged
        torch.backends.mkldnn.flags(enabled=False),
        torch.backends.nnpack.flags(enabled=False),  # its selection depends on the size of the batch
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ):
        yield


def _called_as_written(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call of a function of TorchScript, whose integers may then be dynamic sizes."""

    def called(script: torch.jit.ScriptFunction, *args: Any, **kwargs: Any) -> Any:
        written = getattr(script, "_torchdynamo_inline", None)
        return call(script, *args, **kwargs) if written is None else written(*args, **kwargs)

    return called


@contextlib.contextmanager
def eager_mode() -> Iterator[None]:
    """PyTorch runs the operators that a trace records.

    Attention consists of the same operators, which draw random numbers in the same order, functions that PyTorch has on
    GPUs only are available, and gradients that PyTorch's kernels get wrong are right.
    """
    with (
        Substitution(TABLE.missing | TABLE.corrections),
        portable_kernels(),
        causal_biases(),
        bounded_rejections(),
        written_control_flow(),
    ):
        yield


@contextlib.contextmanager
def _symbolic_distributions() -> Iterator[None]:
    """torch.distributions does not validate its arguments, as a trace has no values; the eager run has done it.

    It broadcasts shapes with dynamic sizes.
    """
    with (
        mock.patch.object(Distribution, "_validate_args", False),
        mock.patch.object(torch._C, "_infer_size", torch.broadcast_shapes),
    ):
        yield


@contextlib.contextmanager
def without_anomaly_detection() -> Iterator[None]:
    """Autograd does not look for NaN among the numbers of gradients, which a trace does not have."""
    before = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    torch.set_anomaly_enabled(False)
    try:
        with mock.patch.object(torch, "set_anomaly_enabled"):
            yield
    finally:
        torch.set_anomaly_enabled(*before)


@contextlib.contextmanager
def without_profiles() -> Iterator[None]:
    """The ranges of torch.profiler.record_function, as in DataParallel, are no operators of a trace."""
    with mock.patch.multiple(record_function, __enter__=lambda self: self, __exit__=lambda *_: None):
        yield


@contextlib.contextmanager
def without_logs(*names: str) -> Iterator[None]:
    """Without the logs of some loggers, except for critical ones."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def only_nodes() -> Iterator[None]:
    """A context in which graphs are nodes with FakeTensors, as nothing else is used.

    They are not compiled to Python, and have no TensorMetadata, for which PyTorch looks for a memory format.
    """
    with _use_lazy_graph_module(True), mock.patch.object(proxy_tensor, "_extract_tensor_metadata", _no_metadata):
        yield


def _no_metadata(tensor: torch.Tensor) -> None:
    """In place of the TensorMetadata of a tensor."""


@contextlib.contextmanager
def substituted(native: Collection[Any] = ()) -> Iterator[None]:
    """A context in which functions of PyTorch are replaced as in a trace.

    Args:
        native: functions that are not replaced.
    """
    with (
        _symbolic_distributions(),
        causal_biases(),
        bounded_rejections(),
        assignments(),
        symbolic_arrays(),
        symbolic_tensor_types(),
        Float32Computation(),
        single_reads(),
        symbolic_texts(),
        symbolic_extremes(),
        unchanged_conversions(),
        written_control_flow(),
        WholeOps(native),
    ):
        yield
