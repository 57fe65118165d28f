"""Sessions: every way to make one, options of every state, the kernels or the function bodies underneath."""

from __future__ import annotations

import inspect
import json
import re
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import onnx_ops
from onnx_ops.core.call import Call
from onnx_ops.core.op import Op
from onnx_ops.integrations import sessions
from onnx_ops.runtime import requests
from onnx_ops.runtime.kernels import Parts
from onnx_ops.runtime.process import STATE

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(21)
G, X = (RNG.normal(size=(2, 3)).astype(np.float32) for _ in range(2))
EXPECTED = np.where(np.abs(X) > np.float32(0.25), G, np.float32(0))
FEEDS = {"g": G, "x": X}
KERNEL_NODE = "aclnn_HardshrinkBackward_v1"


def model() -> onnx.ModelProto:
    return parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21, "aclnn" : 1]>
        graph (float[2,3] g, float[2,3] x) => (float[2,3] o) {
            o = aclnn.HardshrinkBackward <lambd: float = 0.25> (g, x)
        }"""
    )


def linked_bytes() -> bytes:
    return bytes(onnx_ops.link(model()).SerializeToString())


def nodes_that_ran(
    source: bytes, options: ort.SessionOptions, tmp_path: Path, feeds: Mapping[str, Array] = FEEDS
) -> set[str]:
    """The operators of a run, from onnxruntime's profile of it."""
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = ort.InferenceSession(source, options)
    session.run(None, dict(feeds))
    events = json.loads(Path(session.end_profiling()).read_text())
    options.enable_profiling = False
    return {e["args"]["op_name"] for e in events if "op_name" in e.get("args", {})}


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which the kernels cannot be registered."""
    monkeypatch.setitem(STATE.shared, "library", (None, "no such library here"))
    monkeypatch.setattr(sessions, "_warned", set())


# --- ways to make a session ------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save_model(model(), path)
    return path


SOURCES: dict[str, Callable[[Path], Any]] = {
    "model": lambda path: onnx.load_model(path),
    "bytes": lambda path: path.read_bytes(),
    "str": str,
    "path": lambda path: path,
    "linked-model": lambda path: onnx_ops.link(path),
    "linked-bytes": lambda path: onnx_ops.link(path).SerializeToString(),
}


@pytest.mark.parametrize("source", SOURCES)
def test_session_of(source: str, saved: Path) -> None:
    session = onnx_ops.InferenceSession(SOURCES[source](saved))
    assert isinstance(session, ort.InferenceSession)
    (actual,) = session.run(None, FEEDS)
    np.testing.assert_array_equal(actual, EXPECTED, strict=True)
    assert [i.name for i in session.get_inputs()] == ["g", "x"]
    assert [(o.name, o.shape, o.type) for o in session.get_outputs()] == [("o", [2, 3], "tensor(float)")]


def test_session_takes_what_onnxruntime_takes(saved: Path) -> None:
    session = onnx_ops.InferenceSession(
        saved,
        ort.SessionOptions(),
        ["CPUExecutionProvider"],
        provider_options=[{}],
        disabled_optimizers=["ConstantFolding"],
    )
    assert session.get_providers() == ["CPUExecutionProvider"]
    np.testing.assert_array_equal(session.run(["o"], FEEDS)[0], EXPECTED)


def test_session_takes_the_names_of_onnxruntime(saved: Path) -> None:
    for source in (saved, model()):
        session = onnx_ops.InferenceSession(
            path_or_bytes=source, sess_options=None, providers=["CPUExecutionProvider"], provider_options=None
        )
        np.testing.assert_array_equal(session.run(["o"], FEEDS)[0], EXPECTED)


def test_session_takes_the_positions_of_onnxruntime(saved: Path) -> None:
    theirs = list(inspect.signature(ort.InferenceSession.__init__).parameters.values())
    ours = list(inspect.signature(onnx_ops.InferenceSession.__init__).parameters.values())
    assert [(p.name, p.kind) for p in ours] == [(p.name, p.kind) for p in theirs]
    session = onnx_ops.InferenceSession(saved, ort.SessionOptions(), ["CPUExecutionProvider"], [{}])
    np.testing.assert_array_equal(session.run(["o"], FEEDS)[0], EXPECTED)


def test_plain_session_with_our_options_runs_the_kernel(tmp_path: Path) -> None:
    assert nodes_that_ran(linked_bytes(), onnx_ops.session_options(), tmp_path) == {KERNEL_NODE}


def test_plain_session_without_our_options_runs_the_function_body(tmp_path: Path) -> None:
    ran = nodes_that_ran(linked_bytes(), ort.SessionOptions(), tmp_path)
    assert "Where" in ran
    assert KERNEL_NODE not in ran


def test_session_that_is_given_no_path_leaves_no_trace_of_one(saved: Path) -> None:
    options = ort.SessionOptions()
    onnx_ops.InferenceSession(model(), options)
    with pytest.raises(RuntimeError):
        options.get_session_config_entry("session.model_external_initializers_file_folder_path")


# --- external data ---------------------------------------------------------------------------------------------------


def _save_external(folder: Path, values: Array, name: str = "model.onnx") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    proto = model()
    del proto.graph.input[1]
    proto.graph.initializer.append(numpy_helper.from_array(values, "x"))
    onnx.save_model(proto, folder / name, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return folder / name


@pytest.mark.parametrize("kind", [str, Path])
def test_external_data_elsewhere(kind: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _save_external(tmp_path / "there", X)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    np.testing.assert_array_equal(onnx_ops.InferenceSession(kind(path)).run(None, {"g": G})[0], EXPECTED)


def test_external_data_by_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _save_external(tmp_path / "there", X)
    monkeypatch.chdir(tmp_path)
    session = onnx_ops.InferenceSession("there/model.onnx")
    monkeypatch.chdir("/")
    np.testing.assert_array_equal(session.run(None, {"g": G})[0], EXPECTED)


def test_external_data_beside_a_link_to_the_model(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As caches of downloaded models keep them; and nothing is logged."""
    path = _save_external(tmp_path / "link", X)
    (tmp_path / "store").mkdir()
    path.symlink_to(path.rename(tmp_path / "store" / "model.onnx"))
    np.testing.assert_array_equal(onnx_ops.InferenceSession(path).run(None, {"g": G})[0], EXPECTED)
    assert capfd.readouterr() == ("", "")


