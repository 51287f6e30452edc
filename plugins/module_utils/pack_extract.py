# SPDX-License-Identifier: Apache-2.0
"""Read a pack of an artifact as its manifest says, and extract it; nothing else in a pack has any effect.

The manifest is the first member, and its digest is known. Each later member must be an entry of it, with the same kind,
size and mode. So a pack can neither bring more bytes, files or rights than the manifest names, nor write elsewhere.
The module runs on nodes and on the controller, so it needs only Python 3.9 and the standard library.
"""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import tarfile
import zlib
from contextlib import closing, contextmanager
from typing import Any, BinaryIO, Collection, Dict, Iterable, Iterator, List, Sequence

from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact_pack
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import (
    MANIFEST,
    MOST_MANIFEST,
    ArtifactError,
    BadPackError,
    Entry,
    leaving_link,
    most_unpacked,
    parse_manifest,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.command import SYSTEM_PATH

_CHUNK = 1 << 20
_GZIP_WINDOW = 31  # for zlib: a gzip header, and the checksum at the end is verified
_HEADERS = 1 << 16  # bytes of one member's headers
_LATEST = 1 << 36  # s since 1970
# What a pack's own headers hold; others would set attributes, such as capabilities, or make a sparse file.
_KEYS = frozenset({"path", "linkpath", "size", "mtime", "uid", "gid", "uname", "gname", "hdrcharset"})
_KINDS = {
    tarfile.REGTYPE: "f",
    tarfile.AREGTYPE: "f",
    tarfile.LNKTYPE: "f",  # a second name of a file
    tarfile.SYMTYPE: "l",
    tarfile.DIRTYPE: "d",
}


class Taker:
    """Gets the entries of a pack one by one; this one leaves nothing of them."""

    def begin(self, entries: Collection[Entry]) -> None:
        """Take the whole manifest, before anything else."""

    def folder(self, entry: Entry) -> None:
        """Take a folder."""

    def link(self, entry: Entry) -> None:
        """Take a symbolic link."""

    def twin(self, entry: Entry, first: str) -> None:
        """Take a second name of the file that has the path ``first``."""

    def file(self, entry: Entry, portions: Iterable[memoryview], modified: float) -> None:
        """Take a file; a portion is valid until the next one is taken."""

    def end(self) -> None:
        """Take the end of the pack."""


class _Extracting(Taker):
    """Writes the entries into a folder that only this user can reach."""

    def __init__(self, folder: str) -> None:
        self._top = folder
        self._folders: List[Entry] = []

    def _path(self, name: str) -> str:
        return f"{self._top}/{name}"

    def begin(self, entries: Collection[Entry]) -> None:
        state = os.statvfs(self._top)
        contents = {(entry.content, entry.size) for entry in entries if entry.kind == "f"}  # a twin takes no room
        if sum(size for _content, size in contents) > state.f_bavail * state.f_frsize:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._top)

    def folder(self, entry: Entry) -> None:
        os.mkdir(self._path(entry.path), 0o700)  # noqa: PTH102 - tens of thousands of entries
        self._folders.append(entry)

    def link(self, entry: Entry) -> None:
        os.symlink(entry.content, self._path(entry.path))  # noqa: PTH211 - as above

    def twin(self, entry: Entry, first: str) -> None:
        os.link(self._path(first), self._path(entry.path), follow_symlinks=False)

    def file(self, entry: Entry, portions: Iterable[memoryview], modified: float) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(self._path(entry.path), flags, 0o600)
        try:
            for portion in portions:
                rest = portion
                while rest:
                    rest = rest[os.write(handle, rest) :]
            os.fchmod(handle, int(entry.mode, 8))
            os.utime(handle, (modified, modified))  # Python compares the time of a source with its byte code
        finally:
            os.close(handle)

    def end(self) -> None:
        for entry in reversed(self._folders):
            os.chmod(self._path(entry.path), int(entry.mode, 8))  # noqa: PTH101 - as above


def extract(
    packed: BinaryIO, compression: str, folder: str, manifest_sha256: str, root: str, beside: Collection[str] = ()
) -> None:
    """Extract a pack into a folder that only this user can reach.

    Args:
        packed: a file that no other user can change.
        compression: ``gz`` or ``zst``.
        folder: where the content goes.
        manifest_sha256: digest of its manifest.
        root: folder of the artifacts, to which links may lead.
        beside: see :func:`artifact.leaving_link`.

    Raises:
        BadPackError: the pack is damaged, or holds something else than its manifest says.
        OSError: a file cannot be written, or there is no room for all files.
    """
    with decompressed(packed, compression) as portions:
        read(portions, _Extracting(folder), root, os.fstat(packed.fileno()).st_size, manifest_sha256, beside)


