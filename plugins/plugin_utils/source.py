# SPDX-License-Identifier: Apache-2.0
"""Fetch a source once, on the controller: from a URL, a local file or the distribution's source package.

A file is used only if it has the pinned sha256. It reaches the cache by a rename, so every file there is whole. It is
hashed again at each use, because a file on a disk may change.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from ansible.module_utils.urls import open_url  # type: ignore[import-untyped]
from ansible_collections.clusterctl.hpc.plugins.module_utils import disk_files
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError, sha256_of
from ansible_collections.clusterctl.hpc.plugins.module_utils.plain_text import one_line
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import partial_file

_CONNECT_TIMEOUT_S = 8
_MOST_SOURCE = 1 << 34  # bytes; the largest, a toolkit of CUDA, has 5 GB
_PATIENCE_S = 60.0  # until a server sends, and how long it may be slow
_SLOWEST_BYTES_PER_S = 16 << 10
_MOST_REDIRECTS = 10
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_REASON = 80
_APT_TIMEOUT_S = 300
_PAGE = re.compile(rb"\s*<(?:!doctype html|html)", re.IGNORECASE)

_BEGINNING = 1024  # bytes of a file in which a page of HTML shows itself

_SHA256 = re.compile(r"^[0-9a-f]{64}$")
_WORD = re.compile(r"^[A-Za-z0-9][A-Za-z0-9.+~_-]*$")
_ARCHIVE_SUFFIX = re.compile(r"(\.tar\.(?:gz|bz2|xz|zst)|\.tgz|\.zip|\.whl)$")
# Every release that mirrors still serve is searched, because a source package leaves the mirror with its suite.
_RELEASES = {
    "debian": ("bookworm", "trixie", "forky", "sid"),
    "ubuntu": ("jammy", "noble", "plucky", "questing"),
}


class SourceError(ArtifactError):
    """No source gave the file; the message lists each with its reason."""


class _Unavailable(Exception):  # noqa: N818 - a reason inside this module, which never leaves it
    """One source did not give the file, so the next is tried."""


@dataclass(frozen=True)
class Source:
    """One place that a file may come from, with its sha256."""

    kind: str  # url, path or apt
    where: str  # the URL, the path, or the source package's name
    sha256: str
    version: str = ""  # of the source package
    component: str = "main"  # of the distribution that holds it

    def __str__(self) -> str:
        """Return how the place is called in a message."""
        return f"source package {self.where} {self.version}" if self.kind == "apt" else self.where


def _beginning(file: Path) -> bytes:
    with file.open("rb") as stream:
        return stream.read(_BEGINNING)


def _why_another(source: Source, file: Path, found: str) -> str:
    """Return why a file that was fetched is not used: it is another file, or a page of HTML in place of one."""
    if source.kind == "url" and _PAGE.match(_beginning(file)):
        return (
            f"{urlsplit(source.where).hostname or 'the server'} answered with an HTML page, such as a login or an error"
            " page of a mirror; open the address from this controller and repair the mirror or the proxy"
        )
    return f"its sha256 is {found}, expected {source.sha256}"


@dataclass(frozen=True)
class Fetched:
    """A verified file in the cache."""

    path: Path
    sha256: str
    source: str
    cached: bool


def parse_sources(sources: Sequence[Mapping[str, Any]]) -> list[Source]:
    """Return typed sources, or say which entry is not one.

    Raises:
        SourceError: an entry lacks its place or its sha256.
    """
    parsed = []
    for entry in sources:
        if "apt" in entry:
            apt = entry["apt"]
            package, sha256, version = (str(apt.get(field) or "") for field in ("package", "sha256", "version"))
            source = Source("apt", package, sha256, version, component=str(apt.get("component") or "main"))
            if not all(_WORD.match(word) for word in (source.where, source.version, source.component)):
                raise SourceError(f"The source {dict(entry)} needs 'package' and 'version' under 'apt'.")
        elif "url" in entry:
            source = Source("url", str(entry["url"]), str(entry.get("sha256", "")))
            if urlsplit(source.where).scheme not in {"http", "https", "file"}:
                raise SourceError(f"The source {source.where} is not an http, https or file address.")
        elif "path" in entry:
            source = Source("path", str(entry["path"]), str(entry.get("sha256", "")))
        else:
            raise SourceError(f"The source {dict(entry)} needs one of 'url', 'path' and 'apt'.")
        if not _SHA256.match(source.sha256):
            raise SourceError(f"The source {source} has no sha256 of 64 hex digits; an unverified file is never used.")
        parsed.append(source)
    return parsed


def disk_full(path: Path, what: str, number: int | None = errno.ENOSPC) -> ArtifactError:
    """Return the error for a full disk on the controller, or for a quota (EDQUOT)."""
    cure = "make room there or choose another cache folder (preflight_cache_dir)"
    return ArtifactError(disk_files.no_room("The controller's", str(path), what, number or errno.ENOSPC, cure))


class _Download:
    """Copies what a server sends, in a thread: a socket's timeout does not end what drips."""

    def __init__(self, where: str, target: Path) -> None:
        self._where, self._target = where, target
        self._stopped = threading.Event()
        self._bytes = 0
        self._error: BaseException | None = None

    def run(self) -> None:
        """Copy until the end, or until the server is given up.

        Raises:
            _Unavailable: it sends too slowly, too much or too little.
            OSError, HTTPException: it cannot be reached, or the target cannot be written.
        """
        thread = threading.Thread(target=self._work, daemon=True)
        thread.start()
        end = time.monotonic() + _PATIENCE_S
        while thread.is_alive():
            thread.join(0.5)
            if thread.is_alive() and time.monotonic() > end + self._bytes / _SLOWEST_BYTES_PER_S:
                self._stopped.set()
                raise _Unavailable(f"it sends less than {_SLOWEST_BYTES_PER_S >> 10} KiB a second")
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            self._copy()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            self._error = error

    def _copy(self) -> None:
        with self._target.open("wb") as out, _opened(self._where) as answer:
            while not self._stopped.is_set() and (portion := answer.read1(1 << 20)):
                self._bytes += len(portion)
                if self._bytes > _MOST_SOURCE:
                    raise _Unavailable(f"it has more than {_MOST_SOURCE} bytes")
                out.write(portion)
            if getattr(answer, "length", 0):
                raise _Unavailable("the transfer broke off")


