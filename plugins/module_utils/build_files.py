# SPDX-License-Identifier: Apache-2.0
"""Bring the files of a build into its work folder, unpack its sources, and remove what its result does not need."""

from __future__ import annotations

import fnmatch
import lzma
import os
import re
import shutil
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact_pack, tree_removal, user_identity
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError, most_unpacked
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look.machine import free_bytes

# Say why a build failed: read its log for the first error, a killed compiler or a full disk, and name the cure.

_LAST_LINES = 20
_TAIL_BYTES = 16384


class Site(NamedTuple):
    """Which build runs where."""

    host: str
    name: str
    version: str
    work_dir: str
    needs_bytes: int
    jobs: int
    log: Path

    def disk_full(self) -> ArtifactError:
        """Return the sentence for this build's full disk."""
        free = free_bytes(self.work_dir)
        return disk_full(self.host, self.name, self.version, self.work_dir, free, self.needs_bytes)


def last_lines(log: Path, count: int = _LAST_LINES) -> str:
    """Return the last lines of a log."""
    with log.open("rb") as stream:
        stream.seek(0, os.SEEK_END)
        stream.seek(max(0, stream.tell() - _TAIL_BYTES))
        return "\n".join(stream.read().decode(errors="replace").splitlines()[-count:])


_ERROR = re.compile(r"(?:\b(?:fatal )?error: |^CMake Error|: undefined reference to |: multiple definition of )")
_KILLED = re.compile(r"Killed signal terminated program|\bOut of memory\b|virtual memory exhausted")


def first_match(log: Path, start: int, pattern: "re.Pattern[str]") -> str:
    """Return the first line of a log, from byte ``start`` on, in which the pattern is found; empty without one."""
    with log.open("rb") as stream:
        stream.seek(start)
        lines = (raw.decode(errors="replace").strip() for raw in stream)
        return next((line for line in lines if pattern.search(line)), "")


def disk_full(host: str, name: str, version: str, work_dir: str, free: int, needs: int) -> ArtifactError:
    """Return the sentence for a full disk; ``free`` and ``needs`` are bytes."""
    return ArtifactError(
        f"{host}: the builder's disk is full: {work_dir} has {free} bytes free. Building {name} {version} needs"
        f" about {needs}; make room there or name another folder (preflight_work_dir)."
    )


def memory_short(site: Site, needed: int, available: int) -> ArtifactError:
    """Return the sentence for a host on which the kernel would kill a compiler."""
    return ArtifactError(
        f"{site.host}: free some memory there or name another host ({site.name}_builder): building"
        f" {site.name} {site.version} needs {needed / 1e9:.1f} GB for one compiler, and"
        f" {available / 1e9:.1f} GB are available."
    )


def step_failed(site: Site, step: str, status: int, start: int, *, speaks: bool) -> ArtifactError:
    """Return the sentence for a step that failed.

    Args:
        site: the build.
        step: the step's name.
        status: its exit status; negative is the signal that killed it.
        start: byte of the log at which the step's output begins.
        speaks: the step's last line is a sentence for the user.
    """
    tail = last_lines(site.log)
    what = f"{site.name} {site.version}"
    if "No space left on device" in tail:
        return site.disk_full()
    if speaks and status > 0:
        sentence = last_lines(site.log, 1)
        return ArtifactError(f"{site.host}: {sentence} (Before building {what}; the log is {site.log}@LOG@.)")
    killed = first_match(site.log, start, _KILLED)
    if killed:
        return ArtifactError(
            f"{site.host}: free some memory there, set {site.name}_make_jobs to less than {site.jobs} or name another"
            f" host ({site.name}_builder): a compiler was killed while building {what} with {site.jobs} of them side"
            f" by side ({killed}); the whole log is {site.log} on {site.host}@LOG@."
        )
    ended = f"was killed by signal {-status}" if status < 0 else f"ended with {status}"
    error = first_match(site.log, start, _ERROR)
    first = f", its first error is '{error}'" if error and error not in tail else ""
    return ArtifactError(
        f"{site.host}: the step '{step}' of building {what} {ended}{first};"
        f" the whole log is {site.log} on {site.host}@LOG@, its last lines are:\n{tail}"
    )


# --- archives --------------------------------------------------------------------------------------------------------

# What the readers of Python raise besides for a damaged or encrypted archive.
_DAMAGED = (zlib.error, lzma.LZMAError, struct.error, RuntimeError, ValueError, LookupError, OverflowError, TypeError)
_MOST_MEMBERS = 1_000_000


def _target_of(name: str, strip: int, exclude: List[str]) -> Optional[str]:
    parts = [part for part in PurePosixPath(name).parts if part not in {"/", "."}]
    if ".." in parts:
        raise ArtifactError(f"The archive holds the path {name}, which leads out of it; use another archive.")
    parts = parts[strip:]
    if not parts:
        return None
    heads = ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]
    return None if any(fnmatch.fnmatchcase(head, pattern) for head in heads for pattern in exclude) else heads[-1]


class _Bound:
    """Counts members and their bytes, of which a source holds no more than its archive lets expect."""

    def __init__(self, archive: str) -> None:
        self._members = _MOST_MEMBERS
        self._bytes = self._most = most_unpacked(Path(archive).stat().st_size)

    def take(self, size: int) -> None:
        """Count one member before its content is read."""
        self._members -= 1
        self._bytes -= size
        if self._members < 0 or self._bytes < 0:
            raise ArtifactError(
                f"The archive unpacks to more than {self._most} bytes or {_MOST_MEMBERS} files; use another archive."
            )


