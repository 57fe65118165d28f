"""Sessions with the kernels in them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort

from onnx_ops.errors import KernelsUnavailable
from onnx_ops.linking import link, tensors

EXTERNAL_DATA_FOLDER = "session.model_external_initializers_file_folder_path"

_warned = False


def session_options(options: ort.SessionOptions | None = None) -> ort.SessionOptions:
    """Options with the kernels registered.

    Args:
        options: options to register them with; the same object is returned. None makes new ones.

    Where the kernels cannot be registered the options come back without them, and one warning per process says so:
    linked models then run on the portable bodies.
    """
    return _options(options, stacklevel=3)


def _options(options: ort.SessionOptions | None, stacklevel: int) -> ort.SessionOptions:
    global _warned
    try:
        return register(options)
    except KernelsUnavailable as reason:
        if not _warned:
            _warned = True
            warnings.warn(f"onnx_ops runs on portable bodies, not on its kernels: {reason}", stacklevel=stacklevel)
        return ort.SessionOptions() if options is None else options


def register(options: ort.SessionOptions | None) -> ort.SessionOptions:
    """As `session_options`, but KernelsUnavailable instead of a warning."""
    try:
        from onnx_ops.runtime import host
    except ImportError as error:
        raise KernelsUnavailable(f"Numba cannot be imported: {error}") from error
    return host.register(options)


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
