"""Sessions with the kernels in them."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import onnxruntime as ort

from onnx_ops.errors import KernelsUnavailable
from onnx_ops.linking import link, tensors
from onnx_ops.runtime.process import STATE, aside

EXTERNAL_DATA_FOLDER = "session.model_external_initializers_file_folder_path"

_warned: set[str] = set()


def session_options(options: ort.SessionOptions | None = None) -> ort.SessionOptions:
    """Options with the kernels registered.

    Args:
        options: options to register them with; the same object is returned. None makes new ones.

    Where the kernels cannot be registered the options come back without them, and one warning per process says so:
    linked models then run on the portable bodies.
    """
    return _options(options, stacklevel=3)


def _options(options: ort.SessionOptions | None, stacklevel: int) -> ort.SessionOptions:
    try:
        registered = register(options)
    except KernelsUnavailable as reason:
        _warn_once(f"onnx_ops runs on portable bodies, not on its kernels: {reason}", stacklevel + 1)
        return ort.SessionOptions() if options is None else options
    from onnx_ops.runtime.compiler import DIRECTORY_VARIABLE, unsaved

    if reason_unsaved := unsaved():
        _warn_once(
            f"onnx_ops compiles its kernels anew in each process, for it cannot keep them: {reason_unsaved}. Set"
            f" {DIRECTORY_VARIABLE} to a folder that can be written, or to one that `onnx-ops compile` has filled",
            stacklevel + 1,
        )
    return registered


def _warn_once(text: str, stacklevel: int) -> None:
    """Warn of what holds for the whole process."""
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, stacklevel=stacklevel)


def register(options: ort.SessionOptions | None) -> ort.SessionOptions:
    """As `session_options`, but KernelsUnavailable instead of a warning."""
    try:
        host = _host()
    except ImportError as error:
        raise KernelsUnavailable(f"Numba cannot be imported: {error}") from error
    return host.register(options)


@functools.cache
def _host() -> ModuleType:
    """The module that registers kernels.

    An interrupt amid its imports would leave Numba half imported, and a fork would leave it locked in the child.
    """

    def imported() -> ModuleType:
        with STATE.registering:
            from onnx_ops.runtime import host

            return host

    return aside(imported)


class InferenceSession(ort.InferenceSession):
    """An onnxruntime session of a model with ops of this domain; the model is linked, the kernels are registered.

    Args:
        model: a ModelProto, its bytes, or a path (external data next to it is found).
        sess_options, providers, kwargs: as for onnxruntime.InferenceSession.

    Raises:
        OpError, LinkError: what `link` refuses.
        onnxruntime exceptions: what a session refuses, when it is made or run; their text names op and input.
    """

    def __init__(
        self,
        model: onnx.ModelProto | bytes | str | os.PathLike[str],
        sess_options: ort.SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        options = _options(sess_options, stacklevel=3)
        linked = link(model)
        external = any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in tensors(linked))
        content = linked.SerializeToString()
        if not external or not isinstance(model, str | os.PathLike):
            super().__init__(content, options, providers, **kwargs)
            return
        # onnxruntime logs a warning where an entry changes, so options that nobody else has are left as they are.
        before = None if sess_options is None else _config_entry(options, EXTERNAL_DATA_FOLDER)
        options.add_session_config_entry(EXTERNAL_DATA_FOLDER, str(Path(model).absolute().parent))
        try:
            super().__init__(content, options, providers, **kwargs)
        finally:
            if before is not None:
                options.add_session_config_entry(EXTERNAL_DATA_FOLDER, before)


def _config_entry(options: ort.SessionOptions, key: str) -> str:
    try:
        return str(options.get_session_config_entry(key))
    except RuntimeError:
        return ""
