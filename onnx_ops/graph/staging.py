"""Temporary folders and locks next to files that are being written; those of killed processes are removed later."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

if sys.platform != "win32":  # without locks there, nothing is removed
    import fcntl

PREFIX = ".onnx_ops_"
ABANDONABLE = re.compile(re.escape(PREFIX) + r"([a-z0-9_]{8}|lock_[0-9a-f]{16})")
"""The names of these folders."""
PATIENCE = 0.5
"""In seconds: for how long a process that removes abandoned folders may lock one."""


@contextlib.contextmanager
def staging_folder(parent: Path) -> Iterator[Path]:
    """A new folder in `parent`, which is removed at the end. Abandoned folders are removed first."""
    _remove_abandoned(parent)
    folder, handle = _new_folder(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _release(handle)


@contextlib.contextmanager
def replacing(*paths: Path) -> Iterator[Path]:
    """A new folder for files with the names of `paths`, which are in one folder and are replaced by them at the end.

    Each is replaced atomically, in the given order, once the new one is on disk, and keeps its mode. An OSError names
    the last of `paths`, not a temporary file.
    """
    try:
        with staging_folder(paths[0].parent) as folder:
            yield folder
            for path in paths:
                staged = folder / path.name
                if path.exists():
                    shutil.copymode(path, staged)
                _to_disk(staged)
                staged.replace(path)
        _to_disk(paths[0].parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(paths[-1])) from error


def is_replaceable(path: Path) -> bool:
    """Whether a path is free, or that of a regular file, and no symbolic link."""
    return not path.is_symlink() and (not path.exists() or path.is_file())


def _to_disk(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk, except on Windows, which needs write access for that."""
    if sys.platform == "win32":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def reserved(path: Path) -> Iterator[None]:
    """A context that only one process at a time can enter for a path. Abandoned folders are removed first.

    Raises:
        OSError: another process is in it; a folder that cannot be written.
    """
    _remove_abandoned(path.parent)
    mark = hashlib.sha256(path.name.encode()).hexdigest()[:16]
    folder, until = path.parent / f"{PREFIX}lock_{mark}", time.monotonic() + PATIENCE
    while True:
        folder.mkdir(exist_ok=True)
        try:
            handle = _locked(folder)
            break
        except FileNotFoundError:
            continue
        except BlockingIOError:
            if time.monotonic() > until:
                raise OSError(errno.EBUSY, "another process is writing this file", str(path)) from None
            time.sleep(PATIENCE / 10)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()
        _release(handle)


def _new_folder(parent: Path) -> tuple[Path, int | None]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        try:
            return folder, _locked(folder)
        except (FileNotFoundError, BlockingIOError):  # another process has removed it as abandoned
            continue


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders that killed processes have left."""
    for folder in parent.glob(f"{PREFIX}*"):
        if ABANDONABLE.fullmatch(folder.name) and folder.is_dir() and not folder.is_symlink():
            with contextlib.suppress(OSError):
                handle = _locked(folder)
                if handle is not None:
                    shutil.rmtree(folder, ignore_errors=True)
                    _release(handle)


def _locked(folder: Path) -> int | None:
    """Lock a folder.

    Returns:
        A descriptor that holds the lock until it is closed; None if the system, or the file system, has no locks.

    Raises:
        BlockingIOError: another process has locked it.
        FileNotFoundError: it does not exist any more.
    """
    if sys.platform == "win32":
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.stat(folder), os.fstat(handle)):
            return handle
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
    except (BlockingIOError, FileNotFoundError):
        os.close(handle)
        raise
    except OSError:
        os.close(handle)
        return None


def _release(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)