def test_nothing_is_logged_with_options_of_ones_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    onnx.save_model(model(), path)
    options = ort.SessionOptions()
    for _ in range(2):
        onnx_ops.InferenceSession(path, options)
    assert capfd.readouterr() == ("", "")


def test_external_data_of_two_models_with_the_same_options(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    first = onnx_ops.InferenceSession(_save_external(tmp_path / "a", X), options)
    second = onnx_ops.InferenceSession(_save_external(tmp_path / "b", np.ones_like(X)), options)
    np.testing.assert_array_equal(first.run(None, {"g": G})[0], EXPECTED)
    np.testing.assert_array_equal(second.run(None, {"g": G})[0], G)


def test_external_data_of_a_plain_session_afterwards(tmp_path: Path) -> None:
    """A session from a path must not make a later one, with the same options, look for its data there."""
    options = onnx_ops.session_options()
    onnx_ops.InferenceSession(_save_external(tmp_path / "a", X), options)
    other = _save_external(tmp_path / "b", np.ones_like(X))
    onnx.save_model(onnx_ops.link(other), other)
    session = ort.InferenceSession(other, options)
    np.testing.assert_array_equal(session.run(None, {"g": G})[0], G)


def _first_number_of(session: ort.InferenceSession) -> float:
    return float(session.run(None, {"g": np.ones((2, 3), np.float32)})[0][0, 0])


def _threshold_models(folder: Path, count: int) -> list[Path]:
    """Linked models that differ in their external data alone; from ones, model k makes k + 1."""
    paths = []
    for number in range(count):
        proto = parser.parse_model(
            """<ir_version: 10, opset_import: ["" : 21, "aclnn" : 1]>
            graph (float[2,3] g) => (float[2,3] o) {
                h = aclnn.HardshrinkBackward <lambd: float = 0.0> (g, x)
                o = Mul (h, x)
            }"""
        )
        values = np.full((2, 3), number + 1, np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(values, "x"))
        paths.append(folder / str(number) / "model.onnx")
        paths[-1].parent.mkdir()
        onnx.save_model(
            onnx_ops.link(proto), paths[-1], save_as_external_data=True, location="weights.bin", size_threshold=0
        )
    return paths


@pytest.mark.parametrize(
    "most", [sessions.MOST_BYTES, pytest.param(0, marks=pytest.mark.full)], ids=["embedded", "too-large-to-embed"]
)
def test_threads_with_the_same_options_get_their_own_weights(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models of different folders; one thread makes plain sessions, whose folder onnxruntime knows by the path."""
    monkeypatch.setattr(sessions, "MOST_BYTES", most)
    paths = _threshold_models(tmp_path, 4)
    options = onnx_ops.session_options()
    options.intra_op_num_threads = 1
    start = threading.Barrier(len(paths))

    def work(number: int) -> set[float]:
        make = ort.InferenceSession if number == 0 else onnx_ops.InferenceSession
        start.wait()
        return {_first_number_of(make(str(paths[number]), options)) for _ in range(15)}

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads take turns often
    try:
        with ThreadPoolExecutor(len(paths)) as pool:
            assert list(pool.map(work, range(len(paths)))) == [{1.0}, {2.0}, {3.0}, {4.0}]
    finally:
        sys.setswitchinterval(interval)
    assert [sorted(path.name for path in folder.iterdir()) for folder in sorted(tmp_path.iterdir())] == [
        ["model.onnx", "weights.bin"]
    ] * 4


def test_folder_of_a_model_is_not_left_in_options_of_ones_own(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    onnx_ops.InferenceSession(_save_external(tmp_path, X), options)
    with pytest.raises(RuntimeError):
        options.get_session_config_entry("session.model_external_initializers_file_folder_path")


def test_folder_that_options_name_is_left_there(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", "/somewhere/else")
    session = onnx_ops.InferenceSession(_save_external(tmp_path, X), options)
    np.testing.assert_array_equal(session.run(None, {"g": G})[0], EXPECTED)
    entry = options.get_session_config_entry("session.model_external_initializers_file_folder_path")
    assert entry == "/somewhere/else"


OWN_OPTIONS = pytest.mark.parametrize("options", [None, ort.SessionOptions], ids=["no-options", "own-options"])


@OWN_OPTIONS
def test_tensors_that_share_a_file(options: Any, tmp_path: Path) -> None:
    """Each lies at an offset of its own; the last one tells no length."""
    proto = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21, "aclnn" : 1]>
        graph () => (float[2,3] o) { o = aclnn.HardshrinkBackward <lambd: float = 0.25> (g, x) }"""
    )
    for name, values in (("g", G), ("x", X)):
        proto.graph.initializer.append(numpy_helper.from_array(values, name))
    onnx.save_model(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    saved = onnx.load_model(tmp_path / "m.onnx", load_external_data=False)
    last = max(saved.graph.initializer, key=lambda t: int({e.key: e.value for e in t.external_data}["offset"]))
    kept = [entry for entry in last.external_data if entry.key != "length"]
    del last.external_data[:]
    last.external_data.extend(kept)
    onnx.save_model(saved, tmp_path / "m.onnx")
    session = onnx_ops.InferenceSession(tmp_path / "m.onnx", options and options())
    np.testing.assert_array_equal(session.run(None, {})[0], EXPECTED)


@OWN_OPTIONS
def test_links_to_data_where_onnxruntime_takes_them(options: Any, tmp_path: Path) -> None:
    """A cache of downloaded models: model and data are links to files of one other folder."""
    path = _save_external(tmp_path / "cache", X)
    (tmp_path / "store").mkdir()
    for file in (path, path.parent / "weights.bin"):
        file.symlink_to(file.rename(tmp_path / "store" / file.name))
    session = onnx_ops.InferenceSession(path, options and options())
    np.testing.assert_array_equal(session.run(None, {"g": G})[0], EXPECTED)


@OWN_OPTIONS
def test_link_to_data_elsewhere_is_refused(options: Any, tmp_path: Path) -> None:
    path = _save_external(tmp_path / "model", X)
    (tmp_path / "secrets").mkdir()
    data = path.parent / "weights.bin"
    data.symlink_to(data.rename(tmp_path / "secrets" / "weights.bin"))
    with pytest.raises(ValueError, match=r"tensor 'x' has its data in .*, a link to .*secrets.*onnxruntime requires"):
        onnx_ops.InferenceSession(path, options and options())


def test_large_external_data_is_not_copied_into_the_model(tmp_path: Path) -> None:
    path = _save_external(tmp_path, np.resize(X, (2, 3)))
    assert len(onnx_ops.link(path).SerializeToString()) < 5000


# --- options ---------------------------------------------------------------------------------------------------------


def test_new_options_each_time() -> None:
    first, second = onnx_ops.session_options(), onnx_ops.session_options()
    assert isinstance(first, ort.SessionOptions)
    assert first is not second


def test_options_stay_the_users_own() -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    options.logid = "mine"
    options.add_session_config_entry("session.set_denormal_as_zero", "0")
    onnx_ops.register_kernels(options)
    assert options.intra_op_num_threads == 1
    assert options.inter_op_num_threads == 1
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert options.log_severity_level == 3
    assert options.logid == "mine"
    assert options.get_session_config_entry("session.set_denormal_as_zero") == "0"
    np.testing.assert_array_equal(ort.InferenceSession(linked_bytes(), options).run(None, FEEDS)[0], EXPECTED)


@pytest.mark.parametrize("times", [2, 5])
def test_options_registered_again_and_again(times: int, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    for _ in range(times):
        onnx_ops.register_kernels(options)
    assert nodes_that_ran(linked_bytes(), options, tmp_path) == {KERNEL_NODE}
    np.testing.assert_array_equal(onnx_ops.InferenceSession(model(), options).run(None, FEEDS)[0], EXPECTED)


@pytest.mark.parametrize("options", [None, onnx_ops.InferenceSession], ids=lambda options: type(options).__name__)
def test_what_are_no_options_is_refused(options: Any) -> None:
    with pytest.raises(TypeError, match=rf"a {type(options).__name__}, expected onnxruntime\.SessionOptions"):
        onnx_ops.register_kernels(options)


def test_options_of_several_sessions() -> None:
    options = onnx_ops.session_options()
    alive = [
        *(ort.InferenceSession(linked_bytes(), options) for _ in range(2)),
        onnx_ops.InferenceSession(model(), options),
    ]
    for session in reversed(alive):
        np.testing.assert_array_equal(session.run(None, FEEDS)[0], EXPECTED)


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
@pytest.mark.parametrize("threads", [0, 1, 3])
def test_any_optimization_level_and_number_of_threads(level: str, threads: int) -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.intra_op_num_threads = threads
    np.testing.assert_array_equal(onnx_ops.InferenceSession(model(), options).run(None, FEEDS)[0], EXPECTED)


def test_options_that_hold_the_library_already(tmp_path: Path) -> None:
    """What was registered before the kernels were in the process is another matter: see test_processes."""
    extensions = pytest.importorskip("onnxruntime_extensions")
    onnx_ops.session_options()
    options = ort.SessionOptions()
    options.register_custom_ops_library(extensions.get_library_path())
    onnx_ops.register_kernels(options)
    assert nodes_that_ran(linked_bytes(), options, tmp_path) == {KERNEL_NODE}


def test_library_registered_again_by_the_user() -> None:
    """onnxruntime refuses, with a message that names what is there twice."""
    extensions = pytest.importorskip("onnxruntime_extensions")
    options = onnx_ops.session_options()
    options.register_custom_ops_library(extensions.get_library_path())
    with pytest.raises(Exception, match=r"ai\.onnx\.contrib.*Conflicting"):
        ort.InferenceSession(linked_bytes(), options)


def test_options_with_the_library_registered_by_the_user_alone(tmp_path: Path) -> None:
    """Once the kernels are in the process, any registration of the library brings them."""
    extensions = pytest.importorskip("onnxruntime_extensions")
    onnx_ops.session_options()
    options = ort.SessionOptions()
    options.register_custom_ops_library(extensions.get_library_path())
    assert nodes_that_ran(linked_bytes(), options, tmp_path) == {KERNEL_NODE}


def other_model() -> onnx.ModelProto:
    return parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21, "aclnn" : 1]>
        graph (float[2,3] g, float[2,3] x) => (float[2,3] o) { o = aclnn.Hardshrink <lambd: float = 0.25> (x) }"""
    )


def test_ops_of_other_libraries_beside_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a model too is linked once."""
    pytest.importorskip("onnxruntime_extensions")
    both = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21, "aclnn" : 1, "ai.onnx.contrib" : 1]>
        graph (float[2,3] g, float[2,3] x, string[1] s) => (float[2,3] o, string[1] u) {
            o = aclnn.HardshrinkBackward <lambd: float = 0.25> (g, x)
            u = ai.onnx.contrib.StringUpper (s)
        }"""
    )
    linked = onnx_ops.link(both)
    for link_in_place in (sessions.link_in_place, None):
        monkeypatch.setattr(sessions, "link_in_place", link_in_place)
        found = onnx_ops.InferenceSession(linked).run(None, {**FEEDS, "s": np.array(["Abc"], object)})
        np.testing.assert_array_equal(found[0], EXPECTED)
        assert list(found[1]) == ["ABC"]


def test_options_of_a_session_can_be_registered() -> None:
    """onnxruntime returns a copy of a session's options, without the kernels."""
    for session in (onnx_ops.InferenceSession(model()), onnx_ops.InferenceSession(model(), ort.SessionOptions())):
        options = session.get_session_options()
        np.testing.assert_array_equal(
            onnx_ops.InferenceSession(other_model(), options).run(None, {"x": X, "g": G})[0],
            np.where(np.abs(X) > np.float32(0.25), X, np.float32(0)),
        )


def test_one_op_for_several_dtypes() -> None:
    """Two dtypes in one model, of which a function knows none, and another one in the next session."""
    text = """<ir_version: 10, opset_import: ["" : 21, "aclnn" : 1, "me" : 1]>
        graph (KIND[3] x) => (KIND[3] o, double[3] p) {
            o = me.shrunk (x)
            d = Cast <to: int = 11> (x)
            p = me.shrunk (d)
        }
        <domain: "me", opset_import: ["" : 21, "aclnn" : 1]>
        shrunk (x) => (o) { o = aclnn.Hardshrink <lambd: float = 1.0> (x) }"""
    x = np.array([0.5, -2, 1.5])
    for kind, dtype in (("float", np.float32), ("float16", np.float16)):
        session = onnx_ops.InferenceSession(parser.parse_model(text.replace("KIND", kind)))
        single, double = session.run(None, {"x": x.astype(dtype)})
        assert (single.dtype, double.dtype) == (dtype, np.float64)
        assert single.tolist() == double.tolist() == [0, -2, 1.5]


def test_threads_that_make_sessions_of_different_models() -> None:
    expected = {True: EXPECTED, False: np.where(np.abs(X) > np.float32(0.25), X, np.float32(0))}

    def work(number: int) -> bool:
        session = onnx_ops.InferenceSession(model() if number % 2 else other_model())
        return np.array_equal(session.run(None, FEEDS)[0], expected[bool(number % 2)])

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(24)))


