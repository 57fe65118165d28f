"""What could take a process down, each in one of its own, which must end well; and the compiled code on disk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cases import names_with

import onnx_ops
from onnx_ops.runtime.cache import cache_directory

ROOT = Path(onnx_ops.__file__).parents[1]
END = "this is the end"
PREAMBLE = """
import gc, logging, os, sys, threading, time
logging.getLogger("onnx_ops").setLevel(logging.ERROR)  # that kernels compile
import numpy as np, onnx, onnxruntime as ort
import numpy.testing  # else `check` imports it, and a fork or an interrupt in the middle of that leaves half a module
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
    if options is None:
        options = onnx_ops.session_options()
    else:
        onnx_ops.register_kernels(options)
    return ort.InferenceSession(LINKED, options)

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
        timeout=600,  # compiling all kernels beside other tests takes minutes
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
    onnx_ops.register_kernels(options)
    try:
        ort.InferenceSession(linked.SerializeToString(), options)
    except Exception as error:
        assert "HardshrinkBackward" in str(error), error
    else:
        raise AssertionError("no error")
    check(session())
""",
    "deleted-in-any-order-beside-a-daemon-thread-that-waits": """
        shared, ready = session(), threading.Event()
        def wait():
            mine = session(); check(mine); check(shared); ready.set(); threading.Event().wait()
        threading.Thread(target=wait, daemon=True).start(); ready.wait()
        for place in (0, -1):
            kept = [session() for _ in range(4)]
            while kept:
                check(kept[place]); del kept[place]; gc.collect()
        a, b = session(), session(); check(a); del a; gc.collect(); check(b); check(session())
        for _ in range(10):
            check(session())
        del b
        o = onnx_ops.session_options(); del o; gc.collect()
        o = onnx_ops.session_options(); s = ort.InferenceSession(LINKED, o); del o; gc.collect()
        check(s)
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
LIKE_OTHERS = {"live-sessions", "failed-runs", "failed-sessions"}
"""What these leave behind, others do too."""


@pytest.mark.parametrize("name", names_with(full=LIKE_OTHERS, names=ENDINGS))
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


# --- interrupts ------------------------------------------------------------------------------------------------------

# A signal that arrives while onnxruntime is calling back, or while code is compiled, over and over at odd moments.
# What comes of it is an exception in the user's code, and a process that goes on.
INTERRUPTED = """
import random, signal
random.seed({seed})
class Timeout(Exception): pass
def raise_timeout(*_): raise Timeout
def leave(*_): sys.exit(3)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets its jobs in the background ignore it
signal.signal(signal.SIGTERM, {handler})
{prepare}
def later(delay):
    time.sleep(delay); os.kill(os.getpid(), signal.{signal})
ends = []
for _ in range({rounds}):
    thread = threading.Thread(target=later, args=(random.uniform(*{delays}),))
    try:
        thread.start()  # the signal may come at once
        while True:
            {work}
    except BaseException as error:
        ends.append(type(error).__name__)
    thread.join()
check(session())
print(*sorted(set(ends)))
"""
FAILING = "options = ort.SessionOptions(); options.log_severity_level = 4; s = session(options); check_error(s)"
SIGNALS = {
    "SIGINT": ("signal.SIG_DFL", "KeyboardInterrupt"),
    "SIGTERM": ("leave", "SystemExit"),
    "SIGTERM-exception": ("raise_timeout", "Timeout"),
}
INTERRUPTIBLE = {"making-sessions": ("session()", "check(session())"), "refused-runs": (FAILING, "check_error(s)")}


@pytest.mark.parametrize(
    ("where", "which"),
    [
        ("making-sessions", "SIGTERM-exception"),
        ("refused-runs", "SIGINT"),
        pytest.param("refused-runs", "SIGTERM", marks=pytest.mark.full),
        pytest.param("making-sessions", "SIGINT", marks=pytest.mark.full),
        pytest.param("making-sessions", "SIGTERM", marks=pytest.mark.full),
        pytest.param("refused-runs", "SIGTERM-exception", marks=pytest.mark.full),
    ],
)
def test_signals_reach_the_user(where: str, which: str) -> None:
    (prepare, work), (handler, expected) = INTERRUPTIBLE[where], SIGNALS[which]
    code = INTERRUPTED.format(
        seed=len(work), handler=handler, signal=which.split("-")[0], prepare=prepare, rounds=20, work=work,
        delays=(0.0, 0.03),
    )  # fmt: skip
    assert assert_ends_well(run(code)) == [expected]


