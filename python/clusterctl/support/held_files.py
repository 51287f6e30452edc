"""Temporary files and folders: a lock of the kernel holds each while its process lives; the rest is litter of kills."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

FOLDER = "clusterctl-held-"
# A control socket lies in such a folder. Its path ends at 104 bytes on macOS and at 108 on Linux: the folder's own name
# has 24, ssh's hash and the ending of a socket in the making 58. The temporary folder of a macOS user has 49.
_LONGEST_BASE = 20


def open_held(path: Path, mode: int = 0o600) -> int:
    """Open a new or empty file for writing and hold it until its descriptor is closed; ``mode`` goes by the umask.

    Others may write to the folder. What they put under this name is neither followed nor emptied.

    Raises:
        FileExistsError: something else than a file of this process has the name.
        OSError: the file cannot be written.
    """
    descriptor: int | None
    while True:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        except FileExistsError:
            descriptor = _reopened(path)
        if descriptor is not None and _hold(descriptor, path):
            os.ftruncate(descriptor, 0)
            return descriptor


def _reopened(path: Path) -> int | None:
    """Open a file that an earlier process of the same number left, or another thread; None where it is gone by now.

    Raises:
        FileExistsError: it is something else.
    """
    refusal = FileExistsError(errno.EEXIST, "It is not a file of this process; remove it", str(path))
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise refusal from error
    state = os.fstat(descriptor)
    if stat.S_ISREG(state.st_mode) and state.st_uid == os.geteuid() and state.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    raise refusal


@contextlib.contextmanager
def folder(base: str | None = None) -> Iterator[Path]:
    """Yield a private temporary folder, which is gone afterwards.

    Args:
        base: where it is made; None is the folder for temporary files.
    """
    while True:
        made = Path(tempfile.mkdtemp(prefix=FOLDER, dir=base))
        descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
        if _hold(descriptor, made):
            break
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(descriptor)


def short_base() -> str | None:
    """Return a folder for :func:`folder` in which unix sockets may lie; None is the folder for temporary files."""
    usual = tempfile.gettempdir()
    return "/tmp" if len(os.fsencode(usual)) > _LONGEST_BASE and os.access("/tmp", os.W_OK) else None  # noqa: S108 - the folder in it is private


def remove_folders_of_killed() -> None:
    """Remove this user's temporary folders whose processes have ended."""
    for base in {tempfile.gettempdir(), short_base() or "", os.environ.get("XDG_RUNTIME_DIR", "")} - {""}:
        remove_abandoned(Path(base).glob(f"{FOLDER}????????"))


def remove_abandoned(candidates: Iterable[Path]) -> None:
    """Remove those of this user's files and folders that a process held once and holds no more."""
    for path in candidates:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if os.fstat(descriptor).st_uid != os.geteuid():
                    continue
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()
            finally:
                os.close(descriptor)


def _hold(descriptor: int, path: Path) -> bool:
    """Lock what was just made; False where another process took it for litter in between."""
    with contextlib.suppress(OSError):
        with contextlib.suppress(OSError):  # a file system without locks has no litter removed from it
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.path.samestat(os.fstat(descriptor), path.lstat()):
            return True
    os.close(descriptor)
    return False
