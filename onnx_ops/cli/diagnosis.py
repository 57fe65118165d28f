"""The self-test of the ops on this machine. All fields have types of JSON."""

from __future__ import annotations

import enum
import importlib.metadata
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort
from packaging.requirements import Requirement

from onnx_ops.cli.inspection import FUNCTION_BODY
from onnx_ops.core.errors import KernelsUnavailableError
from onnx_ops.core.op import Op
from onnx_ops.integrations import prebuilt
from onnx_ops.integrations.examples import example_model
from onnx_ops.integrations.sessions import compile_ahead, register
from onnx_ops.integrations.severity import FATAL
from onnx_ops.linking.inlining import inline
from onnx_ops.linking.link import link, link_in_place
from onnx_ops.ops import OPS
from onnx_ops.runtime import cache

PACKAGES = ("onnx-ops", "onnx", "onnxruntime", "onnxruntime-extensions", "numba", "numpy")


@dataclass(frozen=True)
class Unsupported:
    """A package in a version that is not supported, and the versions that are, such as ">=1.23"."""

    package: str
    version: str
    supported: str


@dataclass(frozen=True)
class Kernels:
    """Whether the kernels can be registered with onnxruntime here; if not, the reason.

    Attributes:
        library: path of the library that they are in; None if they are compiled here.
        level: level of processors whose code of the library is used.
    """

    registered: bool
    reason: str | None
    library: str | None = None
    level: str | None = None


@dataclass(frozen=True)
class Cache:
    """The cache directory of compiled kernels.

    Attributes:
        path: None if there is none.
        writable: whether kernels can be saved there.
        problem: why kernels cannot be loaded or saved there.
    """

    path: str | None
    writable: bool
    problem: str | None


class Verdict(enum.StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    UNAVAILABLE = "unavailable"
    """Not run, as the kernels cannot be registered."""


@dataclass(frozen=True)
class Outcome:
    """The result of running an op's example in one way."""

    op: str
    way: str
    status: Verdict
    detail: str | None


@dataclass(frozen=True)
class Diagnosis:
    """The result for a machine. The version of a package that is not installed is None."""

    platform: str
    versions: Mapping[str, str | None]
    unsupported: tuple[Unsupported, ...]
    kernels: Kernels
    cache: Cache
    outcomes: tuple[Outcome, ...]

    @property
    def ok(self) -> bool:
        return not self.unsupported and all(outcome.status != Verdict.FAILED for outcome in self.outcomes)


def diagnose() -> Diagnosis:
    """Test this machine: run each op in each way."""
    here = kernels()
    _compile_ahead()
    outcomes = tuple(_outcome(op, way, make) for op in OPS.values() for way, make in _ways().items())
    versions = {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}
    return Diagnosis(platform.platform(), versions, _unsupported(), here, _cache(), outcomes)


def _compile_ahead() -> None:
    compile_ahead(link_in_place(example_model(op))[0] for op in OPS.values())


def kernels() -> Kernels:
    """Try to register the kernels; compiles the code for it if it is not cached."""
    library = prebuilt.library()
    path = str(library.path) if library else None
    try:
        register(None)
    except KernelsUnavailableError as reason:
        return Kernels(False, str(reason), path)
    return Kernels(True, None, path, library.level() if library else None)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # onnxruntime has several distributions
        return getattr(sys.modules.get(package.replace("-", "_")), "__version__", None)


def _unsupported() -> tuple[Unsupported, ...]:
    """Installed packages whose version does not meet the requirements of onnx-ops."""
    found = []
    for requirement in map(Requirement, _requirements()):
        version = _version(requirement.name)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": "cli"})
        if version and applies and not requirement.specifier.contains(version, prereleases=True):
            found.append(Unsupported(requirement.name, version, str(requirement.specifier)))
    return tuple(found)


def _requirements() -> list[str]:
    try:
        return importlib.metadata.requires("onnx-ops") or []
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return []


def _cache() -> Cache:
    try:
        wanted = str(cache.wanted_cache_directory())
    except OSError as error:
        return Cache(None, False, str(error))
    try:
        cache.cache_directory()
    except OSError as error:
        return Cache(wanted, False, str(error))
    return Cache(wanted, True, cache.problem())


# --- the self-test ---------------------------------------------------------------------------------------------------


def _on_kernel(model: onnx.ModelProto) -> ort.InferenceSession:
    return _session(link(model), register(None))


def _on_function_body(model: onnx.ModelProto) -> ort.InferenceSession:
    return _session(link(model), ort.SessionOptions())


def _inlined(model: onnx.ModelProto) -> ort.InferenceSession:
    return _session(inline(model), ort.SessionOptions())


Way = Callable[[onnx.ModelProto], ort.InferenceSession]
WAYS: Mapping[str, Way] = {
    "kernel": _on_kernel,
    FUNCTION_BODY: _on_function_body,
    "inlined": _inlined,
}


COMPILED = "compiled here"
"""Another way, where there is a library of the kernels and what compiles them too: both must give the same results."""


def _compiled_here(model: onnx.ModelProto) -> ort.InferenceSession:
    with prebuilt.disregarded():
        return _on_kernel(model)


def _ways() -> Mapping[str, Way]:
    if prebuilt.library() is None:
        return WAYS
    with prebuilt.disregarded():
        if not kernels().registered:
            return WAYS
        _compile_ahead()
    return {**WAYS, COMPILED: _compiled_here}


def _session(model: onnx.ModelProto, options: ort.SessionOptions) -> ort.InferenceSession:
    options.log_severity_level = FATAL
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _outcome(op: Op, way: str, make: Way) -> Outcome:
    expected = op.example.expected()
    try:
        results = make(example_model(op)).run(None, op.example.arrays())
    except KernelsUnavailableError as reason:
        return Outcome(op.name, way, Verdict.UNAVAILABLE, str(reason))
    except Exception as error:
        return Outcome(op.name, way, Verdict.FAILED, f"{type(error).__name__}: {error}")
    # The tolerance of float32, to which inputs and results are rounded.
    for (name, wanted), got in zip(expected.items(), results, strict=True):
        if got.shape != wanted.shape or not np.allclose(got, wanted, rtol=3e-7, atol=6e-8, equal_nan=True):
            problem = f"{name} is {got.tolist()}, expected {wanted.tolist()}"
            return Outcome(op.name, way, Verdict.FAILED, problem)
    return Outcome(op.name, way, Verdict.PASSED, None)
