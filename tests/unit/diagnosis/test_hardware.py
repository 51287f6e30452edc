"""Which host reads the InfiniBand fabric for all of them, and what a login without sudo sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import doctor_view
from clusterctl.diagnosis import hardware
from clusterctl.diagnosis.hardware import fabric_reader
from clusterctl.diagnosis.rules import registry
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model.facts import Probe, ProbeFailure
from clusterctl.model.hardware import Hardware, HardwareLooks, HardwareReading
from clusterctl.model.hosts import Host

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest


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

    monkeypatch.setattr(hardware.hardware, "gather", gather)
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

    monkeypatch.setattr(hardware.hardware, "gather", gather)
    hosts = [Host(name, "10.0.0.1") for name in ("late", "silent", "away")]
    failures = {name: ProbeFailure(name, "timeout", f"{name} did not answer.") for name in ("late", "silent")}
    probe = Probe({}, failures | {"away": ProbeFailure("away", "unreachable", "away is off.")})
    found = hardware.look(hosts, probe, {}, tmp_path)
    assert asked == ["late", "silent"]
    assert [one.what for one in found["silent"].now.unseen] == ["hardware"]
    view = View(hosts=tuple(hosts), nodes={}, failures=probe.failures, hardware=found)
    causes = [one.cause for one in registry.diagnose(view) if one.hosts == ("late",)]
    assert any(cause.startswith("/apps (nfs4) does not answer") for cause in causes)
