"""Do Slurm's PMIx and Open MPI's fit together, so that 'srun --mpi=pmix' starts ranks that know of each other?

Without PMIx, srun starts every rank of Open MPI 5.0 as a world of size 1, and the job ends with code 0. A rank of 4.1
ends with an error.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from clusterctl.diagnosis.skew import artifact
from clusterctl.model import nodeset
from clusterctl.model.findings import Finding, Severity
from clusterctl.model.pmix import is_series_41, srun_without_pmix

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.pmix import SlurmPlugin, SlurmSettings

ORDER = 46
CHECK = "slurm pmix"
_RESTART = "restart slurmd"
_PLUGIN_MAJOR = re.compile(r"pmix_v(\d+)")
_OLDEST_SERVER = 4  # the lean build of Open MPI 5.0 leaves out the wire formats of PMIx 3 and before
_OWN_OF_41 = "3.2"  # the PMIx inside Open MPI 4.1, which has no library of its own


def findings(view: View) -> Iterator[Finding]:
    """Return what keeps 'srun --mpi=pmix' from starting ranks, for each node."""
    for host, node in view.nodes.items():
        if node.slurm is not None:
            yield from hindrances(host, node)
            yield from _default(host, node, node.slurm)


def notes(view: View) -> Iterator[str]:
    """Return what a user of srun has to know: its default type, missing plugins, and PMIx of two releases."""
    yield from _together({host: _without_pmix(node) for host, node in view.nodes.items()})
    yield from _together({host: _two_releases(node) for host, node in view.nodes.items()})


def hindrances(host: str, node: NodeFacts) -> Iterator[Finding]:
    """Return why 'srun --mpi=pmix' cannot start ranks on a node that has Slurm."""
    slurm = node.slurm
    if slurm is None:
        return
    severity: Severity = "error" if slurm.mpi_default.startswith("pmix") else "warning"
    for plugin in slurm.plugins:
        major = _major(plugin)
        if not plugin.found:
            cause = (
                f"Slurm's plugin {plugin.name} opens {plugin.opens}, which is missing: 'srun --mpi=pmix' starts no rank"
            )
            yield Finding(CHECK, severity, (host,), cause, f"{_link(node, plugin)}, then {_RESTART}")
        elif major and plugin.version and plugin.version.partition(".")[0] != major:
            cause = f"Slurm's plugin {plugin.name} needs PMIx {major}, and {plugin.opens} is PMIx {plugin.version}"
            cure = f"install the PMIx {major} that Slurm was built with, then {_RESTART}"
            yield Finding(CHECK, severity, (host,), cause, cure)
    served = [int(_major(plugin)) for plugin in slurm.plugins if plugin.found and _major(plugin)]
    installed = artifact(node, "openmpi")
    if served and max(served) < _OLDEST_SERVER and installed is not None and installed.version.startswith("5."):
        cause = f"Slurm speaks PMIx {max(served)}, and Open MPI {installed.version} was built for PMIx 4 and newer"
        cure = "build Slurm with PMIx 4 or newer, or start jobs by mpirun"
        yield Finding(CHECK, severity, (host,), cause, cure)


def _default(host: str, node: NodeFacts, slurm: SlurmSettings) -> Iterator[Finding]:
    """Name a default type of srun that this node cannot serve, or one without PMIx although jobs use srun."""
    names = {plugin.name for plugin in slurm.plugins} | ({"pmix"} if slurm.plugins else set())
    where = f"{slurm.mpi_default_by} is {slurm.mpi_default}"
    if slurm.mpi_default.startswith("pmix") and slurm.mpi_default not in names:
        has = f"Slurm has {', '.join(sorted(names))}" if names else "Slurm has no PMIx plugin"
        cause = f"{where}, and {has}: srun starts no rank"
        yield Finding(CHECK, "error", (host,), cause, f"install that plugin, or change {slurm.mpi_default_by}")
    elif not slurm.mpi_default.startswith("pmix") and node.pmix.is_external:
        cause = f"{where}, so plain srun {srun_without_pmix(_openmpi(node))}; this Open MPI was built for srun"
        cure = f"{_set_default(slurm)}, or start jobs by 'srun --mpi=pmix'"
        yield Finding(CHECK, "warning", (host,), cause, cure)


def _link(node: NodeFacts, plugin: SlurmPlugin) -> str:
    """Return what brings the library back that a plugin opens."""
    folder, _, name = plugin.opens.rpartition("/")
    site = node.pmix.site
    if folder and site is not None and site.library.startswith(f"{folder}/"):
        return f"make the link: 'ln -s {site.library.rpartition('/')[2]} {folder}/{name}'"
    return "install the PMIx library that Slurm was built with (libpmix2 or pmix)"


def _without_pmix(node: NodeFacts) -> str:
    """Say that plain srun starts ranks without PMIx, '' if it does not or if that is a finding."""
    slurm = node.slurm
    if slurm is None or slurm.mpi_default.startswith("pmix") or node.pmix.is_external:
        return ""
    then = srun_without_pmix(_openmpi(node))
    if not slurm.plugins:
        return f"Slurm has no PMIx plugin; start jobs by mpirun, since srun {then}"
    return (
        f"{slurm.mpi_default_by} is {slurm.mpi_default}, so plain srun {then}; start jobs by mpirun or by "
        f"'srun --mpi=pmix', or {_set_default(slurm)}"
    )


def _openmpi(node: NodeFacts) -> str:
    """Return the version of the installed Open MPI, '' without one."""
    installed = artifact(node, "openmpi")
    return installed.version if installed is not None else ""


def _set_default(slurm: SlurmSettings) -> str:
    place = slurm.conf or "slurm.conf"
    return "unset SLURM_MPI_TYPE" if slurm.mpi_default_by != "MpiDefault" else f"set MpiDefault=pmix in {place}"


def _two_releases(node: NodeFacts) -> str:
    """Say that Slurm's PMIx and Open MPI's are of two major releases, '' if they are not."""
    if node.slurm is None or node.pmix.built_with != "internal":
        return ""
    own = node.pmix.own or (_OWN_OF_41 if is_series_41(_openmpi(node)) else "")
    served = next((plugin.version for plugin in node.slurm.plugins if plugin.version), "")
    if not own or not served or own.partition(".")[0] == served.partition(".")[0]:
        return ""
    return (
        f"Slurm has PMIx {served} and Open MPI brings PMIx {own}; 'srun --mpi=pmix' may say that psec munge is "
        "missing, and openmpi_pmix: external builds Open MPI with Slurm's where the release suits"
    )


def _together(said: Mapping[str, str]) -> Iterator[str]:
    hosts: dict[str, list[str]] = defaultdict(list)
    for host, words in said.items():
        if words:
            hosts[words].append(host)
    for words, names in hosts.items():
        yield f"{nodeset.folded(names)}: {words}"


def _major(plugin: SlurmPlugin) -> str:
    match = _PLUGIN_MAJOR.match(plugin.name)
    return match.group(1) if match else ""
