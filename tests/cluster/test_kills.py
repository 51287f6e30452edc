"""kill -9 of clusterctl, alone or with a fault of a node: a plain repetition ends as if nothing had happened.

A plain test run takes one moment of a provision, of an upgrade and of a rollback, always the same. ``make test-long``
draws 20 such kills, and then SCHEDULES schedules of kills and faults of nodes, by a seed of the day's second.
CLUSTERCTL_SEED repeats the moments of an earlier run, and FIRST_SCHEDULE begins at a later one of them.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from clusterctl import sandbox as sandboxes
from clusterctl.sandbox import container_engine
from disturbed import NODES, Cluster, differences

pytestmark = pytest.mark.cluster

SEED = os.environ.get("CLUSTERCTL_SEED", "1")
KINDS = ("provision", "upgrade", "rollback")
FAULTS = ("", "killed node", "frozen node", "cut connections", "no kill, killed node", "no kill, cut connections")
SCHEDULES = int(os.environ.get("SCHEDULES", "200"))
FIRST_SCHEDULE = int(os.environ.get("FIRST_SCHEDULE", "1"))


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
    process, events = cluster.start(schedule.kind)
    written = b""
    while process.poll() is None and written.count(b"\n") < schedule.event:
        written = events()
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
    """A cluster that went through each kind of run undisturbed, and compiled nothing on the way."""
    with tempfile.TemporaryDirectory(prefix="kills-") as temporary:
        box = sandbox("kills", nodes=len(NODES))
        found = Cluster(box, tmp_path_factory.mktemp("state"), Path(temporary), container_engine.find())
        for again in range(2):
            packs = found.packs()
            for kind in KINDS:
                if again:
                    found.prepare(kind)
                found.run(kind)
                folder = found.newest()
                assert folder is not None
                found.left[kind] = found.look()
                found.events[kind] = (folder / "events.jsonl").read_bytes().count(b"\n")
            if found.packs() == packs:  # else a node has a compiler since, which the first kind did not leave
                break
        yield found


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.long) if kind == "upgrade" else kind for kind in KINDS]
)
def test_a_killed_run_is_made_good_by_a_plain_one(cluster: Cluster, kind: str) -> None:
    problem = outcome(cluster, Schedule.draw(cluster, kind))
    assert not problem, problem


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
        began = time.monotonic()
        problem = outcome(cluster, Schedule.draw(cluster, KINDS[number % len(KINDS)], number, faults))
        problems += [problem] if problem else []
        words = f"{done - len(problems)} of {done} converged, seed {SEED}, the last is number {number}"
        words += f", in {time.monotonic() - began:.0f} s"
        print(words, f"\n{problem}" if problem else "", flush=True)  # noqa: T201 - the result of the test
    assert not problems, "\n\n".join((words, *problems))


FORTRAN = ("-e", "openmpi_fortran=true")  # without it, MPI alone needs no package of the distribution


@pytest.mark.long
def test_a_held_package_lock_is_waited_for_and_a_cut_off_installation_finished(cluster: Cluster) -> None:
    """node1 misses a package while another program holds the lock; dpkg was cut off on node2, which misses it too."""
    cluster.prepare("provision")
    done, heard = cluster.provision(*FORTRAN)
    cluster.at = ""
    assert done == 0, heard
    package, below = "libgfortran5", "libquadmath0"
    cluster.on("node1", f"apt-get -q -y purge {package}")
    cluster.on("node2", f"apt-get -q -y purge {package} {below}; cd /tmp && apt-get -q download {below}")
    cluster.on("node2", f"dpkg --unpack /tmp/{below}*.deb; rm /tmp/{below}*.deb")
    cluster.hold_packages("node1", 600)
    done, heard = cluster.provision(*FORTRAN, "-e", "preflight_package_lock_s=1")
    assert done != 0
    assert "node1: python3 (process " in heard
    assert "has held the package manager's lock" in heard
    cluster.on("node1", "pkill -f '[l]ock-frontend'")
    cluster.hold_packages("node1", 20)
    done, heard = cluster.provision(*FORTRAN)
    assert done == 0, heard
    assert "waiting for python3 (process " in (cluster.folder / "runs" / "latest" / "events.jsonl").read_text()
    for node, name in itertools.product(NODES, (package, below)):
        assert cluster.on(node, f"dpkg-query -W -f '${{Status}}' {name}") == "install ok installed"
