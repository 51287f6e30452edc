"""Other work on the cores: what a machine's processors did during a check beyond the ranks of the check."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.model.results import RankReport

MACHINE = "machine"  # the fact of a rank that names its machine
# The figures of a rank, from the start of the measurement to its end: the processor time of the rank, that of all
# processes of the machine, and that which its cores have.
OWN, BUSY, ALL = "cpu_own_s", "cpu_busy_s", "cpu_all_s"
_LEAST = 0.15  # of the cores; sshd, daemons and the kernel's threads take some of it on an idle node


def busy_nodes(ranks: Iterable[RankReport]) -> dict[str, float]:
    """Return the share of the cores that other work took, for the nodes where that is much.

    The ranks of all nodes of a machine are taken off what its processors did.
    """
    machines: dict[str, list[RankReport]] = {}
    for report in ranks:
        if report.figures.get(ALL, 0.0) > 0 and OWN in report.figures and BUSY in report.figures:
            machines.setdefault(report.facts.get(MACHINE, report.host), []).append(report)
    found = {}
    for reports in machines.values():
        busy = statistics.median(report.figures[BUSY] / report.figures[ALL] for report in reports)
        share = busy - sum(report.figures[OWN] / report.figures[ALL] for report in reports)
        if share >= _LEAST:
            found.update({report.host: min(1.0, share) for report in reports})
    return found
