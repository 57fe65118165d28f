"""The library of the kernels in plain sessions: results, shapes and errors of the kernels that are compiled here."""

from __future__ import annotations

import ctypes
import functools
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import backends
import built_library
import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper
from test_ops_refusals import AT_RUN, STATIC, model_of
from test_sessions import NODES, WORDS, convolutions, wrong_feeds

import onnx_ops
from models.single_op import ONNX_OPSET
from models.sparse_coding import training as sparse_coding
from onnx_ops.cli.diagnosis import Kernels
from onnx_ops.core.domain import KERNEL_DOMAIN
from onnx_ops.integrations import prebuilt
from onnx_ops.library.objects import NATIVE
from onnx_ops.ops import ALL_VERSIONS, OPS
from onnx_ops.runtime import registration
from onnx_ops.runtime.declarations import ANY
from tests.ops import RECORDS

pytestmark = pytest.mark.skipif(not built_library.can_be_built(), reason="a library cannot be built here")
FEW = ("ApplyAdamW", "EmbeddingDenseBackward", "Hardshrink", "HardshrinkBackward", "KlDiv")
"""Loops, sums, tasks, attributes, values that are checked, and the ops of a step."""
each_op = pytest.mark.parametrize("op", [op if op in FEW else pytest.param(op, marks=pytest.mark.full) for op in OPS])
OF_C = ("libc.so.6", "libm.so.6", "libpthread.so.0")


@pytest.fixture
def library() -> Path:
    return built_library.library()


@pytest.fixture
def session_of(library: Path) -> Callable[[ModelProto], ort.InferenceSession]:
    """Makes a plain session with the library."""
    options = backends.options()
    options.register_custom_ops_library(str(library))
    return functools.partial(plain_session, options=options)


def plain_session(model: ModelProto, options: ort.SessionOptions) -> ort.InferenceSession:
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


Sessions = Callable[[ModelProto], ort.InferenceSession]


@pytest.mark.skipif(sys.platform != "linux", reason="the names are those of Linux")
def test_it_needs_the_c_library_alone(library: Path) -> None:
    """And exports one function, which onnxruntime calls, and one variable, which this package reads."""
    if not (nm := shutil.which("nm")):
        pytest.skip("there is no nm")
    listed = subprocess.run([nm, "-D", "-P", str(library)], capture_output=True, text=True, check=True).stdout
    kinds = {name.partition("@")[0]: kind for name, kind, *_ in map(str.split, listed.splitlines())}
    assert {name: kind for name, kind in kinds.items() if kind not in "Uw"} == {
        "RegisterCustomOps": "T",
        prebuilt.Interface.NAME: "D",
    }
    wanted, known = {name for name, kind in kinds.items() if kind == "U"}, [*map(ctypes.CDLL, OF_C)]
    assert wanted
    assert not {name for name in wanted if not any(hasattr(library, name) for library in known)}


@each_op
def test_results(op: str, session_of: Sessions) -> None:
    """The same numbers as those of the kernels that are compiled here, and the same shapes in the model."""
    record = RECORDS[op]
    calls = [*record.combinations(), *record.calls()]
    own, found = (backend.with_outputs_of(calls) for backend in (backends.KERNEL, backends.LIBRARY))
    for call in calls:
        expected = own.run(call)
        for name, array in found.run(call).items():
            backends.assert_same_numbers(array, expected[name])
    for call in (record.plain, replace(record.plain, static=True)):
        model = backends.model_of(call)
        assert described(session_of(onnx_ops.link(model))) == described(backends.kernel_session(model))


def described(session: ort.InferenceSession) -> list[tuple[str, str, list[object]]]:
    """The outputs of a session; dimensions without a name have a fresh one in each."""
    return [
        (value.name, value.type, [re.sub(r"unknown_\d+", "unknown", str(size)) for size in value.shape])
        for value in session.get_outputs()
    ]


@each_op
def test_refusals_of_sessions(op: str, session_of: Sessions) -> None:
    """The words of the kernels that are compiled here, for a node that is known by its output."""
    models = [bare(model_of(row)) for row in STATIC if row.op == op]
    found = [refusal(session_of, model) for model in models]
    assert any(found)
    assert found == [refusal(with_kernels, model) for model in models]


@pytest.mark.parametrize("known", AT_RUN)
@each_op
def test_refusals_of_runs(op: str, known: str, session_of: Sessions) -> None:
    for row in AT_RUN[known]:
        if row.op == op:
            model = bare(model_of(row, known))
            session, own = session_of(model), with_kernels(model)
            found = refusal(backends.run_outputs, session, row.given)
            assert found
            assert found == refusal(backends.run_outputs, own, row.given)


def test_refusal_of_a_node_that_omits_its_first_output(session_of: Sessions) -> None:
    """It is known by the first one that it has."""
    session, g = session_of(onnx_ops.link(convolutions())), np.ones((1, 2, 3), np.float32)
    feeds = {"g": g, "h": g[:, :, :2], "x": np.ones((1, 1, 4), np.float32), "w": np.ones((2, 1, 2), np.float32)}
    assert "; node with output 'k' (" in str(refusal(session.run, None, feeds))


