# SPDX-License-Identifier: Apache-2.0
"""Pack a finished tree into one compressed tar; a run after an interrupted one finds it again."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any, BinaryIO, Dict, List, Optional

from ansible_collections.clusterctl.hpc.plugins.module_utils import atomic_file, zstd_library
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import (
    MANIFEST,
    MARKER,
    ArtifactError,
    Entry,
    close_modes,
    leaving_link,
    make_manifest,
    parse_manifest,
    sha256_of,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.command import SYSTEM_PATH

_CHUNK = 1 << 20
FOLDER = "/var/cache/clusterctl/packs"  # on a builder
SUFFIXES = {"zst": ".tar.zst", "gz": ".tar.gz"}


def packable(tree: str, root: str, name: str) -> List[Entry]:
    """Take write access of others from what a build left, and return its manifest.

    Args:
        tree: the folder.
        root: folder of the artifacts.
        name: of the artifact.

    Raises:
        ArtifactError: see :func:`artifact.make_manifest`; or a link leads where others than root may write.
    """
    close_modes(tree)
    entries = make_manifest(tree)
    link = leaving_link(entries, root)
    if link:
        raise ArtifactError(f"The build of {name} cannot be packed: {link}; correct its steps.")
    return entries


class Packs:
    """Where the pack of one artifact is kept until the controller has fetched it."""

    def __init__(self, folder: str, base: str) -> None:
        """Remember the places; nothing is touched yet."""
        self.folder = Path(folder)
        self.base = base
        self.record = self.folder / f"{base}.json"

    def kept(self) -> Optional[Dict[str, Any]]:
        """Return the pack that an earlier run did not hand over; None where it is missing or damaged."""
        try:
            answer: Dict[str, Any] = json.loads(self.record.read_bytes())
            return answer if sha256_of(answer["pack"]) == answer["sha256"] else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def make(self, tree: Path) -> Dict[str, Any]:
        """Pack a tree and return the pack's path, digest, size and compression.

        Raises:
            OSError: the pack cannot be written.
        """
        zstd = shutil.which("zstd", path=SYSTEM_PATH)
        compression = "zst" if zstd or zstd_library.library() else "gz"
        pack = self.folder / f"{self.base}{SUFFIXES[compression]}"
        partial = pack.with_suffix(".partial")
        try:
            with partial.open("wb") as out:
                # One fast level: higher ones cost more time than the bytes are worth.
                if zstd:
                    _pack_by([zstd, "-3", "-q", "-c"], tree, out)
                elif compression == "zst":
                    compressor = zstd_library.Compressor(out.write, 3)
                    _add_all(compressor, tree)
                    compressor.close()
                else:
                    _pack_by(["gzip", "-4", "-n", "-c"], tree, out)
            partial.chmod(0o644)
            partial.replace(pack)
        finally:
            partial.unlink(missing_ok=True)
        return {
            "pack": str(pack),
            "sha256": sha256_of(pack),
            "size": pack.stat().st_size,
            "compression": compression,
            "manifest_sha256": hashlib.sha256((tree / MANIFEST).read_bytes()).hexdigest(),
        }

    def keep(self, answer: Dict[str, Any]) -> None:
        """Write the record by which :meth:`kept` finds the pack."""
        atomic_file.write(self.record, json.dumps(answer))

    def release(self) -> None:
        """Remove the pack and its record."""
        for path in (self.record, *(self.folder / f"{self.base}{suffix}" for suffix in SUFFIXES.values())):
            path.unlink(missing_ok=True)


def _pack_by(squeeze: List[str], tree: Path, out: BinaryIO) -> None:
    with subprocess.Popen(squeeze, stdin=subprocess.PIPE, stdout=out) as process:
        _add_all(process.stdin, tree)
        if process.stdin:
            process.stdin.close()
        if process.wait():
            raise OSError(errno.ENOSPC, "the pack could not be written", out.name)


def _add_all(sink: Any, tree: Path) -> None:
    def owned_by_root(member: tarfile.TarInfo) -> Optional[tarfile.TarInfo]:
        if member.name in {".", MARKER}:
            return None
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        return member

    # files that came later, such as a byte code cache, stay behind
    known = {entry.path for entry in parse_manifest((tree / MANIFEST).read_bytes())}
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_CHUNK) as bundle:
        bundle.add(
            tree / MANIFEST, arcname=MANIFEST, recursive=False, filter=owned_by_root
        )  # the reader needs it first
        for path in sorted(tree.rglob("*")):
            name = str(path.relative_to(tree))
            if name in known:
                bundle.add(path, arcname=name, recursive=False, filter=owned_by_root)