@contextmanager
def decompressed(packed: BinaryIO, compression: str) -> Iterator[Iterator[Any]]:
    """Yield the content of a pack, in portions of at most 1 MiB, by what this host has for it."""
    if compression == "gz":
        yield inflated(packed)
    elif artifact_pack.library():
        with closing(artifact_pack.decompressed(packed)) as portions:  # type: ignore[type-var]
            yield portions
    else:
        argv = ["zstd", "-d", "-q", "-c"]
        environment = {"PATH": SYSTEM_PATH}
        with subprocess.Popen(argv, stdin=packed, stdout=subprocess.PIPE, env=environment) as program:
            try:
                yield iter(lambda: program.stdout.read(_CHUNK) if program.stdout else b"", b"")
            finally:
                program.kill()


def inflated(source: BinaryIO) -> Iterator[bytes]:
    """Yield the content of a ``.gz`` in portions of at most 1 MiB; Python's zlib takes 60 % of gzip's time."""
    inflater = zlib.decompressobj(_GZIP_WINDOW)
    for chunk in iter(lambda: source.read(_CHUNK), b""):
        rest = chunk
        while rest and not inflater.eof:
            yield inflater.decompress(rest, _CHUNK)
            rest = inflater.unconsumed_tail
    while not inflater.eof:
        portion = inflater.decompress(b"", _CHUNK)
        if not portion:
            raise EOFError("the pack is cut off")
        yield portion


class _Stream:
    """The content of a pack as a file that is read forward only, and not beyond a limit."""

    def __init__(self, portions: Iterator[Any]) -> None:
        self._portions = portions
        self._left = memoryview(b"")
        self._at = 0
        self.limit = _HEADERS

    def tell(self) -> int:
        return self._at

    def seek(self, position: int) -> int:
        for _skipped in self.portions(position - self._at):
            pass
        return self._at

    def read(self, size: int) -> bytes:
        # join() takes all portions before it copies the first one, and they share one buffer
        return b"".join([bytes(portion) for portion in self.portions(size)])

    def portions(self, size: int) -> Iterator[memoryview]:
        """Yield so many bytes, or less at the end; a portion is valid until the next one is taken."""
        if self._at + size > self.limit:
            raise BadPackError("it holds more bytes than its manifest says")
        while size > 0:
            if not self._left:
                self._left = memoryview(next(self._portions, b""))
                if not self._left:
                    return
            portion = self._left[:size]
            self._left = self._left[size:]
            self._at += len(portion)
            size -= len(portion)
            yield portion


def read(
    portions: Iterator[Any],
    taker: Taker,
    root: str,
    packed: int,
    manifest_sha256: str = "",
    beside: Collection[str] = (),
) -> str:
    """Read a pack, and return the digest of its manifest.

    Args:
        portions: the decompressed content.
        taker: gets each entry.
        root: folder of the artifacts, to which links may lead.
        packed: bytes of the pack, which bound what it unpacks to.
        manifest_sha256: the digest that the manifest must have; '' takes any.
        beside: see :func:`artifact.leaving_link`.

    Raises:
        BadPackError: the pack is damaged, or holds something else than its manifest says.
        OSError: the taker cannot write.
    """
    stream = _Stream(portions)
    try:
        return _read(stream, taker, (root, *beside), packed, manifest_sha256)
    except BadPackError:
        raise
    except ArtifactError as error:
        raise BadPackError(str(error)) from error
    except (tarfile.TarError, EOFError, zlib.error, artifact_pack.ZstdError, ValueError, RecursionError) as error:
        raise BadPackError(f"it cannot be read ({error})") from error


def _read(stream: _Stream, taker: Taker, places: Sequence[str], packed: int, manifest_sha256: str) -> str:
    digest, wanted = "", {}
    before: Dict[str, Entry] = {}  # what has come
    # the mode "r:" reads headers only, and the data is read here
    with tarfile.open(fileobj=stream, mode="r:") as bundle:  # type: ignore[call-overload]
        for member in iter(bundle.next, None):
            kind = _kind(member)
            if not digest:
                entry, data = _manifest(stream, member, kind)
                digest, wanted = entry.content, {each.path: each for each in parse_manifest(data)}
                if manifest_sha256 and digest != manifest_sha256:
                    raise BadPackError("its manifest is not the one that the controller's record names")
                problem = _too_much(wanted.values(), packed) or leaving_link(wanted.values(), places[0], places[1:])
                if problem:
                    raise BadPackError(problem)
                taker.begin(wanted.values())
                taker.file(entry, [memoryview(data)], _modified(member))
            else:
                _take(stream, member, _entry(member, kind, wanted, before), before, taker)
            stream.limit = stream.tell() + _HEADERS
            bundle.members = []  # type: ignore[misc]
    if not digest:
        raise BadPackError("its manifest is missing")
    stream.limit = stream.tell() + _HEADERS
    if sum(map(len, stream.portions(_HEADERS))) == _HEADERS:
        raise BadPackError("it goes on after its end")
    for path in wanted:
        if path not in before:
            raise BadPackError(f"{path} is missing")
    taker.end()
    return digest