@pytest.mark.parametrize("which", names_with(full=["SIGTERM-exception"], names=["SIGINT", "SIGTERM-exception"]))
def test_signals_while_kernels_compile(which: str, nearly_filled_cache: Path) -> None:
    handler, expected = SIGNALS[which]
    code = INTERRUPTED.format(
        seed=1, handler=handler, signal=which.split("-")[0], prepare="", rounds=3, work="session()", delays=(0.2, 1.0)
    )
    assert assert_ends_well(run(code, {"ONNX_OPS_CACHE_DIR": str(nearly_filled_cache)})) == [expected]


# --- reloads ---------------------------------------------------------------------------------------------------------

RELOADS = {
    "registration": "import importlib; from onnx_ops.runtime import registration; importlib.reload(registration)",
    "compiler": "import importlib; from onnx_ops.runtime import compiler; importlib.reload(compiler)",
    "process": "import importlib; from onnx_ops.runtime import process; importlib.reload(process)",
    "package": """
for name in [name for name in sys.modules if name.split(".")[0] == "onnx_ops"]: del sys.modules[name]
del onnx_ops
gc.collect()
import onnx_ops
""",
}


@pytest.mark.parametrize("what", names_with(full=set(RELOADS) - {"package"}, names=RELOADS))
@pytest.mark.parametrize("dropped", names_with(full=[True], names=[False, True]), ids=["kept", "dropped"])
def test_reloading_leaves_kernels_where_they_are(what: str, dropped: bool) -> None:
    """Sessions made before run on, new ones run, and refusals still come in words."""
    drop = "del s, options; s = session()" if dropped else ""
    reload = f"{RELOADS[what]}\n{drop}\ngc.collect()"
    checks = (
        "check(s); check_error(s); options = ort.SessionOptions(); options.log_severity_level = 4; t = session(options)"
    )
    done = run(f"{FAILING}\n{reload}\n{SILENT}\n{checks}; check(t); check_error(t)")
    if dropped:  # its errors are logged, for its options are the default ones
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == END
    else:
        assert_ends_well(done)


# --- forks, the end of the process, small threads --------------------------------------------------------------------

FORKED = """
def single():
    options = ort.SessionOptions(); options.intra_op_num_threads = 1; return options
{prepare}
thread = threading.Thread(target=lambda: check(session(single()))); thread.start(); time.sleep({delay})
pid = os.fork()
if pid == 0:
    check(session(single())); os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize(
    ("prepare", "delay"),
    [pytest.param("", 0.1, marks=pytest.mark.full), ("onnx_ops.session_options()", 0.3)],
    ids=["importing", "compiling"],
)
def test_fork_while_another_thread_compiles(prepare: str, delay: float, nearly_filled_cache: Path) -> None:
    code = FORKED.format(prepare=prepare, delay=delay)
    cache = {"ONNX_OPS_CACHE_DIR": str(nearly_filled_cache)}
    with_warning = cache | {"PYTHONWARNINGS": "error,ignore::DeprecationWarning"}
    assert_ends_well(run(code, with_warning))  # Python 3.12 warns of every fork beside threads


@pytest.mark.full
@pytest.mark.parametrize("delay", [0.1, 0.7])
def test_process_ends_while_a_daemon_thread_compiles(delay: float, tmp_path: Path) -> None:
    code = f"""
def make():
    onnx_ops.InferenceSession(MODEL)
