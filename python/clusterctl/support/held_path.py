"""Paths to write to: each folder is held open, and a link that another user can change leads nowhere."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from clusterctl.support.errors import ConfigError

_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILES = Path("/proc/self/fd")
_MOST_LINKS = 40  # as Linux follows
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@contextlib.contextmanager
def to_file(path: Path) -> Iterator[Path]:
    """Yield a path of a file whose folder is held open; a link at its end stays, and its target is yielded.

    Where the system shows no open folders (macOS), the path is the resolved one.

    Args:
        path: the file to write or remove; its folder exists.

    Raises:
        ConfigError: a link on the way is one that another user can change.
        OSError: a folder on the way is missing or is not a folder.
    """
    with contextlib.closing(_Walk()) as walk:
        left = _parts(path.absolute())
        while left:
            part = left.pop()
            target = walk.link(part)
            if target is not None:
                left += _parts(target)
                if target.is_absolute():
                    walk.restart()
            elif left:
                walk.enter(part)
            else:
                yield walk.held / part
                return
    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))


@contextlib.contextmanager
def folder(path: Path, mode: int | None = None) -> Iterator[Path]:
    """Yield a path to a folder of this user while it is held open.

    Args:
        path: the folder.
        mode: make it if it is missing, and give it this mode; None takes it as it is.

    Raises:
        ConfigError: a link on the way is one that another user can change, or the folder is another user's.
        OSError: it is missing, or cannot be made.
    """
    with to_file(path) as outer:
        if mode is not None:
            with contextlib.suppress(FileExistsError):
                outer.mkdir(mode=0o700)
        descriptor = os.open(outer, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_uid != os.geteuid():
                raise ConfigError(f"The folder {path} is another user's; remove it, or choose another one.")
            if mode is not None:
                os.fchmod(descriptor, mode)
            yield _shown(descriptor, outer)
        finally:
            os.close(descriptor)


class _Walk:
    """A folder that is held open, and how it is called."""

    def __init__(self) -> None:
        self._links = 0
        self.name = Path("/")
        self._place = os.open("/", _FOLDER)

    @property
    def held(self) -> Path:
        """A path to the folder that stays this folder's, whatever takes its name."""
        return _shown(self._place, self.name)

    def restart(self) -> None:
        """Begin again at the root."""
        self.close()
        self.name, self._place = Path("/"), os.open("/", _FOLDER)

    def enter(self, part: str) -> None:
        """Go into a folder that is not a link."""
        inner = os.open(part, _FOLDER, dir_fd=self._place)
        self.close()
        self.name, self._place = self.name / part, inner

    def link(self, part: str) -> Path | None:
        """Return where a link leads; None for anything else, and for what is missing.

        Raises:
            ConfigError: another user can change the link.
        """
        try:
            state = os.stat(part, dir_fd=self._place, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISLNK(state.st_mode):
            return None
        self._links += 1
        if self._links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(self.name / part))
        folder, ours = os.fstat(self._place), {0, os.geteuid()}
        is_kept = not folder.st_mode & _OTHERS_WRITE or folder.st_mode & stat.S_ISVTX
        if state.st_uid not in ours or folder.st_uid not in ours or not is_kept:
            raise ConfigError(
                f"{self.name / part} is a link that another user can change, so nothing is written through it; name"
                " the place that it leads to, or remove it."
            )
        return Path(os.readlink(part, dir_fd=self._place))

    def close(self) -> None:
        """Let the folder go."""
        os.close(self._place)


def _parts(path: Path) -> list[str]:
    """Return the parts of a path, last first; of a relative one, those that lead on from where it is met."""
    return [part for part in reversed(path.parts) if part != path.anchor]


def _shown(descriptor: int, path: Path) -> Path:
    here = _OPEN_FILES / str(descriptor)
    return here if here.exists() else path
