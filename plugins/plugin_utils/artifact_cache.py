# SPDX-License-Identifier: Apache-2.0
"""The controller's cache of packed artifacts: ``<name>-<version>-<key>.tar.zst`` and its record, ``.json``.

Both reach their names by a rename, the record last. A pack without a record was never finished. A pack whose sha256
differs from its record was damaged later. Both are removed.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.module_utils import disk_files
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import (
    SCHEMA,
    ArtifactError,
    most_unpacked,
    sha256_of,
    tree_name,
)
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import partial_file
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.accepted import (
    DamagedPackError,
    decompressed,
    zstd_errors,
    zstd_library,
)
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.source import disk_full

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


# Take a pack from a shared cache, by the program clusterctl, which verifies its signature and its hash.

_MOST_WORDS = 600
_BEGINNING = "clusterctl: "


@dataclass(frozen=True)
class SharedCache:
    """The shared cache of an inventory."""

    where: str
    signers: str
    program: tuple[str, ...]  # empty where this controller has no clusterctl

    @staticmethod
    def of(value: Callable[[str], Any]) -> SharedCache | None:
        """Return the shared cache; None without one.

        Args:
            value: of a variable; empty where it is not set.
        """
        where = str(value("cluster_cache") or "")
        if not where:
            return None
        given = value("cluster_cache_program") or ()
        found = shutil.which("clusterctl")
        program = tuple(str(word) for word in given) if given else (found,) if found else ()
        return SharedCache(where, str(value("cluster_cache_signers") or ""), program)

    def pull(self, tree: str, cache_dir: Path) -> str:
        """Bring a pack into a cache folder, if the shared cache has it; returns why it was not taken, or ''.

        Args:
            tree: the name of the artifact's folder.
            cache_dir: the cache folder of the controller.
        """
        if not self.program:
            return "this controller has no program 'clusterctl', which verifies signatures; install it beside ansible."
        argv = [*self.program, "cache", "pull", f"--pack={tree}", f"--into={cache_dir}"]
        argv += [f"--signers={self.signers}"] if self.signers else []
        done = subprocess.run(
            [*argv, "--", self.where],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
            env={**os.environ, "COLUMNS": "100000"},
        )
        if done.returncode == 0:
            return ""
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        told = next((line for line in lines if line.startswith(_BEGINNING)), lines[-1] if lines else "no reason given")
        return told.removeprefix(_BEGINNING)[:_MOST_WORDS]


@dataclass(frozen=True)
class CachedArtifact:
    """A pack whose content fits its record."""

    path: Path
    sha256: str
    size: int  # bytes
    record: dict[str, Any]


@dataclass(frozen=True)
class Lookup:
    """The answer of the cache: the artifact, or why the pack is not used ('' if there is no pack)."""

    artifact: CachedArtifact | None
    damaged: str = ""


class ArtifactCache:
    """Packs below one cache folder; safe for several runs at the same time."""

    def __init__(self, cache_dir: Path) -> None:
        """Use ``cache_dir``; folders are made on demand."""
        self.folder = cache_dir.expanduser() / "artifacts"
        self.logs = cache_dir.expanduser() / "logs"

    def pack_path(self, name: str, version: str, key: str) -> Path:
        """Return the path of a pack, which may not exist yet."""
        return self.folder / f"{tree_name(name, version, key)}.tar.zst"

    def record_path(self, name: str, version: str, key: str) -> Path:
        """Return the path of a pack's record, which may not exist yet."""
        return self.folder / f"{tree_name(name, version, key)}.json"

    def lookup(self, name: str, version: str, key: str, *, read: bool = True) -> Lookup:
        """Return the artifact if a whole one is cached; the cache stays as it is.

        Args:
            name: the artifact's name.
            version: its version.
            key: its key.
            read: whether the content counts. Without it, record and size do: a host reads each pack that it gets.
        """
        pack = self.pack_path(name, version, key)
        try:
            record = json.loads(self.record_path(name, version, key).read_bytes())
            wanted = (SCHEMA, name, version, key)
            if (record["schema"], record["name"], record["version"], record["key"]) != wanted:
                return Lookup(None, f"the record of {pack} belongs to another artifact")
            needed = [record[field] for field in ("sha256", "size", "manifest_sha256", "inputs")]
            sha256, size = str(needed[0]), int(needed[1])
            found = pack.stat().st_size
        except FileNotFoundError:
            return Lookup(None)
        except (ValueError, KeyError, TypeError):
            return Lookup(None, f"the record of {pack} is not readable")
        if found != size:
            return Lookup(None, f"{pack} has {found} bytes instead of {size}")
        if read and sha256_of(pack) != sha256:
            return Lookup(None, f"the content of {pack} has changed")
        return Lookup(CachedArtifact(pack, sha256, size, record))

    def throw_away(self, name: str, version: str, key: str) -> None:
        """Remove a damaged pack and all that belongs to it; the record goes first, since a pack needs one."""
        pack = self.pack_path(name, version, key)
        twin = pack.with_suffix(".gz")
        for path in (self.record_path(name, version, key), pack, twin.with_suffix(".gz.json"), twin):
            path.unlink(missing_ok=True)

    def refuse(self, bad: CachedArtifact, note: Callable[[str], None]) -> None:
        """Remove a pack that a host could not use, unless another run has replaced it in the meantime."""
        name, version, key = (str(bad.record[field]) for field in ("name", "version", "key"))
        with self.lock(name, version, key, note):
            now = self.lookup(name, version, key)
            if now.artifact is None or now.artifact.sha256 == bad.sha256:
                self.throw_away(name, version, key)

    @contextmanager
    def lock(self, name: str, version: str, key: str, note: Callable[[str], None]) -> Iterator[None]:
        """Hold the right to build this artifact; a second run waits until the first has built it.

        Args:
            name: the artifact's name.
            version: its version.
            key: its key.
            note: takes a line of life while waiting.
        """
        self._make_folder()
        lock = self.folder / f".{tree_name(name, version, key)}.lock"
        with disk_files.held(lock, f"waiting for another run that builds {name} {version}", note):
            yield

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno in disk_files.FULL:
                raise disk_full(self.folder.parent, "the folder of artifacts", error.errno) from error
            raise ArtifactError(
                f"The cache folder {self.folder} cannot be made ({error.strerror}); set preflight_cache_dir."
            ) from error

    def make_room(self, size: int) -> None:
        """Check that a pack of ``size`` bytes fits.

        Raises:
            ArtifactError: it does not fit.
        """
        self._make_folder()
        if shutil.disk_usage(self.folder).free < size:
            raise disk_full(self.folder, f"an artifact of {size} bytes")

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """Yield a temporary file in the cache's file system; it is removed unless :meth:`store` took it."""
        self._make_folder()
        try:
            with partial_file.staged(self.folder) as partial:
                yield partial
        except OSError as error:
            if error.errno in disk_files.FULL:
                raise disk_full(self.folder, "an artifact", error.errno) from error
            raise

    def store(self, staged: Path, record: dict[str, Any]) -> CachedArtifact:
        """Rename a staged pack to its name, then write its record.

        Args:
            staged: file inside this cache's folder (see :meth:`staging`), zstd-compressed.
            record: name, version, key and whatever else is worth keeping; sha256 and size are added here.
        """
        name, version, key = str(record["name"]), str(record["version"]), str(record["key"])
        whole = {**record, "schema": SCHEMA, "sha256": sha256_of(staged), "size": staged.stat().st_size}
        pack = self.pack_path(name, version, key)
        self.record_path(name, version, key).unlink(missing_ok=True)
        staged.chmod(0o644)
        staged.replace(pack)
        with self.staging() as partial:
            partial.write_text(json.dumps(whole, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            partial.chmod(0o644)
            partial.replace(self.record_path(name, version, key))
        return CachedArtifact(pack, whole["sha256"], whole["size"], whole)

    def compress(self, plain_gzip: Path, target: Path) -> None:
        """Convert a ``.tar.gz`` to a ``.tar.zst``, for builders without zstd."""
        with gzip.open(plain_gzip, "rb") as source, zstd_library("compress").open(target, "wb", level=3) as out:
            shutil.copyfileobj(source, out, 1 << 20)

    def gzip_of(self, artifact: CachedArtifact, note: Callable[[str], None]) -> CachedArtifact:
        """Return the pack as ``.tar.gz``, for nodes without zstd; it is made once.

        Args:
            artifact: the pack.
            note: takes a line of life while another worker, of this run or another, converts the pack.
        """
        twin = self._twin(artifact)
        if twin is None:
            pack = artifact.path.name
            with disk_files.held(self.folder / f".{pack}.lock", f"waiting for {pack} as .tar.gz", note):
                twin = self._twin(artifact) or self._transcode(artifact)
        return twin

    @staticmethod
    def _twin(artifact: CachedArtifact) -> CachedArtifact | None:
        target = artifact.path.with_suffix(".gz")
        try:
            known = json.loads(target.with_suffix(".gz.json").read_bytes())
            if known["of"] != artifact.sha256 or sha256_of(target) != known["sha256"]:
                return None
            return CachedArtifact(target, str(known["sha256"]), target.stat().st_size, artifact.record)
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def keep_gzip(self, artifact: CachedArtifact, staged: Path) -> CachedArtifact:
        """Keep the ``.tar.gz`` that the artifact was made of, so that it is not made again.

        Args:
            artifact: the stored pack.
            staged: file inside this cache's folder (see :meth:`staging`) with the same tree.
        """
        target = artifact.path.with_suffix(".gz")
        record = target.with_suffix(".gz.json")
        record.unlink(missing_ok=True)
        staged.chmod(0o644)
        digest = sha256_of(staged)
        staged.replace(target)
        with self.staging() as partial:
            partial.write_text(json.dumps({"of": artifact.sha256, "sha256": digest}) + "\n", encoding="utf-8")
            partial.replace(record)
        return CachedArtifact(target, digest, target.stat().st_size, artifact.record)

    def _transcode(self, artifact: CachedArtifact) -> CachedArtifact:
        with self.staging() as partial:
            # mtime=0 and no name: the same pack always gives the same bytes
            with (
                artifact.path.open("rb") as source,
                partial.open("wb") as raw,
                gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=4, mtime=0) as out,
            ):
                left = most = most_unpacked(artifact.size)
                try:
                    with decompressed(source, "zst") as portions:
                        for portion in portions:
                            left -= len(portion)
                            if left < 0:
                                raise DamagedPackError(f"{artifact.path.name} unpacks to more than {most} bytes")
                            out.write(portion)
                except zstd_errors() as error:
                    raise DamagedPackError(f"{artifact.path.name} cannot be unpacked ({error})") from error
            return self.keep_gzip(artifact, partial)
