"""Who can take part in a validation: who answers, carries what the checks need, and does not differ from the others."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clusterctl import __version__
from clusterctl.diagnosis import skew, stack_rules, training_stack
from clusterctl.model import nodeset
from clusterctl.model.facts import ProbeFailure, cluster_user, slots_of
from clusterctl.model.results import CheckFinished, CheckResult, CheckStarted, Measurement, Verdict
from clusterctl.remote import facts, supervised_job
from clusterctl.support import content
from clusterctl.validation.checks import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterctl.model.facts import NodeFacts, Probe
    from clusterctl.model.hosts import Host, Inventory
    from clusterctl.model.results import ValidationEvent

_NEEDED = {"openmpi": "Open MPI", "python_env": "the cluster's Python", "mpi4py": "mpi4py"}
_OPTIONAL = {"nccl": "NCCL", "horovod": "Horovod"}
_PROBE_TIMEOUT_S = 30.0
_MOST_NAMED = 6


@dataclass(frozen=True)
class ReadyNode:
    """A node on which ranks can run."""

    host: Host
    facts: NodeFacts
    stack: training_stack.NodeStack
    slots: int
    as_user: str | None


@dataclass(frozen=True)
class _Refusal:
    """What is wrong with a node, and what to do about it; ``stays`` where it can take part nevertheless."""

    host: str
    why: str
    cure: str = ""
    stays: bool = False


def watch_entries() -> list[dict[str, Any]]:
    """Return what to ask of every node besides its facts: the programs that the checks are made of."""
    return [{"path": f"{supervised_job.PROGRAMS}/{name}", "kind": "file"} for name in content.node_programs()]


class Ground:
    """The checks that all others stand on; :attr:`nodes` are those that may take part, as far as is known."""

    def __init__(
        self,
        cluster: Inventory,
        tell: Callable[[ValidationEvent], None],
        *,
        gate: bool,
        repeat: str,
        total: int,
    ) -> None:
        """Begin with nobody looked at.

        Args:
            cluster: whose hosts.
            tell: hears what happens, as it happens.
            gate: whether nodes that differ are refused.
            repeat: the command that shows these checks again.
            total: how many checks the run has.
        """
        self._cluster, self._tell, self._gate, self._repeat, self._total = cluster, tell, gate, repeat, total
        self.nodes: dict[str, ReadyNode] = {}
        self.results: dict[str, CheckResult] = {}

    def judge(self, probe: Probe | None) -> tuple[Probe, bool]:
        """Look at every host and judge.

        Args:
            probe: facts that somebody has already gathered.

        Returns:
            The facts, and whether anything may be launched on :attr:`nodes`.
        """
        began = time.monotonic()
        self._tell(CheckStarted(registry.REACHABLE, 1, self._total, _PROBE_TIMEOUT_S))
        probe = probe or self._look()
        reached = self._judge_reachable(probe, time.monotonic() - began)
        self._tell(CheckStarted(registry.PROVISIONED, 2, self._total, 0.0))
        self._judge_provisioned(reached, probe)
        self._tell(CheckStarted(registry.SKEW, 3, self._total, 0.0))
        return probe, self._judge_skew()

    def _finish(self, result: CheckResult) -> None:
        self.results[result.check] = result
        self._tell(CheckFinished(result))

    def _look(self) -> Probe:
        hosts = self._cluster.selected_hosts
        by_ssh = [replace(host, become=False) for host in hosts if host.by_ssh]  # what ranks will see: no sudo
        watch = {host.name: watch_entries() for host in by_ssh}
        probe = facts.gather(
            by_ssh,
            watch=watch,
            artifacts=training_stack.ARTIFACTS,
            libraries=training_stack.LIBRARIES,
            timeout_s=_PROBE_TIMEOUT_S,
        )
        for host in hosts:
            if not host.by_ssh:
                why = f"{host.name} is not reached by plain ssh with a key, which the checks need."
                probe.failures[host.name] = ProbeFailure(host.name, "error", why)
        return probe

    def _judge_reachable(self, probe: Probe, seconds: float) -> list[Host]:
        hosts = self._cluster.selected_hosts
        lost = [_Refusal(host.name, probe.failures[host.name].message) for host in hosts if host.name in probe.failures]
        reached = [host for host in hosts if host.name in probe.facts]
        whys = tuple(dict.fromkeys(refusal.why for refusal in lost))  # each names its host
        reason = _several(whys) if lost else f"{_nodes(len(hosts))} answer"
        self._conclude_ground(registry.REACHABLE, lost, len(hosts), seconds, reason)
        return reached

    def _judge_provisioned(self, reached: Sequence[Host], probe: Probe) -> None:
        began = time.monotonic()
        wanted = supervised_job.digests(content.node_programs())
        cure = f"run 'clusterctl provision {shlex.quote(str(self._cluster.path))}' first"
        refused: list[_Refusal] = []
        for host in reached:
            node = probe.facts[host.name]
            problem = not_ready(node, wanted)
            if problem:
                refused.append(_Refusal(host.name, problem, cure))
                continue
            refused += [_Refusal(host.name, broken, cure, stays=True) for broken in broken_extras(node)]
            as_user = cluster_user(host, node)
            self.nodes[host.name] = ReadyNode(host, node, training_stack.of(node), slots_of(host, node), as_user)
        refused += self._stack_findings()
        if not reached:
            self._finish(skipped(registry.PROVISIONED, "no node answers"))
            return
        reason = f"{_nodes(len(reached))} carry Open MPI, mpi4py and the programs of the checks"
        if refused:
            by_why: dict[str, list[str]] = {}
            for refusal in refused:
                by_why.setdefault(refusal.why, []).append(refusal.host)
            words = tuple(f"{nodeset.folded(hosts)}: {why}" for why, hosts in by_why.items())
            reason = "; ".join((_several(words), *dict.fromkeys(refusal.cure for refusal in refused)))
        self._conclude_ground(registry.PROVISIONED, refused, len(reached), time.monotonic() - began, reason)

    def _stack_findings(self) -> list[_Refusal]:
        """Return what hurts training on the nodes that take part; MPI is none of its business, so they stay."""
        found = stack_rules.findings(
            {name: node.facts for name, node in self.nodes.items()},
            {name: str(node.host.variables.get("nccl_align", "framework")) for name, node in self.nodes.items()},
        )
        return [_Refusal(host, finding.cause, finding.cure, stays=True) for finding in found for host in finding.hosts]

    def _judge_skew(self) -> bool:
        """Compare the nodes that take part, and return whether anything may be launched on them.

        What ``provisioned`` names, it has named: those nodes stay, and the checks show what comes of it.
        """
        if not self.nodes or not self._gate:
            why = "--no-gate" if self.nodes else "no node can take part"
            self._finish(skipped(registry.SKEW, why))
            return True
        began = time.monotonic()
        found = skew.differences({name: node.facts for name, node in self.nodes.items()})
        errors = [finding for finding in found if finding.severity == "error"]
        told = tuple(f"{nodeset.folded(finding.hosts)}: {finding.cause}" for finding in errors or found)
        reason = f"{_nodes(len(self.nodes))} have the same versions" if not found else _several(told)
        if errors:
            reason = "; ".join((reason, *dict.fromkeys(finding.cure for finding in errors)))
        elif found:
            reason = f"nothing that stops a job; {reason}"
        refused = [_Refusal(host, one.cause, one.cure, stays=True) for one in errors for host in one.hosts]
        self._conclude_ground(registry.SKEW, refused, len(self.nodes), time.monotonic() - began, reason)
        return not errors

    def _conclude_ground(
        self, check: str, refused: Sequence[_Refusal], asked: int, seconds: float, reason: str
    ) -> None:
        """One node that is not as it should be is a FAIL; when nobody can take part, nothing can be run at all."""
        named = tuple(dict.fromkeys(refusal.host for refusal in refused))
        out = {refusal.host for refusal in refused if not refusal.stays}
        verdict = Verdict.PASS if not refused else Verdict.ERROR if len(out) == asked else Verdict.FAIL
        self._finish(
            CheckResult(
                check=check,
                verdict=verdict,
                reason=reason,
                hosts=named,
                seconds=round(seconds, 3),
                repeat=self._repeat,
                measurements=(
                    Measurement(name="nodes_right", value=asked - len(named), unit="nodes"),
                    Measurement(name="nodes_asked", value=asked, unit="nodes"),
                ),
                evidence=tuple(f"{refusal.host}: {refusal.why}" for refusal in refused),
            )
        )


def not_ready(node: NodeFacts, wanted: Mapping[str, str]) -> str:
    """Say what a node lacks to take part, empty when it lacks nothing."""
    for name, called in _NEEDED.items():
        artifact = node.artifact(name)
        if not artifact.ok:
            return f"{called}: {artifact.problem or artifact.link + ' does not exist'}"
    present = {entry.get("path"): entry.get("sha256") for entry in node.watch}
    if any(present.get(path) != digest for path, digest in wanted.items()):
        return f"the programs in {supervised_job.PROGRAMS} are not those of clusterctl {__version__}"
    return ""


def broken_extras(node: NodeFacts) -> list[str]:
    """Say what a node has begun to carry and does not carry whole, of what only some checks need."""
    found = {called: node.artifact(name) for name, called in _OPTIONAL.items()}
    return [
        f"{called}: {artifact.problem}"
        for called, artifact in found.items()
        if artifact.problem not in {"", f"{artifact.link} does not exist"}
    ]


def skipped(check: str, why: str, verdict: Verdict = Verdict.SKIP) -> CheckResult:
    """Return the result of a check that was not run."""
    return CheckResult(check=check, verdict=verdict, reason=why)


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def _several(words: Sequence[str]) -> str:
    """Return the first few sentences, and how many more there are."""
    more = f"; and {len(words) - _MOST_NAMED} more" if len(words) > _MOST_NAMED else ""
    return "; ".join(words[:_MOST_NAMED]) + more
