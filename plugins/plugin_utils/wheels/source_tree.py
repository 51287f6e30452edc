# SPDX-License-Identifier: Apache-2.0
"""Pack the source of a package, a commit of a git repository or a folder, as an archive that a builder builds.

git fetches on the controller, with the user's own logins. Nothing of a repository runs here: no hook, no filter and
no submodule. The archive has the files alone, so neither a login nor an address of the controller reaches a node.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ansible_collections.clusterctl.hpc.plugins.module_utils import source_files
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import sha256_of
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import partial_file

from .lock import LockError, SourceTree
from .lock_formats import toml
from .packages import PackedSdist
from .sdist import pyproject

try:  # ansible-core depends on it
    from packaging.version import InvalidVersion, Version
except ImportError:  # the sanity tests import plugins without the dependencies of ansible-core
    InvalidVersion = ValueError  # type: ignore[misc, assignment]

_LONGEST_S = 600
_MOST_BYTES = 1 << 30
_MOST_FILES = 50_000
_WRITTEN = 315_619_200  # 1980-01-02: a wheel has no older files
_PROTOCOLS = "https:ssh:file"
# Hooks and filters are programs that a repository, or a file of it, can name. A bare repository has neither, and the
# user's own configuration, which knows the logins, is read for the fetch alone.
_QUIET = (
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "gc.auto=0",
    "-c",
    "protocol.version=2",
    "-c",
    "advice.detachedHead=0",
)
_ALONE = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1"}
_UNASKED = {"GIT_ALLOW_PROTOCOL": _PROTOCOLS, "GIT_TERMINAL_PROMPT": "0", "SSH_ASKPASS_REQUIRE": "never", "LC_ALL": "C"}
# Of the user's variables, these name another repository or a helper of a call of git around this one.
_DROPPED = re.compile(
    r"GIT_(DIR|WORK_TREE|INDEX_FILE|OBJECT_DIRECTORY|ALTERNATE_\w+|NAMESPACE|PREFIX|EXEC_PATH|TRACE\w*)"
)
_GITLINK = "160000"


def packed(tree: SourceTree, name: str, version: str, label: str, sources: Path) -> PackedSdist:
    """Return the archive of a package's source, which is in the cache then.

    Args:
        tree: the source.
        name: canonical name of the package.
        version: its version; '' where the lock does not tell it.
        label: the lock and the package, for messages.
        sources: the cache's folder of source archives.

    Raises:
        LockError: the source cannot be fetched or packed.
    """
    sources.mkdir(parents=True, exist_ok=True)
    with partial_file.staged(sources) as partial:
        if tree.url:
            _pack_commit(tree, name, label, partial)
        else:
            _pack_folder(Path(tree.folder), name, label, partial)
        text = pyproject(partial, label, tree.subdirectory)
        found = PackedSdist(name, version or _static_version(text, label), sha256_of(partial), tree.subdirectory)
        partial.chmod(0o644)
        partial.replace(sources / found.cached_as)
    return found


def folder_digest(folder: Path, label: str) -> str:
    """Return the sha256 of the files of a folder that :func:`packed` would take.

    Raises:
        LockError: the folder cannot be packed.
    """
    total = hashlib.sha256()
    for path, name in _files(folder, label):
        link = str(path.readlink()) if path.is_symlink() else ""
        total.update(f"{name}\0{link}\0{path.lstat().st_mode & 0o100:o}\0".encode())
        if not link:
            total.update(sha256_of(path).encode())
    return total.hexdigest()


def _static_version(text: str, label: str) -> str:
    """Return the version in the text of a ``pyproject.toml``; '0' where only the build tells it."""
    project = toml(text, f"{label}: its pyproject.toml").get("project") if text else None
    version = project.get("version") if isinstance(project, dict) else None
    try:
        return str(Version(str(version))) if version else "0"
    except InvalidVersion as error:
        raise LockError(f"{label}: the version {str(version)[:100]!r} of its pyproject.toml is not valid.") from error


# --- a commit of a git repository ---


def _pack_commit(tree: SourceTree, name: str, label: str, target: Path) -> None:
    """Write the archive of a commit, which is the hash of all its files."""
    if shutil.which("git") is None:
        raise LockError(f"{label} comes from git, and this controller has no git; install it, or lock a release.")
    with tempfile.TemporaryDirectory() as folder:
        _git(["init", "--quiet", "--bare", "--template=", folder], label, tree)
        _fetch(tree, folder, label)
        # a link in place of the files of another repository, in the package or above it
        listed = _git(["-C", folder, "ls-tree", "-r", "-z", "--full-tree", tree.commit], label, tree, alone=True)
        for line in listed.decode("utf-8", "replace").split("\0"):
            mode, _unused, path = line.partition(" ")
            inner = path.partition("\t")[2]
            if mode == _GITLINK and (not tree.subdirectory or f"{inner}/".startswith(f"{tree.subdirectory}/")):
                raise LockError(
                    f"{label}: its folder {_plain(inner)} is a submodule of git, which is not fetched; build its wheel"
                    " ('uv build --wheel') and lock that file, or lock a release."
                )
        argv = ["git", *_QUIET, "-C", folder, "archive", "--format=tar", f"--prefix={name}/", tree.commit]
        with _running(argv, _surroundings(alone=True)) as process, _gzip(target) as stream:
            taken = 0
            while block := process.stdout.read(1 << 20) if process.stdout else b"":
                taken += len(block)
                if taken > _MOST_BYTES:
                    raise LockError(_too_large(label))
                stream.write(block)
            if process.wait(_LONGEST_S):
                raise LockError(f"{label}: git cannot pack the commit {tree.commit}.")


def _fetch(tree: SourceTree, folder: str, label: str) -> None:
    """Fetch a commit; where a server gives no commit by its name, fetch what its branches and tags lead to."""
    fetch = ["-C", folder, "fetch", "--quiet", "--no-tags", "--no-recurse-submodules"]
    try:
        _git([*fetch, "--depth=1", "--", tree.url, tree.commit], label, tree)
    except LockError:
        _git([*fetch, "--", tree.url, "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"], label, tree)
    kind = ["-C", folder, "cat-file", "-e", f"{tree.commit}^{{commit}}"]
    try:
        _git(kind, label, tree, alone=True)
    except LockError:
        raise LockError(
            f"{label}: {tree.url} does not have the commit {tree.commit}; run 'uv lock' again, or push the commit."
        ) from None


def _git(arguments: Sequence[str], label: str, tree: SourceTree, *, alone: bool = False) -> bytes:
    """Run git and return what it prints.

    Args:
        arguments: of git.
        label: for messages.
        tree: for messages.
        alone: without the user's configuration.

    Raises:
        LockError: it failed; the message has its reason without logins.
    """
    surroundings = _surroundings(alone=alone)
    with _running(["git", *_QUIET, *arguments], surroundings, stderr=subprocess.STDOUT) as process:
        try:
            output, _unused = process.communicate(timeout=_LONGEST_S)
        except subprocess.TimeoutExpired as error:
            raise LockError(
                f"{label}: git did not end within {_LONGEST_S} s at {tree.url}; repair the way there."
            ) from error
    if process.returncode:
        raise LockError(
            f"{label}: git cannot fetch {tree.url}: {_reason(output)}; make 'git fetch' of it work on this controller."
        )
    return bytes(output)


@contextmanager
def _running(argv: Sequence[str], surroundings: dict[str, str], **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program in a session of its own, which ends with it: git and ssh find no terminal to ask on."""
    more.setdefault("stderr", subprocess.DEVNULL)
    process = subprocess.Popen(
        argv, env=surroundings, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True, **more
    )
    try:
        with process:
            try:
                yield process
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    finally:
        process.wait()


