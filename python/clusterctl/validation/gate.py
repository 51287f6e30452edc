"""The gate of a validation: which nodes answer, are provisioned and do not differ, so that checks can run on them."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clusterctl import __version__
from clusterctl.diagnosis import doctor, skew, training_stack
from clusterctl.diagnosis.rules import launchable, logins, registry
from clusterctl.diagnosis.rules.launchable import SLURM_PMIX
from clusterctl.model import nodeset
from clusterctl.model.findings import Finding
from clusterctl.model.job_login import job_host, through_sudo
from clusterctl.model.probe import Probe, ProbeFailure
from clusterctl.model.rank_slots import slots_of
from clusterctl.model.results import CheckResult, CheckStarted, Measurement, Verdict
from clusterctl.remote import facts, supervisor_files
from clusterctl.support import content
from clusterctl.support.words import and_more
from clusterctl.validation.checks.registry import PROVISIONED, REACHABLE, SKEW
from clusterctl.validation.team import ReadyNode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from module_utils import fitness_rules as _rules  # mypy finds it by mypy_path

    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.hosts import Host, Inventory
    from clusterctl.model.results import ValidationEvent
    from clusterctl.validation.check_results import CheckResults
else:
    _rules = content.module_util("fitness_rules")

_PROBE_TIMEOUT_S = 30.0
_MOST_NAMED = 6
_MOST_RESOLVED = 64  # hosts whose names every node looks up; on more, each node looks up its own
# Of doctor's warnings about the facts of the gate, those of these checks are notes.
_ALSO = frozenset({"clock", "home", "network", "session", SLURM_PMIX})
# The gate judges artifacts and versions itself, and the checks prove a network that is unusual.
_APART = frozenset({"artifacts", "network", "stack", "versions"})
_NO_HINDRANCE = frozenset({"disk", "home"})


def of(cluster: Inventory, probe: Probe) -> tuple[Finding, ...]:
    """Return doctor's errors, and its warnings of some checks."""
    view = doctor.view_of(cluster, replace(probe, failures={}))
    return tuple(one for one in registry.diagnose(view) if one.severity == "error" or one.check in _ALSO)


def _is_judged_apart(finding: Finding) -> bool:
    """Whether the gate or the checks judge it themselves; they do without the names of nodes, by their addresses."""
    return finding.check in _APART or finding.cause.startswith(logins.UNRESOLVED)


def note(finding: Finding) -> str:
    """Return a finding as a sentence below the checks."""
    return f"Doctor finds on {nodeset.folded(finding.hosts)}: {finding.cause}; {finding.cure}."


@dataclass(frozen=True)
class GateOutcome:
    """The facts of all hosts, the nodes that can take part, and whether checks can be launched on them."""

    probe: Probe
    nodes: Mapping[str, ReadyNode]
    is_open: bool
    findings: tuple[Finding, ...] = ()  # what doctor finds in the same facts
    notes: tuple[str, ...] = ()  # those of them that no check of the gate tells


def asked(hosts: Sequence[Host]) -> dict[str, Any]:
    """Return what a look at the nodes asks for so that a validation can use it, as for ``facts.gather``."""
    return {
        "watch": {host.name: watch_entries(host) for host in hosts if host.by_ssh},
        "artifacts": training_stack.ARTIFACTS,
        "libraries": training_stack.LIBRARIES,
        "resolve": [host.name for host in hosts] if len(hosts) <= _MOST_RESOLVED else [],
        "leftovers": True,
    }


def asked_ahead(hosts: Sequence[Host]) -> dict[str, Any]:
    """Return the same where such a look sees what ranks will see, and nothing elsewhere."""
    return {} if _is_another_login(hosts) else asked(hosts)


def _is_another_login(hosts: Sequence[Host]) -> bool:
    return any(host.by_ssh and job_host(host) != host for host in hosts)


def of_earlier(hosts: Sequence[Host], seen: Probe) -> Probe | None:
    """Return what a look that asked for :func:`asked_ahead` found on these hosts; None where it was not enough."""
    names = [host.name for host in hosts if host.by_ssh]
    if _is_another_login(hosts) or not set(names) <= {*seen.facts, *seen.failures}:
        return None
    facts_of = {name: seen.facts[name] for name in names if name in seen.facts}
    return Probe(facts_of, {**{name: seen.failures[name] for name in names if name in seen.failures}, **_others(hosts)})


def _others(hosts: Sequence[Host]) -> dict[str, ProbeFailure]:
    return {host.name: ProbeFailure(host.name, "error", _beyond(host)) for host in hosts if not host.by_ssh}


def watch_entries(host: Host) -> list[dict[str, Any]]:
    """Return what to ask of a node in addition to its facts: the programs of the checks."""
    return supervisor_files.watch_entries(host, content.node_programs())