def _opened(where: str) -> Any:
    """Open an address, with the machine's proxy settings; the bytes stay as they are, because they have a sha256.

    Python would read the body of a redirect whole.
    """
    for _unused in range(_MOST_REDIRECTS):
        try:
            return open_url(where, timeout=_CONNECT_TIMEOUT_S, decompress=False, use_netrc=False, follow_redirects="no")
        except urllib.error.HTTPError as error:
            where = urljoin(where, error.headers.get("Location") or "")
            error.close()
            if error.code not in _REDIRECTS or urlsplit(where).scheme not in {"http", "https"}:
                raise
    raise _Unavailable(f"it redirects more than {_MOST_REDIRECTS} times")


def _from_url(source: Source, target: Path) -> None:
    try:
        _Download(source.where, target).run()
    except urllib.error.HTTPError as error:
        said = one_line(f"{error.code} {error.reason}", _MOST_REASON)
        raise _Unavailable(f"the server said {said}") from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, OSError) and error.reason.errno in disk_files.FULL:
            raise error.reason from error
        raise _Unavailable(f"not reachable ({error.reason})") from error
    except HTTPException as error:
        raise _Unavailable(f"the transfer broke off ({error!r})") from error
    except OSError as error:
        if error.errno in disk_files.FULL:
            raise
        raise _Unavailable(f"not reachable ({error})") from error