def _surroundings(*, alone: bool) -> dict[str, str]:
    """Return the variables of git; ``alone`` has no settings of the user."""
    kept = {name: value for name, value in os.environ.items() if not _DROPPED.fullmatch(name)}
    if not alone:
        return {**kept, **_UNASKED}
    return {**{name: value for name, value in kept.items() if not name.startswith("GIT_CONFIG")}, **_UNASKED, **_ALONE}


def _reason(output: bytes) -> str:
    """Return what git says is wrong, in one line without logins."""
    lines = [line.strip() for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("fatal:", "error:", "remote:", "ssh:"))] or lines
    text = re.sub(r"\b(fatal|error|remote): ", "", " ".join(told[:2]))
    return re.sub(r"://[^/@\s]*@", "://", _plain(text))[:300].rstrip(". ") or "it says no reason"


def _plain(text: str) -> str:
    return re.sub(r"[^ -~]", " ", text)


# --- a folder ---


def _pack_folder(folder: Path, name: str, label: str, target: Path) -> None:
    """Write the archive of a folder, the same bytes for the same files."""
    with _gzip(target) as stream, tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, inner in _files(folder, label):
            member = tarfile.TarInfo(f"{name}/{inner}")
            member.mtime = _WRITTEN
            if path.is_symlink():
                member.type, member.linkname = tarfile.SYMTYPE, str(path.readlink())
                tar.addfile(member)
                continue
            content = path.read_bytes()
            member.size, member.mode = len(content), 0o755 if path.stat().st_mode & 0o100 else 0o644
            tar.addfile(member, io.BytesIO(content))


def _files(folder: Path, label: str) -> list[tuple[Path, str]]:
    """Return the files of a folder of source with their names in it, in a fixed order.

    Raises:
        LockError: there is no such folder, or it holds more than a package has.
    """
    if not folder.is_dir():
        raise LockError(f"{label}: its folder {folder} is not on this controller; make it, or correct the lock.")
    found: list[tuple[Path, str]] = []
    size = 0
    try:
        for path, inner in source_files.files(folder):
            if path.is_symlink():
                _refuse_outside(str(path.readlink()), inner, label)
            else:
                size += path.stat().st_size
            found.append((path, inner))
            if len(found) > _MOST_FILES or size > _MOST_BYTES:
                raise LockError(_too_large(label))
    except OSError as error:
        raise LockError(f"{label}: its folder {folder} cannot be read ({error.strerror}); make it readable.") from error
    return sorted(found, key=lambda one: one[1])


def _refuse_outside(target: str, inner: str, label: str) -> None:
    """Refuse a link that leads out of the folder; on the builder it would lead elsewhere."""
    depth = 0
    for part in (*PurePosixPath(inner).parent.parts, *PurePosixPath(target).parts):
        depth += -1 if part == ".." else 1
        if depth < 0 or part == "/":
            raise LockError(
                f"{label}: its {_plain(inner)} is a link that leads out of its folder; replace it by what it leads to."
            )


def _too_large(label: str) -> str:
    return (
        f"{label}: its source has more than {_MOST_FILES} files or {_MOST_BYTES >> 20} MiB; move data out of it, or"
        " build its wheel ('uv build --wheel') and lock that file."
    )


@contextmanager
def _gzip(target: Path) -> Iterator[IO[bytes]]:
    """Open a compressed file without name and time."""
    with target.open("wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0, compresslevel=6) as file:
        yield file  # type: ignore[misc]