class Gate:
    """The checks ``reachable``, ``provisioned`` and ``skew``, which run before every other check."""

    def __init__(
        self,
        cluster: Inventory,
        results: CheckResults,
        tell: Callable[[ValidationEvent], None],
        *,
        compares: bool,
        repeat: str,
        total: int,
    ) -> None:
        """Prepare the gate.

        With ``compares``, nodes that differ close the gate.
        """
        self._cluster, self._results, self._tell = cluster, results, tell
        self._compares, self._repeat, self._total = compares, repeat, total

    def judge(self, probe: Probe | None) -> GateOutcome:
        """Judge every host; ``probe`` are facts that are known already."""
        began = time.monotonic()
        self._start(REACHABLE, _PROBE_TIMEOUT_S)
        probe = probe or self._gather()
        reached = self._judge_reachable(probe, began)
        self._start(PROVISIONED)
        found = of(self._cluster, probe)
        nodes = self._judge_provisioned(reached, probe, found)
        self._start(SKEW)
        is_open = self._judge_skew(nodes)
        told = [line for result in self._results.all for line in (result.reason, *result.evidence)]
        notes = [note(one) for one in found if not any(_told_of(one) in line for line in told)]
        return GateOutcome(probe, nodes, is_open, found, tuple(notes))

    def _start(self, check: str, deadline_s: float = 0.0) -> None:
        number = (REACHABLE, PROVISIONED, SKEW).index(check) + 1
        self._tell(CheckStarted(check, number, self._total, deadline_s))

    def _gather(self) -> Probe:
        hosts = self._cluster.selected_hosts
        by_ssh = [job_host(host) for host in hosts if host.by_ssh]  # what ranks will see
        probe = facts.gather(by_ssh, **asked(hosts), timeout_s=_PROBE_TIMEOUT_S)
        return Probe(probe.facts, {**probe.failures, **_others(hosts)})

    def _judge_reachable(self, probe: Probe, began: float) -> list[Host]:
        hosts = self._cluster.selected_hosts
        lost = [
            _error(REACHABLE, host.name, probe.failures[host.name].message)
            for host in hosts
            if host.name in probe.failures
        ]
        causes = dict.fromkeys(finding.cause for finding in lost)  # each cause names its host
        reason = and_more(causes, _MOST_NAMED, "; ") if lost else f"{_nodes(len(hosts))} answer"
        self._conclude(REACHABLE, lost, began, reason, asked=len(hosts), left=len(hosts) - len(lost))
        return [host for host in hosts if host.name in probe.facts]

    def _judge_provisioned(
        self, reached: Sequence[Host], probe: Probe, known: Sequence[Finding]
    ) -> dict[str, ReadyNode]:
        """Judge each host by its own facts, and by doctor's errors: our jobs may pass where those of users fail."""
        began = time.monotonic()
        wanted = supervisor_files.digests(content.node_programs(), reached[0].layout) if reached else {}
        sources = self._cluster.sources
        cure = f"run 'clusterctl provision {'INVENTORY' if sources.are_slurm_s else sources.shown}' first"
        nodes: dict[str, ReadyNode] = {}
        found: list[Finding] = []
        for host in reached:
            node = probe.facts[host.name]
            problem = not_ready(node, wanted)
            if problem:
                found.append(_error(PROVISIONED, host.name, problem, cure))
                continue
            hindered = _hindrances(host, node)
            if hindered:  # with this node, no job would come up on the others either
                found += hindered
                continue
            found += [_error(PROVISIONED, host.name, broken, cure) for broken in broken_extras(node)]
            if foreign := launchable.foreign_mpirun(node):  # the checks launch by the installed one; users do not
                found.append(_error(PROVISIONED, host.name, foreign, launchable.path_cure(node)))
            login, as_user = job_host(host), through_sudo(host, node)
            nodes[host.name] = ReadyNode(login, node, training_stack.of(node), slots_of(host, node), as_user)
        found += _stack_findings(nodes)
        named = {one.cause for one in found}
        found += [
            _error(PROVISIONED, host, one.cause, one.cure)
            for one in known
            if one.severity == "error" and not _is_judged_apart(one) and one.cause not in named
            for host in one.hosts
            if host in nodes
        ]
        if not reached:
            self._results.skip(PROVISIONED, "no node answers")
            return nodes
        reason = f"{_nodes(len(reached))} carry Open MPI, mpi4py and the programs of the checks"
        if found:
            hosts_by_cause: dict[str, list[str]] = {}
            for finding in found:
                hosts_by_cause.setdefault(finding.cause, []).extend(finding.hosts)
            told = (f"{nodeset.folded(hosts)}: {cause}" for cause, hosts in hosts_by_cause.items())
            reason = _with_cures(and_more(told, _MOST_NAMED, "; "), found)
        self._conclude(PROVISIONED, found, began, reason, asked=len(reached), left=len(nodes))
        return nodes

    def _judge_skew(self, nodes: Mapping[str, ReadyNode]) -> bool:
        """Compare the nodes that can take part, and return whether checks can be launched on them.

        Faults that ``provisioned`` names do not close the gate; the checks show their effect.
        """
        if not nodes or not self._compares:
            self._results.skip(SKEW, "--no-gate" if nodes else "no node can take part")
            return True
        began = time.monotonic()
        found = skew.differences({name: node.facts for name, node in nodes.items()})
        errors = [finding for finding in found if finding.severity == "error"]
        told = (f"{nodeset.folded(finding.hosts)}: {finding.cause}" for finding in errors or found)
        reason = and_more(told, _MOST_NAMED, "; ") if found else f"{_nodes(len(nodes))} have the same versions"
        if errors:
            reason = _with_cures(reason, errors)
        elif found:
            reason = f"nothing that stops a job; {reason}"
        refused = [_error(SKEW, host, finding.cause, finding.cure) for finding in errors for host in finding.hosts]
        self._conclude(SKEW, refused, began, reason, asked=len(nodes), left=len(nodes))
        return not errors

    def _conclude(
        self, check: str, found: Sequence[Finding], began: float, reason: str, *, asked: int, left: int
    ) -> None:
        """Finish a check: an error without nodes that are left to take part, a FAIL with findings."""
        named = tuple(dict.fromkeys(host for finding in found for host in finding.hosts))
        verdict = Verdict.PASS if not found else Verdict.FAIL if left else Verdict.ERROR
        self._results.finish(
            CheckResult(
                check=check,
                verdict=verdict,
                reason=reason,
                hosts=named,
                seconds=round(time.monotonic() - began, 3),
                repeat=self._repeat,
                measurements=(
                    Measurement(name="nodes_right", value=asked - len(named), unit="nodes"),
                    Measurement(name="nodes_asked", value=asked, unit="nodes"),
                ),
                evidence=tuple(f"{host}: {finding.cause}" for finding in found for host in finding.hosts),
            )
        )