def _too_much(entries: Collection[Entry], packed: int) -> str:
    """Return a phrase where a manifest names more bytes than its pack lets expect; '' elsewhere."""
    total = sum(entry.size for entry in entries)
    if total <= most_unpacked(packed):
        return ""
    return f"its files have {total} bytes, more than a pack of {packed} bytes unpacks to"


def _kind(member: tarfile.TarInfo) -> str:
    kind = _KINDS.get(member.type, "")
    if not kind or not member.pax_headers.keys() <= _KEYS:
        raise BadPackError(f"it holds {member.name!r}, which is not a plain file, link or folder")
    if member.uid or member.gid:
        raise BadPackError(f"{member.name!r} belongs to user id {member.uid} and group id {member.gid}, not to root")
    return kind


def _modified(member: tarfile.TarInfo) -> float:
    modified = float(member.mtime)
    if not 0 <= modified < _LATEST:  # also where it is not a number
        raise BadPackError(f"{member.name!r} has no valid time")
    return modified


def _manifest(stream: _Stream, member: tarfile.TarInfo, kind: str) -> "tuple[Entry, bytes]":
    if member.name != MANIFEST or kind != "f" or not 0 <= member.size <= MOST_MANIFEST:
        raise BadPackError("its first member is not a manifest")
    stream.limit = stream.tell() + member.size
    data = stream.read(member.size)
    return Entry(MANIFEST, "f", member.size, hashlib.sha256(data).hexdigest(), "0644"), data


def _entry(member: tarfile.TarInfo, kind: str, wanted: Dict[str, Entry], before: Dict[str, Entry]) -> Entry:
    """Return the entry of the manifest that a member is."""
    entry = wanted.get(member.name)
    if entry is None or member.name in before:
        raise BadPackError(f"it holds {member.name!r}, which is not in its manifest")
    above = os.path.dirname(member.name)  # noqa: PTH120 - tens of thousands of entries
    if above and (above not in before or before[above].kind != "d"):
        raise BadPackError(f"{member.name!r} comes before its folder")
    if kind != entry.kind or (kind != "l" and f"{member.mode & 0o7777:04o}" != entry.mode):
        raise BadPackError(f"{member.name!r} has another kind or mode than its manifest says")
    if kind == "l" and member.linkname != entry.content:
        raise BadPackError(f"{member.name!r} does not link to {entry.content!r}")
    if kind == "f" and member.type != tarfile.LNKTYPE and member.size != entry.size:
        raise BadPackError(f"{member.name!r} has {member.size} bytes instead of {entry.size}")
    return entry


def _take(stream: _Stream, member: tarfile.TarInfo, entry: Entry, before: Dict[str, Entry], taker: Taker) -> None:
    if entry.kind == "d":
        taker.folder(entry)
    elif entry.kind == "l":
        taker.link(entry)
    elif member.type == tarfile.LNKTYPE:
        first = before.get(member.linkname)
        if first is None or first._replace(path=entry.path) != entry:
            raise BadPackError(f"{member.name!r} is a second name of another file than its manifest says")
        taker.twin(entry, first.path)
    else:
        _take_file(stream, entry, taker, _modified(member))
    before[entry.path] = entry


def _take_file(stream: _Stream, entry: Entry, taker: Taker, modified: float) -> None:
    total = hashlib.sha256()
    stream.limit = end = stream.tell() + entry.size

    def hashed() -> Iterator[memoryview]:
        for portion in stream.portions(end - stream.tell()):
            total.update(portion)
            yield portion

    portions = hashed()
    taker.file(entry, portions, modified)
    for _rest in portions:
        pass
    if stream.tell() != end:
        raise BadPackError(f"it ends within {entry.path!r}")
    if total.hexdigest() != entry.content:
        raise BadPackError(f"the content of {entry.path!r} is not the one of its manifest")
