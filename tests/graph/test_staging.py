"""Folders that belong to one process, and are removed when that has ended."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from onnx_ops.graph.staging import reserved, staging_folder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs locks of folders")

OWNER = """
    import sys
    from pathlib import Path
    from onnx_ops.graph.staging import reserved, staging_folder

    with staging_folder(Path(sys.argv[1])) as folder, reserved(Path(sys.argv[1]) / "file"):
        (folder / "large").write_bytes(bytes(1000))
        print(folder, flush=True)
        sys.stdin.read()
"""


def test_folders_of_a_process_are_its_own_until_it_is_killed(tmp_path: Path) -> None:
    for name in (".onnx_ops_cache", "onnx_ops_abcdefgh"):  # of others
        (tmp_path / name).mkdir()
    (tmp_path / ".onnx_ops_aaaaaaaa").write_text("a file")
    (tmp_path / ".onnx_ops_bbbbbbbb").symlink_to(tmp_path / ".onnx_ops_cache")
    kept = {".onnx_ops_cache", "onnx_ops_abcdefgh", ".onnx_ops_aaaaaaaa", ".onnx_ops_bbbbbbbb"}
    command = [sys.executable, "-c", textwrap.dedent(OWNER), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        with staging_folder(tmp_path) as own:
            assert own != folder
            assert (folder / "large").stat().st_size == 1000
        assert not own.exists()
        with (
            pytest.raises(OSError, match="another process is writing this file") as refused,
            reserved(tmp_path / "file"),
        ):
            raise AssertionError("it is reserved")
        assert refused.value.filename == str(tmp_path / "file")
        with reserved(tmp_path / "other"):
            pass
        owner.kill()
    assert folder.exists()
    with reserved(tmp_path / "file"):
        pass
    with staging_folder(tmp_path):
        assert not folder.exists()
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_within_a_process_too(tmp_path: Path) -> None:
    with staging_folder(tmp_path) as one, staging_folder(tmp_path) as other:
        assert one.exists()
        assert other.exists()
    with (
        reserved(tmp_path / "file"),
        pytest.raises(OSError, match="another process is writing"),
        reserved(tmp_path / "file"),
    ):
        raise AssertionError("it is reserved")
    assert not list(tmp_path.iterdir())
