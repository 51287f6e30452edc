"""What the ranks of ``clusterctl launch --prove`` reported, and whether the job's own program may start.

``launch_proof.py`` of the role ``validation`` writes the reports. This module needs the standard library alone.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.analysis.carriers import FabricPath
from clusterctl.analysis.nccl_path import (
    NcclPath,
    PathFault,
    carrier_faults,
    joined,
    nccl_faults,
    proof,
    silent,
    together,
)
from clusterctl.support.errors import ExitCode
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ANSWERED, NO_WORD, STUCK, DIED, RAISED = "answered", "no word", "stuck", "died", "raised"
NCCL = "nccl"
_ORDER = (DIED, RAISED, STUCK)  # which comes first: the others may have lost that one
_MOST_NAMED, _MOST_TEXT = 6, 300


@dataclass(frozen=True)
class ProofVerdict:
    """Whether the job may start, and the sentences for its user; ``code`` is OK where it may."""

    code: ExitCode
    lines: tuple[str, ...]

    @property
    def may_start(self) -> bool:
        """Whether the job's own program may start."""
        return self.code is ExitCode.OK


@dataclass(frozen=True)
class NodeWord:
    """What a node's own ``clusterctl launch`` knows: ports that are up, GPUs, and where its settings are made.

    ``fabric`` are the interfaces that must carry the job. ``is_recorded``: the role ``fabric`` has proven them. Else it
    is the one that leads to node 0.
    """

    rdma: tuple[str, ...] = ()
    gpu_devices: int = 0
    settings: Mapping[str, str] | None = None
    fabric: FabricPath | None = None
    is_recorded: bool = True

    @classmethod
    def of(cls, record: Any) -> NodeWord:
        """Return it from its JSON; parts of another form are left out."""
        if not isinstance(record, dict):
            return cls()
        fabric, settings, count = record.get("fabric"), record.get("settings"), record.get("gpu_devices")
        listed = _texts(fabric.get("interfaces")) if isinstance(fabric, dict) else ()
        return cls(
            rdma=_texts(record.get("rdma")),
            gpu_devices=count if type(count) is int else 0,
            settings={str(k): str(v) for k, v in settings.items()} if isinstance(settings, dict) else {},
            fabric=FabricPath(listed) if listed else None,
            is_recorded=not (isinstance(fabric, dict) and fabric.get("recorded") is False),
        )

    @property
    def record(self) -> dict[str, Any]:
        """Return it for :meth:`of`."""
        interfaces = list(self.fabric.interfaces) if self.fabric is not None else []
        return {
            "rdma": list(self.rdma),
            "gpu_devices": self.gpu_devices,
            "settings": dict(self.settings or {}),
            "fabric": {"interfaces": interfaces, "recorded": self.is_recorded},
        }


@dataclass(frozen=True)
class _Site:
    slots: Mapping[str, int]
    rdma: Mapping[str, tuple[str, ...]]
    gpus: Mapping[str, str]
    settings: Mapping[str, Mapping[str, str]]
    fabric: Mapping[str, FabricPath]


def judge(reports: Sequence[Mapping[str, Any]]) -> ProofVerdict:
    """Judge the reports, one of each rank.

    A rank that gave no word makes it an ERROR. A rank that failed, a wrong sum, or a wrong way of NCCL is a FAIL.
    """
    silent = [one for one in reports if one.get("state") == NO_WORD]
    broken = [one for one in reports if one.get("state") not in {ANSWERED, NO_WORD}]
    died = any(one.get("state") == DIED for one in broken)
    if broken and (died or not silent):  # ranks that waited for a silent one in vain have failed, too
        return _fail(_of_broken(broken))
    if silent:
        words = f"no word came from {_ranks(silent)}; start 'clusterctl launch --prove' on every node of the job"
        return ProofVerdict(ExitCode.VALIDATION_ERROR, (f"proof ERROR: {words}",))
    wrong = [one for one in reports if one.get("wrong")]
    if wrong:
        return _fail(f"{_ranks(wrong)} got a wrong sum: {_short(wrong[0]['wrong'])}")
    return _of_ways(reports)


