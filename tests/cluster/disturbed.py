"""Two nodes, runs on them that are disturbed, and a look at everything that a run leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import planting
from clusterctl import sandbox as sandboxes
from clusterctl.sandbox.container_engine import Podman
from clusterctl.state import paths

PROGRAM = str(Path(sys.executable).with_name("clusterctl"))
NODES = ("node1", "node2")
SNAPSHOT = paths.snapshot_file("any").name
CACHE = paths.cache_dir().value
OTHER = ("-e", "openmpi_version=4.1.4")  # with an mpi4py of its own; the cache has both versions
# Every file below the folders that a run writes to: mode, owner, size, and the target or the hash. A test may mount a
# file system on each of the folders named here.
LISTING = r"""
cd / && find etc etc/ssh home root usr/local var/lib/clusterctl var/log/clusterctl var/tmp tmp -xdev \
  \( -type l -printf '%p %y %U:%G -> %l\n' -o -printf '%p %y %m %U:%G\n' \) 2>/dev/null | LC_ALL=C sort
find etc etc/ssh home root usr/local var/lib/clusterctl var/tmp tmp -xdev -type f -print0 2>/dev/null \
  | LC_ALL=C sort -z | xargs -0r sha256sum --
"""
HELD = (
    "import fcntl, time; file = open('/var/lib/dpkg/lock-frontend', 'w'); fcntl.lockf(file, fcntl.LOCK_EX);"
    " time.sleep({})"
)
# What differs between two undisturbed runs as well.
PASSING = ("etc/ld.so.cache", "__pycache__", ".bash_history", "audit.jsonl")
# Ansible's folder of a module that died with its node.
DIED = "/tmp/ansible_clusterctl.hpc.*"  # noqa: S108 - of a node
PROOF = "var/lib/clusterctl/proofs/"
# Back to bare software: the links, the folders, and the proofs.
WIPE = (
    "rm -rf /usr/local/openmpi* /usr/local/mpi4py* /usr/local/python_env*"
    " /var/lib/clusterctl/proofs /var/lib/clusterctl/libraries"
)


@dataclass
class Cluster:
    """Two nodes, folders of this test's own, and how an undisturbed run leaves them."""

    sandbox: sandboxes.Sandbox
    state: Path
    temporary: Path  # of the controller; its path is short, because it holds sockets
    podman: Podman
    base: str = ""  # the run to go back to
    at: str = ""  # the kind of run that ended last as it should
    left: dict[str, dict[str, str]] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)

    def command(self, kind: str) -> list[str]:
        inventory = str(self.sandbox.inventory)
        if kind == "rollback":
            return [PROGRAM, "rollback", "--yes", inventory, self.base]
        return [PROGRAM, "provision", "--yes", "--no-validate", inventory, *(OTHER if kind == "upgrade" else ())]

    @property
    def environment(self) -> dict[str, str]:
        own = {"XDG_STATE_HOME": str(self.state), "TMPDIR": str(self.temporary), "XDG_RUNTIME_DIR": ""}
        return {**os.environ, **own}

    @property
    def folder(self) -> Path:
        (found,) = self.state.glob("clusterctl/clusters/inventory-*")
        return found

    def run(self, kind: str) -> None:
        """Run to the end, as a user does who starts the command again."""
        self.at = ""
        done = subprocess.run(
            self.command(kind),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{kind}: {done.stderr}"
        if kind == "provision":
            self.base = (self.folder / "runs" / "latest").resolve().name
        self.at = kind

    def start(self, kind: str, heard: int = subprocess.DEVNULL) -> tuple[subprocess.Popen[bytes], Callable[[], bytes]]:
        """Start a run in a process group of its own; returns it, and a way to read the events that it has written."""
        before = self.newest()
        self.at = ""
        process = subprocess.Popen(
            self.command(kind),
            env={**self.environment, "COLUMNS": "400"},  # a sentence stays in one line
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=heard,
        )

        def written() -> bytes:
            folder = self.newest()
            events = None if folder in (None, before) else folder / "events.jsonl"  # type: ignore[operator]
            return events.read_bytes() if events and events.exists() else b""

        return process, written

    def provision(self, *options: str) -> tuple[int, str]:
        """Provision; returns the exit code and what was said."""
        command = [*self.command("provision"), *options]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    def hold_packages(self, node: str, seconds: int) -> None:
        """Hold the lock of apt on a node, as unattended upgrades do."""
        container = self.sandbox.node(node).container
        self.podman.run("exec", "--detach", container, "python3", "-c", HELD.format(seconds))

    def prepare(self, kind: str) -> None:
        """Bring the cluster to where a run of this kind begins."""
        before = {"provision": "rollback", "upgrade": "provision", "rollback": "upgrade"}[kind]
        if kind == "provision":
            release = [PROGRAM, "rollback", "--release", str(self.sandbox.inventory)]
            subprocess.run(release, env=self.environment, capture_output=True, check=False)
            for node in NODES:
                self.on(node, WIPE)
        elif self.at != before:
            self.prepare(before)
            self.run(before)

    def packs(self) -> list[str]:
        """Return the artifacts in the controller's cache."""
        return sorted(path.name for path in CACHE.glob("artifacts/*.tar.zst"))

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
                if key == "inputs":  # a hold is named by its run
                    value = {each: of for each, of in value.items() if each != "the hold of a rollback"}  # noqa: PLW2901
                if key != "run_id":
                    found[f"snapshot of {name}: {key} {json.dumps(value, sort_keys=True)}"] = ""
        found[f"members {json.dumps(snapshot['members'], sort_keys=True)}"] = ""
        return found

    def litter(self) -> list[str]:
        """Return what a killed run left on the controller: private folders, and files half written."""
        found = [*self.folder.glob("runs/2*/ansible"), *self.temporary.iterdir(), *CACHE.glob("*/.partial-*")]
        return [str(path) for path in (*found, *(path for path in self.state.rglob(".*") if not path.is_dir()))]

    def newest(self) -> Path | None:
        return max(self.folder.glob("runs/2*"), default=None) if any(self.state.glob("clusterctl/clusters/*")) else None

    def plant(self, fault: str, node: str) -> None:
        if "cut" in fault:
            self.on(node, "pkill -KILL -f '^sshd: .*(@notty|\\[priv\\])' || :")
        container = self.sandbox.node(node).container
        if "killed" in fault:
            self.podman.run("kill", container)
        if "frozen" in fault:
            planting.freeze(self.podman, container)

    def heal(self, fault: str, node: str) -> None:
        for word, command in (("killed", "start"), ("frozen", "unpause")):
            if word in fault:
                self.podman.run(command, self.sandbox.node(node).container)
        if "killed" in fault:
            self.on(node, f"rm -rf {DIED}")


def differences(now: dict[str, str], wanted: dict[str, str]) -> list[str]:
    """Return the lines of one look that the other lacks."""
    return [f"+ {line}" for line in now if line not in wanted] + [f"- {line}" for line in wanted if line not in now]