def _from_path(source: Source, target: Path) -> None:
    place = Path(source.where).expanduser()
    if not place.is_file():
        raise _Unavailable("the file does not exist")
    try:
        shutil.copyfile(place, target)
    except OSError as error:
        if error.errno in disk_files.FULL:
            raise
        raise _Unavailable(f"it cannot be read ({error.strerror})") from error


@dataclass(frozen=True)
class _Mirror:
    uri: str
    signed_by: str
    suites: tuple[str, ...]
    components: tuple[str, ...]


def parse_deb822(text: str) -> list[dict[str, str]]:
    """Return the stanzas of an apt ``.sources`` file (or of ``/etc/os-release``-like fields) as mappings."""
    stanzas: list[dict[str, str]] = [{}]
    field = ""
    for line in text.split("\n"):
        if line.startswith("#"):
            continue
        if not line.strip():
            if stanzas[-1]:
                stanzas.append({})
            continue
        if line[0] in " \t" and field:
            stanzas[-1][field] += "\n" + line.strip()
            continue
        field, _unused, value = line.partition(":")
        field = field.strip().lower()
        stanzas[-1][field] = value.strip()
    return [stanza for stanza in stanzas if stanza]


_ONE_LINE = re.compile(r"^deb(?:-src)?\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)((?:\s+[^\s#]+)*)")


def parse_one_line(text: str) -> list[dict[str, str]]:
    """Return the entries of a one-line-style apt list in the form of :func:`parse_deb822`."""
    entries = []
    for line in text.split("\n"):
        match = _ONE_LINE.match(line.strip())
        if not match:
            continue
        options = dict(part.split("=", 1) for part in (match.group(1) or "").split() if "=" in part)
        entries.append(
            {
                "types": "deb",
                "uris": match.group(2),
                "suites": match.group(3),
                "components": match.group(4).strip(),
                "signed-by": options.get("signed-by", ""),
            }
        )
    return entries


def _distribution(etc: Path) -> tuple[str, str]:
    fields = dict(
        line.split("=", 1) for line in (etc / "os-release").read_text(encoding="utf-8").split("\n") if "=" in line
    )
    return fields.get("ID", "").strip('"'), fields.get("VERSION_CODENAME", "").strip('"')


def own_mirrors(etc: Path) -> list[_Mirror]:
    """Return the mirrors of the distribution itself that this machine's apt uses.

    An entry is the distribution's own when one of its suites is a release of the distribution; other vendors'
    repositories name theirs after themselves.

    Args:
        etc: ``/etc``, or a copy of it.
    """
    try:
        distribution, codename = _distribution(etc)
    except OSError:
        return []
    releases = {*_RELEASES.get(distribution, ()), codename, "stable"}
    entries: list[dict[str, str]] = []
    apt = etc / "apt"
    for path in [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]:
        if path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            entries += parse_deb822(text) if path.suffix == ".sources" else parse_one_line(text)
    mirrors = []
    for entry in entries:
        suites = tuple(suite for suite in entry.get("suites", "").split() if suite in releases)
        if (
            not suites
            or entry.get("enabled", "yes").lower() == "no"
            or "main" not in entry.get("components", "").split()
        ):
            continue
        signed_by = entry.get("signed-by", "")
        signed_by = signed_by if signed_by.startswith("/") and "\n" not in signed_by else ""
        mirrors += [_Mirror(uri, signed_by, suites, ("main",)) for uri in entry.get("uris", "").split()]
    return mirrors


def source_list(mirror: _Mirror, suite: str) -> str:
    """Return the ``deb-src`` stanza for one suite of a mirror."""
    lines = ["Types: deb-src", f"URIs: {mirror.uri}", f"Suites: {suite}", f"Components: {' '.join(mirror.components)}"]
    if mirror.signed_by:
        lines.append(f"Signed-By: {mirror.signed_by}")
    return "\n".join(lines) + "\n"


