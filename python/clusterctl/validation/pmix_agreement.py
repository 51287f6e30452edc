"""Which PMIx the nodes' Open MPI was built with, and whether Slurm's srun can start ranks through PMIx."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from clusterctl.diagnosis.rules import launchable
from clusterctl.model import nodeset

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.model.facts import NodeFacts


def told(nodes: Mapping[str, NodeFacts]) -> str:
    """Return the PMIx of the nodes' Open MPI for the record; several with their nodes, '' where no node tells."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, node in nodes.items():
        if words := _built_with(node):
            found[words].append(name)
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{nodeset.folded(names)}: {words}" for words, names in found.items())


def srun_cannot(nodes: Mapping[str, NodeFacts]) -> str:
    """Return why 'srun --mpi=pmix' starts no rank, as one sentence with the cure; '' where nothing hinders it."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, node in nodes.items():
        for one in launchable.pmix_hindrances(name, node):
            found[f"{one.cause}; {one.cure}"].append(name)
    return "; ".join(f"{nodeset.folded(names)}: {words}" for words, names in found.items())


def _built_with(node: NodeFacts) -> str:
    pmix = node.pmix
    if not pmix.is_external:
        return f"{pmix.built_with} {pmix.own}".strip()
    prefix = "/usr" if pmix.built_with == "external" else pmix.built_with
    known = pmix.site is not None and pmix.site.prefix == prefix
    return f"{prefix} {pmix.site.version}" if known and pmix.site is not None else prefix
