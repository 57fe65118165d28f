"""Who may have written what is loaded from the folder of compiled kernels, and who may read what is written there."""

from __future__ import annotations

import ast
import ctypes
import os
import pickle
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from llvmlite import binding
from numba import types

import onnx_ops
from onnx_ops.cli.diagnosis import _cache
from onnx_ops.integrations import sessions
from onnx_ops.ops.binary_cross_entropy import binary_cross_entropy_with_logits_target_backward
from onnx_ops.ops.kl_div import kl_div_target_backward
from onnx_ops.runtime import cache, callbacks, code_generation, compiler
from onnx_ops.runtime.loading import linked
from onnx_ops.runtime.process import STATE

ROOT = Path(onnx_ops.__file__).parents[1]
NOBODY = 65534
NAME = "f-0.kernel"
CONTENT = b"code"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="files have no owners and modes here")
only_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache with a file in it, in a folder of its own."""
    path = tmp_path / "above" / "cache"
    monkeypatch.setenv(cache.DIRECTORY_VARIABLE, str(path))
    before = STATE.shared.pop(cache.PROBLEM, None)
    write()
    yield path
    STATE.shared.pop(cache.PROBLEM, None)
    if before is not None:
        STATE.shared[cache.PROBLEM] = before


def write() -> None:
    with cache.written(NAME) as file:
        file.write(CONTENT)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def put_elsewhere(folder: Path) -> Path:
    """Let the folder be a link to another one; answers the link."""
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")
    return folder


WRITABLE: dict[str, Callable[[Path], None]] = {
    "folder": lambda folder: folder.chmod(0o777),
    "sticky folder": lambda folder: folder.chmod(0o1777),
    "folder above": lambda folder: folder.parent.chmod(0o777),
    "folder of the target of a link": lambda folder: put_elsewhere(folder).parent.chmod(0o777),
}
OF_OTHERS: dict[str, Callable[[Path], None]] = {
    "folder": lambda folder: os.chown(folder, NOBODY, -1),
    "folder above": lambda folder: os.chown(folder.parent, NOBODY, -1),
    "sticky folder above": lambda folder: (folder.parent.chmod(0o1777), os.chown(folder.parent, NOBODY, -1))[0],
    "link": lambda folder: os.lchown(put_elsewhere(folder), NOBODY, -1),
}


def test_what_is_kept_is_found(folder: Path) -> None:
    assert cache.read(NAME) == CONTENT
    put_elsewhere(folder)
    assert cache.read(NAME) == CONTENT
    write()
    assert cache.cache_directory() == folder
    assert cache.problem() is None


def check_folder_is_refused(message: str) -> None:
    for use in (lambda: cache.read(NAME), write, cache.cache_directory):
        with pytest.raises(cache.CacheRefusedError, match=message):
            use()
    told = _cache()
    assert not told.writable
    assert told.problem == cache.problem()


@pytest.mark.parametrize("what", WRITABLE)
def test_folder_that_others_can_change_is_refused(what: str, folder: Path) -> None:
    WRITABLE[what](folder)
    check_folder_is_refused("can be written by all users")


@only_root
@pytest.mark.parametrize("what", OF_OTHERS)
def test_folder_of_another_user_is_refused(what: str, folder: Path) -> None:
    OF_OTHERS[what](folder)
    check_folder_is_refused(f"belongs to user {NOBODY}, expected user 0 or root")


def test_sticky_folder_above_protects_the_own_one(folder: Path) -> None:
    folder.parent.chmod(0o1777)
    assert cache.read(NAME) == CONTENT


def test_file_that_others_can_write_is_refused_and_replaced(folder: Path) -> None:
    (folder / NAME).chmod(0o646)
    with pytest.raises(cache.CacheRefusedError, match=r"can be written by all users \(mode 646\)"):
        cache.read(NAME)
    write()
    assert cache.read(NAME) == CONTENT
    assert "mode 646" in str(_cache().problem)


@only_root
def test_file_of_another_user_is_refused(folder: Path) -> None:
    os.chown(folder / NAME, NOBODY, -1)
    with pytest.raises(cache.CacheRefusedError, match=f"belongs to user {NOBODY}"):
        cache.read(NAME)


def test_what_is_no_regular_file_is_refused(folder: Path) -> None:
    (folder / NAME).rename(folder / "other")
    (folder / NAME).symlink_to("other")
    with pytest.raises(OSError, match="symbolic links"):
        cache.read(NAME)
    assert cache.problem()
    (folder / NAME).unlink()
    os.mkfifo(folder / NAME)
    with pytest.raises(cache.CacheRefusedError, match="no regular file"):
        cache.read(NAME)


@pytest.mark.parametrize(("members", "accepted"), [([], True), (["other"], False)])
def test_group_of_the_user_alone_may_write(
    members: list[str], accepted: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, group = SimpleNamespace(pw_gid=7, pw_name="me"), SimpleNamespace(gr_gid=7, gr_name="me", gr_mem=members)
    monkeypatch.setattr(cache, "pwd", SimpleNamespace(getpwuid=lambda number: user))
    monkeypatch.setattr(cache, "grp", SimpleNamespace(getgrgid=lambda number: group))
    folder.chmod(0o775)
    if accepted:
        assert cache.read(NAME) == CONTENT
    else:
        check_folder_is_refused(r"can be written by its group \(mode 775\)")


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_folder_that_is_made_is_the_users_alone(mask: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = folder / "new" / "one"
    monkeypatch.setenv(cache.DIRECTORY_VARIABLE, str(made))
    before = os.umask(mask)
    try:
        write()
    finally:
        os.umask(before)
    assert [mode(path) for path in (made.parent, made, made / NAME)] == [0o700, 0o700, 0o600]
    assert cache.readers(made) == "this user"


@pytest.mark.parametrize(
    ("shared", "expected", "readers"),
    [(0o755, 0o644, "all users"), (0o750, 0o640, "its group"), (0o711, 0o600, "this user")],
)
def test_files_can_be_read_by_whoever_can_read_the_folder(
    shared: int, expected: int, readers: str, folder: Path
) -> None:
    folder.chmod(shared)
    write()
    assert mode(folder / NAME) == expected
    assert cache.readers(folder) == readers


def test_system_without_owners_and_modes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.chmod(0o777)
    monkeypatch.setattr(sys, "platform", "win32")
    write()
    assert cache.read(NAME) == CONTENT


# --- code ------------------------------------------------------------------------------------------------------------


class Planted:
    """What runs a command when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.proof}",)


