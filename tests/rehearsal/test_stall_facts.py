"""What is told of a suspect beside the stacks: one fault on a recorded machine, and healthy nodes of the same job."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import factory
import pytest
import rehearsal
from clusterctl.jobs import suspects
from clusterctl.model.hardware import COUNTING, Hardware, HardwareLooks, HardwareReading
from clusterctl.model.hosts import Host
from clusterctl.model.probe import ProbeFailure
from clusterctl.remote import facts
from clusterctl.state import hardware_looks
from machine_kinds import MACHINES

NODES = tuple(f"node{number}" for number in range(1, 5))
SUSPECT = rehearsal.CULPRIT
GIB = 1 << 30


class Cluster:
    """Four recorded machines behind ``facts.gather_hardware``; each has one more node of the job beside it."""

    def __init__(self, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.looks: dict[str, HardwareLooks] = {}
        self.silent: tuple[str, ...] = ()
        self._state = state
        monkeypatch.setattr(facts, "gather_hardware", self._gather)

    def _gather(
        self, hosts: Iterable[Host], *, timeout_s: float, **_more: Any
    ) -> tuple[dict[str, Hardware], dict[str, ProbeFailure]]:
        names = tuple(host.name for host in hosts)
        self.asked.append(names)
        assert timeout_s <= 12
        if _more.get("sections"):
            return {}, {}
        silent = {name: ProbeFailure(name, "timeout", f"{name} did not answer.") for name in self.silent}
        return {name: self.looks[name].now for name in names if name not in silent}, silent

    def plant(self, kind: str, looks: HardwareLooks | None = None) -> None:
        """Have four machines of a kind, and what is planted on the suspect."""
        self.looks = dict(rehearsal.view(kind, **({} if looks is None else {SUSPECT: looks})).hardware)

    def facts_of(self, *names: str, disk_free: int = 100 * GIB) -> tuple[str, ...]:
        disk = [{"path": "/", "free_bytes": disk_free, "total_bytes": 100 * GIB}]
        nodes = {name: factory.provisioned(name, number, disk=disk) for number, name in enumerate(NODES, start=1)}
        hosts = tuple(Host(name, f"10.0.0.{number}") for number, name in enumerate(NODES, start=1))
        return suspects.facts_of(names, suspects.JobNodes("lab-01234567", hosts, nodes, self._state))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return Cluster(tmp_path, monkeypatch)


def planted(fault: str, kind: str) -> HardwareLooks:
    one = next(one for one in rehearsal.FAULTS if one.name == fault)
    return rehearsal.planted(one, kind).hardware[SUSPECT]


def full(kind: str, place: str = "/") -> HardwareLooks:
    """Return the looks at a machine whose file system has no byte left, as a live one is read."""
    healthy = rehearsal.healthy(kind, NODES.index(SUSPECT) + 1)
    space = {"answers": True, "size in bytes": 100 * GIB, "free bytes": 0}
    more = tuple(HardwareReading("filesystem", place, name, value) for name, value in space.items())
    return HardwareLooks(healthy.now.model_copy(update={"readings": (*healthy.now.readings, *more)}))


@pytest.mark.parametrize("kind", MACHINES)
def test_nothing_is_told_of_a_healthy_node(cluster: Cluster, kind: str) -> None:
    cluster.plant(kind)
    assert cluster.facts_of(SUSPECT) == ()


def test_a_full_root_file_system_is_told(cluster: Cluster) -> None:
    cluster.plant("cloud-vm", full("cloud-vm"))
    (told,) = cluster.facts_of(SUSPECT)
    assert told.startswith(f"{SUSPECT}: / has less than 1 % of its space free")
    assert cluster.facts_of(SUSPECT, disk_free=0) == (told,)  # whatever it was before the job


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("RDMA port is down", "h100-sxm", "is DOWN (Polling)"),
        ("Ethernet port without a carrier", "plain-ethernet", "has no carrier"),
        ("a GPU slowed down by heat", "h100-sxm", "hardware thermal slowdown"),
        ("Xid 79", "h100-sxm", "79"),
    ],
    ids=["port down", "no carrier", "throttled", "xid"],
)
def test_a_fault_of_the_suspect_is_told(cluster: Cluster, fault: str, kind: str, words: str) -> None:
    name = next(one.name for one in rehearsal.FAULTS if fault in one.name and kind in one.machines)
    cluster.plant(kind, planted(name, kind))
    told = cluster.facts_of(SUSPECT)
    assert any(words in sentence and sentence.startswith(f"{SUSPECT}: ") for sentence in told), told
    assert set(cluster.asked[0]) < set(NODES)
    assert len(cluster.asked[0]) == 3  # the suspect and two others


def test_what_is_wrong_with_the_others_is_not_told(cluster: Cluster) -> None:
    cluster.plant("cloud-vm", full("cloud-vm"))
    other = next(name for name in NODES if name != SUSPECT)
    assert cluster.facts_of(other) == ()
    assert SUSPECT in cluster.asked[0]  # it was looked at, beside the suspect


def test_a_silent_suspect_is_told_and_a_silent_peer_hides_nothing(cluster: Cluster) -> None:
    cluster.plant("cloud-vm", full("cloud-vm"))
    other = next(name for name in NODES if name != SUSPECT)
    cluster.silent = (SUSPECT,)
    assert cluster.facts_of(SUSPECT) == (f"{SUSPECT}: hardware could not be read: {SUSPECT} did not answer",)
    cluster.silent = (other,)
    assert cluster.facts_of(SUSPECT)[0].startswith(f"{SUSPECT}: / has less than 1 %")


def test_growth_since_the_last_doctor_is_told(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, name = "plain-ethernet", "CRC errors grow"
    looks = planted(name, kind)
    assert looks.first is not None
    assert looks.now.counters != looks.first.counters
    assert set(COUNTING)
    cluster.plant(kind, HardwareLooks(looks.now))
    assert cluster.facts_of(SUSPECT) == ()
    first = looks.first
    monkeypatch.setattr(hardware_looks, "past", lambda *_asked: {SUSPECT: (first,)})
    assert any("CRC" in sentence for sentence in cluster.facts_of(SUSPECT))