def _apt(argv: Sequence[str], folder: Path) -> str:
    try:
        done = subprocess.run(
            list(argv),
            cwd=folder,
            env={**os.environ, "LC_ALL": "C", "APT_CONFIG": str(folder / "apt.conf")},
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_APT_TIMEOUT_S,
        )
    except FileNotFoundError as error:
        raise _Unavailable("this controller has no apt") from error
    except subprocess.TimeoutExpired as error:
        raise _Unavailable(f"apt did not end within {_APT_TIMEOUT_S} s") from error
    if done.returncode:
        complaints = [line for line in done.stdout.splitlines() if line.startswith("E:")]
        raise _Unavailable(f"apt said: {' '.join(complaints[:2]) or 'exit ' + str(done.returncode)}")
    return done.stdout


def _apt_folder(folder: Path) -> None:
    """Make folders for apt below ``folder``: the machine's own apt stays as it is, and root is not needed."""
    for name in ("lists/partial", "cache/archives/partial", "parts", "download"):
        (folder / name).mkdir(parents=True)
    (folder / "status").write_text("", encoding="utf-8")
    # The machine's apt.conf.d is read as well, for its proxies and certificates.
    (folder / "apt.conf").write_text(
        f'Dir::State "{folder}";\nDir::State::lists "{folder}/lists";\nDir::State::status "{folder}/status";\n'
        f'Dir::Cache "{folder}/cache";\nDir::Etc::sourcelist "/dev/null";\nDir::Etc::sourceparts "{folder}/parts";\n'
        'Acquire::Languages "none";\nAPT::Sandbox::User "";\nAcquire::Retries "1";\n'
        f'Acquire::http::Timeout "{_CONNECT_TIMEOUT_S}";\nAcquire::https::Timeout "{_CONNECT_TIMEOUT_S}";\n',
        encoding="utf-8",
    )


def _from_apt(source: Source, target: Path, *, etc: Path = Path("/etc")) -> None:
    mirrors = own_mirrors(etc)
    if not mirrors:
        raise _Unavailable("this machine's apt sources name no mirror of its own distribution")
    distribution, codename = _distribution(etc)
    suites = list(dict.fromkeys([codename, *_RELEASES.get(distribution, ())]))
    wanted = f"{source.where}_{source.version}.orig.tar."
    reasons: list[str] = []
    with partial_file.staged_folder(target.parent) as folder:
        _apt_folder(folder)
        for mirror in mirrors:
            for suite in suites:
                stanza = source_list(replace(mirror, components=(source.component,)), suite)
                (folder / "parts" / "source.sources").write_text(stanza, encoding="utf-8")
                try:
                    _apt(["apt-get", "-q", "update"], folder)
                    listed = _apt(["apt-cache", "showsrc", "--only-source", source.where], folder)
                    full = next(
                        (
                            found["version"]
                            for found in parse_deb822(listed)
                            if re.sub(r"^\d+:|-[^-]*$", "", found.get("version", "")) == source.version
                        ),
                        None,
                    )
                    if full is None:
                        continue
                    argv = ["apt-get", "-q", "source", "--download-only", "--tar-only", f"{source.where}={full}"]
                    _apt(argv, folder)
                except _Unavailable as reason:
                    reasons.append(f"{suite}: {reason}")
                    continue
                for found in folder.glob(f"{wanted}*"):
                    if found.suffix != ".asc":
                        shutil.copyfile(found, target)
                        return
    detail = f" ({'; '.join(reasons)})" if reasons else ""
    raise _Unavailable(f"no suite of {', '.join(suites)} has version {source.version}{detail}")


_WAYS: dict[str, Callable[[Source, Path], None]] = {"url": _from_url, "path": _from_path, "apt": _from_apt}


def _file_name(name: str, version: str, source: Source) -> str:
    suffix = _ARCHIVE_SUFFIX.search(urlsplit(source.where).path if source.kind == "url" else source.where)
    ending = suffix.group(1) if suffix else ".tar.xz" if source.kind == "apt" else ""
    return f"{name}-{version}-{source.sha256[:16]}{ending}"