def bare(model: ModelProto) -> ModelProto:
    """A model whose nodes are those of kernels, which `link` has not checked."""
    changed = ModelProto()
    changed.CopyFrom(model)
    for node in changed.graph.node:
        node.op_type, node.domain = OPS[node.op_type].kernel_name, KERNEL_DOMAIN
    del changed.opset_import[:]
    changed.opset_import.extend([helper.make_opsetid("", ONNX_OPSET), helper.make_opsetid(KERNEL_DOMAIN, 1)])
    return changed


def with_kernels(model: ModelProto) -> ort.InferenceSession:
    return plain_session(model, backends.kernel_options())


def refusal(function: Callable[..., object], *arguments: object) -> str | None:
    """The message of the error that a function raises; None if it raises none."""
    try:
        function(*arguments)
    except Exception as error:
        return str(error)
    return None


BLOCKING = """
import pickle, sys
from importlib.abc import MetaPathFinder

class Blocked(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ImportError(f"{name} is blocked")

blocked, given = pickle.load(sys.stdin.buffer)
sys.meta_path.insert(0, Blocked())
"""
COMPILING = ("llvmlite", "numba", "onnxruntime_extensions")


def answer_without(blocked: Sequence[str], program: str, given: object, variables: Mapping[str, str]) -> Any:
    """What a program answers, in a process that can import none of some packages."""
    text = f"{BLOCKING}\n{program}\nsys.stdout.buffer.write(pickle.dumps(answer))"
    environment = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(sys.path)}
    own = pickle.dumps((blocked, given))
    done = subprocess.run([sys.executable, "-c", text], input=own, capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr.decode()
    return pickle.loads(done.stdout)


STEP = """
import numpy as np
import onnxruntime as ort

library, model, feeds = given

options = ort.SessionOptions()
options.register_custom_ops_library(library)
session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
answer = [session.run(None, arrays) for arrays in feeds]
"""


def test_step_without_this_package(library: Path) -> None:
    """A training step in a process that can import neither the package nor Numba: the results of the kernels here."""
    started = sparse_coding.TRAINING.started(0)
    model, rng = onnx_ops.link(started.model), np.random.default_rng(0)
    feeds = [
        {
            **started.state,
            "learning_rate": np.array(0.01, np.float32),
            "patches": rng.normal(size=(rows, 64)).astype(np.float32),
        }
        for rows in (5, 200)
    ]
    given = (str(library), model.SerializeToString(), feeds)
    answer = answer_without([*COMPILING, "onnx_ops"], STEP, given, {})
    own = backends.kernel_session(model)
    for found, arrays in zip(answer, feeds, strict=True):
        for array, expected in zip(found, own.run(None, arrays), strict=True):
            backends.assert_same_bits(array, expected)


NAMES = """
import onnx.parser, onnxruntime
import onnx_ops
from onnx_ops.cli.diagnosis import kernels

text, calls = given
known = kernels()  # while nothing else uses the library
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
session = onnx_ops.InferenceSession(onnx.parser.parse_model(text), options)
problems = []
for feeds in calls:
    try:
        session.run(None, feeds)
    except Exception as error:
        problems.append(str(error))
answer = problems, known
"""


def test_this_package_without_numba(library: Path) -> None:
    """It registers the library that a variable names, and errors have the names of nodes."""
    given = (NODES, [wrong_feeds(wrong) for wrong in WORDS])
    problems, kernels = answer_without(COMPILING, NAMES, given, {prebuilt.VARIABLE: str(library)})
    assert [re.findall(r"; (node .*) \(ACLNN", problem) for problem in problems] == [
        [words] for words in WORDS.values()
    ]
    assert kernels == Kernels(True, None, str(library), NATIVE)


@pytest.mark.parametrize("compiled", [False, True])
def test_options_have_the_kernels_that_are_chosen_for_them(compiled: bool, library: Path) -> None:
    """Whatever other options have, also those before them with the same choice."""
    source: Any = registration if compiled else prebuilt.Library(library)
    name = OPS["Hardshrink"].kernel_name
    chosen = {name: [ANY]}
    models = {op: bare(backends.model_of(RECORDS[op].plain)) for op in ("Hardshrink", "KlDiv")}
    # A library has kernels by name alone; the models are of float32.
    other, of_other = {name: [(TensorProto.DOUBLE,)]}, set() if compiled else {"Hardshrink"}
    for kernels, expected in (
        (chosen, {"Hardshrink"}),
        (None, {*models}),
        ({}, set()),
        (chosen, {"Hardshrink"}),
        (other, of_other),
    ):
        options = source.register(None, ALL_VERSIONS, kernels)
        refused = {
            op for op, model in models.items() if refusal(functools.partial(plain_session, options=options), model)
        }
        assert refused == {*models} - expected


def test_library_of_another_interface(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one without any, such as that of other custom ops."""
    options = backends.options()
    for name, value in (("VERSION", 0), ("NAME", "none_such")):
        with monkeypatch.context() as patched:
            patched.setattr(prebuilt.Interface, name, value)
            with pytest.raises(onnx_ops.KernelsUnavailableError, match="is of another version of onnx_ops"):
                prebuilt.Library(library).register(options)
    prebuilt.Library(library).register(options)


def test_library_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    path.write_text("no library")
    with pytest.raises(onnx_ops.KernelsUnavailableError, match=re.escape(str(path))):
        prebuilt.Library(path).register(None)
    assert not prebuilt.Library(path).is_registered()
