"""The trainer in C++ in this process: its C functions, compiled with the compiler of the machine."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import helper

import onnx_ops
from scripts.compiling import CAPI, COMPILER, FLAGS, compiled
from tests.builds import built

Array = np.ndarray[Any, Any]

MOST_BYTES = 2_000_000
"""Of a program with the trainer."""


@functools.cache
def program(source: Path, *flags: str) -> Path:
    """The compiled program or library of a C++ file; MissingError if it cannot be compiled here."""
    name = hashlib.sha256(" ".join((source.read_text(), *flags)).encode()).hexdigest()[:16]
    folder = built(f"cpp-{name}", _headers(), lambda folder: compiled(source, folder, *flags))
    found = folder / source.stem
    assert found.stat().st_size < MOST_BYTES
    return found


@functools.cache
def _headers() -> str:
    """A hash of what all programs depend on."""
    commands = [str(COMPILER), *FLAGS, str(CAPI), onnxruntime.__version__]
    digest = hashlib.sha256(" ".join(commands).encode())
    for file in sorted(Path(onnx_ops.include_directory()).rglob("*.h*")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


@functools.cache
def library() -> ctypes.CDLL:
    """The C functions; MissingError if they cannot be compiled here."""
    source = Path(tempfile.mkdtemp(prefix="onnx_ops_cpp_")) / "trainer.cpp"
    source.write_text("#define ONNX_OPS_TRAINER_IMPLEMENTATION\n#include <onnx_ops/onnx_ops_trainer.h>\n")
    flags = ("-shared", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden")
    found = ctypes.CDLL(str(program(source, *flags)))
    found.onnx_ops_error_message.restype = ctypes.c_char_p
    found.onnx_ops_trainer_metadata.restype = ctypes.c_char_p
    found.onnx_ops_tensors_count.restype = ctypes.c_size_t
    found.onnx_ops_tensors_at.restype = _Tensor
    return found


class _Tensor(ctypes.Structure):
    """onnx_ops_tensor."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
    )


