"""Plant every fault on recorded machines, have doctor's rules judge them, and tell what was found and who was blamed.

``make rehearsal`` prints the table; ``test_rehearsal.py`` holds each row.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import gpu_faults
import machine_faults
import network_faults
import past_faults
import recorded_machine
import session_faults
from clusterctl.analysis import part_ledger
from clusterctl.diagnosis.rules import registry
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model.hardware import COUNTING, Hardware, HardwareLooks, PartLedger
from clusterctl.model.hosts import Host
from clusterctl.support import content
from machine_kinds import MACHINES
from network_parts import work

sys.path.append(str(content.root() / "plugins" / "module_utils"))

from clusterctl.model.findings import Finding
from fault import Fault
from node_look.hardware import record
from recorded_machine import Machine
from session_faults import SessionFault

FAULTS: tuple[Fault, ...] = (*gpu_faults.FAULTS, *network_faults.FAULTS, *machine_faults.FAULTS)
SESSION_FAULTS = session_faults.FAULTS
PAST_FAULTS = past_faults.FAULTS
NODES = ("node1", "node2", "node3", "node4")
CULPRIT = session_faults.CULPRIT
PATIENCE = 30.0  # many rehearsals run at a time
FILE_SYSTEM_S = 5.0
BETWEEN_S = 60.0  # of the clock, between two looks
PAIR = ("node2", session_faults.CULPRIT)
DAY_S = 86_400.0


@dataclass(frozen=True)
class Row:
    """What doctor said of one fault on one kind of machine."""

    fault: str
    machine: str
    found: bool
    blamed: tuple[str, ...]
    wrong: tuple[Finding, ...]

    @property
    def named_rightly(self) -> bool:
        """Whether the finding names the culprit alone."""
        return self.blamed == (CULPRIT,)


def looks(first: Machine, second: Machine) -> HardwareLooks:
    """Look at a recorded machine twice, as doctor does, with a minute between the two by the clock."""
    with recorded_machine.folder() as folder:
        root, tools = first.write(Path(folder))
        request = {"root": str(root), "tools": str(tools), "patience": PATIENCE, "file_system_s": FILE_SYSTEM_S}
        before = Hardware.model_validate(record.collect(request))
        second.write_growth(root, first)
        after = Hardware.model_validate(record.collect({**request, "sections": list(COUNTING)}))
    return HardwareLooks(before).read_again(after.model_copy(update={"time": before.time + BETWEEN_S}))


@functools.cache
def healthy(kind: str, node: int) -> HardwareLooks:
    """Return the looks at a healthy machine."""
    return looks(MACHINES[kind](node), later(kind, node))


def later(kind: str, node: int) -> Machine:
    """Return a healthy machine after a minute of a job."""
    machine = MACHINES[kind](node)
    work(machine)
    return machine


def view(kind: str, **changed: HardwareLooks) -> View:
    """Return four nodes of a kind, with other looks at some of them."""
    seen = {name: changed.get(name) or healthy(kind, number) for number, name in enumerate(NODES, start=1)}
    hosts = tuple(Host(name, f"10.0.0.{number}") for number, name in enumerate(NODES, start=1))
    return View(hosts=hosts, nodes={}, hardware=seen)


def planted(fault: Fault, kind: str) -> View:
    """Return four nodes of a kind, one of them with the fault."""
    return view(kind, **{CULPRIT: with_fault(fault, kind)})


def with_fault(fault: Fault, kind: str) -> HardwareLooks:
    """Return the looks at the node with the fault."""
    number = NODES.index(CULPRIT) + 1
    first, second = MACHINES[kind](number), later(kind, number)
    fault.plant(first, 0)
    fault.plant(second, 1)
    return looks(first, second)


def play(fault: Fault, kind: str) -> Row:
    """Plant a fault of hardware, and return what was found."""
    return _row(fault, kind, registry.diagnose(planted(fault, kind)))


def with_past(kind: str, **changed: HardwareLooks) -> View:
    """Return two nodes of a kind that were looked at a day ago, with other looks at one of them now."""
    seen = {name: changed.get(name) or healthy(kind, NODES.index(name) + 1) for name in PAIR}
    past: dict[str, Hardware] = {}
    for name, looks_now in seen.items():
        before = healthy(kind, NODES.index(name) + 1).now
        past[name] = before.model_copy(update={"time": before.time - DAY_S, "events": ()})
        seen[name] = replace(looks_now, past=(past[name],))
    hosts = tuple(Host(name, f"10.0.0.{NODES.index(name) + 1}") for name in PAIR)
    ledger = part_ledger.updated(PartLedger(), past, datetime.fromtimestamp(past[CULPRIT].time, timezone.utc))
    changes = part_ledger.changes(ledger, {name: looks.now for name, looks in seen.items()})
    return View(hosts=hosts, nodes={}, hardware=seen, part_changes=changes)


def play_past(fault: Fault, kind: str) -> Row:
    """Plant a fault on one of two nodes that were looked at before, and return what was found.

    That two nodes differ is told of both of them, which blames none.
    """
    findings = registry.diagnose(with_past(kind, **{CULPRIT: with_fault(fault, kind)}))
    return _row(fault, kind, [one for one in findings if "with no majority" not in one.cause])


def play_session(fault: SessionFault) -> Row:
    """Plant a fault that a login shows, and return what was found."""
    return _row(fault, session_faults.KIND, registry.diagnose(fault.plant()))


def _row(fault: Fault | SessionFault, kind: str, findings: Sequence[Finding]) -> Row:
    wanted = [
        one
        for one in findings
        if one.check == fault.check and all(word in f"{one.cause}. {one.cure}" for word in fault.words)
    ]
    blamed = tuple(dict.fromkeys(host for one in wanted for host in one.hosts))
    wrong = tuple(one for one in findings if set(one.hosts) - {CULPRIT})
    return Row(fault.name, kind, bool(wanted), blamed, wrong)


def all_rows() -> list[Row]:
    """Play every fault on every machine on which it can happen, and those that a login shows."""
    rows = [play(fault, kind) for fault in FAULTS for kind in fault.machines]
    rows += [play_past(fault, kind) for fault in PAST_FAULTS for kind in fault.machines]
    return [*rows, *(play_session(fault) for fault in SESSION_FAULTS)]
