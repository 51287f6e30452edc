"""kill -9 of clusterctl at drawn moments: a plain repetition ends as if nothing had happened, and leaves no litter.

``make test-long`` draws REPEAT moments of a provision, of an upgrade and of a rollback; a plain test run draws none.
CLUSTERCTL_SEED repeats the moments of an earlier test run.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from clusterctl.sandbox import podman
from clusterctl.state import paths

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterctl import sandbox as sandboxes
    from clusterctl.sandbox.podman import Podman

pytestmark = pytest.mark.cluster

PROGRAM = str(Path(sys.executable).with_name("clusterctl"))
SEED = os.environ.get("CLUSTERCTL_SEED") or str(random.SystemRandom().randrange(10**6))
DRAW = random.Random(SEED)  # noqa: S311 - moments, not secrets
NODES = ("node1", "node2")
KINDS = ("provision", "upgrade", "rollback")
SNAPSHOT = paths.snapshot_file("any").name
OTHER = ("-e", "openmpi_version=4.1.4")  # with an mpi4py of its own; the cache has both versions
# Every file below the folders that a run writes to: mode, owner, size, and the target or the hash.
LISTING = r"""
cd / && find etc home root usr/local var/lib/clusterctl var/log/clusterctl var/tmp tmp -xdev \
  \( -type l -printf '%p %y %U:%G -> %l\n' -o -printf '%p %y %m %U:%G\n' \) 2>/dev/null | LC_ALL=C sort
find etc home root usr/local var/lib/clusterctl var/tmp tmp -xdev -type f -print0 2>/dev/null \
  | LC_ALL=C sort -z | xargs -0r sha256sum --
"""
# What differs between two undisturbed runs as well.
PASSING = ("etc/ld.so.cache", "__pycache__", ".bash_history", "audit.jsonl")
PROOF = "var/lib/clusterctl/proofs/"
# Back to bare software: the links, the folders, and the proofs.
WIPE = "rm -rf /usr/local/openmpi* /usr/local/mpi4py* /usr/local/python_env* /var/lib/clusterctl/proofs"


@dataclass
class Cluster:
    """Two nodes, a state folder of this test's own, and how an undisturbed run leaves both."""

    sandbox: sandboxes.Sandbox
    state: Path
    podman: Podman
    base: str = ""  # the run to go back to
    left: dict[str, dict[str, str]] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)

    def command(self, kind: str) -> list[str]:
        inventory = str(self.sandbox.inventory)
        if kind == "rollback":
            return [PROGRAM, "rollback", "--yes", inventory, self.base]
        return [PROGRAM, "provision", "--yes", "--no-validate", inventory, *(OTHER if kind == "upgrade" else ())]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "XDG_STATE_HOME": str(self.state)}

    @property
    def folder(self) -> Path:
        (found,) = self.state.glob("clusterctl/clusters/inventory-*")
        return found

    def run(self, kind: str) -> None:
        done = subprocess.run(
            self.command(kind),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{kind}, seed {SEED}: {done.stderr}"
        if kind == "provision":
            self.base = (self.folder / "runs" / "latest").resolve().name

    def prepare(self, kind: str) -> None:
        """Bring the cluster to where a run of this kind begins."""
        if kind == "provision":
            subprocess.run(
                [PROGRAM, "rollback", "--release", str(self.sandbox.inventory)],
                env=self.environment,
                capture_output=True,
                check=False,
            )
            for node in NODES:
                self.on(node, WIPE)

    def on(self, node: str, script: str) -> str:
        return self.podman.run("exec", self.sandbox.node(node).container, "sh", "-c", script).decode(errors="replace")

    def look(self) -> dict[str, str]:
        """Return everything that a run leaves: the files of each node, and the snapshot."""
        found = {}
        for node in NODES:
            for line in self.on(node, LISTING).splitlines():
                if PROOF in line:  # its name and content follow the inodes and times of the files that it proves
                    line = PROOF + line.partition(PROOF)[2].rpartition("-")[0]  # noqa: PLW2901
                if not any(word in line for word in PASSING):
                    found[f"{node}: {line}"] = ""
        snapshot = json.loads((self.folder / SNAPSHOT).read_text(encoding="utf-8"))
        for name, host in snapshot["hosts"].items():
            for key, value in host.items():
                if key != "run_id":
                    found[f"snapshot of {name}: {key} {json.dumps(value, sort_keys=True)}"] = ""
        found[f"members {json.dumps(snapshot['members'], sort_keys=True)}"] = ""
        return found

    def litter(self) -> list[str]:
        """Return what a killed run left on the controller: Ansible's private folders, and files half written."""
        private = [str(path) for path in self.folder.glob("runs/2*/ansible")]
        return [*private, *(str(path) for path in self.state.rglob(".*") if not path.is_symlink() and path.is_file())]

    def newest(self) -> Path | None:
        return max(self.folder.glob("runs/2*"), default=None) if any(self.state.glob("clusterctl/clusters/*")) else None


def kill_at(cluster: Cluster, kind: str, event: int, later_s: float) -> str:
    """Kill a run a moment after it wrote so many events; returns what it was at, for the message of a failure."""
    before = cluster.newest()
    process = subprocess.Popen(
        cluster.command(kind),
        env=cluster.environment,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    written = b""
    while process.poll() is None and written.count(b"\n") < event:
        folder = cluster.newest()
        if folder is not None and folder != before and (folder / "events.jsonl").exists():
            written = (folder / "events.jsonl").read_bytes()
        time.sleep(0.01)
    time.sleep(later_s)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    last = json.loads(written.splitlines()[-1]) if written else {}
    return f"{kind} killed {later_s:.2f} s after event {event}, {last.get('stage', '')}: {last.get('task', '')}"


@pytest.fixture(scope="module")
def cluster(
    request: pytest.FixtureRequest,
    sandbox: Callable[..., sandboxes.Sandbox],
    tmp_path_factory: pytest.TempPathFactory,
) -> Cluster:
    """A cluster that went through each kind of run once, undisturbed."""
    if request.config.getoption("repeat") == 1:
        pytest.skip("'make test-long' draws the moments")
    found = Cluster(sandbox("kills", nodes=len(NODES)), tmp_path_factory.mktemp("state"), podman.find())
    for kind in KINDS:
        found.run(kind)
        folder = found.newest()
        assert folder is not None
        found.left[kind] = found.look()
        found.events[kind] = (folder / "events.jsonl").read_bytes().count(b"\n")
    return found


def differences(now: dict[str, str], wanted: dict[str, str]) -> Sequence[str]:
    return [f"+ {line}" for line in now if line not in wanted] + [f"- {line}" for line in wanted if line not in now]


@pytest.mark.repeat
def test_a_killed_run_is_made_good_by_a_plain_one(cluster: Cluster) -> None:
    for kind in KINDS:
        cluster.prepare(kind)
        event, later_s = DRAW.randint(0, cluster.events[kind]), DRAW.uniform(0, 0.5)
        what = kill_at(cluster, kind, event, later_s)
        print(f"seed {SEED}: {what}")  # noqa: T201 - to repeat a failure
        cluster.run(kind)
        different = differences(cluster.look(), cluster.left[kind])
        assert not different, f"seed {SEED}, {what}:\n" + "\n".join(different[:40])
        assert cluster.litter() == [], f"seed {SEED}, {what}"