def _told_of(one: Finding) -> str:
    """Return the words by which a finding is known again; the gate tells of a changed artifact by another name."""
    return one.cause.split(" is not as it was installed: ", 1)[-1]


def not_ready(node: NodeFacts, wanted: Mapping[str, str]) -> str:
    """Say what a node lacks to take part, empty when it lacks nothing."""
    lacking = not_installed(node)
    if lacking:
        return lacking
    present = {entry.get("path"): entry.get("sha256") for entry in node.watch}
    if any(present.get(path) != digest for path, digest in wanted.items()):
        return f"the programs in {node.layout.programs} are not those of clusterctl {__version__}"
    return ""


def not_installed(node: NodeFacts, names: Collection[str] = tuple(_rules.NEEDED)) -> str:
    """Say which of the artifacts that every check needs is missing or damaged on a node, empty when none is."""
    whole = (_rules.not_installed(node.artifact(name).model_dump(), _rules.NEEDED[name]) for name in names)
    return next(filter(None, whole), "")


def broken_extras(node: NodeFacts) -> list[str]:
    """Say what is broken of the artifacts that only some checks need; an artifact that was never installed is fine."""
    found = (_rules.broken_extra(node.artifact(name).model_dump(), called) for name, called in _rules.OPTIONAL.items())
    return [broken for broken in found if broken]


def _hindrances(host: Host, node: NodeFacts) -> list[Finding]:
    """Return what keeps a job with this node from being launched; a full disk and a read-only home do not."""
    found = launchable.of_node(host.name, node, slots=slots_of(host, node))
    return [
        _error(PROVISIONED, host.name, one.cause, one.cure)
        for one in found
        if one.severity == "error" and one.check not in _NO_HINDRANCE
    ]


def _stack_findings(nodes: Mapping[str, ReadyNode]) -> list[Finding]:
    """Return what hurts training, one host a finding; these nodes take part, since MPI works on them."""
    found = skew.stack_findings(
        {name: node.facts for name, node in nodes.items()},
        {name: str(node.host.variables.get("nccl_align", "framework")) for name, node in nodes.items()},
    )
    return [_error(PROVISIONED, host, one.cause, one.cure) for one in found for host in one.hosts]


def _error(check: str, host: str, cause: str, cure: str = "") -> Finding:
    return Finding(check=check, severity="error", hosts=(host,), cause=cause, cure=cure)


def _beyond(host: Host) -> str:
    return f"{host.name} is not reached by plain ssh with a key, which the checks need: {host.not_by_ssh}."


def _with_cures(reason: str, found: Sequence[Finding]) -> str:
    return "; ".join((reason, *dict.fromkeys(finding.cure for finding in found)))


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"
