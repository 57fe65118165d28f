"""What could take a process down, each in one of its own, which must end well; and the compiled code on disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import onnx_ops

ROOT = Path(onnx_ops.__file__).parents[1]
END = "this is the end"
PREAMBLE = """
import gc, os, sys, threading, time
import numpy as np, onnx, onnxruntime as ort
from onnx import parser
import onnx_ops

MODEL = parser.parse_model('''<ir_version: 10, opset_import: ["" : 21, "aclnn" : 1]>
    graph (float[R,3] g, float[Q,3] x) => (float[S,3] o) {
        o = aclnn.HardshrinkBackward <lambd: float = 0.25> (g, x)
    }''')
LINKED = onnx_ops.link(MODEL).SerializeToString()
X = np.array([[-1, 0.125, 0.75], [0.5, 0.25, -0.5]], np.float32)
FEEDS = {"g": X, "x": X}
EXPECTED = np.array([[-1, 0, 0.75], [0.5, 0, -0.5]], np.float32)
WRONG = {"g": X, "x": np.ones((3, 3), np.float32)}

def session(options=None):
    return ort.InferenceSession(LINKED, onnx_ops.session_options(options))

def check(s):
    np.testing.assert_array_equal(s.run(None, FEEDS)[0], EXPECTED)

def check_error(s):
    try:
        s.run(None, WRONG)
    except Exception as error:
        assert "HardshrinkBackward: input 'self' has shape (3, 3)" in str(error), error
    else:
        raise AssertionError("no error")
"""


def run(body: str, environment: dict[str, str] | None = None, package: Path = ROOT) -> subprocess.CompletedProcess[str]:
    code = f"{PREAMBLE}\n{textwrap.dedent(body)}\nprint({END!r}, flush=True)\n"
    paths = [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, "-P", "-c", code],  # -P: the package of `package`, not one of the working directory
        env=os.environ | {"PYTHONWARNINGS": "error", "PYTHONPATH": os.pathsep.join(paths)} | (environment or {}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def assert_ends_well(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Status 0, the last line reached, no complaint of Python or onnxruntime; answers the lines before the last."""
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines, done.stderr
    assert lines[-1] == END
    assert not done.stderr
    return lines[:-1]


# Errors of a run are logged by onnxruntime as well, unless the options say otherwise.
SILENT = "options = ort.SessionOptions(); options.log_severity_level = 4\n"

ENDINGS = {
    "live-sessions": """
        kept = [session() for _ in range(3)]
        check(kept[0]); check(kept[2])
        cycle = [session()]; check(cycle[0]); cycle.append(cycle)
        plain = ort.InferenceSession(LINKED); check(plain)
        never_ran, never_used = session(), onnx_ops.session_options()
    """,
    "right-after-a-failed-run": f"{SILENT}s = session(options); check_error(s)",
    "failed-runs": f"{SILENT}s = session(options)\nfor _ in range(50):\n    check_error(s); check(s)",
    "failed-sessions": f"""{SILENT}
linked = onnx_ops.link(MODEL)
for value, rows in zip(linked.graph.input, (2, 4)):
    value.type.tensor_type.shape.dim[0].dim_value = rows
for _ in range(3):
    try:
        ort.InferenceSession(linked.SerializeToString(), onnx_ops.session_options(options))
    except Exception as error:
        assert "HardshrinkBackward" in str(error), error
    else:
        raise AssertionError("no error")
    check(session())
""",
    "deleted-in-any-order": """
        for place in (0, -1):
            kept = [session() for _ in range(4)]
            while kept:
                check(kept[place]); del kept[place]; gc.collect()
        a, b = session(), session(); check(a); del a; gc.collect(); check(b); check(session())
        for _ in range(50):
            check(session())
        del b
        o = onnx_ops.session_options(); del o; gc.collect()
        o = onnx_ops.session_options(); s = ort.InferenceSession(LINKED, o); del o; gc.collect()
        check(s)
    """,
    "daemon-thread-that-waits": """
        s, ready = session(), threading.Event()
        def wait():
            mine = session(); check(mine); check(s); ready.set(); threading.Event().wait()
        threading.Thread(target=wait, daemon=True).start(); ready.wait()
    """,
    "first-session-in-a-thread-and-one-at-exit": f"""{SILENT}
seen = []
def work():
    s = session(options); check_error(s); check(s); seen.append(s)
t = threading.Thread(target=work); t.start(); t.join()
check(seen[0]); check(session())
threading.Thread(target=lambda: (time.sleep(0.2), check(seen[0]))).start()
import atexit; atexit.register(check, seen[0]); gc.disable(); gc.freeze()
""",
}
# Not here: a daemon thread in the middle of a run when the interpreter ends. onnxruntime itself aborts there, with any
# model: the thread is stopped as it wants the GIL back, in C++ that lets no exception through.