def _refuse_leaving(member: tarfile.TarInfo, target: Path) -> None:
    """Refuse a symbolic link that leads out of the folder, and a member that is written or read through a link.

    A later member may change where a link leads, so nothing goes through a link, wherever it leads now.
    """
    top = os.path.realpath(target)
    above = os.path.dirname(member.name)  # noqa: PTH120 - tens of thousands of members
    leaves = _passes_link(top, above if member.issym() else member.name)
    if member.issym():
        end = os.path.realpath(os.path.join(top, above, member.linkname))  # noqa: PTH118 - as above
        leaves = leaves or (end != top and not end.startswith(f"{top}/"))
    elif member.islnk():
        leaves = leaves or _passes_link(top, member.linkname)
    if leaves:
        raise ArtifactError(
            f"The archive holds {member.name}, which leads out of it through a link; use another archive."
        )


def _passes_link(top: str, path: str) -> bool:
    """Whether a part of a path below a folder is a symbolic link, the last one included."""
    place = top
    for part in path.split("/"):
        place = f"{place}/{part}"
        if os.path.islink(place):  # noqa: PTH114 - as above
            return True
    return False


def _members(
    archive: tarfile.TarFile, target_folder: Path, strip: int, exclude: List[str], bound: _Bound
) -> Iterator[tarfile.TarInfo]:
    for member in archive:
        bound.take(member.size)
        target = _target_of(member.name, strip, exclude)
        if target is None or not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
            continue
        member.name = target
        if member.islnk():
            linked = _target_of(member.linkname, strip, exclude)
            if linked is None:
                continue
            member.linkname = linked
        _refuse_leaving(member, target_folder)
        # the archive's owners do not count here, and the builder must be able to write
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mode = member.mode & 0o777 | 0o700 if member.isdir() else member.mode & 0o777 | 0o600
        yield member


def unpack(archive: str, target: Path, strip: int, exclude: List[str]) -> None:
    """Unpack a tar archive, of any compression that Python knows, or a zip archive below ``target``.

    Raises:
        ArtifactError: a member leads out of the folder, or there is more than the archive's size lets expect.
        tarfile.TarError, zipfile.BadZipFile, EOFError: the archive is damaged.
    """
    target.mkdir(parents=True, exist_ok=True)
    try:
        _unpack(archive, target, strip, exclude)
    except _DAMAGED as error:
        raise tarfile.ReadError(f"{type(error).__name__}: {error}") from error


def _unpack(archive: str, target: Path, strip: int, exclude: List[str]) -> None:
    bound = _Bound(archive)
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as bundle:
            for member in bundle.infolist():
                bound.take(member.file_size)
                name = _target_of(member.filename, strip, exclude)
                if name is not None and not member.is_dir():
                    (target / name).parent.mkdir(parents=True, exist_ok=True)
                    with bundle.open(member) as source, (target / name).open("wb") as out:
                        shutil.copyfileobj(source, out)
                    if member.external_attr >> 16 & 0o111:  # a zip made on Unix says which files are programs
                        (target / name).chmod(0o755)
        return
    with tarfile.open(archive, "r|*") as bundle:
        if hasattr(tarfile, "tar_filter"):
            bundle.extraction_filter = staticmethod(tarfile.tar_filter)
        # members were checked by _members, which is why S202 does not apply
        bundle.extractall(str(target), members=_members(bundle, target, strip, exclude, bound))  # noqa: S202


# --- files -----------------------------------------------------------------------------------------------------------


def bring(files: List[Dict[str, Any]], work: Path, software: str, say: Callable[[str], None]) -> None:
    """Copy or unpack each file below the work folder, and remove the copy that the controller pushed.

    Args:
        files: as the option of the module artifact_build, each with the ``path`` of the pushed copy.
        work: the work folder.
        software: name and version of what is built, for messages.
        say: gets the progress.

    Raises:
        ArtifactError: a place is outside of the work folder, or an archive is not readable.
    """
    for item in files:
        target = work / item["dest"]
        if work not in Path(os.path.normpath(target)).parents:
            raise ArtifactError(f"The file's dest {item['dest']} is not below the work folder.")
        link = user_identity.first_link(str(target), str(work))
        if link:  # of an archive before this file
            raise ArtifactError(f"The file's dest {item['dest']} leads through the link {link}; use another archive.")
        say(f"unpack: {item['dest']}")
        taken = work / ".pushed" if item["unpack"] else target
        taken.parent.mkdir(parents=True, exist_ok=True)
        artifact_pack.take_pushed(item["path"], item["sha256"], item["size"], taken)
        if item["unpack"]:
            try:
                unpack(str(taken), target, item["strip"], item["exclude"])
            except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
                raise ArtifactError(
                    f"The source of {software} cannot be unpacked ({error}); check its sha256 and fetch it again."
                ) from error
            taken.unlink()
        Path(item["path"]).unlink()


def prune(tree: Path, patterns: List[str]) -> None:
    """Remove paths from a finished tree.

    Args:
        tree: the tree, which the steps of a build have written.
        patterns: of paths below it.

    Raises:
        ArtifactError: the way to a path leads through a link, where root would remove something else.
    """
    for pattern in patterns:
        for path in sorted(tree.glob(pattern), reverse=True):
            link = user_identity.first_link(str(path.parent), str(tree))
            if link:
                raise ArtifactError(f"{path} cannot be removed, because {link} is a link; correct the build's steps.")
            if path.is_dir() and not path.is_symlink():
                tree_removal.remove(str(path))
            else:
                path.unlink()
