"""What doctor finds in the facts of the gate, as notes of a validation; the nodes are not asked again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from clusterctl.diagnosis import doctor
from clusterctl.diagnosis.rules import registry
from clusterctl.diagnosis.rules.launchable import SLURM_PMIX
from clusterctl.model import nodeset

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.model.hosts import Inventory
    from clusterctl.model.probe import Probe
    from clusterctl.model.results import CheckResult

# Checks whose warnings count as well, such as different MTUs.
_ALSO = frozenset({"network", SLURM_PMIX})


def of(cluster: Inventory, probe: Probe, told: Iterable[CheckResult]) -> tuple[str, ...]:
    """Return doctor's errors, and its warnings about the network and about srun, a note each.

    Args:
        cluster: the hosts.
        probe: their facts.
        told: the results of the gate; what they say already is left out.
    """
    known = [line for result in told for line in (result.reason, *result.evidence)]
    return tuple(
        f"Doctor finds on {nodeset.folded(finding.hosts)}: {finding.cause}; {finding.cure}."
        for finding in registry.diagnose(doctor.view_of(cluster, replace(probe, failures={})))
        if (finding.severity == "error" or finding.check in _ALSO) and not any(finding.cause in line for line in known)
    )