@pytest.mark.parametrize("name", ENDINGS)
def test_process_ends_well(name: str) -> None:
    assert_ends_well(run(ENDINGS[name]))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_child_makes_a_session_of_its_own() -> None:
    """Threads do not survive a fork, so that a session must be made anew, and on one thread."""
    done = run(
        """
        options = ort.SessionOptions(); options.intra_op_num_threads = 1
        check(session(options))
        pid = os.fork()
        if pid == 0:
            options = ort.SessionOptions(); options.intra_op_num_threads = 1
            check(session(options)); print("child", flush=True); os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        check(session())
        """
    )
    assert assert_ends_well(done) == ["child"]


# --- beside other users of onnxruntime-extensions --------------------------------------------------------------------

PYOP = """
import onnxruntime_extensions as extensions

def define(name, factor):
    @extensions.onnx_op(op_type=name, inputs=[extensions.PyCustomOpDef.dt_float])
    def times(x):
        return x * factor

def both():
    model = parser.parse_model('''<ir_version: 10, opset_import: ["" : 21, "aclnn" : 1, "ai.onnx.contrib" : 1]>
        graph (float[2,3] g, float[2,3] x) => (float[2,3] o) {
            h = aclnn.HardshrinkBackward <lambd: float = 0.25> (g, x)
            o = ai.onnx.contrib.Twice (h)
        }''')
    s = ort.InferenceSession(onnx_ops.link(model).SerializeToString(), onnx_ops.session_options())
    np.testing.assert_array_equal(s.run(None, FEEDS)[0], 2 * EXPECTED)
"""
# What was registered before a PyOp is defined must not be used for new sessions after: onnxruntime-extensions moves its
# table of PyOps, with or without us, and crashes. So each row makes its options after the last definition.
NEIGHBOURS = {
    "python-op-after": "s = session(); check(s); define('Twice', 2); check(s); both(); check(s)",
    "python-ops-before-and-after": "define('Once', 1); check(session()); define('Twice', 2); both(); check(session())",
    "same-options-registered-before": """
mine = ort.SessionOptions(); mine.register_custom_ops_library(extensions.get_library_path())
check(ort.InferenceSession(LINKED, mine))
try:
    onnx_ops.session_options(mine)
except RuntimeError as error:
    assert "onnxruntime-extensions was registered" in str(error), error
else:
    raise AssertionError("no error")
check(session())
""",
    "library-registered-before": """
mine = ort.SessionOptions(); mine.register_custom_ops_library(extensions.get_library_path())
for _ in range(2):
    check(ort.InferenceSession(LINKED, mine)); check(session())
""",
}


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_beside_other_users_of_the_host_library(name: str) -> None:
    pytest.importorskip("onnxruntime_extensions")
    assert_ends_well(run(PYOP + NEIGHBOURS[name]))


# --- import ----------------------------------------------------------------------------------------------------------

HEAVY = ("numba", "llvmlite", "onnxruntime_extensions", "torch", "scipy", "pandas", "sympy")


USES = (
    "pass",
    "onnx_ops.link(MODEL)",
    "onnx_ops.make_node('HardshrinkBackward', ['g', 'x'], ['o'])",
    "onnx_ops.OPS['HardshrinkBackward'].reference(X, X)",
    "ReferenceEvaluator(MODEL, new_ops=onnx_ops.reference_ops()).run(None, FEEDS)",
)


