"""Look at the hardware of nodes for a diagnosis: once, and a second time for what its counters have grown by."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterctl.model.hardware import COUNTING, OF_FABRIC, SECOND_LOOK, Hardware, HardwareLooks, Unseen
from clusterctl.remote import facts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from clusterctl.model.hosts import Host
    from clusterctl.model.probe import Probe, ProbeFailure

_LOOK_S = 25.0
_SCHEMA = 1


def look(
    hosts: Sequence[Host],
    probe: Probe,
    past: Mapping[str, tuple[Hardware, ...]],
    control: Path,
    within_s: float = _LOOK_S,
) -> dict[str, HardwareLooks]:
    """Look at the hardware of every host that gave its facts, through sudo where the inventory has ``become``.

    A host whose facts were late is looked at as well: each section of this look has its deadline, so that it may name
    what hung. A host whose hardware could not be looked at has a look that says so.

    Args:
        hosts: the hosts of the inventory.
        probe: their facts.
        past: looks of earlier runs by host, the oldest first.
        control: folder of shared connections.
        within_s: seconds that one trip to the hosts may take; there are at most three.
    """
    late = {name for name, failure in probe.failures.items() if failure.kind == "timeout"}
    there = [host for host in hosts if host.name in probe.facts or host.name in late]
    found, failures = facts.gather_hardware(there, timeout_s=within_s, control_dir=control)
    refused = [
        host for host in there if host.name in failures and host.become and failures[host.name].kind == "no_sudo"
    ]
    if refused:
        plain = [replace(host, become=False) for host in refused]
        again, still = facts.gather_hardware(plain, timeout_s=within_s, control_dir=control)
        found |= {name: _refused(look, failures[name].message) for name, look in again.items()}
        failures = {name: why for name, why in failures.items() if name not in again} | still
    looks = {name: HardwareLooks(record, past=past.get(name, ())) for name, record in found.items()}
    for name, failure in failures.items():
        at = probe.facts[name].time if name in probe.facts else time.time()
        looks[name] = HardwareLooks(_nothing(at, "hardware", failure))
    reader = fabric_reader(there, looks)
    if reader is None:
        return looks
    seen = _fabric([reader], looks, within_s, control)
    return looks | {name: replace(looks[name], now=looks[name].now.with_more(fabric)) for name, fabric in seen.items()}


def _fabric(
    readers: Sequence[Host], looks: Mapping[str, HardwareLooks], within_s: float, control: Path
) -> dict[str, Hardware]:
    """Read the fabric on those hosts; a look that failed says so."""
    seen, failures = facts.gather_hardware(readers, sections=OF_FABRIC, timeout_s=within_s, control_dir=control)
    failed = {name: _nothing(looks[name].now.time, "InfiniBand fabric", why) for name, why in failures.items()}
    return seen | failed


def _nothing(time: float, what: str, failure: ProbeFailure) -> Hardware:
    return Hardware(schema_version=_SCHEMA, time=time, unseen=(Unseen(what, failure.message.rstrip(".")),))


def _refused(look: Hardware, why: str) -> Hardware:
    """Return a look without root, with a note of why it has none."""
    return look.model_copy(update={"unseen": (Unseen("what only root may read", why.rstrip(".")), *look.unseen)})


def fabric_reader(hosts: Sequence[Host], looks: Mapping[str, HardwareLooks]) -> Host | None:
    """Return the host that reads the fabric: one with an active port of InfiniBand, as root where there is one."""
    able = [
        host if looks[host.name].now.as_root else replace(host, become=False)
        for host in hosts
        if any(
            layer == "InfiniBand" and looks[host.name].now.text("rdma_port", "state", port) == "ACTIVE"
            for port, layer in looks[host.name].now.texts("rdma_port", "link_layer").items()
        )
    ]
    return min(able, key=lambda host: not looks[host.name].now.as_root, default=None)


def look_again(
    hosts: Sequence[Host],
    looks: Mapping[str, HardwareLooks],
    control: Path,
) -> dict[str, HardwareLooks]:
    """Read the counters of those hosts once more, so that their growth since the first look is known.

    A host of which that fails keeps its first look, with a note.
    """
    there = [
        host if looks[host.name].now.as_root else replace(host, become=False)
        for host in hosts
        if host.name in looks and looks[host.name].now.counters
    ]
    if not there:
        return dict(looks)
    later, failures = facts.gather_hardware(there, sections=COUNTING, timeout_s=_LOOK_S, control_dir=control)
    readers = [host for host in there if host.name in later and looks[host.name].now.numbers("fabric_link", "lanes")]
    if readers:
        fabric = _fabric(readers, looks, _LOOK_S, control)
        later |= {name: later[name].with_more(more) for name, more in fabric.items()}
    found = {name: seen.read_again(later[name]) if name in later else seen for name, seen in looks.items()}
    for name, failure in failures.items():
        now = looks[name].now
        found[name] = replace(looks[name], now=now.with_more(_nothing(now.time, f"counters{SECOND_LOOK}", failure)))
    return found
