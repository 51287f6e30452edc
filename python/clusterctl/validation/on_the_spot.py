"""Looking for the cause of a failed job on the spot: facts of the named nodes, ports between nodes, logins of mpirun.

Each step runs only where the steps before found nothing. The rules of doctor judge what is seen.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from clusterctl.diagnosis import training_stack
from clusterctl.diagnosis.rules import launchable, logins
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.diagnosis.skew import PROVISION
from clusterctl.model.results import CheckProgress
from clusterctl.remote import facts, login_probe
from clusterctl.validation import ports
from clusterctl.validation.checks import causes, judging
from clusterctl.validation.checks.causes import Cause
from clusterctl.validation.gate import not_installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from clusterctl.model.findings import Finding
    from clusterctl.model.hosts import Host
    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.model.probe import Probe
    from clusterctl.model.results import CheckResult, ValidationEvent
    from clusterctl.validation.team import Team

_FACTS_S = 20.0
_CONNECT_S = 2.0  # tried twice, so that the ports are known in less than ten seconds; longer on busy machines
_LOGIN_S, _LOGINS_S, _ANSWER_S = 4, 6.0, 9.0


def explained(
    result: CheckResult, outcome: JobOutcome, team: Team, control: Path, tell: Callable[[ValidationEvent], None]
) -> CheckResult:
    """Return the result with the causes that a look at the nodes finds; unchanged where it finds none.

    Args:
        result: of a check.
        outcome: how its job ended.
        team: the nodes that ran it.
        control: the folder of shared ssh connections.
        tell: hears what is looked at.
    """
    if not causes.is_open(result, outcome):
        return result
    named = result.hosts or tuple(team.nodes)
    tell(CheckProgress(result.check, "looking at the nodes for what hinders the job"))
    found = _on_nodes(team, named, control)
    if not found and not causes.is_certain(result, outcome):
        tell(CheckProgress(result.check, "trying the ports between the nodes"))
        found = ports.between(team, _CONNECT_S * causes.slowdown(result), control).causes
    # In an allocation, mpirun starts its daemons by srun, and ssh between the nodes may be forbidden.
    by_ssh = team.nodes[team.launch_node].host.step is None if team.launch_node in team.nodes else True
    if by_ssh and not found and not causes.came_up(result):
        tell(CheckProgress(result.check, f"trying the logins of {team.launch_node}"))
        found = _logins(team, control)
    if not found:
        return result
    return causes.explained(result, found, judging.causes_told(team.site, outcome))


def _on_nodes(team: Team, names: Sequence[str], control: Path) -> tuple[Cause, ...]:
    """Gather the facts of nodes anew, and return what hinders a launch on them."""
    probe = _probe(_hosts(team, names), control)
    ranks = sum(team.slots.values())
    found = [
        finding
        for name in names
        if name in probe.facts
        for finding in launchable.of_node(name, probe.facts[name], slots=team.nodes[name].slots, ranks=ranks)
    ]
    told = {name for finding in found if finding.severity == "error" for name in finding.hosts}
    damaged = [
        Cause((name,), problem, PROVISION, subject="launch")
        for name, node in probe.facts.items()
        if name not in told and (problem := not_installed(node))
    ]
    late = [failure for failure in probe.failures.values() if failure.kind == "timeout"]
    slow = len(late) * 2 > max(2, len(names))  # most of them are late: a busy machine, and not a node that is gone
    gone = [
        Cause((name,), failure.message.rstrip("."), "see whether it is up, and look at its console")
        for name, failure in probe.failures.items()
        if failure.kind != "timeout" or not slow
    ]
    return (*gone, *damaged, *causes.of_findings(found))


def _logins(team: Team, control: Path) -> tuple[Cause, ...]:
    """Have the launch node log in to every other node, as mpirun does."""
    first = team.nodes[team.launch_node]
    targets = tuple(
        login_probe.LoginTarget(name, node.host.address, node.host.port)
        for name, node in team.nodes.items()
        if name != team.launch_node
    )
    login = login_probe.Login(replace(first.host, become=False), targets, first.as_user)
    reports = login_probe.gather(
        [login], login_timeout_s=_LOGIN_S, budget_s=_LOGINS_S, timeout_s=_ANSWER_S, control_dir=control
    )
    view = View(
        hosts=tuple(node.host for node in team.nodes.values()),
        nodes={name: node.facts for name, node in team.nodes.items()},
        logins=reports,
    )
    failed = {(team.launch_node, one.target) for report in reports.values() for one in report.failures}
    return causes.of_findings(refused_by_few(logins.findings(view), reports, team.launch_node), failed)


def refused_by_few(
    found: Iterable[Finding], reports: Mapping[str, login_probe.LoginReport], source: str
) -> tuple[Finding, ...]:
    """Return findings about logins, of which those that few nodes refuse name the node that refuses alone.

    Most nodes accept the key of ``source``, so the key is right.
    """
    report = reports.get(source)
    if report is None or report.passed <= len(report.failures):
        return tuple(found)
    refused = {failure.target for failure in report.failures if failure.kind == "refused"}
    return tuple(
        replace(one, hosts=others)
        if (others := tuple(host for host in one.hosts if host != source)) and refused.issuperset(others)
        else one
        for one in found
    )


def _hosts(team: Team, names: Sequence[str]) -> list[Host]:
    return [replace(team.nodes[name].host, become=False) for name in names if name in team.nodes]


def _probe(hosts: Sequence[Host], control: Path) -> Probe:
    return facts.gather(hosts, artifacts=training_stack.ARTIFACTS, timeout_s=_FACTS_S, control_dir=control)
