"""Ask suspected nodes what their hardware and their kernel tell: GPU errors, links, memory, disks, throttling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.diagnosis import hardware
from clusterctl.diagnosis.rules import registry
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model.facts import Probe
from clusterctl.model.nodeset import folded
from clusterctl.remote import rank_look

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


def death_words(death: RankDeath, login: JobLogin | None, job: str, facts: Sequence[str]) -> str:
    """Return a sentence about a rank that a signal ended, with what its node knows of the reason.

    Args:
        death: what the launcher told.
        login: its node, None where the launcher's name for it is unknown.
        job: the job's id.
        facts: what :func:`facts_of` returned for the node.
    """
    node = death.host if login is None else login.host.name
    sentence = f"{node} rank {death.rank} {death.words}"
    if any("ran out of memory" in fact for fact in facts):
        return f"{sentence}: the kernel's log tells of a kill for lack of memory"
    kills = 0
    if login is not None:
        (look,) = rank_look.looks([login], job, stacks=False)
        kills = look.memory_kills
    if kills > 0:
        count = "1 process" if kills == 1 else f"{kills} processes"
        return f"{sentence}: the kernel has killed {count} of its control group for lack of memory"
    return f"{sentence}; who sent it is not known"
