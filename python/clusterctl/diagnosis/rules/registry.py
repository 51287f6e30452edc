"""All rules of doctor, each in its place, and what doctor could not look at.

A rule is a function that yields the findings of a view. Among findings of one severity, those of an earlier rule come
first. Notes are sentences about what is odd and harmless. Most rules are rows of ``table.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.diagnosis import skew
from clusterctl.diagnosis.rules import (
    changes_since_last_look,
    gpus,
    kernel_log,
    launchable,
    logins,
    machine,
    network,
    parameters,
    rdma,
    storage,
)
from clusterctl.diagnosis.rules.engines import shrunk
from clusterctl.diagnosis.rules.table import BESIDE_PEERS, LIMITS, SUMS
from clusterctl.model import nodeset
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from clusterctl.diagnosis.rules.engines import CounterKey
    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.findings import Finding

_SHOWN_LETTERS = 40  # of a value
_SHOWN_COUNTERS = 3
# A process number is used again, and a sector waits no more when it was written or replaced.
_MAY_SHRINK = {("process", "ran"), ("disk", "pending sectors"), ("disk", "lost sectors")}


def _software(view: View) -> Iterator[Finding]:
    yield from skew.differences(view.nodes)
    yield from skew.stacked(view.nodes, view.nccl_align)


def _unseen(view: View) -> tuple[str, ...]:
    """Return what doctor could not look at, and why: a reader must not take it for good."""
    lines = list(_unseen_hardware(view))
    bare = [name for name in view.nodes if name not in view.provisioned]
    if bare:
        lines.append(f"Never provisioned: {nodeset.folded(bare)}; the cluster's software was not examined there.")
    untried = sum(report.untried for report in view.logins.values())
    if untried:
        tried = sum(report.passed + len(report.failures) for report in view.logins.values())
        lines.append(
            f"Logins between nodes: {tried} of {tried + untried} were tried in the time there was, each node's "
            "neighbours first."
        )
    fewest = min((len(report.targets) for report in view.logins.values() if report.targets), default=len(view.hosts))
    if fewest < len(view.logins) - 1 and any(report.passed for report in view.logins.values()):
        lines.append(
            f"Logins between nodes: each of {len(view.logins)} nodes was asked to try {fewest} others; a fault of one "
            "pair alone may be missed."
        )
    early = [name for name, report in view.logins.items() if report.stopped_early]
    if early:
        lines.append(f"Logins from {nodeset.folded(early)}: stopped after two were refused.")
    keyless = [name for name, report in view.logins.items() if report.keyless]
    if keyless:
        lines.append(f"Logins from {nodeset.folded(keyless)}: not tried, since they have no key to log in with.")
    holes: dict[str, list[str]] = {}
    for name, node in view.nodes.items():
        for problem in node.problems:
            holes.setdefault(problem, []).append(name)
    lines += [f"Could not be read on {nodeset.folded(hosts)}: {problem}." for problem, hosts in holes.items()]
    return tuple(lines)


def _unseen_hardware(view: View) -> Iterator[str]:
    """Return one sentence for each thing that nodes could not show, and for counters that were reset."""
    hosts: dict[str, list[str]] = {}
    for name, looks in view.hardware.items():
        for what, why in looks.now.unseen:
            hosts.setdefault(f"{what}: {why}", []).append(name)
        for one in looks.now.odd:
            what = " ".join(word for word in (one.kind, one.device) if word)
            hosts.setdefault(f"{what}: its {one.name} reads '{str(one.value)[:_SHOWN_LETTERS]}'", []).append(name)
    for text, names in hosts.items():
        yield f"Not looked at on {nodeset.folded(names)}: {text}."
    yield from _reset(view)


def _reset(view: View) -> Iterator[str]:
    """Yield one sentence for the counters that are smaller than before, of nodes with the same ones."""
    hosts: dict[str, list[str]] = {}
    for name, looks in view.hardware.items():
        keys = dict.fromkeys(key for look in looks.baselines for key in shrunk(look, looks.now) if _is_judged(key))
        if keys:
            what = and_more((f"{counter} of {device}" for _, device, counter in keys), _SHOWN_COUNTERS)
            verbs = ("are", "they were", "their") if len(keys) > 1 else ("is", "it was", "its")
            text = (
                f"{what} {verbs[0]} smaller than before: {verbs[1]} reset or wrapped, and {verbs[2]} growth is unknown"
            )
            hosts.setdefault(text, []).append(name)
    for text, names in hosts.items():
        yield f"On {nodeset.folded(names)}, {text}."


def _is_judged(key: CounterKey) -> bool:
    name = (key[0], key[2])
    if key[0] in ("interface", "rdma_port"):
        return name in LIMITS or name in SUMS or name in BESIDE_PEERS
    return name not in _MAY_SHRINK


RULES: tuple[Callable[[View], Iterable[Finding]], ...] = (
    logins.findings,
    logins.job_user,
    logins.login_limits,
    logins.names,
    network.findings,
    rdma.ports,
    network.interfaces,
    rdma.lossless,
    parameters.gid_index,
    parameters.findings,
    _software,
    launchable.launchable,
    launchable.slurm_pmix,
    machine.machine,
    gpus.usable,
    gpus.health,
    gpus.settings,
    gpus.nvlinks,
    gpus.pcie,
    gpus.card_ways,
    machine.machine_checks,
    kernel_log.kernel_log,
    rdma.counters,
    rdma.congestion,
    rdma.fabric,
    storage.file_systems,
    storage.disks,
    machine.sensors,
    storage.blocked,
    changes_since_last_look.parts,
    machine.memory,
    machine.processors,
    changes_since_last_look.changes,
)
NOTES: tuple[Callable[[View], Iterable[str]], ...] = (
    logins.job_user_notes,
    logins.login_limits_notes,
    network.notes,
    parameters.gid_index_notes,
    parameters.notes,
    launchable.openmpi_notes,
    machine.login_notes,
    launchable.slurm_pmix_notes,
    gpus.settings_notes,
    gpus.card_ways_notes,
    kernel_log.kernel_log_notes,
    rdma.counters_notes,
    changes_since_last_look.parts_notes,
    changes_since_last_look.changes_notes,
    _unseen,
)


def diagnose(view: View) -> tuple[Finding, ...]:
    """Return everything that is wrong, worst first: errors, then warnings, each as a job would meet them."""
    return skew.ordered(finding for rule in RULES for finding in rule(view))


def notes(view: View) -> tuple[str, ...]:
    """Return what is odd and harmless, and what doctor could not look at: a reader must not take that for good."""
    return tuple(note for its_notes in NOTES for note in its_notes(view))