def _of_ways(reports: Sequence[Mapping[str, Any]]) -> ProofVerdict:
    hosts: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for one in reports:
        hosts[_host(one)].append(one)
    nodes = {host: NodeWord.of(next((r["node"] for r in told if r.get("node")), None)) for host, told in hosts.items()}
    carried = [(host, r["carried"]) for host, told in hosts.items() for r in told if isinstance(r.get("carried"), dict)]
    chosen = not any(node.is_recorded for node in nodes.values()) and _is_deliberate(hosts, carried)
    site = _Site(
        slots={host: len(told) for host, told in hosts.items()},
        rdma={host: node.rdma for host, node in nodes.items() if node.rdma},
        gpus={host: name for host, told in hosts.items() if (name := str(told[0].get("gpu") or ""))},
        settings={host: node.settings or {} for host, node in nodes.items()},
        fabric={host: node.fabric for host, node in nodes.items() if node.fabric is not None and not chosen},
    )
    blind = [host for host, node in nodes.items() if node.gpu_devices and host not in site.gpus]
    if blind:
        why = next((str(r["no_gpu"]) for r in hosts[blind[0]] if r.get("no_gpu")), "no reason was given")
        found = f"PyTorch finds no GPU on {_named(blind)}, which has {nodes[blind[0]].gpu_devices}: {_short(why)}"
        return _fail(found)
    paths = {host: joined(said) for host, told in hosts.items() if (said := [r["path"] for r in told if r.get("path")])}
    faults = together([*nccl_faults(site, paths), *carrier_faults(site, carried)])
    if faults:
        return _fail(*map(_sentence, faults))
    return ProofVerdict(ExitCode.OK, (f"proof {_proved(reports, site, paths)}",))


def _is_deliberate(hosts: Iterable[str], carried: Sequence[tuple[str, Mapping[str, Any]]]) -> bool:
    """Whether every node has the same settings of interfaces: a pod's user may want another network for the job."""
    told = {host: json.dumps(event.get("settings"), sort_keys=True) for host, event in carried}
    return len(set(told.values())) == 1 and set(hosts) <= told.keys()


def _proved(reports: Sequence[Mapping[str, Any]], site: _Site, paths: Mapping[str, NcclPath]) -> str:
    backend = str(reports[0].get("backend") or "")
    count = len(site.slots)
    who = f"{len(reports)} ranks on {count} {'node' if count == 1 else 'nodes'} have right sums"
    if backend != NCCL:
        bare = [host for host in site.slots if host not in site.gpus]
        return f"PASS: {who} over Gloo; the way of NCCL was not proved, for there is no GPU on {_named(bare)}"
    quiet = silent(site.slots, paths)
    return f"PASS: {'; '.join((who, *proof(site, paths, _named(quiet))))}"


def _of_broken(broken: Sequence[Mapping[str, Any]]) -> str:
    kind = min((str(one.get("state")) for one in broken), key=lambda it: _ORDER.index(it) if it in _ORDER else 9)
    same = [one for one in broken if one.get("state") == kind]
    step = _short(same[0].get("step") or "its start")
    if kind == STUCK:
        return f"{_ranks(same)} did not come back from {step}"
    verb = "ended" if kind == DIED else "failed"
    return f"{_ranks(same)} {verb} in {step}: {_short(same[0].get('text') or 'without a word')}"


def _sentence(fault: PathFault) -> str:
    return f"{_named(fault.hosts)}: {fault.words}; {fault.cure}"


def _fail(*found: str) -> ProofVerdict:
    return ProofVerdict(
        ExitCode.VALIDATION_FAILED, (*(f"proof FAIL: {words}" for words in found), "the program was not started")
    )


def _ranks(reports: Sequence[Mapping[str, Any]]) -> str:
    named = [f"rank {one.get('rank')} on {_host(one)}" for one in reports]
    return and_more(named, _MOST_NAMED)


def _host(report: Mapping[str, Any]) -> str:
    return str(report.get("host") or "an unknown node")


def _named(hosts: Iterable[str]) -> str:
    return and_more(list(hosts), _MOST_NAMED)


def _short(value: Any) -> str:
    return " ".join(str(value).split())[:_MOST_TEXT]


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(one) for one in value) if isinstance(value, list) else ()
