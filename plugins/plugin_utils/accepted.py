# SPDX-License-Identifier: Apache-2.0
"""Digests of accepted artifacts, kept in the state folder of the controller, outside the deletable cache.

An artifact is accepted when this controller had it built, or found it whole in its cache. A node's own tree is taken
for the cache only if its content has an accepted digest.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.module_utils import pack_extract
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError, BadPackError, tree_name
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import partial_file

try:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
except ImportError:  # optional for users of the collection alone; what needs it says so
    zstd = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from typing import BinaryIO

_CHUNK = 1 << 20


class DamagedPackError(ArtifactError):
    """A pack cannot be read, holds other files than its manifest says, or has rights that no artifact has."""


def default_folder() -> Path:
    """Return the folder of accepted digests below the user's state folder."""
    base = os.environ.get("XDG_STATE_HOME", "")
    state = Path(base) if base and Path(base).is_absolute() else Path.home() / ".local" / "state"
    return state / "clusterctl" / "artifacts"


class Accepted:
    """The accepted digests of artifacts, one file for each artifact."""

    def __init__(self, folder: Path) -> None:
        """Use ``folder``, which is made on demand."""
        self._folder = folder

    def digests(self, name: str, version: str, key: str) -> list[str]:
        """Return the digests of the manifests that were accepted for an artifact; empty without one."""
        try:
            known = json.loads(self._path(name, version, key).read_bytes())["manifests"]
            return [str(digest) for digest in known]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def accept(self, name: str, version: str, key: str, manifest_sha256: str) -> None:
        """Remember the digest of an artifact's manifest.

        Raises:
            ArtifactError: the state folder cannot be written.
        """
        known = self.digests(name, version, key)
        if manifest_sha256 in known:
            return
        path = self._path(name, version, key)
        try:
            for folder in reversed([self._folder, *(each for each in self._folder.parents if not each.exists())]):
                folder.mkdir(mode=0o700, exist_ok=True)
            with partial_file.staged(self._folder) as partial:
                with partial.open("w", encoding="utf-8") as out:
                    out.write(json.dumps({"schema": 1, "manifests": [*known, manifest_sha256]}, indent=1) + "\n")
                    out.flush()
                    os.fsync(out.fileno())
                partial.replace(path)
        except OSError as error:
            raise ArtifactError(
                f"The digest of {name} {version} cannot be kept in {self._folder} ({error.strerror}); make it writable,"
                " or set XDG_STATE_HOME to a writable folder."
            ) from error

    def _path(self, name: str, version: str, key: str) -> Path:
        return self._folder / f"{tree_name(name, version, key)}.json"


def content_digest(pack: Path, compression: str, root: str, beside: Collection[str] = ()) -> str:
    """Return the digest of the manifest of a pack, every entry of which was compared with it.

    Args:
        pack: the pack.
        compression: ``zst`` or ``gz``.
        root: folder of the artifacts on the hosts.
        beside: see :func:`artifact.leaving_link`.

    Raises:
        DamagedPackError: the pack is not readable, holds something else than its manifest says, or has a manifest that
            no host takes.
    """
    try:
        with pack.open("rb") as packed, decompressed(packed, compression) as portions:
            size = os.fstat(packed.fileno()).st_size
            return pack_extract.read(portions, pack_extract.Taker(), root, size, beside=beside)
    except (BadPackError, OSError, *zstd_errors()) as error:  # type: ignore[misc] # each is an exception
        raise DamagedPackError(f"{pack.name} is refused: {error}") from error


@contextmanager
def decompressed(packed: BinaryIO, compression: str) -> Iterator[Iterator[bytes]]:
    """Yield what a pack unpacks to, in portions and without a bound."""
    if compression == "gz":
        yield pack_extract.inflated(packed)
        return
    with zstd_library("unpack").ZstdFile(packed) as stream:
        yield iter(lambda: stream.read(_CHUNK), b"")


def zstd_library(what: str) -> Any:
    """Return the library.

    Raises:
        ArtifactError: it is missing; ``what`` it is for.
    """
    if zstd is None:
        raise ArtifactError(
            f"The controller needs the Python package 'backports.zstd' to {what} an artifact;"
            " install it beside ansible."
        )
    return zstd


def zstd_errors() -> tuple[type[Exception], ...]:
    """Return the errors of a damaged pack."""
    return (zstd.ZstdError, EOFError) if zstd else ()
