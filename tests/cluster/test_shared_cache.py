"""A second controller provisions from a shared cache: it compiles nothing, and asks no index."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clusterctl.sandbox import Sandbox
from clusterctl.state import paths
from validated import CLUSTERCTL, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.long]


class Controller:
    """A controller with folders of its own."""

    def __init__(self, root: Path) -> None:
        """Make the folders."""
        self.root = root
        self.config = root / "config" / "clusterctl"
        self.config.mkdir(parents=True)

    def run(self, *words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        own = {f"XDG_{kind.upper()}_HOME": str(self.root / kind) for kind in ("cache", "config", "state")}
        return subprocess.run(
            [*CLUSTERCTL, *map(str, words)],
            env={**os.environ, **own, **variables},
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )


def test_a_second_controller_compiles_nothing(sandbox: Callable[..., Sandbox], tmp_path: Path) -> None:
    box = sandbox("sharing", nodes=2)
    cluster = Cluster(box)
    cluster.provision()
    first, second = Controller(tmp_path / "first"), Controller(tmp_path / "second")
    for folder in ("artifacts", "locks"):
        own = first.root / "cache" / "clusterctl" / folder
        shutil.copytree(paths.cache_dir().value / folder, own, copy_function=linked)
    key = first.config / "signing_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    public = key.with_name("signing_key.pub").read_text(encoding="utf-8")
    (second.config / "allowed_signers").write_text(f"first {public}", encoding="utf-8")
    shared = tmp_path / "shared"
    pushed = first.run("cache", "push", shared, "openmpi", "mpi4py", "python_env", "mpi4py_tools", "uv")
    assert pushed.returncode == 0, pushed.stderr

    gone = cluster.run("uninstall", "--yes")[0]
    assert gone.returncode == 0, gone.stderr
    away = {"PIP_INDEX_URL": "https://index.invalid/simple"}
    words = ("provision", box.inventory, "--yes", "--no-validate", "--cache", shared, "--format", "json")
    done = second.run(*words, **away)
    assert done.returncode == 0, done.stderr + done.stdout
    changes = changes_of(json.loads(done.stdout))
    taken = {name for name in ("openmpi", "python_env", "mpi4py") if any(f"took {name} " in line for line in changes)}
    assert taken == {"openmpi", "python_env", "mpi4py"}, changes
    assert not [line for line in changes if line.startswith(("built", "packed", "fetched"))]
    kept = {path.name for path in (second.root / "cache" / "clusterctl").iterdir()}
    assert kept & {"sources", "wheels"} == set()
    proved = second.run("validate", box.inventory, "--checks", "hello", **away)
    assert proved.returncode == 0, proved.stderr


def linked(source: str, target: str) -> None:
    """Copy a file without its bytes, where both lie on one file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def changes_of(record: dict[str, Any]) -> list[str]:
    return [change for host in record["hosts"] for change in host["changes"]]