# --- ways to run -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def session() -> ort.InferenceSession:
    return onnx_ops.InferenceSession(model())


def test_run_with_ort_values(session: ort.InferenceSession) -> None:
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in FEEDS.items()}
    (result,) = session.run_with_ort_values(["o"], values)
    np.testing.assert_array_equal(result.numpy(), EXPECTED, strict=True)


def test_bound_buffers(session: ort.InferenceSession) -> None:
    binding, out = session.io_binding(), np.full_like(G, 7)
    for name, array in FEEDS.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("o", "cpu", 0, np.float32, out.shape, out.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(out, EXPECTED)


def test_bound_output_of_unknown_shape(session: ort.InferenceSession) -> None:
    binding = session.io_binding()
    for name, array in FEEDS.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("o")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], EXPECTED, strict=True)


def test_output_buffer_may_be_an_input(session: ort.InferenceSession) -> None:
    binding, both = session.io_binding(), G.copy()
    binding.bind_input("g", "cpu", 0, np.float32, both.shape, both.ctypes.data)
    binding.bind_cpu_input("x", X)
    binding.bind_output("o", "cpu", 0, np.float32, both.shape, both.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(both, EXPECTED)


def test_inputs_are_not_written_to(session: ort.InferenceSession) -> None:
    g, x = G.copy(), X.copy()
    for _ in range(3):
        session.run(None, {"g": g, "x": x})
    np.testing.assert_array_equal(g, G)
    np.testing.assert_array_equal(x, X)


def test_array_that_is_not_contiguous(session: ort.InferenceSession) -> None:
    g, x = np.asfortranarray(G), np.repeat(X, 2, axis=1)[:, ::2]
    np.testing.assert_array_equal(session.run(None, {"g": g, "x": x})[0], EXPECTED)


def test_session_runs_on_after_a_failed_run() -> None:
    proto = model()
    for value in (*proto.graph.input, *proto.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()
    session = onnx_ops.InferenceSession(proto)
    for _ in range(3):
        with pytest.raises(
            Exception, match=r"HardshrinkBackward: input 'self' has shape \(2, 4\), expected .*\(2, 3\).*161002"
        ):
            session.run(None, {"g": G, "x": np.ones((2, 4), np.float32)})
        np.testing.assert_array_equal(session.run(None, FEEDS)[0], EXPECTED)


# --- without kernels -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_kernels")
def test_one_warning_where_the_kernels_cannot_be_registered() -> None:
    with pytest.warns(UserWarning, match=r"function bodies.*no such library here") as caught:
        options = onnx_ops.session_options()
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        onnx_ops.register_kernels(options)
        session = onnx_ops.InferenceSession(model())
    np.testing.assert_array_equal(session.run(None, FEEDS)[0], EXPECTED, strict=True)


@pytest.mark.usefixtures("no_kernels")
def test_the_warning_points_at_the_users_line() -> None:
    with pytest.warns(UserWarning, match="function bodies") as caught:
        onnx_ops.InferenceSession(model())
    assert caught[0].filename == __file__


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.filterwarnings("ignore:onnx_ops runs on function bodies")
def test_function_body_runs_where_the_kernels_cannot_be_registered(tmp_path: Path) -> None:
    ran = nodes_that_ran(linked_bytes(), onnx_ops.session_options(), tmp_path)
    assert "Where" in ran
    assert KERNEL_NODE not in ran


# --- shapes that are known only at the run ---------------------------------------------------------------------------

FLOAT = TensorProto.FLOAT
CHANNEL = ("mean", "invstd", "sum_dy", "sum_dy_xmu", "counter")
SHAPES: dict[str, tuple[dict[str, tuple[int, ...]], tuple[int, ...]]] = {
    "HardshrinkBackward": ({"grad_output": (4, 1, 3), "self": (2, 3)}, (4, 2, 3)),
    "KlDivBackward": ({"grad_output": (3,), "self": (2, 1), "target": (4, 2, 3)}, (2, 1)),
    "BinaryCrossEntropyWithLogitsBackward": (
        {"grad_output": (), "self": (2, 3), "target": (2, 3), "weight": (3,)},
        (2, 3),
    ),
    "BatchNormElemtBackward": ({"grad_out": (2, 3, 5), "input": (2, 3, 5), **dict.fromkeys(CHANNEL, (3,))}, (2, 3, 5)),
    "CtcLossBackward": (
        {
            "grad_out": (2,),
            "log_probs": (5, 2, 4),
            "targets": (2, 3),
            "input_lengths": (2,),
            "target_lengths": (2,),
            "neg_log_likelihood": (2,),
            "log_alpha": (2, 5, 7),
        },
        (5, 2, 4),
    ),
}
INTEGERS = {"targets": 1, "input_lengths": 5, "target_lengths": 3}


def _followed_by_shape(op_type: str, dims: Callable[[str], list[str | int | None] | None]) -> onnx.ModelProto:
    """The op, the Shape of its output, and the output flattened by a shape computed from that."""
    shapes, _ = SHAPES[op_type]
    nodes = [
        onnx_ops.make_node(op_type, {name: name for name in shapes}, ["out"]),
        helper.make_node("Shape", ["out"], ["shape"]),
        helper.make_node("ReduceProd", ["shape"], ["count"], keepdims=1),
        helper.make_node("Reshape", ["out", "count"], ["flat"]),
        helper.make_node("Size", ["out"], ["size"]),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64 if name in INTEGERS else FLOAT, dims(name))
        for name in shapes
    ]
    outputs = [
        helper.make_tensor_value_info(name, dtype, None)
        for name, dtype in {"out": FLOAT, "shape": TensorProto.INT64, "flat": FLOAT, "size": TensorProto.INT64}.items()
    ]
    graph = helper.make_graph(nodes, "followed", inputs, outputs)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21), onnx_ops.opset_import()])


