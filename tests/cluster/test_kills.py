"""kill -9 of clusterctl, alone or with a fault of a node: a plain repetition ends as if nothing had happened.

A plain test run takes one moment of a provision, of an upgrade and of a rollback, always the same. ``make test-long``
draws 20 such kills, and then SCHEDULES schedules of kills and faults of nodes, by a seed of the day's second.
CLUSTERCTL_SEED repeats the moments of an earlier run, and FIRST_SCHEDULE begins at a later one of them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from clusterctl.sandbox import podman
from clusterctl.state import paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from clusterctl import sandbox as sandboxes
    from clusterctl.sandbox.podman import Podman

pytestmark = pytest.mark.cluster

PROGRAM = str(Path(sys.executable).with_name("clusterctl"))
SEED = os.environ.get("CLUSTERCTL_SEED", "1")
NODES = ("node1", "node2")
KINDS = ("provision", "upgrade", "rollback")
FAULTS = ("", "killed node", "frozen node", "cut connections", "no kill, killed node", "no kill, cut connections")
SCHEDULES = int(os.environ.get("SCHEDULES", "200"))
FIRST_SCHEDULE = int(os.environ.get("FIRST_SCHEDULE", "1"))
SNAPSHOT = paths.snapshot_file("any").name
CACHE = paths.cache_dir().value
OTHER = ("-e", "openmpi_version=4.1.4")  # with an mpi4py of its own; the cache has both versions
# Every file below the folders that a run writes to: mode, owner, size, and the target or the hash.
LISTING = r"""
cd / && find etc home root usr/local var/lib/clusterctl var/log/clusterctl var/tmp tmp -xdev \
  \( -type l -printf '%p %y %U:%G -> %l\n' -o -printf '%p %y %m %U:%G\n' \) 2>/dev/null | LC_ALL=C sort
find etc home root usr/local var/lib/clusterctl var/tmp tmp -xdev -type f -print0 2>/dev/null \
  | LC_ALL=C sort -z | xargs -0r sha256sum --
"""
HELD = (
    "import fcntl, time; file = open('/var/lib/dpkg/lock-frontend', 'w'); fcntl.lockf(file, fcntl.LOCK_EX);"
    " time.sleep({})"
)
# What differs between two undisturbed runs as well.
PASSING = ("etc/ld.so.cache", "__pycache__", ".bash_history", "audit.jsonl")
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
        assert done.returncode == 0, f"{kind}, seed {SEED}: {done.stderr}"
        if kind == "provision":
            self.base = (self.folder / "runs" / "latest").resolve().name
        self.at = kind

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
        container = self.sandbox.node(node).container
        if "killed" in fault:
            self.podman.run("kill", container)
        elif "frozen" in fault:
            self.podman.run("pause", container)
        elif "cut" in fault:
            self.on(node, "pkill -KILL -f '^sshd: .*(@notty|\\[priv\\])' || :")

    def heal(self, fault: str, node: str) -> None:
        container = self.sandbox.node(node).container
        if "killed" in fault:
            self.podman.run("start", container)
        elif "frozen" in fault:
            self.podman.run("unpause", container)


@dataclass(frozen=True)
class Schedule:
    """A drawn moment of a run, and what happens then."""

    kind: str
    event: int
    later_s: float
    fault: str = ""
    node: str = "node1"
    number: int = 0

    @classmethod
    def draw(cls, cluster: Cluster, kind: str, number: int = 0, faults: Sequence[str] = ("",)) -> Schedule:
        """Draw the schedule of this number, which is the same whether or not the earlier ones were drawn."""
        draw = random.Random(f"{SEED} {number}")  # noqa: S311 - moments, not secrets
        fault, node, later_s = draw.choice(faults), draw.choice(NODES), draw.uniform(0, 0.5)
        return cls(kind, round(draw.random() * cluster.events[kind]), later_s, fault, node, number)

    def __str__(self) -> str:
        what = f"{self.fault} {self.node}" if self.fault else "kill"
        return f"seed {SEED}, {self.number}: {what} {self.later_s:.2f} s after event {self.event} of {self.kind}"


def disturb(cluster: Cluster, schedule: Schedule) -> str:
    """Disturb a run a moment after it wrote so many events; returns what it was at, for the message of a failure."""
    before = cluster.newest()
    process = subprocess.Popen(
        cluster.command(schedule.kind),
        env=cluster.environment,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    cluster.at = ""
    written = b""
    while process.poll() is None and written.count(b"\n") < schedule.event:
        folder = cluster.newest()
        if folder is not None and folder != before and (folder / "events.jsonl").exists():
            written = (folder / "events.jsonl").read_bytes()
        time.sleep(0.01)
    time.sleep(schedule.later_s)
    cluster.plant(schedule.fault, schedule.node)
    try:
        if process.poll() is None and "no kill" not in schedule.fault:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    finally:
        cluster.heal(schedule.fault, schedule.node)
    last = json.loads(written.splitlines()[-1]) if written else {}
    return f"{schedule} at {last.get('stage', '')}: {last.get('task', '')}"


def outcome(cluster: Cluster, schedule: Schedule) -> str:
    """Disturb a run and repeat it; returns how it differs from an undisturbed one, '' where it does not."""
    cluster.prepare(schedule.kind)
    what = disturb(cluster, schedule)
    try:
        cluster.run(schedule.kind)
    except AssertionError as error:
        return f"{what}:\n{error}"
    different = [*differences(cluster.look(), cluster.left[schedule.kind])[:40], *cluster.litter()]
    if different:
        cluster.at = ""
    return "\n".join((f"{what}:", *different)) if different else ""


@pytest.fixture(scope="module")
def cluster(sandbox: Callable[..., sandboxes.Sandbox], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that went through each kind of run once, undisturbed."""
    with tempfile.TemporaryDirectory(prefix="kills-") as temporary:
        box = sandbox("kills", nodes=len(NODES))
        found = Cluster(box, tmp_path_factory.mktemp("state"), Path(temporary), podman.find())
        for kind in KINDS:
            found.run(kind)
            folder = found.newest()
            assert folder is not None
            found.left[kind] = found.look()
            found.events[kind] = (folder / "events.jsonl").read_bytes().count(b"\n")
        yield found


