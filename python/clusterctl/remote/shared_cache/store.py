"""What every kind of shared cache can do: one face for a folder, HTTP and S3 storage."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import IO, TypeVar, get_args

from clusterctl.model.shared_cache import (
    INDEX,
    LARGEST_ENVELOPE,
    EntryName,
    Kind,
    Statement,
    blob_path,
    index_bytes,
    is_sha256,
)
from clusterctl.state import cache_entries, files
from clusterctl.support.errors import ConfigError, UnreachableError

_T = TypeVar("_T")
MOST_NAMES = 100_000


class SharedStore(ABC):
    """A shared cache. Contents are named by their sha256, so they never change; an envelope is written in one step.

    What is not overridden is that of a store which can only be read.
    """

    where: str  # as a message names it

    @abstractmethod
    def names(self) -> list[EntryName]:
        """Return the names of all entries, sorted.

        Raises:
            UnreachableError: the store does not answer, or refuses the login.
            ConfigError: there is no shared cache at this place.
        """

    @abstractmethod
    def envelope(self, name: EntryName) -> bytes | None:
        """Return the envelope of an entry; None where there is no such entry."""

    @abstractmethod
    def content(self, statement: Statement) -> Iterator[bytes]:
        """Return the content of an entry in parts; it may break off, which the reader notices by its size.

        Raises:
            UnreachableError: the store does not answer, or lacks the content.
        """

    @abstractmethod
    def has_content(self, statement: Statement) -> bool:
        """Whether the content is there in its full size."""

    def put(self, statement: Statement, content: Path, envelope: bytes, *, replace: bool) -> bool:  # noqa: ARG002 - it is read-only
        """Write an entry: its content first, then its envelope, which makes it visible.

        Returns:
            False where another push has written the entry in between, and it may not be replaced.
        """
        raise self._read_only()

    def finish(self) -> None:
        """Bring the index up to date, where the store has one; called once after a push or a removal."""
        raise self._read_only()

    def remove(self, name: EntryName) -> None:  # noqa: ARG002 - it is read-only
        """Remove the envelope of an entry; its content goes with :meth:`sweep`."""
        raise self._read_only()

    def sweep(self, wanted: AbstractSet[str], before: float) -> int:  # noqa: ARG002 - it is read-only
        """Remove contents that no entry names.

        ``wanted`` has the sha256 of each content that an entry names. What was written later than ``before``, in
        seconds since 1970, stays: a push may be about to name it.

        Returns:
            How many bytes were freed.
        """
        raise self._read_only()

    def written(self, name: EntryName) -> float | None:  # noqa: ARG002 - it does not tell
        """Return when an entry was written, in seconds since 1970; None where the store does not tell."""
        return None

    def _read_only(self) -> ConfigError:
        return ConfigError(
            f"{self.where} can be read only; push to the folder that this server serves, or to s3://BUCKET."
        )


def counted(where: str, names: Iterable[_T]) -> Iterator[_T]:
    """Return what a store lists, up to a number that no shared cache has.

    Raises:
        UnreachableError: the list is longer.
    """
    for number, name in enumerate(names):
        if number == MOST_NAMES:
            raise UnreachableError(f"The list of {where} has no end after {MOST_NAMES} names; look at that place.")
        yield name


def refused_login(where: str, said: str, cure: str) -> UnreachableError:
    """Return the error for a login that the store refused."""
    return UnreachableError(f"{where} refused the login ({said}); {cure}.")


def not_there(where: str, statement: Statement) -> UnreachableError:
    """Return the error for an entry whose content is missing."""
    return UnreachableError(
        f"{where} names {statement.entry.name} and does not have its content; push it again with --replace."
    )


# --- A shared cache in a folder: of this machine, of a network file system, or of what a web server serves ------------

_CHUNK = 1 << 20
_READABLE = 0o644
_TRIES = 5
_LINK = frozenset({errno.ELOOP, errno.ENOTDIR, errno.ENXIO})  # a link, a link as a folder, a socket
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN_FILES = Path("/proc/self/fd")  # missing on macOS, where a folder has its name alone
_OWN_FOLDERS = ("entries", "entries/pack", "entries/lock", "blobs", "blobs/sha256")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class FolderStore(SharedStore):
    """A folder; every file in it is whole, because it got its name by a rename or a link."""

    def __init__(self, root: Path) -> None:
        """Use a folder, which the first push makes."""
        self.root = root
        self.where = str(root)

    def names(self) -> list[EntryName]:
        """See :class:`SharedStore`."""
        if not self.root.is_dir():
            raise ConfigError(f"There is no folder {self.root}; correct the path, or push to it first.")
        found = []
        for kind in get_args(Kind):
            try:
                with self._walked(("entries", kind)) as folder, os.scandir(folder) as listed:
                    for path in counted(self.where, (Path(file.name) for file in listed)):
                        with contextlib.suppress(ValueError):
                            found += [EntryName.parse(f"{kind}/{path.stem}")] if path.suffix == ".json" else []
            except FileNotFoundError:
                continue
            except OSError as error:
                place = self.root / "entries" / kind
                raise self._unreadable(OSError(error.errno, error.strerror, str(place))) from None
        return sorted(found)

    def envelope(self, name: EntryName) -> bytes | None:
        """See :class:`SharedStore`."""
        try:
            with self._opened(name.path) as stream:
                data = stream.read(LARGEST_ENVELOPE + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._unreadable(error) from None
        if len(data) > LARGEST_ENVELOPE:
            raise UnreachableError(
                f"{self.root / name.path} has more than {LARGEST_ENVELOPE} bytes, so it is not an entry of a shared"
                " cache; remove it."
            )
        return data

    def content(self, statement: Statement) -> Iterator[bytes]:
        """See :class:`SharedStore`."""
        try:
            with self._opened(blob_path(statement.sha256)) as stream:
                left = statement.size + 1  # one byte too many tells the reader of another content
                while left > 0 and (chunk := stream.read(min(_CHUNK, left))):
                    left -= len(chunk)
                    yield chunk
        except FileNotFoundError:
            raise not_there(self.where, statement) from None
        except OSError as error:
            raise self._unreadable(error) from None

    def has_content(self, statement: Statement) -> bool:
        """See :class:`SharedStore`."""
        with contextlib.suppress(OSError, UnreachableError), self._opened(blob_path(statement.sha256)) as stream:
            return os.fstat(stream.fileno()).st_size == statement.size
        return False

    def put(self, statement: Statement, content: Path, envelope: bytes, *, replace: bool) -> bool:
        """See :class:`SharedStore`."""
        blob_at, entry_at = blob_path(statement.sha256), statement.entry.path
        with self._writing(blob_at, make=True) as blob, self._writing(entry_at, make=True) as entry:
            if not self.has_content(statement):
                with files.replacing(blob, _READABLE) as stream:
                    for chunk in cache_entries.chunks_of(content):
                        stream.write(chunk)
            if replace:
                files.write_atomically(entry, envelope, _READABLE)
                return True
            return _write_new(entry, envelope)

    def finish(self) -> None:
        """See :class:`SharedStore`; the index is for readers over HTTP. It is written until it names what is there."""
        for _ in range(_TRIES):
            names = self.names()
            with self._writing(INDEX) as index:
                files.write_atomically(index, index_bytes(names), _READABLE)
            if self.names() == names:
                return

    def remove(self, name: EntryName) -> None:
        """See :class:`SharedStore`."""
        with contextlib.suppress(FileNotFoundError), self._writing(name.path) as entry:
            entry.unlink(missing_ok=True)

    def sweep(self, wanted: AbstractSet[str], before: float) -> int:
        """See :class:`SharedStore`."""
        freed = 0
        with contextlib.suppress(FileNotFoundError), self._writing(blob_path("*")) as blobs:
            for path in blobs.parent.iterdir():
                state = path.lstat()
                if is_sha256(path.name) and path.name not in wanted and state.st_mtime < before:
                    path.unlink(missing_ok=True)
                    freed += state.st_size
        return freed

    def written(self, name: EntryName) -> float | None:
        """See :class:`SharedStore`."""
        with contextlib.suppress(OSError, UnreachableError), self._opened(name.path) as stream:
            return os.fstat(stream.fileno()).st_mtime
        return None

    @contextlib.contextmanager
    def _writing(self, path: str, *, make: bool = False) -> Iterator[Path]:
        """Yield a path to write to, whose folder is held open: no link that takes the folder's place leads elsewhere.

        A message names the path that cannot be written, and the disk that is full: it is often of another machine.
        """
        self._refuse_links()
        *folders, name = path.split("/")
        shown = held = self.root.joinpath(*folders)
        try:
            if make:
                self.root.mkdir(parents=True, exist_ok=True)
            with self._walked(folders, make=make) as place:
                here = _OPEN_FILES / str(place)
                held = here if here.exists() else shown
                yield held / name
        except (PermissionError, NotADirectoryError, FileExistsError) as error:
            where = str(error.filename or self.root).replace(str(held), str(shown))
            raise ConfigError(
                f"{where} cannot be written ({error.strerror}); push as a user who may, or to another folder."
            ) from None
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise ConfigError(
                f"The disk of {self.root} is full; make room there, or run 'clusterctl cache gc {self.root}', and push"
                " again."
            ) from None

    @contextlib.contextmanager
    def _walked(self, folders: Sequence[str], *, make: bool = False) -> Iterator[int]:
        """Hold a folder below the root, to which no link leads; ``make`` makes what is missing."""
        place = os.open(self.root, _FOLDER)
        try:
            for folder in folders:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(folder, dir_fd=place)
                inner = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=place)
                os.close(place)
                place = inner
            yield place
        finally:
            os.close(place)

    def _opened(self, path: str) -> IO[bytes]:
        """Open a regular file below the root; others may write there, so no link is followed and no pipe waited for."""
        *folders, name = path.split("/")
        try:
            with self._walked(folders) as place:
                descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
        except OSError as error:
            if str(error.filename) == str(self.root):
                raise
            if error.errno not in _LINK:
                raise type(error)(error.errno, error.strerror, str(self.root / path)) from None
            raise self._not_a_file(path) from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise self._not_a_file(path)
        return os.fdopen(descriptor, "rb")

    def _not_a_file(self, path: str) -> UnreachableError:
        return UnreachableError(
            f"{self.root / path} is not a regular file, or a link leads to it, so it is not read; remove it, and push"
            " again."
        )

    def _refuse_links(self) -> None:
        """Refuse to write where a link leads out of the shared cache."""
        for name in _OWN_FOLDERS:
            if (self.root / name).is_symlink():
                raise ConfigError(f"{self.root / name} is a link, so nothing is written there; make it a folder.")

    def _unreadable(self, error: OSError) -> UnreachableError:
        return UnreachableError(
            f"{error.filename or self.root} cannot be read ({error.strerror}); mend that and retry."
        )


def _write_new(path: Path, content: bytes) -> bool:
    """Write a file under a name that is free; False where it is taken, also by another machine at this moment."""
    beside = path.with_name(f".{path.name}.{os.getpid()}-{time.monotonic_ns()}")
    try:
        files.write_atomically(beside, content, _READABLE)
        path.hardlink_to(beside)
    except FileExistsError:
        return False
    finally:
        beside.unlink(missing_ok=True)
    return True
