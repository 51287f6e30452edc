"""Packs and locks of the controller's cache as entries that can be shared: what there is, its hash, and new ones."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.model.shared_cache import (
    EntryName,
    Envelope,
    Statement,
    statement_of_lock,
    statement_of_pack,
)
from clusterctl.state import files
from clusterctl.support import content
from clusterctl.support.errors import ConfigError, RefusedContentError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_CHUNK = 1 << 20
_READABLE = 0o644  # as the collection leaves them
_FOLDERS = {"pack": "artifacts", "lock": "locks"}
_SIGNED = ".signed"


@dataclass(frozen=True)
class LocalEntry:
    """An entry in a cache folder, as its record says; :meth:`problem` compares the content."""

    statement: Statement
    path: Path

    @property
    def name(self) -> EntryName:
        """Its name."""
        return self.statement.entry

    def problem(self) -> str:
        """Return why the content is not the one of the record; '' where it is."""
        try:
            size = self.path.stat().st_size
            if size != self.statement.size:
                return f"{self.path} has {size} bytes instead of {self.statement.size}"
            if sha256_of(self.path) != self.statement.sha256:
                return f"the content of {self.path} has changed"
        except OSError as error:
            return f"{self.path} cannot be read ({error.strerror})"
        return ""

    def envelope(self) -> Envelope | None:
        """Return the signed statement that was kept beside the content; None without one about this content."""
        with contextlib.suppress(OSError, ValueError):
            kept = Envelope.parse(_signed(self.path.parent, self.name).read_bytes())
            if kept.statement == self.statement.to_bytes():
                return kept
        return None

    def keep(self, envelope: Envelope) -> None:
        """Keep a signed statement, so that this controller can serve the entry without the site's key."""
        files.write_atomically(_signed(self.path.parent, self.name), envelope.to_bytes(), _READABLE)


def _signed(folder: Path, name: EntryName) -> Path:
    return folder / f"{name.name}{_SIGNED}"


def found(cache: Path) -> list[LocalEntry]:
    """Return the packs and locks of a cache folder, by name; what has no readable record is left out."""
    return sorted((*_packs(cache), *_locks(cache)), key=lambda entry: entry.name)


def _packs(cache: Path) -> Iterator[LocalEntry]:
    for record in (cache / _FOLDERS["pack"]).glob("*.json"):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            statement = statement_of_pack(json.loads(record.read_bytes()))
            pack = record.with_name(f"{statement.entry.name}.tar.zst")
            if record.stem == statement.entry.name and pack.is_file():
                yield LocalEntry(statement, pack)


def _locks(cache: Path) -> Iterator[LocalEntry]:
    for path in (cache / _FOLDERS["lock"]).glob("*.json"):
        with contextlib.suppress(OSError, ValueError):
            yield LocalEntry(statement_of_lock(path.stem, path.read_bytes()), path)


def take(cache: Path, statement: Statement, envelope: Envelope, chunks: Iterable[bytes], what: str) -> bool:
    """Write an entry into a cache folder, whole or not at all.

    The content goes into a file of mode 0600 and is hashed on the way. Only the right content gets its name.

    Args:
        cache: the cache folder.
        statement: verified.
        envelope: the one of the statement.
        chunks: the content, in parts.
        what: how a message names the entry and where it comes from.

    Returns:
        False where the cache has a whole entry of this name, which stays; ``chunks`` is left alone then.

    Raises:
        ConfigError: it does not fit on the disk.
        RefusedContentError: the content is not the signed one.
        UnreachableError: the content broke off.
    """
    name = statement.entry
    folder = cache / _FOLDERS[name.kind]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise ConfigError(
            f"The cache folder {cache} cannot be written ({error.strerror}); set XDG_CACHE_HOME to another."
        ) from None
    ending = ".tar.zst" if name.kind == "pack" else ".json"
    target, record = folder / f"{name.name}{ending}", folder / f"{name.name}.json"
    with _alone(folder, name):
        entry = LocalEntry(statement, target)
        if any(local.name == name and not local.problem() for local in found(cache)):
            if entry.envelope() is None:
                entry.keep(envelope)
            return False
        free = shutil.disk_usage(folder).free
        if free < statement.size:
            raise ConfigError(
                f"The disk of this machine is full: {folder} has {free} bytes free, and {what} has {statement.size};"
                " make room there, or set XDG_CACHE_HOME to a folder of another disk."
            )
        with files.replacing(target, _READABLE) as stream:
            total, size = hashlib.sha256(), 0
            for chunk in chunks:
                size += len(chunk)
                if size > statement.size:
                    break
                total.update(chunk)
                stream.write(chunk)
            _refuse_other(what, statement, size, total.hexdigest())
            if name.kind == "pack":
                record.unlink(missing_ok=True)  # a pack without a record counts as unfinished
        if name.kind == "pack":
            text = json.dumps(dict(statement.record), indent=1, sort_keys=True) + "\n"
            files.write_atomically(record, text, _READABLE)
        entry.keep(envelope)
    return True


def _refuse_other(what: str, statement: Statement, size: int, sha256: str) -> None:
    if size < statement.size:
        raise UnreachableError(
            f"The transfer of {what} broke off after {size} of {statement.size} bytes, and nothing of it was kept; run"
            " the same command again. If that says the same, have its site push it again with --replace."
        )
    if size > statement.size or sha256 != statement.sha256:
        raise RefusedContentError(
            f"The content of {what} is not the signed one (its sha256 differs), so nothing of it was kept; have its"
            " site push it again with --replace, and find out who changed it."
        )


@contextlib.contextmanager
def _alone(folder: Path, name: EntryName) -> Iterator[None]:
    """Hold the lock under which the collection builds a pack, or writes a lock of wheels."""
    path = folder / (f".{name.name}.lock" if name.kind == "pack" else f".{name.name}.json.flock")
    waiting = f"waiting for another run that makes {name.name}"
    with contextlib.ExitStack() as lock:
        try:
            lock.enter_context(content.module_util("disk_files").held(path, waiting))
        except PermissionError as error:
            raise ConfigError(
                f"The cache folder {folder} cannot be written ({error.strerror}); set XDG_CACHE_HOME to another."
            ) from None
        yield


def chunks_of(path: Path) -> Iterator[bytes]:
    """Return the content of a file in parts."""
    with path.open("rb") as stream:
        yield from iter(lambda: stream.read(_CHUNK), b"")


def sha256_of(path: Path) -> str:
    """Return the sha256 (hex) of a file's content."""
    total = hashlib.sha256()
    for chunk in chunks_of(path):
        total.update(chunk)
    return total.hexdigest()