def test_heavy_packages_load_only_with_the_first_kernel() -> None:
    """Those that onnx and onnxruntime load themselves are theirs."""
    imports = "import onnx, onnxruntime, sys; from onnx import parser; from onnx.reference import ReferenceEvaluator"
    theirs = subprocess.run(
        [sys.executable, "-c", f"{imports}; print(*sys.modules)"], capture_output=True, text=True, check=True
    ).stdout.split()
    ours = [name for name in HEAVY if name not in theirs]
    assert {"numba", "llvmlite", "onnxruntime_extensions"} <= set(ours)
    uses = "\n".join(f"{use}; print(*(name for name in {ours} if name in sys.modules))" for use in USES)
    lines = assert_ends_well(run(f"{imports}\n{uses}\nsession(); print('numba' in sys.modules)"))
    assert lines == [""] * len(USES) + ["True"]


# --- compiled code on disk -------------------------------------------------------------------------------------------

COUNT = "print(sum(bool(c.cache_hits) for c in compiler._ALIVE), len(compiler._ALIVE))"
WHOLE = f"from onnx_ops.runtime import compiler\ncheck(session())\n{COUNT}"
"""All that a session needs, which takes seconds to compile."""
PART = f"""
from onnx_ops.runtime import compiler, elementwise
for dtype in (elementwise.FLOAT, elementwise.DOUBLE):
    assert compiler.compile_native(elementwise.store, elementwise.STORE[dtype])
{COUNT}
"""


def found_and_needed(done: subprocess.CompletedProcess[str]) -> tuple[int, int]:
    """How many functions a process found compiled in the cache, and how many it needed."""
    found, needed = map(int, assert_ends_well(done)[0].split())
    assert needed > 1
    return found, needed


def compiled(what: str, cache: Path, package: Path = ROOT) -> tuple[int, int]:
    return found_and_needed(run(what, {"ONNX_OPS_CACHE_DIR": str(cache)}, package))


def contents(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def filled_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp("cache") / "new" / "folder"
    assert compiled(WHOLE, cache)[0] == 0
    return cache


@pytest.fixture
def part_cache(tmp_path: Path) -> Path:
    assert compiled(PART, tmp_path / "part") == (0, 2)
    return tmp_path / "part"


def test_second_process_compiles_nothing(filled_cache: Path) -> None:
    before = contents(filled_cache)
    assert before
    found, needed = compiled(WHOLE, filled_cache)
    assert found == needed > 3
    assert contents(filled_cache) == before


def test_processes_that_compile_at_the_same_time(tmp_path: Path) -> None:
    environment = {"ONNX_OPS_CACHE_DIR": str(tmp_path)}
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(run, PART, environment) for _ in range(3)]:
            found_and_needed(done.result())
    assert compiled(PART, tmp_path) == (2, 2)


def test_cache_that_cannot_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "a file"
    blocked.write_text("not a folder")
    for place in (blocked, blocked / "below"):
        assert compiled(PART, place) == (0, 2)
    assert blocked.read_text() == "not a folder"


def test_cache_that_vanishes(part_cache: Path) -> None:
    vanish = "import os, shutil; from onnx_ops.runtime import compiler; shutil.rmtree(compiler.cache_directory())\n"
    found_and_needed(run(vanish + PART, {"ONNX_OPS_CACHE_DIR": str(part_cache)}))


def test_spoilt_cache_is_compiled_anew(part_cache: Path) -> None:
    """A disk that was full, a machine that went down in the middle of writing."""
    spoilt = [p for p in part_cache.rglob("*") if p.is_file()]
    assert spoilt
    for path in spoilt:
        path.write_bytes(path.read_bytes()[:100])
    assert compiled(PART, part_cache) == (0, 2)


def test_a_change_anywhere_in_the_package_compiles_anew(part_cache: Path, tmp_path: Path) -> None:
    """Numba itself looks at the file of the kernel alone."""
    package = tmp_path / "copy"
    shutil.copytree(ROOT / "onnx_ops", package / "onnx_ops", ignore=shutil.ignore_patterns("__pycache__"))
    helper = package / "onnx_ops" / "runtime" / "native.py"
    helper.write_text(helper.read_text() + "\n# A change.\n")
    assert compiled(PART, part_cache, package) == (0, 2)
    assert compiled(PART, part_cache, package) == (2, 2)
    assert compiled(PART, part_cache) == (2, 2)  # the entries of the other source are still there