def differences(now: dict[str, str], wanted: dict[str, str]) -> list[str]:
    return [f"+ {line}" for line in now if line not in wanted] + [f"- {line}" for line in wanted if line not in now]


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_is_made_good_by_a_plain_one(cluster: Cluster, kind: str) -> None:
    problem = outcome(cluster, Schedule.draw(cluster, kind))
    assert not problem, problem


@pytest.fixture(scope="module")
def ready(cluster: Cluster) -> Cluster:
    """The cluster after a provision from bare software."""
    if cluster.at != "provision":
        cluster.prepare("provision")
        cluster.run("provision")
    return cluster


@pytest.mark.long
def test_a_held_package_lock_is_waited_for_and_a_cut_off_installation_finished(ready: Cluster) -> None:
    """node1 misses a package while another program holds the lock; dpkg was cut off on node2."""
    package = ready.on("node1", "dpkg-query -W -f '${Package}\\n' 'libgfortran*' | head -1").strip()
    ready.on("node1", f"apt-get -q -y purge {package}")
    ready.on("node2", f"apt-get -q -y purge {package}; cd /tmp && apt-get -q download {package}")
    ready.on("node2", "dpkg --unpack /tmp/libgfortran*.deb; rm /tmp/libgfortran*.deb")
    ready.hold_packages("node1", 600)
    done, heard = ready.provision("-e", "preflight_package_lock_s=1")
    assert done != 0
    assert "node1: python3 (process " in heard
    assert "has held the package manager's lock" in heard
    ready.on("node1", "pkill -f '[l]ock-frontend'")
    ready.hold_packages("node1", 20)
    done, heard = ready.provision()
    assert done == 0, heard
    assert "waiting for python3 (process " in (ready.folder / "runs" / "latest" / "events.jsonl").read_text()
    for node in NODES:
        assert ready.on(node, f"dpkg-query -W -f '${{Status}}' {package}") == "install ok installed"


@pytest.mark.long
def test_twenty_kills_converge(cluster: Cluster) -> None:
    converge(cluster, 20, ("",))


@pytest.mark.long
def test_drawn_schedules_of_kills_and_faults_converge(cluster: Cluster) -> None:
    converge(cluster, SCHEDULES, FAULTS)


def converge(cluster: Cluster, times: int, faults: Sequence[str]) -> None:
    """Run so many drawn schedules, each kind of run in turn, and say how many converged."""
    problems: list[str] = []
    words = ""
    for done, number in enumerate(range(FIRST_SCHEDULE, times + 1), start=1):
        problem = outcome(cluster, Schedule.draw(cluster, KINDS[number % len(KINDS)], number, faults))
        problems += [problem] if problem else []
        words = f"{done - len(problems)} of {done} converged, seed {SEED}, the last is number {number}"
        print(words, f"\n{problem}" if problem else "", flush=True)  # noqa: T201 - the result of the test
    assert not problems, "\n\n".join((words, *problems))
