"""All rules in the order in which their findings matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.diagnosis import skew
from clusterctl.diagnosis.rules import machine, names, network, ssh
from clusterctl.model import nodeset

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.findings import Finding


def diagnose(view: View, nccl_align: Mapping[str, str] | None = None) -> tuple[Finding, ...]:
    """Return everything that is wrong, worst first: errors, then warnings, each as a job would meet them."""

    def everything() -> Iterator[Finding]:
        yield from ssh.findings(view)
        yield from names.findings(view)
        yield from network.findings(view)
        yield from skew.differences(view.nodes)
        yield from skew.stacked(view.nodes, nccl_align)
        yield from machine.findings(view)

    return skew.ordered(everything())


def notes(view: View) -> tuple[str, ...]:
    """Return what could not be looked at, and why: a reader must not take it for good; and what is odd and harmless."""
    lines = list(network.kept_out(view))
    bare = [name for name in view.nodes if name not in view.provisioned]
    if bare:
        lines.append(
            f"Never provisioned: {nodeset.folded(bare)}; of the cluster's software there was nothing to look at."
        )
    untried = sum(report.untried for report in view.logins.values())
    if untried:
        tried = sum(report.passed + len(report.failures) for report in view.logins.values())
        lines.append(
            f"Logins between nodes: {tried} of {tried + untried} were tried in the time there was, each node's "
            "neighbours first."
        )
    early = [name for name, report in view.logins.items() if report.stopped_early]
    if early:
        lines.append(f"Logins from {nodeset.folded(early)}: two were tried and refused, and no more.")
    keyless = [name for name, report in view.logins.items() if report.keyless]
    if keyless:
        lines.append(f"Logins from {nodeset.folded(keyless)}: none was tried, for there is no key to log in with.")
    holes: dict[str, list[str]] = {}
    for name, node in view.nodes.items():
        for problem in node.problems:
            holes.setdefault(problem, []).append(name)
    lines += [f"Could not be read on {nodeset.folded(hosts)}: {problem}." for problem, hosts in holes.items()]
    return tuple(lines)
