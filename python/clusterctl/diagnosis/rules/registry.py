"""All rules of doctor, each in its place, and what doctor could not look at.

A rule is a function that yields the findings of a view; beside it may stand one that yields notes, which are sentences
about what is odd and harmless. Among findings of one severity, those of an earlier rule come first. Most rules are rows
of ``table.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

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
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.diagnosis.rules.table import BESIDE_PEERS, LIMITS, SUMS
from clusterctl.model import nodeset
from clusterctl.model.findings import Finding
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.diagnosis.rules.engines import CounterKey

Findings: TypeAlias = Callable[[View], Iterable[Finding]]
Notes: TypeAlias = Callable[[View], Iterable[str]]

_SHOWN_LETTERS = 40  # of a value
_SHOWN_COUNTERS = 3
# A process number is used again, and a sector waits no more when it was written or replaced.
_MAY_SHRINK = {("process", "ran"), ("disk", "pending sectors"), ("disk", "lost sectors")}


def _no_notes(_view: View) -> Iterable[str]:
    return ()


def _software(view: View) -> Iterator[Finding]:
    yield from skew.differences(view.nodes)
    yield from skew.stacked(view.nodes, view.nccl_align)


RULES: tuple[tuple[Findings, Notes], ...] = (
    (logins.findings, _no_notes),
    (logins.job_user, logins.job_user_notes),
    (logins.login_limits, logins.login_limits_notes),
    (logins.names, _no_notes),
    (network.findings, network.notes),
    (rdma.ports, _no_notes),
    (network.interfaces, _no_notes),
    (rdma.lossless, _no_notes),
    (parameters.gid_index, parameters.gid_index_notes),
    (parameters.findings, parameters.notes),
    (_software, _no_notes),
    (launchable.launchable, _no_notes),
    (launchable.slurm_pmix, launchable.slurm_pmix_notes),
    (machine.machine, _no_notes),
    (gpus.usable, _no_notes),
    (gpus.health, _no_notes),
    (gpus.settings, gpus.settings_notes),
    (gpus.nvlinks, _no_notes),
    (gpus.pcie, _no_notes),
    (gpus.card_ways, gpus.card_ways_notes),
    (machine.machine_checks, _no_notes),
    (kernel_log.kernel_log, kernel_log.kernel_log_notes),
    (rdma.counters, rdma.counters_notes),
    (rdma.congestion, _no_notes),
    (rdma.fabric, _no_notes),
    (storage.file_systems, _no_notes),
    (storage.disks, _no_notes),
    (machine.sensors, _no_notes),
    (storage.blocked, _no_notes),
    (changes_since_last_look.parts, changes_since_last_look.parts_notes),
    (machine.memory, _no_notes),
    (machine.processors, _no_notes),
    (changes_since_last_look.changes, changes_since_last_look.changes_notes),
)


def diagnose(view: View) -> tuple[Finding, ...]:
    """Return everything that is wrong, worst first: errors, then warnings, each as a job would meet them."""
    return skew.ordered(finding for findings, _ in RULES for finding in findings(view))


def notes(view: View) -> tuple[str, ...]:
    """Return what is odd and harmless, and what doctor could not look at: a reader must not take that for good."""
    return (*(note for _, its_notes in RULES for note in its_notes(view)), *_unseen(view))


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