def cached(name: str, version: str, sources: Sequence[Mapping[str, Any]], cache_dir: Path) -> Fetched | None:
    """Return the file if the cache has it from any of its sources; see :func:`fetch`."""
    for source in parse_sources(sources):
        target = cache_dir / "sources" / _file_name(name, version, source)
        if target.is_file() and sha256_of(target) == source.sha256:
            return Fetched(target, source.sha256, str(source), cached=True)
    return None


def fetch(
    name: str,
    version: str,
    sources: Sequence[Mapping[str, Any]],
    cache_dir: Path,
    *,
    variable: str,
    note: Callable[[str], None] = lambda _text: None,
) -> Fetched:
    """Return a verified source from the cache; it is fetched from the first place that has it.

    Args:
        name: the name of the software; part of the file's name in the cache.
        version: its version.
        sources: places in the order they are tried: ``{url, sha256}``, ``{path, sha256}`` or
            ``{apt: {package, version, sha256}}``.
        cache_dir: the controller's cache; the file lies in ``sources`` below it.
        variable: the user's variable that lists sources, for the message.
        note: takes a line of progress for each attempt.

    Raises:
        SourceError: no source gave the file.
        ArtifactError: the cache's disk is full.
    """
    parsed = parse_sources(sources)
    folder = cache_dir / "sources"
    if not parsed:
        raise SourceError(f"No source is known for {name} {version}; list one with its sha256 in {variable}.")
    known = cached(name, version, sources, cache_dir)
    if known:
        return known
    with _alone(name, version, cache_dir, note):
        known = cached(name, version, sources, cache_dir)  # another process may have fetched it in the meantime
        return known or _fetched(name, version, parsed, folder, variable, note)


@contextmanager
def _alone(name: str, version: str, cache_dir: Path, note: Callable[[str], None]) -> Iterator[None]:
    """Hold the right to fetch this source; a second process waits until the first one has ended."""
    locks = cache_dir / "locks"
    _make(locks)
    with (locks / f".source-{name}-{version}.flock").open("w") as handle:
        with suppress(OSError):  # a file system without locks: each process fetches a file of its own
            disk_files.wait_for(handle, f"waiting for another process that fetches {name} {version}", note)
        yield


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in disk_files.FULL:
            raise disk_full(folder.parent.parent, f"the folder of {folder.name}", error.errno) from error
        raise ArtifactError(
            f"The cache folder {folder} cannot be made ({error.strerror}); choose another one (preflight_cache_dir)."
        ) from error


def _fetched(
    name: str, version: str, parsed: Sequence[Source], folder: Path, variable: str, note: Callable[[str], None]
) -> Fetched:
    """Return the file from the first place that has it."""
    _make(folder)
    reasons = []
    for source in parsed:
        target = folder / _file_name(name, version, source)
        note(f"fetching {name} {version} from {source}")
        try:
            with partial_file.staged(folder) as partial:
                _WAYS[source.kind](source, partial)
                found = sha256_of(partial)
                if found != source.sha256:
                    reasons.append(f"{source}: {_why_another(source, partial, found)}")
                    continue
                partial.chmod(0o644)
                partial.replace(target)
                return Fetched(target, source.sha256, str(source), cached=False)
        except _Unavailable as reason:
            reasons.append(f"{source}: {reason}")
        except OSError as error:
            if error.errno not in disk_files.FULL:
                raise
            raise disk_full(folder, f"{name} {version}", error.errno) from error
    raise SourceError(
        f"No source of {name} {version} could be used: {'; '.join(reasons)}."
        f" Put the release's archive on the controller and name it with its sha256 in {variable},"
        f" for example [{{path: /srv/{name}-{version}.tar.bz2, sha256: …}}]."
    )
