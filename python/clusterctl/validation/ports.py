"""Trying the TCP ports between the nodes of a team: which connections fail, with their direction.

The rules of doctor judge what is seen. Open MPI opens one connection for two ranks, from either end. So a job often
passes where one direction is closed, and jobs break at random.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clusterctl.diagnosis.rules import logins, network, parameters
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model import fabric, nodeset
from clusterctl.model.results import Verdict
from clusterctl.remote import network_probe
from clusterctl.support.errors import ConfigError
from clusterctl.validation.checks import causes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from clusterctl.model.fabric import Candidates, PairResult
    from clusterctl.model.results import CheckResult
    from clusterctl.validation.checks.causes import Cause
    from clusterctl.validation.team import Team

_CONNECT_S = 2.0  # tried twice; the first job starts meanwhile
_CONFIRM_S = 4.0  # tried twice, and nothing runs beside it
_LOGIN_S = 15.0  # every node has just answered


@dataclass(frozen=True)
class PortFindings:
    """What connections between nodes showed: causes blame nodes, notes say what could not be tried."""

    causes: tuple[Cause, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def hosts(self) -> tuple[str, ...]:
        """The nodes between which connections fail; where a name alone misleads, jobs go by addresses."""
        return tuple(dict.fromkeys(name for cause in self.causes if cause.subject != "names" for name in cause.hosts))


def between(team: Team, timeout_s: float, control: Path | None = None) -> PortFindings:
    """Have the nodes connect to each other, and return which connections fail, with their direction.

    ``timeout_s`` is that of one connection; what fails is tried again.
    """
    view = _view(team)
    if view.candidates is None:
        return judged(view)
    limits = _limits(view, timeout_s, control=control)
    first = network_probe.probe(view.hosts, view.candidates, limits)
    return _confirmed(view, view.candidates, limits, first)


def judged(view: View) -> PortFindings:
    """Judge connections by the rules of doctor: errors are causes, warnings are notes."""
    key = network.of_jobs(view)
    failed = {(one.source, one.target) for one in view.pairs if one.network == key and one.kind not in {"ok", "error"}}
    found = (*network.between(view), *logins.dead(view))
    notes = (
        f"Ports on {nodeset.folded(one.hosts)}: {one.cause}; {one.cure}." for one in found if one.severity != "error"
    )
    return PortFindings(causes.of_findings(found, failed), tuple(notes))


def added(result: CheckResult, found: PortFindings) -> CheckResult:
    """Return the result of a check as a FAIL with the ports that are closed.

    Left are those of a node for which the check has a cause. A node that it only names may have fallen silent by them.
    """
    own = result.hosts if result.is_bad else ()
    known = {name for culprit in result.culprits for name in culprit.nodes} if result.is_bad else set()
    new = [cause for cause in found.causes if not set(cause.hosts) <= known]
    if not new:
        return result
    told = causes.explained(result, new)
    return told.model_copy(update={"verdict": Verdict.FAIL, "hosts": tuple(dict.fromkeys((*told.hosts, *own)))})


class PortTrial:
    """Tries the ports in a thread, so that the first check runs meanwhile; the time is bounded.

    Up to 32 nodes try every connection. Beyond that, they try a sample, and ``seed`` selects it. A connection is closed
    where it fails twice: beside the first check, and after it.
    """

    def __init__(self, team: Team, seed: int) -> None:
        """Start to try the ports between the nodes of a team."""
        self._view = _view(team)
        self._first: Future[View] = Future()
        self._seed = seed
        threading.Thread(target=self._try, name="ports", daemon=True).start()

    def wait(self) -> None:
        """Wait until every connection was tried once."""
        self._first.result()

    def explain(self, result: CheckResult) -> tuple[CheckResult, PortFindings]:
        """Return the result of the first check as a FAIL where ports are closed, and what was found."""
        view = self._first.result()
        found = judged(view)
        if view.candidates is not None and added(result, found) is not result:
            limits = _limits(view, _CONFIRM_S, self._seed)
            first = [one for one in view.pairs if one.network != fabric.NAMES]
            found = _confirmed(view, view.candidates, limits, first)
        return added(result, found), found

    def _try(self) -> None:
        view = self._view
        try:
            # Without shared connections: a job that shared the login of this thread would end with it.
            if view.candidates is not None:
                limits = _limits(view, _CONNECT_S, self._seed)
                view = _called(view, view.candidates, limits, network_probe.probe(view.hosts, view.candidates, limits))
            self._first.set_result(view)
        except BaseException as error:  # noqa: BLE001 - wait() raises it where it is heard
            self._first.set_exception(error)


def _view(team: Team) -> View:
    """Return the nodes and the network that their jobs go over; all that they share where none is written down."""
    nodes = {name: node.facts for name, node in team.nodes.items()}
    hosts = tuple(replace(node.host, become=False) for node in team.nodes.values())
    written = {node.fabric.cidrs for node in nodes.values() if node.fabric is not None}
    try:
        candidates = fabric.candidates(nodes, cidrs=next(iter(written)) if len(written) == 1 else ())
    except ConfigError:  # doctor's note says which node lacks the network
        return View(hosts=hosts, nodes=nodes)
    return View(hosts=hosts, nodes=nodes, candidates=fabric.with_written(candidates, nodes))


def _limits(view: View, timeout_s: float, seed: int = 0, control: Path | None = None) -> network_probe.TrialLimits:
    return network_probe.TrialLimits(timeout_s, _LOGIN_S, control, seed, parameters.tcp_ports(view.nodes))


def _confirmed(
    view: View, found: Candidates, limits: network_probe.TrialLimits, first: Sequence[PairResult]
) -> PortFindings:
    """Try once more what failed, and judge."""
    return judged(_called(view, found, limits, network_probe.confirmed(view.hosts, found, limits, first)))


def _called(view: View, found: Candidates, limits: network_probe.TrialLimits, pairs: Sequence[PairResult]) -> View:
    """Add the pairs, and calls of nodes at the foreign addresses to which names lead; mostly there are none."""
    return replace(view, pairs=(*pairs, *network_probe.called(view.hosts, found, limits, logins.elsewhere(view))))
