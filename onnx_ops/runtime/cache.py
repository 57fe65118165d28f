"""The folder of the kernel cache, with the permissions that files must have to be loaded.

The files are code. They are loaded only if nobody but the user and root could have written them: owners and modes of
each file are checked after it is opened, those of the folder and its parents at each access. On Windows, without owners
and modes, nothing is checked.

Folders created here are accessible to the user only. Files are readable by whoever can read the folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import platformdirs

from onnx_ops.core.errors import Error
from onnx_ops.runtime.process import STATE

if sys.platform != "win32":
    import fcntl
    import grp
    import pwd

DIRECTORY_VARIABLE = "ONNX_OPS_CACHE_DIR"
MAX_LINKS = 40
"""Symbolic links in one path, as in Linux."""
LOCKS = ".locks"
"""A file of which a process that compiles a function locks a byte."""
POLL_SECONDS = 0.05
PROBLEM = "cache_problem"
OPEN_FLAGS = os.O_RDONLY | sum(getattr(os, flag, 0) for flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
"""Refuses symbolic links, and does not block on pipes."""


class CacheUnavailableError(Error, OSError):
    """There is no cache directory for compiled kernels."""


class CacheRefusedError(Error, OSError):
    """A folder or a file that users other than this one and root could have changed."""


def wanted_cache_directory() -> Path:
    """The configured cache directory, which may not exist.

    Raises:
        CacheUnavailableError: neither environment nor system have one.
    """
    if chosen := os.environ.get(DIRECTORY_VARIABLE):
        return Path(chosen)
    try:
        path = platformdirs.user_cache_path("onnx_ops")
    except (KeyError, RuntimeError) as error:  # a user without a home directory
        raise CacheUnavailableError(f"there is no cache directory for this user: {error}") from error
    if not path.is_absolute():  # platformdirs before 4, for such a user
        raise CacheUnavailableError(f"there is no cache directory for this user: '{path}' is not absolute")
    return path


def cache_directory() -> Path:
    """The cache directory, created if necessary.

    Raises:
        OSError: it cannot be written, or is refused.
    """
    path = wanted_cache_directory()
    _make(path)
    _checked_folder(path)
    tempfile.TemporaryFile(dir=path).close()
    return path


def readers(folder: Path) -> str:
    """Who can read the files of a folder: "all users", "its group" or "this user"."""
    mode = folder.stat().st_mode
    return "all users" if mode & stat.S_IROTH else "its group" if mode & stat.S_IRGRP else "this user"


def read(name: str) -> bytes:
    """The contents of a file in the cache.

    Raises:
        OSError: it does not exist, cannot be read, or is refused.
    """
    folder = wanted_cache_directory()
    try:
        _checked_folder(folder)
        with open(os.open(folder / name, OPEN_FLAGS), "rb") as file:
            _check_file(folder / name, os.fstat(file.fileno()))
            return file.read()
    except OSError as error:
        if isinstance(error, CacheRefusedError) or error.errno == errno.ELOOP:
            note_problem(error)
        raise


@contextlib.contextmanager
def written(name: str) -> Iterator[IO[bytes]]:
    """A file that is moved into the cache at the end of the block, atomically.

    Raises:
        OSError: the cache cannot be written, or is refused.
    """
    path = wanted_cache_directory() / name
    _make(path.parent)
    folder = _checked_folder(path.parent)
    descriptor, own = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".new")
    try:
        with os.fdopen(descriptor, "wb") as file:
            _share(descriptor, folder)
            yield file
        os.replace(own, path)
    except BaseException:
        os.unlink(own)
        raise


@contextlib.contextmanager
def claimed(name: str, patience: float = 0.0) -> Iterator[bool]:
    """Whether no other process is in such a context for an entry; waits `patience` seconds for one that is.

    True too where files cannot be locked.
    """
    if sys.platform == "win32":
        yield True
        return
    try:
        folder = wanted_cache_directory()
        _make(folder)
        _checked_folder(folder)
        descriptor = os.open(folder / LOCKS, os.O_RDWR | os.O_CREAT | OPEN_FLAGS, 0o600)
    except OSError:
        yield True
        return
    try:
        yield _locked(descriptor, zlib.crc32(name.encode()), time.monotonic() + patience)
    finally:
        os.close(descriptor)  # which unlocks, as the end of the process does


def _locked(descriptor: int, byte: int, until: float) -> bool:
    """Lock a byte of a file for this process; returns whether no other process had it locked until then."""
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                if time.monotonic() >= until:
                    return False
                time.sleep(POLL_SECONDS)
                continue
        return True


def note_problem(error: OSError) -> None:
    """Store why compiled code could not be loaded or written; only the first reason is kept."""
    STATE.shared.setdefault(PROBLEM, str(error))


def problem() -> str | None:
    """Why compiled code could not be loaded or written; None if it could."""
    reason: str | None = STATE.shared.get(PROBLEM)
    return reason


# --- owners and modes ------------------------------------------------------------------------------------------------

READERS = stat.S_IRGRP | stat.S_IROTH


def _make(folder: Path) -> None:
    """Create a folder and its missing parents, accessible to the user only."""
    for path in (*reversed(folder.parents), folder):
        path.mkdir(mode=stat.S_IRWXU, exist_ok=True)


def _share(descriptor: int, folder: os.stat_result) -> None:
    """Make a new file readable by whoever can read the folder."""
    if sys.platform == "win32":
        return
    os.fchmod(descriptor, stat.S_IRUSR | stat.S_IWUSR | folder.st_mode & READERS)
    if folder.st_mode & stat.S_IRGRP:
        with contextlib.suppress(PermissionError):  # the user is not in the group
            os.fchown(descriptor, -1, folder.st_gid)


def _checked_folder(folder: Path) -> os.stat_result:
    """The status of a folder.

    The path is checked from the root down, including symbolic links: an entry of a folder that others cannot write to
    cannot be replaced after it was checked.

    Raises:
        CacheRefusedError: others can modify or replace it.
    """
    if sys.platform == "win32":
        return folder.stat()
    whole = folder.absolute()
    here, below, links = Path(whole.anchor), list(whole.parts[:0:-1]), 0
    while below:
        status = os.lstat(here)
        _check_owner(here, status)
        if not status.st_mode & stat.S_ISVTX:  # sticky: only the owner of an entry can move it
            _check_writers(here, status)
        name = below.pop()
        if name == os.pardir:
            here = here.parent
            continue
        status = os.lstat(here / name)
        if not stat.S_ISLNK(status.st_mode):
            here /= name
            continue
        _check_owner(here / name, status)
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(folder))
        target = Path(os.readlink(here / name))
        here = Path(target.anchor) if target.is_absolute() else here
        below.extend(part for part in reversed(target.parts) if part != target.anchor)
    status = os.lstat(here)
    _check_owner(here, status)
    _check_writers(here, status)
    return status


def _check_file(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise CacheRefusedError(f"{path} is no regular file")
    _check_owner(path, status)
    _check_writers(path, status)


def _check_owner(path: Path, status: os.stat_result) -> None:
    if sys.platform != "win32" and status.st_uid not in (0, os.geteuid()):
        raise CacheRefusedError(f"{path} belongs to user {status.st_uid}, expected user {os.geteuid()} or root")


def _check_writers(path: Path, status: os.stat_result) -> None:
    if sys.platform == "win32":
        return
    all_others = status.st_mode & stat.S_IWOTH
    if all_others or (status.st_mode & stat.S_IWGRP and not _is_private_group(status)):
        mode, who = stat.S_IMODE(status.st_mode), "all users" if all_others else "its group"
        raise CacheRefusedError(f"{path} can be written by {who} (mode {mode:o}), expected by the user or root alone")


def _is_private_group(status: os.stat_result) -> bool:
    """Whether the owner is the only member of the group: many systems have one per user, with write permission."""
    if sys.platform == "win32":
        return False
    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return owner.pw_gid == group.gr_gid and owner.pw_name == group.gr_name and {*group.gr_mem} <= {owner.pw_name}