class _Options(ctypes.Structure):
    """onnx_ops_trainer_options."""

    _fields_ = (
        ("check_finite", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("log_severity", ctypes.c_int32),
        ("kernels", ctypes.c_char_p),
        ("keep_previous", ctypes.c_int32),
        ("batch_dimension", ctypes.c_char_p),
    )


class CppError(Exception):
    """An error of the trainer in C++.

    Attributes:
        kind: onnx_ops_status.
    """

    def __init__(self, kind: int, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class CppTrainer:
    """A step, or several by name, with the trainer in C++, whose methods are those of `onnx_ops.Trainer`."""

    def __init__(
        self,
        step: Path | Mapping[str, Path],
        *,
        check_finite: bool = True,
        threads: int = 1,
        kernels: Path | None = None,
        keep_previous: bool = False,
        batch_dimension: str | None = None,
    ) -> None:
        self._library = library()
        self._handle = ctypes.c_void_p()
        library_path, dimension = (None if text is None else str(text).encode() for text in (kernels, batch_dimension))
        options = _Options(check_finite, threads, 4, library_path, keep_previous, dimension)
        given = ctypes.byref(options), ctypes.byref(self._handle)
        if isinstance(step, Mapping):
            names, paths = (
                (ctypes.c_char_p * len(step))(*(str(t).encode() for t in texts)) for texts in (step, step.values())
            )
            self._call("create_steps", names, paths, ctypes.c_size_t(len(step)), *given, own=False)
        else:
            self._call("create", str(step).encode(), *given, own=False)

    def __getitem__(self, step: str) -> CppTrainer:
        found = object.__new__(CppTrainer)
        found._library, found._handle = self._library, ctypes.c_void_p()
        self._call("get_step", step.encode(), ctypes.byref(found._handle))
        return found

    def __del__(self) -> None:
        if self._handle:
            self._library.onnx_ops_trainer_release(self._handle)

    @property
    def batch_inputs(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        """Element types and shapes, in which dynamic dimensions are -1."""
        found = ctypes.c_void_p()
        self._call("batch_inputs", ctypes.byref(found))
        return {name: (element, shape) for name, element, shape, _ in self._tensors(found)}

    def step(self, /, **batch: Array) -> dict[str, Array]:
        return self._arrays("step", *_given(batch))

    def accumulate(self, /, **batch: Array) -> dict[str, Array]:
        return self._arrays("accumulate", *_given(batch))

    @property
    def keeps_previous(self) -> bool:
        return bool(self._library.onnx_ops_trainer_keeps_previous(self._handle))

    def evaluate(self, mode: str = "eval", /, **batch: Array) -> dict[str, Array]:
        return self._arrays("evaluate", mode.encode(), *_given(batch))

    def predict(self, /, **inputs: Array) -> dict[str, Array]:
        return self._arrays("infer", *_given(inputs))

    def state_dict(self) -> dict[str, Array]:
        return self._arrays("state")

    def load_state_dict(self, state: Mapping[str, Array], *, strict: bool = True) -> None:
        self._call("load_state", *_given(state), strict)

    def save(self, path: Path, metadata: Mapping[str, str] | None = None, *, frozen: bool = True) -> None:
        texts = [text.encode() for entry in (metadata or {}).items() for text in entry]
        given = (ctypes.c_char_p * len(texts))(*texts)
        self._call("save", str(path).encode(), given, ctypes.c_size_t(len(texts) // 2), frozen)

    def load(self, path: Path, *, strict: bool = True) -> None:
        self._call("load", str(path).encode(), strict)

    def metadata(self, key: str) -> str | None:
        """A value of the metadata of the file that was loaded last."""
        found = self._library.onnx_ops_trainer_metadata(self._handle, key.encode())
        return None if found is None else found.decode()

    def export(self, path: Path, *, averaged: bool = False) -> None:
        self._call("export", str(path).encode(), averaged)

    @property
    def has_graphs(self) -> tuple[bool, bool]:
        """Whether there is an inference graph, and an evaluation graph."""
        one, other = (getattr(self._library, f"onnx_ops_trainer_has_{n}_graph") for n in ("inference", "evaluation"))
        return bool(one(self._handle)), bool(other(self._handle))

    @property
    def learning_rate(self) -> float | tuple[float, ...]:
        rates, count = (ctypes.c_double * 10)(), ctypes.c_size_t()
        self._call("learning_rates", rates, ctypes.c_size_t(10), ctypes.byref(count))
        found = tuple(rates[: count.value])
        return found if len(found) > 1 else found[0]

    @learning_rate.setter
    def learning_rate(self, rate: float | tuple[float, ...]) -> None:
        rates = rate if isinstance(rate, tuple) else (rate,)
        self._call("set_learning_rates", (ctypes.c_double * len(rates))(*rates), ctypes.c_size_t(len(rates)))

    @property
    def seed(self) -> int:
        found = ctypes.c_int64()
        self._call("seed", ctypes.byref(found))
        return found.value

    @seed.setter
    def seed(self, value: int) -> None:
        self._call("set_seed", ctypes.c_int64(value))

    def _call(self, name: str, *arguments: Any, own: bool = True) -> None:
        function = getattr(self._library, f"onnx_ops_trainer_{name}")
        status = function(*((self._handle,) if own else ()), *arguments)
        if status:
            raise CppError(status, self._library.onnx_ops_error_message().decode(errors="replace"))

    def _arrays(self, name: str, *arguments: Any) -> dict[str, Array]:
        found = ctypes.c_void_p()
        self._call(name, *arguments, ctypes.byref(found))
        return {name: array for name, _, _, array in self._tensors(found)}

    def _tensors(self, found: ctypes.c_void_p) -> list[tuple[str, int, tuple[int, ...], Array]]:
        tensors = []
        for index in range(self._library.onnx_ops_tensors_count(found)):
            tensor = self._library.onnx_ops_tensors_at(found, ctypes.c_size_t(index))
            shape, dtype = tuple(tensor.shape[: tensor.rank]), helper.tensor_dtype_to_np_dtype(tensor.type)
            array = np.zeros([max(size, 0) for size in shape], dtype)
            if tensor.data:
                ctypes.memmove(array.ctypes.data, tensor.data, array.nbytes)
            tensors.append((tensor.name.decode(), tensor.type, shape, array))
        self._library.onnx_ops_tensors_release(found)
        return tensors


def _given(arrays: Mapping[str, Array]) -> tuple[Any, ctypes.c_size_t]:
    """Arrays as C functions take them."""
    given = (_Tensor * len(arrays))()
    given.kept = kept = []  # as long as the tensors
    for index, (name, array) in enumerate(arrays.items()):
        kept.append(np.ascontiguousarray(array).reshape(array.shape))
        shape, element = (ctypes.c_int64 * array.ndim)(*array.shape), helper.np_dtype_to_tensor_dtype(array.dtype)
        given[index] = _Tensor(name.encode(), element, array.ndim, shape, kept[-1].ctypes.data)
    return given, ctypes.c_size_t(len(arrays))