threading.Thread(target=make, daemon=True).start(); time.sleep({delay})
"""
    assert_ends_well(run(code, {"ONNX_OPS_CACHE_DIR": str(tmp_path)}))


@pytest.mark.full
@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_threads_with_little_stack(cold: bool, nearly_filled_cache: Path) -> None:
    """64 KiB, all that onnxruntime itself needs; compiling and explaining happen on threads of their own."""
    code = f"""
{SILENT}
threading.stack_size(64 * 1024)
ends = []
large = {{name: np.tile(array, (300, 1)) for name, array in FEEDS.items()}}
def work():
    s = session(options); check(s); check_error(s); s.run(None, large); ends.append("well")
thread = threading.Thread(target=work); thread.start(); thread.join()
print(*ends)
"""
    cache = {"ONNX_OPS_CACHE_DIR": str(nearly_filled_cache)} if cold else None
    assert assert_ends_well(run(code, cache)) == ["well"]


# --- beside other users of onnxruntime-extensions --------------------------------------------------------------------

PYOP = """
sys.modules["torch"] = None  # onnxruntime-extensions imports it, which takes longer than all of the rest
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
    linked = onnx_ops.link(model).SerializeToString()
    for s in onnx_ops.InferenceSession(model), ort.InferenceSession(linked, onnx_ops.session_options()):
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
    onnx_ops.register_kernels(mine)
except RuntimeError as error:
    assert "onnxruntime-extensions was registered" in str(error), error
else:
    raise AssertionError("no error")
check(session())
""",
    "own-options": """
from onnx_ops.runtime.process import STATE
check(onnx_ops.InferenceSession(MODEL))
assert not STATE.shared["added"], "a session adds no kernels to onnxruntime-extensions"
define('Twice', 2); both()
mine = ort.SessionOptions(); mine.register_custom_ops_library(extensions.get_library_path())
check(ort.InferenceSession(LINKED, mine)); check(onnx_ops.InferenceSession(MODEL)); check(session())
""",
    "some-kernels-registered-before": """
from onnx_ops.runtime import registration
from onnx_ops.runtime.process import STATE
registration.object_of_pybind = lambda options: None  # as if their memory were of another layout
check(onnx_ops.InferenceSession(MODEL))
assert STATE.shared["added"] == {"aclnn_HardshrinkBackward_v1"}, "a session registers the kernels of its model alone"
mine = ort.SessionOptions(); mine.register_custom_ops_library(extensions.get_library_path())
try:
    onnx_ops.register_kernels(mine)  # which registers all kernels
except RuntimeError as error:
    assert "onnxruntime-extensions was registered" in str(error), error
else:
    raise AssertionError("no error")
assert len(STATE.shared["added"]) > 20
onnx_ops.register_kernels(again := ort.SessionOptions())
check(session(again)); check(session()); check(onnx_ops.InferenceSession(MODEL))
""",
    "library-registered-before": """
mine = ort.SessionOptions(); mine.register_custom_ops_library(extensions.get_library_path())
for _ in range(2):
    check(ort.InferenceSession(LINKED, mine)); check(session())
""",
}
PARTS_OF_OTHERS = {"python-op-after", "library-registered-before"}


@pytest.mark.parametrize("name", names_with(full=PARTS_OF_OTHERS, names=NEIGHBOURS))
def test_beside_other_users_of_the_host_library(name: str) -> None:
    pytest.importorskip("onnxruntime_extensions")
    assert_ends_well(run(PYOP + NEIGHBOURS[name]))


# --- import ----------------------------------------------------------------------------------------------------------

HEAVY = (
    "numba",
    "llvmlite",
    "onnxruntime_extensions",
    "torch",
    "scipy",
    "pandas",
    "sympy",
    "safetensors",
    "matplotlib",
)


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

COUNT = "print(sum(c.is_from_cache for c in compiler.compiled.values()), len(compiler.compiled))"
WHOLE = f"from onnx_ops.runtime import compiler\ncheck(session())\n{COUNT}"
"""All that a session needs, which takes seconds to compile."""
PART = f"""
from numba import types
from onnx_ops.runtime import callbacks, compiler
for function in (callbacks.one, callbacks.last_version):
    assert compiler.compile_native(function, types.int64(types.int64))
{COUNT}
"""
"""Two small functions, which compile at once."""


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
    """What a session needs, from the user's cache: compiling it takes ten seconds, and other tests need it too."""
    names = assert_ends_well(run(f"{WHOLE}\nprint(*map(compiler.entry_name, compiler.compiled))"))[-1].split()
    cache = tmp_path_factory.mktemp("cache")
    for name in names:
        shutil.copy(cache_directory() / name, cache)
    return cache


