"""A controller's cache with small packs, the keys of sites, and the command line over them, for tests."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import program_forks
from clusterctl.model import shared_cache

PROGRAM = str(Path(sys.executable).with_name("clusterctl"))
PLATFORM = "debian-12-x86_64-glibc2.36-py3.11"


@dataclass
class Site:
    """One controller: its folders, its key, and the command line with them."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the folders and the key."""
        self.config.mkdir(parents=True)
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.root.name, "-f", str(self.key)]
        subprocess.run(argv, check=True)

    @property
    def cache(self) -> Path:
        return self.root / "cache" / "clusterctl"

    @property
    def config(self) -> Path:
        return self.root / "config" / "clusterctl"

    @property
    def key(self) -> Path:
        return self.config / "signing_key"

    @property
    def public(self) -> str:
        return self.key.with_name("signing_key.pub").read_text(encoding="utf-8").strip()

    @property
    def signers(self) -> Path:
        return self.config / "allowed_signers"

    def trusts(self, *others: Site) -> Site:
        self.signers.write_text("".join(f"{other.root.name} {other.public}\n" for other in others), encoding="utf-8")
        self.signers.chmod(0o644)
        return self

    def variables(self) -> dict[str, str]:
        own = {
            "XDG_CACHE_HOME": str(self.root / "cache"),
            "XDG_CONFIG_HOME": str(self.root / "config"),
            "XDG_STATE_HOME": str(self.root / "state"),
        }
        return {**os.environ, "TMPDIR": str(self.root), **own, **self.environment}

    def run(self, *words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run ``clusterctl cache`` as this site."""
        return program_forks.run(self.argv(*words), env={**self.variables(), **variables})

    def argv(self, *words: str | Path) -> list[str]:
        return [PROGRAM, "cache", *map(str, words)]

    def has(self, name: str, content: bytes) -> Path:
        """Put a pack into the cache, as the collection does; returns the pack."""
        inputs = {"platform": PLATFORM, "variant": name}
        key = shared_cache.key_of(inputs)
        tree = f"{name}-1.0-{key}"
        folder = self.cache / "artifacts"
        folder.mkdir(parents=True, exist_ok=True)
        pack = folder / f"{tree}.tar.zst"
        pack.write_bytes(content)
        record: dict[str, Any] = {
            "schema": 1,
            "name": name,
            "version": "1.0",
            "key": key,
            "inputs": inputs,
            "manifest_sha256": "0" * 64,
            "sha256": hashlib.sha256(content).hexdigest(),
            "size": len(content),
            "built": {"host": "node1", "started": 1795458966, "seconds": 3.0},
        }
        (folder / f"{tree}.json").write_text(json.dumps(record), encoding="utf-8")
        return pack

    def has_lock(self, name: str = "python_env-b0edc0a9ee959033") -> Path:
        folder = self.cache / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        lock = folder / f"{name}.json"
        asked = {"requirements": ["numpy"], "python": "3.11", "machine": "x86_64", "glibc": "2.36"}
        lock.write_text(json.dumps({"schema": 1, "asked": asked, "wheels": []}), encoding="utf-8")
        return lock

    def litter(self) -> list[str]:
        """Return the names of all files of the cache but locks; a pack that was not taken leaves none."""
        return sorted(path.name for path in self.cache.glob("*/*") if not path.name.endswith("lock"))


def round_trip(first: Site, second: Site, where: str) -> None:
    """Push, push again, pull, pull again, list, verify."""
    done = first.run("push", where)
    assert (done.returncode, "3 pushed" in done.stderr) == (0, True), done.stderr
    again = first.run("push", where)
    assert "0 pushed (0 B), 3 there already." in again.stderr, again.stderr
    done = second.run("pull", where)
    assert (done.returncode, "3 pulled" in done.stderr) == (0, True), done.stderr
    names = {path.name for path in first.cache.glob("*/*") if not path.name.endswith("lock")}
    for name in names:
        mine, theirs = (next(site.cache.glob(f"*/{name}")) for site in (first, second))
        if name.endswith(".json") and "lock" not in mine.parent.name:
            assert json.loads(mine.read_text("utf-8")) == json.loads(theirs.read_text("utf-8"))
        else:
            assert mine.read_bytes() == theirs.read_bytes()
    assert "3 here already" in second.run("pull", where).stderr
    done = second.run("verify", where)
    assert (done.returncode, "3 sound" in done.stderr) == (0, True), done.stderr
    assert len(json.loads(second.run("list", where, "--format", "json").stdout)["entries"]) == 3


def refused(site: Site, where: str | Path, words: str, code: int = 10, **variables: str) -> None:
    done = site.run("pull", where, "openmpi", **variables)
    told = [line for line in done.stderr.splitlines() if line.startswith("clusterctl: ")]
    assert (done.returncode, len(told)) == (code, 1), done.stderr
    assert words in told[0]
    assert "secret" not in done.stderr
    assert "Traceback" not in done.stderr
    assert site.litter() == []
