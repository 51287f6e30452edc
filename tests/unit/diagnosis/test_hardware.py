"""Which host reads the InfiniBand fabric for all of them, and what a login without sudo sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import doctor_view
import pytest
from clusterctl.diagnosis import hardware
from clusterctl.diagnosis.hardware import fabric_reader
from clusterctl.diagnosis.rules import registry
from clusterctl.diagnosis.rules.engines import Growth, growth
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model.hardware import COUNTING, OF_FABRIC, Counter, Hardware, HardwareLooks, HardwareReading, Unseen
from clusterctl.model.hosts import Host
from clusterctl.model.probe import Probe, ProbeFailure


def looks(layer: str, state: str, *, as_root: bool = False) -> HardwareLooks:
    readings = tuple(
        HardwareReading("rdma_port", "mlx5_0/1", name, value)
        for name, value in (("link_layer", layer), ("state", state))
    )
    return HardwareLooks(Hardware(schema_version=1, time=0, as_root=as_root, readings=readings))


def reader(**seen: HardwareLooks) -> Host | None:
    return fabric_reader([Host(name, "10.0.0.1", become=True) for name in seen], seen)


def test_the_fabric_is_read_by_a_host_with_an_active_port_and_as_root_where_that_is_allowed() -> None:
    usual = looks("InfiniBand", "ACTIVE")
    chosen = reader(
        node1=looks("Ethernet", "ACTIVE", as_root=True), node2=usual, node3=looks("InfiniBand", "ACTIVE", as_root=True)
    )
    assert chosen is not None
    assert (chosen.name, chosen.become) == ("node3", True)
    chosen = reader(node1=looks("InfiniBand", "DOWN", as_root=True), node2=usual)
    assert chosen is not None
    assert (chosen.name, chosen.become) == ("node2", False)


def test_without_an_active_port_of_infiniband_nobody_reads_it() -> None:
    assert reader(node1=looks("Ethernet", "ACTIVE"), node2=looks("InfiniBand", "INIT")) is None


def test_a_login_that_may_not_use_sudo_looks_without_it_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gather(hosts: Sequence[Host], **_given: Any) -> tuple[dict[str, Hardware], dict[str, ProbeFailure]]:
        refused = {host.name for host in hosts if host.become and host.name == "node2"}
        seen = {host.name: Hardware(schema_version=1, time=1.0, as_root=host.become) for host in hosts}
        failures = {name: ProbeFailure(name, "no_sudo", f"{name}: cluster may not use sudo.") for name in refused}
        return {name: look for name, look in seen.items() if name not in refused}, failures

    monkeypatch.setattr(hardware.facts, "gather_hardware", gather)
    hosts = [Host(name, "10.0.0.1", become=True) for name in ("node1", "node2")]
    nodes = doctor_view.seen().nodes
    found = hardware.look(hosts, Probe({host.name: nodes[host.name] for host in hosts}, {}), {}, tmp_path)
    assert {name: looks.now.as_root for name, looks in found.items()} == {"node1": True, "node2": False}
    view = View(hosts=tuple(hosts), nodes={}, hardware=found)
    assert registry.diagnose(view) == ()
    assert "Not looked at on node2: what only root may read: node2: cluster may not use sudo." in registry.notes(view)


def test_a_host_whose_facts_were_late_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look at the hardware has a deadline for each section, so it names a file system that hangs the probe."""
    asked: list[str] = []

    def gather(hosts: Sequence[Host], **_given: Any) -> tuple[dict[str, Hardware], dict[str, ProbeFailure]]:
        asked.extend(host.name for host in hosts)
        dead = (HardwareReading("filesystem", "/apps", "answers", value=False),)
        dead += (HardwareReading("filesystem", "/apps", "type", "nfs4"),)
        seen = {"late": Hardware(schema_version=1, time=1.0, readings=dead)}
        return seen, {"silent": ProbeFailure("silent", "timeout", "silent did not answer within 25 s.")}

    monkeypatch.setattr(hardware.facts, "gather_hardware", gather)
    hosts = [Host(name, "10.0.0.1") for name in ("late", "silent", "away")]
    failures = {name: ProbeFailure(name, "timeout", f"{name} did not answer.") for name in ("late", "silent")}
    probe = Probe({}, failures | {"away": ProbeFailure("away", "unreachable", "away is off.")})
    found = hardware.look(hosts, probe, {}, tmp_path)
    assert asked == ["late", "silent"]
    assert [one.what for one in found["silent"].now.unseen] == ["hardware"]
    view = View(hosts=tuple(hosts), nodes={}, failures=probe.failures, hardware=found)
    causes = [one.cause for one in registry.diagnose(view) if one.hosts == ("late",)]
    assert any(cause.startswith("/apps (nfs4) does not answer") for cause in causes)


