"""Sessions with the kernels."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import onnxruntime as ort

from onnx_ops.core.call import Call
from onnx_ops.core.errors import KernelsUnavailableError
from onnx_ops.core.op import Op
from onnx_ops.graph.files import MOST_BYTES, embed_external_data, external_files
from onnx_ops.graph.metadata import metadata_of
from onnx_ops.graph.reading import check, load_model, name_of
from onnx_ops.graph.walk import tensors
from onnx_ops.integrations import prebuilt
from onnx_ops.linking.attached import LINKED_DIGEST, called_kernels, linked_digest
from onnx_ops.linking.link import link_in_place
from onnx_ops.linking.origins import Origins
from onnx_ops.linking.sites import sites
from onnx_ops.ops import ALL_VERSIONS, op_named
from onnx_ops.runtime.cache import DIRECTORY_VARIABLE, problem
from onnx_ops.runtime.declarations import ANY, Dtypes, Kernels, dtypes_of
from onnx_ops.runtime.heap import Heap, may_serve
from onnx_ops.runtime.process import STATE, aside

EXTERNAL_DATA_FOLDER = "session.model_external_initializers_file_folder_path"

_warned: set[str] = set()
_compiled: set[Hashable] = set()
"""Versions of ops and keys of calls for which `compile_ahead` has run."""
_linked: dict[str | None, Kernels | None] = {}
"""What `_kernels_of` returns for linked models whose calls `compile_ahead` has compiled, by digest."""


def session_options() -> ort.SessionOptions:
    """New session options with the kernels registered, as by `register_kernels`."""
    return registered_options(None, stacklevel=3)


def register_kernels(options: ort.SessionOptions) -> None:
    """Register the kernels with session options, in place. Registering them again has no effect.

    If the kernels cannot be registered, the options stay as they are and a warning is issued once per process: linked
    models then run on function bodies.

    Args:
        options: used for sessions that are made afterwards.

    Raises:
        TypeError: no onnxruntime.SessionOptions.
        RuntimeError: options with which onnxruntime-extensions was registered before the kernels were added to it.
    """
    if not isinstance(options, ort.SessionOptions):
        raise TypeError(
            f"options are a {type(options).__name__}, expected onnxruntime.SessionOptions; onnx_ops.session_options()"
            " returns new ones"
        )
    registered_options(options, stacklevel=3)


def registered_options(
    options: ort.SessionOptions | None, stacklevel: int, kernels: Kernels | None = None
) -> ort.SessionOptions:
    """The given options, or new ones, after `register_kernels`.

    Args:
        options: session options, or None.
        stacklevel: of warnings, as in warnings.warn, counted from this function.
        kernels: as for `register`.
    """
    try:
        registered = register(options, kernels)
    except KernelsUnavailableError as reason:
        _warn_once(f"onnx_ops runs on function bodies, not on its kernels: {reason}", stacklevel + 1)
        return ort.SessionOptions() if options is None else options
    _warn_of_cache(stacklevel + 1)
    return registered


class OwnOptions(ort.SessionOptions):
    """Options of a single InferenceSession, which registers the kernels of its model alone with them."""


def _warn_of_cache(stacklevel: int) -> None:
    """Warn if compiled kernels could not be loaded from the cache or saved there."""
    if reason := problem():
        _warn_once(
            f"onnx_ops compiles kernels in each process, as it cannot use its cache: {reason}. Set"
            f" {DIRECTORY_VARIABLE} to a folder that only you can write, or to one that `onnx-ops compile` has filled",
            stacklevel + 1,
        )


def _warn_once(text: str, stacklevel: int) -> None:
    """Issue a warning once per process."""
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, stacklevel=stacklevel)


def register(options: ort.SessionOptions | None, kernels: Kernels | None = None) -> ort.SessionOptions:
    """As `registered_options`, but raises KernelsUnavailableError instead of a warning.

    Args:
        options: session options, or None.
        kernels: as for `registration.register`.
    """
    try:
        source = _kernels()
    except ImportError as error:
        raise KernelsUnavailableError(f"Numba cannot be imported: {error}") from error
    options = source.register(options, ALL_VERSIONS, kernels)
    STATE.enter_onnxruntime()
    return options


def _kernels() -> ModuleType | prebuilt.Library:
    """Where sessions get kernels from: a library, or the module that compiles them.

    Raises:
        ImportError: there is no library, and Numba cannot be imported.
    """
    return prebuilt.library() or _registration()


@functools.cache
def _registration() -> ModuleType:
    """The module that compiles and registers kernels.

    It is imported in another thread and under a lock: an interrupt during the import would leave Numba partly imported,
    and a fork would leave it locked in the child.
    """

    def imported() -> ModuleType:
        with STATE.registering:
            from onnx_ops.runtime import registration

            return registration

    return aside(imported)


def kernels_registered() -> bool:
    """Whether sessions of this process can have the kernels."""
    try:
        return bool(_kernels().is_registered())
    except ImportError:
        return False


def kernels_complete(model: onnx.ModelProto) -> bool:
    """Whether sessions can have the kernels of all ops of a model, which is not linked: a library may lack some."""
    if not kernels_registered():
        return False
    library = prebuilt.library()
    return library is None or library.has(op_named(s.node.op_type, s.version).kernel_name for s in sites(model))


def compile_ahead(calls: Iterable[tuple[Op, Call]]) -> None:
    """Compile the kernels of calls on all cores, unless a library has them.

    Calls with unknown dtypes are skipped: a session compiles their kernels when it is made. Kernels do not depend on
    shapes.
    """
    if not prebuilt.library() and kernels_registered():
        from onnx_ops.runtime.ahead import compile_ahead as compile_functions
        from onnx_ops.runtime.kernels import functions_of

        known = [(op, call) for op, call in calls if all(t is None or t.dtype for t in call.inputs.values())]
        new = {key: (op, call) for op, call in known if (key := (op.version, *call.key)) not in _compiled}
        compile_functions(function for op, call in new.values() for function in functions_of(op, call))
        _compiled.update(new)


def _is_compiled(model: onnx.ModelProto) -> bool:
    """Whether a model is linked, and its calls are no news to `compile_ahead`."""
    digest = linked_digest(model)
    return digest is not None and (digest in _linked or prebuilt.library() is not None)


def _kernels_of(model: onnx.ModelProto, calls: Iterable[tuple[Op, Call]]) -> Kernels | None:
    """The kernels that a linked model calls, for the dtypes of its calls; None as for `called_kernels`.

    Args:
        model: the model.
        calls: its calls; those of a model that was linked before may be left out.
    """
    names = called_kernels(model)
    if names is None:
        return None
    dtypes: dict[str, set[Dtypes]] = {name: set() for name in names}
    for op, call in calls:
        dtypes[op.kernel_name].add(dtypes_of(op, call))
    return {name: frozenset(found or [ANY]) for name, found in dtypes.items()}


class InferenceSession(ort.InferenceSession):
    """An onnxruntime session of a model with ops of this domain; links the model and registers the kernels.

    Args:
        path_or_bytes: a ModelProto, its bytes, or a path. External data next to a file is found; with sess_options it
            is read into memory, or, if it exceeds 2 GiB, a temporary file is written next to the model.
        sess_options: as for onnxruntime.InferenceSession; all kernels are registered with them, for this and further
            sessions. By default those that the model calls are, which takes less time.
        providers, provider_options, kwargs: as for onnxruntime.InferenceSession.

    Raises:
        OpError, LinkError: what `link` refuses.
        ValueError: external data that onnxruntime does not find or accept.
        onnxruntime exceptions: a model or call that the session refuses; the message names op and input.
    """

    def __init__(
        self,
        path_or_bytes: onnx.ModelProto | bytes | str | os.PathLike[str],
        sess_options: ort.SessionOptions | None = None,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        linked, calls = load_model(path_or_bytes, checked=False), []
        if not _is_compiled(linked):
            check(linked, name_of(path_or_bytes))
            calls = link_in_place(linked)
        options = OwnOptions() if sess_options is None else sess_options
        digest = metadata_of(linked, LINKED_DIGEST)
        kernels = _linked[digest] if digest in _linked else _kernels_of(linked, calls)
        own = isinstance(options, OwnOptions)
        options = registered_options(options, stacklevel=3, kernels=kernels if own else None)
        if calls:
            compile_ahead(calls)
        if digest is not None:
            _linked[digest] = kernels
        with contextlib.ExitStack() as stack:
            # The folder of external data is a session option. The caller's options are not changed: they may be used
            # elsewhere at the same time.
            model: str | bytes | None = None
            if isinstance(path_or_bytes, str | os.PathLike) and _is_external(linked):
                path = Path(path_or_bytes).absolute()
                data = [path.parent / location for location in external_files(linked, path)]
                if own and all(f.resolve().is_relative_to(path.parent.resolve()) for f in data):
                    options.add_session_config_entry(EXTERNAL_DATA_FOLDER, str(path.parent))
                elif linked.ByteSize() + sum(f.stat().st_size for f in data) <= MOST_BYTES:
                    embed_external_data(linked, path)
                else:
                    model = stack.enter_context(_written_in(path.parent, linked))
            stack.enter_context(_naming(linked))
            super().__init__(model or linked.SerializeToString(), options, providers, provider_options, **kwargs)
        _warn_of_cache(stacklevel=3)


@contextlib.contextmanager
def _written_in(folder: Path, model: onnx.ModelProto) -> Iterator[str]:
    """The path of a temporary file that holds the model, in the folder of its external data."""
    handle, path = tempfile.mkstemp(prefix=".onnx_ops_", suffix=".onnx", dir=folder)
    try:
        with open(handle, "wb") as file:
            file.write(model.SerializeToString())
        yield path
    finally:
        os.unlink(path)


def _naming(model: onnx.ModelProto) -> contextlib.AbstractContextManager[None]:
    """A context for making a session of a linked model, in which its kernels learn the names of their nodes."""
    return _context(lambda source: source.naming(Origins(model)))


def reserving(size: int) -> contextlib.AbstractContextManager[None]:
    """A context for making a session whose memory arena begins with a region of `size` bytes, 0 for one of its choice.

    The arena chooses too in a session without kernels.
    """
    return _context(lambda source: source.reserving(size)) if size else contextlib.nullcontext()


def new_heap(options: ort.SessionOptions) -> Heap | None:
    """A heap for sessions with these options.

    None without kernels, for options that choose another allocator than the arena, and where heaps cannot be made.
    """
    if not kernels_registered() or not may_serve(options):
        return None
    try:
        return Heap(_kernels().heap_functions())
    except OSError:
        return None


def _context(made: Callable[[Any], contextlib.AbstractContextManager[None]]) -> contextlib.AbstractContextManager[None]:
    """A context that the source of kernels makes; none without kernels."""
    try:
        source = _kernels()
    except ImportError:
        return contextlib.nullcontext()
    return made(source)


def _is_external(model: onnx.ModelProto) -> bool:
    return any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in tensors(model))
