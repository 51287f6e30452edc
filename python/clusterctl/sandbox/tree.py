"""Files for a node as a tar archive in memory: what podman copies into a container before its first process starts."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class File:
    """A file's content and how it is kept; None as content makes a directory."""

    content: bytes | None
    mode: int = 0o644
    owner: int = 0  # uid and gid


def pack(files: Mapping[str, File], *archives: bytes) -> bytes:
    """Return a tar of the files (by path without the leading '/') together with the members of other tars."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as target:
        for archive in filter(None, archives):  # a machine without certificates of its own has none to give
            with tarfile.open(fileobj=io.BytesIO(archive)) as source:
                for member in source:
                    target.addfile(member, source.extractfile(member) if member.isreg() else None)
        for path, file in files.items():
            member = tarfile.TarInfo(path)
            member.type = tarfile.DIRTYPE if file.content is None else tarfile.REGTYPE
            member.size = len(file.content or b"")
            member.mode, member.uid, member.gid = file.mode, file.owner, file.owner
            target.addfile(member, io.BytesIO(file.content or b""))
    return buffer.getvalue()
