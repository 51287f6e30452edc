"""Ask suspected nodes what their hardware and their kernel tell: GPU errors, links, memory, disks, throttling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.diagnosis import hardware
from clusterctl.diagnosis.rules import registry
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model.facts import Probe
from clusterctl.model.nodeset import folded
from clusterctl.remote import rank_look
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from clusterctl.analysis.rank_deaths import RankDeath
    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.hosts import Host
    from clusterctl.remote.supervised_job import JobLogin

_MOST = 6  # sentences


def facts_of(hosts: Sequence[Host], nodes: Mapping[str, NodeFacts], control: Path) -> tuple[str, ...]:
    """Return what is wrong with the hardware of some nodes, a sentence each; nothing where all is well.

    Args:
        hosts: the suspects; one with ``become`` is asked through sudo.
        nodes: facts of all nodes, which the rules may compare.
        control: folder of shared connections.
    """
    known = {host.name: nodes[host.name] for host in hosts if host.name in nodes}
    looks = hardware.look(list(hosts), Probe(known, {}), {}, control)
    findings = registry.diagnose(View(tuple(hosts), {}, hardware=looks))
    without = set(registry.diagnose(View(tuple(hosts), {})))
    told = [f"{folded(one.hosts)}: {one.cause} ({one.cure})" for one in findings if one not in without]
    unseen = [
        f"{name}: {one.what} could not be read: {one.why}" for name, look in looks.items() for one in look.now.unseen
    ]
    return (*told[:_MOST], *([] if told else [word for word in unseen if "kernel log" in word][:1]))


def killed_since(logins: Sequence[JobLogin], job: str, before: Mapping[str, int]) -> dict[str, int]:
    """Return how many processes the kernel has killed for lack of memory since the job began, by node that has some.

    Args:
        logins: the nodes.
        job: the job's id.
        before: their counts before the job, -1 where it is hidden.
    """
    counts = {look.host: look.memory_kills for look in rank_look.looks(logins, job, stacks=False)}
    return grown(counts, before)


def grown(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """Return by how much counts have grown that were and are known; one that was reset has not."""
    known = {name: count - before[name] for name, count in now.items() if before.get(name, -1) >= 0}
    return {name: count for name, count in known.items() if count > 0}


def killed_words(killed: Mapping[str, int]) -> str:
    """Return a sentence about the nodes that lacked memory."""
    told = [f"{name} lost {_processes(count)}" for name, count in killed.items()]
    return f"{and_more(told, _MOST)} to the kernel while the job ran, for lack of memory"


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def death_words(death: RankDeath, node: str, killed: int, facts: Sequence[str]) -> str:
    """Return a sentence about a rank that a signal ended, with what its node knows of the reason.

    Args:
        death: what the launcher told.
        node: the inventory's name of its node, empty where the launcher's name for it is unknown.
        killed: how many processes the kernel has killed on the node for lack of memory since the job began.
        facts: what :func:`facts_of` returned for the node.
    """
    sentence = f"{node or death.host} rank {death.rank} {death.words}"
    if any("ran out of memory" in fact for fact in facts):
        return f"{sentence}: the kernel's log tells of a kill for lack of memory"
    if killed > 0:
        return f"{sentence}: the kernel has killed {_processes(killed)} of its control group for lack of memory"
    return f"{sentence}; who sent it is not known"