DECLARED: dict[str, Callable[[str, str], list[str | int | None] | None]] = {
    "no-shape": lambda op, name: None,
    "unnamed-dimensions": lambda op, name: [None] * len(SHAPES[op][0][name]),
    "own-names": lambda op, name: [f"{name}_{i}" for i in range(len(SHAPES[op][0][name]))],
    "first-unnamed": lambda op, name: [None, *SHAPES[op][0][name][1:]][: len(SHAPES[op][0][name])],
    "numbers": lambda op, name: list(SHAPES[op][0][name]),
}


@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "portable"])
@pytest.mark.parametrize("level", ["ORT_ENABLE_ALL", "ORT_DISABLE_ALL"])
@pytest.mark.parametrize("declared", DECLARED)
@pytest.mark.parametrize("op_type", SHAPES)
def test_shapes_known_only_at_the_run(op_type: str, declared: str, level: str, kernels: bool) -> None:
    """onnxruntime hands a kernel's shape inference rank 0 for an unknown rank, and would fold a dimension of -1."""
    shapes, expected = SHAPES[op_type]
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    if kernels:
        onnx_ops.register_kernels(options)
    linked = onnx_ops.link(_followed_by_shape(op_type, lambda name: DECLARED[declared](op_type, name)))
    session = ort.InferenceSession(linked.SerializeToString(), options)
    feeds = {
        name: np.full(shape, INTEGERS[name], np.int64)
        if name in INTEGERS
        else np.random.default_rng(3).uniform(0.5, 2, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    out, shape, flat, size = session.run(None, feeds)
    assert out.shape == tuple(shape) == expected
    np.testing.assert_array_equal(flat, out.ravel())
    assert size == out.size


@pytest.mark.parametrize(
    ("op_type", "like"),
    [
        ("KlDivBackward", "self"),
        ("BinaryCrossEntropyWithLogitsBackward", "self"),
        ("BatchNormElemtBackward", "input"),
        ("CtcLossBackward", "log_probs"),
    ],
)
def test_names_of_dimensions_reach_the_outputs_of_the_session(op_type: str, like: str) -> None:
    proto = _followed_by_shape(op_type, lambda name: DECLARED["own-names"](op_type, name))
    session = onnx_ops.InferenceSession(proto)
    assert session.get_outputs()[0].shape == DECLARED["own-names"](op_type, like)


# --- which node a refusal names --------------------------------------------------------------------------------------

NODES = """<ir_version: 10, opset_import: ["" : 21, "aclnn" : 1, "me" : 1]>
graph (float[R,3] a, float[R,3] b, float[R,3] c, float[R,3] c2, float[R,3] d, float[R,3] e, float[R,3] f, float[R,3] x,
       bool cond) => (float[R,3] oa, float[R,3] ob, float[R,3] oc, float[R,3] oc2, float[R,3] od, float[R,3] oef) {
    [named] oa = aclnn.HardshrinkBackward (a, x)
    ob = aclnn.HardshrinkBackward (b, x)
    oc = me.inner (c, x)
    oc2 = me.inner (c2, x)
    [call] od = me.outer (d, x)
    [choose] oef = If (cond) <
        then_branch = then_part () => (float[R,3] oe) { oe = aclnn.HardshrinkBackward (e, x) },
        else_branch = else_part () => (float[R,3] of) { [other] of = aclnn.HardshrinkBackward (f, x) }>
}
<domain: "me", opset_import: ["": 21, "aclnn": 1]> inner (p, q) => (r) {
    v = Neg (q)
    [within] u = aclnn.HardshrinkBackward (p, v)
    r = Neg (u)
}
<domain: "me", opset_import: ["me": 1]> outer (p, q) => (r) { r = me.last (p, q) }
<domain: "me", opset_import: ["aclnn": 1]> last (p, q) => (r) { r = aclnn.HardshrinkBackward (p, q) }"""
WORDS = {
    "a": "node 'named'",
    "b": "node with output 'ob'",
    "c": "node 'within' in function me.inner",
    "c2": "node 'within' in function me.inner",
    "d": "node with output 'r' in function me.last",
    "e": "node with output 'oe' in graph / If choose / then_part",
    "f": "node 'other' in graph / If choose / else_part",
}


@pytest.fixture(scope="module")
def session_of_nodes() -> ort.InferenceSession:
    return onnx_ops.InferenceSession(parser.parse_model(NODES), silent())


def silent() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return options


def wrong_feeds(wrong: str) -> dict[str, np.ndarray]:
    right = dict.fromkeys([*WORDS, "x"], np.ones((2, 3), np.float32))
    return right | {wrong: np.ones((3, 3), np.float32), "cond": np.array(wrong == "e")}


@pytest.mark.parametrize("wrong", WORDS)
def test_refused_run_names_the_node(session_of_nodes: ort.InferenceSession, wrong: str) -> None:
    with pytest.raises(Exception, match=re.escape(f"; {WORDS[wrong]} (ACLNN_ERR_PARAM_INVALID, 161002)")):
        session_of_nodes.run(None, wrong_feeds(wrong))


def test_refused_run_of_a_plain_session_names_the_output() -> None:
    """onnxruntime tells kernels no more than that."""
    linked = onnx_ops.link(parser.parse_model(NODES)).SerializeToString()
    options = silent()
    onnx_ops.register_kernels(options)
    session = ort.InferenceSession(linked, options)
    with pytest.raises(Exception, match=re.escape("; node with output 'oa' (ACLNN_ERR_PARAM_INVALID")):
        session.run(None, wrong_feeds("a"))


CONVOLUTIONS = """<ir_version: 10, opset_import: ["" : 21, "aclnn" : 1]>
graph (float[N,2,3] g, float[N,1,M] x, float[2,1,2] w, float[N,2,P] h) => (float[N,1,M] i, float[2,1,2] k, float[2] l) {
    i, j, ignored = aclnn.ConvolutionBackward (g, x, w)
    unread, k, l = aclnn.ConvolutionBackward (h, x, w)
}"""
"""The outputs `ignored` and `unread` are omitted: the text of a model has no word for that."""


def convolutions() -> onnx.ModelProto:
    """Two nodes of an op, which omit different outputs."""
    made = parser.parse_model(CONVOLUTIONS)
    made.graph.output.append(helper.make_tensor_value_info("j", TensorProto.FLOAT, [2, 1, 2]))
    first, second = made.graph.node
    first.output[2] = second.output[0] = ""
    return made


def test_outputs_that_a_node_omits_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though another node of the op has them: onnxruntime gives them names when it inlines a function."""
    wanted, parts_of = set(), requests._parts_of

    def noted(op: Op, call: Call) -> Parts:
        wanted.add(call.outputs)
        return parts_of(op, call)

    monkeypatch.setattr(requests, "_parts_of", noted)
    session = onnx_ops.InferenceSession(convolutions())
    assert wanted == {("grad_input", "grad_weight"), ("grad_weight", "grad_bias")}
    g, x, w = np.ones((1, 2, 3), np.float32), np.arange(4, dtype=np.float32).reshape(1, 1, 4), np.ones((2, 1, 2))
    found = session.run(None, {"g": g, "h": 2 * g, "x": x, "w": w.astype(np.float32)})
    of_weight = np.array([[[3, 6]], [[3, 6]]])
    for array, expected in zip(found, ([[[2, 4, 4, 2]]], 2 * of_weight, [6, 6], of_weight), strict=True):
        np.testing.assert_array_equal(array, expected)


def test_refused_session_names_the_node() -> None:
    """A rank that only onnxruntime can tell, behind an operator of its own."""
    text = """<ir_version: 10, opset_import: ["" : 21, "aclnn" : 1, "com.microsoft" : 1]>
    graph (float[3] g, float[1,1,1,1,1,1,1,1,3] x) => (float[a,b,c,d,e,f,g,h,i] o) {
        y = com.microsoft.FastGelu (x)
        [here] o = aclnn.HardshrinkBackward (g, y)
    }"""
    with pytest.raises(Exception, match=r"HardshrinkBackward: .*; node 'here' \(ACLNN_ERR_PARAM_INVALID"):
        onnx_ops.InferenceSession(parser.parse_model(text), silent())


def test_naming_ends_with_the_making_of_the_session(session_of_nodes: ort.InferenceSession) -> None:
    del session_of_nodes
    assert STATE.shared["naming"] == {}
