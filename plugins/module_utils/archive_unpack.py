# SPDX-License-Identifier: Apache-2.0
"""Unpack a source archive (tar or zip) below a folder; no member of it can lead out of that folder."""

from __future__ import annotations

import fnmatch
import lzma
import shutil
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Iterator, List, Optional

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError

# What the readers of Python raise besides for a damaged or encrypted archive.
_DAMAGED = (zlib.error, lzma.LZMAError, struct.error, RuntimeError, ValueError, LookupError, OverflowError, TypeError)


def _target_of(name: str, strip: int, exclude: List[str]) -> Optional[str]:
    parts = [part for part in PurePosixPath(name).parts if part not in {"/", "."}]
    if ".." in parts:
        raise ArtifactError(f"The archive holds the path {name}, which leads out of it; use another archive.")
    parts = parts[strip:]
    if not parts:
        return None
    heads = ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]
    return None if any(fnmatch.fnmatchcase(head, pattern) for head in heads for pattern in exclude) else heads[-1]


def _members(archive: tarfile.TarFile, strip: int, exclude: List[str]) -> Iterator[tarfile.TarInfo]:
    for member in archive:
        target = _target_of(member.name, strip, exclude)
        if target is None or not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
            continue
        member.name = target
        if member.islnk():
            linked = _target_of(member.linkname, strip, exclude)
            if linked is None:
                continue
            member.linkname = linked
        # the archive's owners do not count here, and the builder must be able to write
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mode |= 0o700 if member.isdir() else 0o600
        yield member


def unpack(archive: str, target: Path, strip: int, exclude: List[str]) -> None:
    """Unpack a tar archive, of any compression that Python knows, or a zip archive below ``target``.

    Raises:
        ArtifactError: a member leads out of the folder.
        tarfile.TarError, zipfile.BadZipFile, EOFError: the archive is damaged.
    """
    target.mkdir(parents=True, exist_ok=True)
    try:
        _unpack(archive, target, strip, exclude)
    except _DAMAGED as error:
        raise tarfile.ReadError(f"{type(error).__name__}: {error}") from error


def _unpack(archive: str, target: Path, strip: int, exclude: List[str]) -> None:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as bundle:
            for member in bundle.infolist():
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
        bundle.extractall(str(target), members=_members(bundle, strip, exclude))  # noqa: S202