@pytest.fixture
def nearly_filled_cache(filled_cache: Path, tmp_path: Path) -> Path:
    """What it lacks takes a second or two to compile."""
    cache = Path(shutil.copytree(filled_cache, tmp_path / "nearly"))
    for name in ("load", "store", "pass_outside"):
        (file,) = cache.glob(f"{name}-*.kernel")
        file.unlink()
    return cache


@pytest.fixture(scope="module")
def filled_part(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp("part") / "new" / "folder"
    assert compiled(PART, cache) == (0, 2)
    return cache


@pytest.fixture
def part_cache(filled_part: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled_part, tmp_path / "part"))


def test_second_process_compiles_nothing(filled_cache: Path) -> None:
    before = contents(filled_cache)
    assert before
    found, needed = compiled(WHOLE, filled_cache)
    assert found == needed > 3
    assert contents(filled_cache) == before


def test_processes_that_compile_at_the_same_time(tmp_path: Path) -> None:
    environment = {"ONNX_OPS_CACHE_DIR": str(tmp_path)}
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(run, PART, environment) for _ in range(2)]:
            found_and_needed(done.result())
    assert compiled(PART, tmp_path) == (2, 2)


@pytest.mark.parametrize("place", names_with(full=["file"], names=["file", "file/below"]))
def test_cache_that_cannot_be_written(place: str, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert compiled(PART, tmp_path / place) == (0, 2)
    assert blocked.read_text() == "not a folder"


def test_cache_that_vanishes(part_cache: Path) -> None:
    vanish = "import os, shutil; from onnx_ops.runtime import cache; shutil.rmtree(cache.cache_directory())\n"
    found_and_needed(run(vanish + PART, {"ONNX_OPS_CACHE_DIR": str(part_cache)}))


EVERY_OP = (
    """
import ml_dtypes
from onnx.compose import add_prefix_graph
from onnx_ops.runtime import compiler
from onnx_ops.ops import OPS
from models.single_op import single_op_model

for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64):
    every = onnx.ModelProto()  # one session takes a third of the time of one for each op
    for op in OPS.values():
        types = list(map(op.example_arrays(np.dtype(dtype)).get, op.input_names))
        types = [None if a is None else (a.dtype, a.shape) for a in types]
        for attributes in ({}, {"log_target": 1}):
            if attributes.keys() <= op.schema.attributes.keys():
                model = single_op_model(op.name, types, {**op.required_attributes, **attributes})
                model.graph.CopyFrom(add_prefix_graph(model.graph, f"{len(every.graph.node)}."))
                every.MergeFrom(model)
    del every.opset_import[len(model.opset_import):]  # which each of them has
    assert len(every.graph.node) >= len(OPS)
    onnx_ops.InferenceSession(every)
"""
    + COUNT
)


NAMES = "print(json.dumps([f'{function.__module__}.{function.__name__} {kind}' for function, kind in functions]))"
COMPILE = """
from onnx_ops.__main__ import main
sys.argv = ["onnx-ops", "compile", "--json"]
try:
    main()
except SystemExit as end:
    assert not end.code
"""


@pytest.mark.full
def test_compile_leaves_nothing_to_compile() -> None:
    """In the user's cache, for compiling everything takes a minute, and the other tests find it there."""
    imports = "import json; from onnx_ops.integrations import precompile; from onnx_ops.runtime import compiler"
    compiled_by_all = "functions = [*compiler.compiled, *precompile.all_functions()]"
    # Before version 0.26 typer imports what Click deprecates.
    warnings = {"PYTHONWARNINGS": "error,ignore::DeprecationWarning"}
    *answer, everything = assert_ends_well(run(f"{imports}\n{COMPILE}\n{compiled_by_all}\n{NAMES}", warnings))
    told = json.loads("".join(answer))
    assert told == {"cache": str(cache_directory()), "files": told["files"], "readers": told["readers"]}
    assert told["files"] >= len(json.loads(everything))
    counts, needed = assert_ends_well(run(f"{imports}\n{EVERY_OP}\nfunctions = compiler.compiled\n{NAMES}"))
    found, count = map(int, counts.split())
    assert found == count == len(json.loads(needed)) > 20
    assert set(json.loads(needed)) <= set(json.loads(everything))


@pytest.mark.parametrize("place", names_with(full=[0.0, 0.9, 0.999], names=[0.0, 0.5, 0.9, 0.999]))
def test_spoilt_cache_is_compiled_anew(part_cache: Path, place: float) -> None:
    """A file that ends early, as on a full disk; and one flipped bit in checksum, machine code or description."""
    cut, flipped = (p for p in part_cache.rglob("*") if p.is_file())
    cut.write_bytes(cut.read_bytes()[:100])
    content = bytearray(flipped.read_bytes())
    content[int(place * len(content))] ^= 4
    flipped.write_bytes(content)
    assert compiled(PART, part_cache) == (0, 2)
    assert compiled(PART, part_cache) == (2, 2)


READ_ONLY = """
import tempfile
def refuse(*_, **__): raise OSError(30, "Read-only file system")
tempfile.mkstemp = refuse
"""


@pytest.mark.full
def test_cache_that_can_only_be_read_serves(filled_cache: Path) -> None:
    found, needed = compiled(READ_ONLY + WHOLE, filled_cache)
    assert found == needed > 3


@pytest.mark.full
def test_cache_that_cannot_keep_what_is_compiled_is_told_once(tmp_path: Path) -> None:
    told = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    onnx_ops.session_options(); onnx_ops.session_options()
assert [w.category for w in caught] == [UserWarning], caught
assert caught[0].filename == "<string>", caught[0].filename
print(caught[0].message)
"""
    (text,) = assert_ends_well(run(READ_ONLY + told, {"ONNX_OPS_CACHE_DIR": str(tmp_path)}))
    for word in ("Read-only file system", "ONNX_OPS_CACHE_DIR", "onnx-ops compile"):
        assert word in text


@pytest.mark.full
def test_user_without_a_home_compiles_and_is_told() -> None:
    """As in a container whose user has no entry in /etc/passwd."""
    nobody = """
import pwd, warnings
def unknown(user): raise KeyError(user)
pwd.getpwuid = unknown
for name in ("HOME", "XDG_CACHE_HOME", "ONNX_OPS_CACHE_DIR"): os.environ.pop(name, None)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    onnx_ops.session_options()
print(*(w.message for w in caught))
"""
    (text,) = assert_ends_well(run(nobody))
    assert "no cache directory for this user" in text
    assert "ONNX_OPS_CACHE_DIR" in text


TOLD = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    check(onnx_ops.InferenceSession(MODEL)); check(session())
print(*(w.message for w in caught))
"""


@pytest.mark.full
def test_processor_without_instructions_for_float16(tmp_path: Path) -> None:
    """Kernels, or the function bodies where Numba is too old to do without."""
    generic = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "ONNX_OPS_CACHE_DIR": str(tmp_path)}
    printed = assert_ends_well(run(TOLD, generic))
    assert not "".join(printed) or ("function bodies" in printed[0] and "F16C" in printed[0])


def test_numba_that_compiles_nothing_leaves_the_function_bodies() -> None:
    (text,) = assert_ends_well(run(TOLD, {"NUMBA_DISABLE_JIT": "1"}))
    assert "function bodies" in text
    assert "NUMBA_DISABLE_JIT" in text


def test_a_change_anywhere_in_the_package_compiles_anew(part_cache: Path, tmp_path: Path) -> None:
    """Numba itself looks at the file of the kernel alone."""
    package = tmp_path / "copy"
    shutil.copytree(ROOT / "onnx_ops", package / "onnx_ops")
    helper = package / "onnx_ops" / "runtime" / "native.py"
    helper.write_text(helper.read_text() + "\n# A change.\n")
    assert compiled(PART, part_cache, package) == (0, 2)
    assert compiled(PART, part_cache) == (2, 2)  # the entries of the other source are still there