ECC = Counter("gpu", "0000:3b:00.0", "corrected ECC errors", 1)
MEDIA = Counter("disk", "nvme0n1", "media errors", 4)
STUCK = Counter("process", "4711 (python)", "ran", 7)
SILENT = Unseen("nvidia-smi", "it is not installed")


def counted(*counters: Counter, time: float = 0.0, boot_id: str = "b", unseen: tuple[Unseen, ...] = ()) -> Hardware:
    lanes = (HardwareReading("fabric_link", "leaf1 port 1 to node1 port 1", "lanes", 4),)
    return Hardware(schema_version=1, time=time, boot_id=boot_id, readings=lanes, counters=counters, unseen=unseen)


def again(
    monkeypatch: pytest.MonkeyPatch,
    first: Mapping[str, Hardware],
    answers: Mapping[tuple[str, ...], Mapping[str, Hardware]],
) -> dict[str, HardwareLooks]:
    """Look a second time at hosts of which those answer that have an answer to these sections."""

    def gather(
        hosts: Sequence[Host], *, sections: tuple[str, ...], **_given: Any
    ) -> tuple[dict[str, Hardware], dict[str, ProbeFailure]]:
        found = {host.name: answers[sections][host.name] for host in hosts if host.name in answers[sections]}
        silent = [host.name for host in hosts if host.name not in found]
        return found, {name: ProbeFailure(name, "timeout", f"{name} did not answer within 25 s.") for name in silent}

    monkeypatch.setattr(hardware.facts, "gather_hardware", gather)
    hosts = [Host(name, "10.0.0.1") for name in first]
    return hardware.look_again(hosts, {name: HardwareLooks(look) for name, look in first.items()}, Path())


def test_what_the_second_look_does_not_read_keeps_its_count_and_has_no_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    grown = ECC._replace(value=5)
    later = {COUNTING: {"node1": counted(grown, time=60.0)}, OF_FABRIC: {"node1": counted()}}
    looks = again(monkeypatch, {"node1": counted(ECC, MEDIA, STUCK)}, later)["node1"]
    assert set(looks.now.counters) == {grown, MEDIA}, "a process that is not stuck any more has no counter"
    assert looks.first is not None
    assert growth(looks.first, looks.now) == {ECC[:3]: Growth(4, 60.0)}
    assert growth(counted(MEDIA._replace(value=1), time=-60.0), looks.now) == {MEDIA[:3]: Growth(3, 120.0)}


def test_after_a_restart_between_two_looks_no_count_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    later = {COUNTING: {"node1": counted(ECC, time=60.0, boot_id="c")}, OF_FABRIC: {"node1": counted()}}
    assert again(monkeypatch, {"node1": counted(ECC, STUCK)}, later)["node1"].now.counters == (ECC,)


def test_what_the_second_look_could_not_do_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Unseen("nvlink", "no answer in time")
    later = {COUNTING: {"node1": counted(ECC, time=60.0, unseen=(SILENT, late))}, OF_FABRIC: {}}
    looks = again(monkeypatch, {name: counted(ECC, unseen=(SILENT,)) for name in ("node1", "node2")}, later)
    assert looks["node2"].first is None
    assert list(registry.notes(View(hosts=(), nodes={}, hardware=looks))) == [
        "Not looked at on node[1-2]: nvidia-smi: it is not installed.",
        "Not looked at on node1: nvlink, at the second look: no answer in time.",
        "Not looked at on node1: InfiniBand fabric, at the second look: node1 did not answer within 25 s.",
        "Not looked at on node2: counters, at the second look: node2 did not answer within 25 s.",
    ]


def test_a_reader_of_the_fabric_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = looks("InfiniBand", "ACTIVE").now

    def gather(_hosts: object, **given: Any) -> tuple[dict[str, Hardware], dict[str, ProbeFailure]]:
        failure = ProbeFailure("node1", "timeout", "node1 did not answer within 25 s.")
        return ({}, {"node1": failure}) if given.get("sections") == OF_FABRIC else ({"node1": seen}, {})

    monkeypatch.setattr(hardware.facts, "gather_hardware", gather)
    nodes = {"node1": doctor_view.seen().nodes["node1"]}
    found = hardware.look([Host("node1", "10.0.0.1")], Probe(nodes, {}), {}, tmp_path)
    assert found["node1"].now.unseen == (Unseen("InfiniBand fabric", "node1 did not answer within 25 s"),)