def test_code_that_others_could_have_planted_is_not_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, proof = (callbacks.one, types.int64(types.int64)), tmp_path / "proof"
    payload = pickle.dumps(Planted(proof))
    with cache.written(compiler.entry_name(function)) as file:
        file.write(compiler.DIGEST(payload).digest() + payload)
    folder.chmod(0o1777)
    assert not compiler.is_kept(function)
    assert not proof.exists()
    monkeypatch.setattr(sessions, "_warned", set())
    with pytest.warns(
        UserWarning, match=r"compiles kernels in each process.* can be written by all users \(mode 1777\)"
    ):
        sessions._warn_of_cache(stacklevel=1)
    folder.chmod(0o700)
    with pytest.raises(TypeError):  # what makes no function is run before that is seen
        compiler.is_kept(function)
    assert proof.exists()


# --- users -----------------------------------------------------------------------------------------------------------

AS_USER = """
import os, sys
from numba import types
from onnx_ops.runtime import callbacks, compiler
user, folder, of_root = int(sys.argv[1]), sys.argv[2], sys.argv[3]
# All that Numba needs is imported before: other users may not reach the environment.
os.environ["ONNX_OPS_CACHE_DIR"] = of_root
compiler.compile_native(callbacks.one, types.int32(types.int32))
os.setgroups([]); os.setgid(user); os.setuid(user)
os.environ["ONNX_OPS_CACHE_DIR"] = folder
for kind in (types.int16, types.uint16):
    assert compiler.compile_native(callbacks.one, kind(kind))
    print(compiler.compiled[callbacks.one, kind(kind)].is_from_cache)
print(compiler.cache.problem())
"""


@pytest.fixture
def readable() -> Iterator[Path]:
    """A folder that other users can reach, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as path:
        os.chmod(path, 0o755)
        yield Path(path)


@only_root
def test_cache_that_root_has_filled_serves_other_users(
    folder: Path, readable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the image of a container. They can read it only; what it lacks they compile, and are told."""
    shared = readable / "kernels"
    shared.mkdir(mode=0o755)
    monkeypatch.setenv(cache.DIRECTORY_VARIABLE, str(shared))
    compiler.compile_native(callbacks.one, types.int16(types.int16))
    assert len([*shared.iterdir()]) == 1
    done = subprocess.run(
        [sys.executable, "-P", "-c", AS_USER, str(NOBODY), shared, folder],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found, lacking, problem = done.stdout.splitlines()
    assert (found, lacking) == ("True", "False")
    assert "Permission denied" in problem


def test_cores_of_functions_of_one_name_have_names_of_their_own() -> None:
    """`elementwise` makes both: the same code and signature, of functions in two files."""
    cores = kl_div_target_backward.gradient, binary_cross_entropy_with_logits_target_backward.gradient
    assert {core.__name__ for core in cores} == {"gradient"}
    assert len({compiler.entry_name((core, types.void())) for core in cores}) == 2


WRITE_NO_KERNELS = ("bodies", "graph")


def test_name_of_compiled_code_depends_on_what_the_files_of_kernels_import() -> None:
    """Those of ops, and those on which it depends; `compiler` itself runs in Python alone."""
    package = ROOT / "onnx_ops"
    missing = []
    shared = {*compiler.sources(str(package / "runtime" / "callbacks.py"))} - {package / "runtime" / "compiler.py"}
    for file in (*package.glob("ops/*/*.py"), *shared):
        covered = compiler.sources(str(file))
        for statement in ast.walk(ast.parse(file.read_text())):
            if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("onnx_ops."):
                imported = ROOT.joinpath(*str(statement.module).split("."))
                modules = [path for alias in statement.names if (path := imported / f"{alias.name}.py").exists()]
                own = imported / "__init__.py" if imported.is_dir() else imported.with_suffix(".py")
                for module in modules or [own]:
                    if module.relative_to(package).parts[0] not in WRITE_NO_KERNELS and module not in covered:
                        missing.append((file.name, module.name))
    assert missing == []


def test_functions_that_two_objects_name_alike() -> None:
    """As two processes may name those that they have compiled."""

    def linked_function(name: str, number: int) -> int:
        module = binding.parse_assembly(
            f"define linkonce_odr i64 @test_cache_inner() noinline {{ ret i64 {number} }}\n"
            f"define i64 @{name}() {{ %found = call i64 @test_cache_inner() ret i64 %found }}"
        )
        with code_generation.selected() as codegen:
            return linked(codegen.emitted(module, name), name)

    addresses = [linked_function(f"test_cache_outer_{number}", number) for number in (1, 2)]
    assert [ctypes.CFUNCTYPE(ctypes.c_int64)(address)() for address in addresses] == [1, 2]
