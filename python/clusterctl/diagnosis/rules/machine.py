"""Is each machine by itself fit for jobs: its session, its cores, its clock, what jobs left?"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from clusterctl.diagnosis.rules import launchable
from clusterctl.diagnosis.skew import PROVISION, artifact, compare
from clusterctl.model.findings import Finding, Severity, majority
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.facts import NodeFacts
    from clusterctl.remote.login_probe import Clock

ORDER = 50
_GIB = 1 << 30
_CLOCK_WARNING_S, _CLOCK_ERROR_S = 2.0, 60.0  # make and Horovod's logs; certificates and Kerberos
_SWAPPED_PART = 0.1
_SHOWN_LEFTOVERS = 2


def findings(view: View) -> Iterator[Finding]:
    """Return what is wrong with machines."""
    yield from _artifacts(view.nodes)
    yield from _session(view.nodes)
    yield from _leftovers(view.nodes)
    yield from _swap(view.nodes)
    yield from _cores(view)
    yield from clocks({name: report.clock for name, report in view.logins.items() if report.clock is not None})


def _artifacts(nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Report artifacts that are damaged or have lost their link; an artifact that is not installed is not reported."""
    for host, node in nodes.items():
        for found in node.artifacts:
            if found.target and not found.linked:
                cause = f"{found.link} is a folder, and clusterctl installs a link there"
                cure = f"move the folder away: 'mv {found.link} {found.link}.aside', then {PROVISION}"
                yield Finding("artifacts", "error", (host,), cause, cure)
            elif not found.ok and (found.target or "leads nowhere" in found.problem):
                cause = f"{found.name} is not as it was installed: {found.problem}"
                yield Finding("artifacts", "error", (host,), cause, PROVISION)


def _session(nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Tell where a job's session would not find Open MPI, which is what mpirun over ssh starts with."""
    for host, node in nodes.items():
        if artifact(node, "openmpi") is None or "PATH" not in node.environment:
            continue
        wanted = [f"{node.layout.openmpi}/bin"]
        wanted += [f"{node.layout.link('horovod')}/bin"] if artifact(node, "horovod") else []
        folders = [folder.rstrip("/") for folder in node.environment["PATH"].split(":")]
        missing = [folder for folder in wanted if folder not in folders]
        cure = f"{PROVISION} (role environment), or find what sets PATH in /etc/environment or a start-up file"
        foreign = launchable.foreign_mpirun(node)
        if foreign and not missing:
            yield Finding("session", "error", (host,), foreign, launchable.path_cure(node))
        if missing:
            cause = f"PATH of a session without a terminal lacks {' and '.join(missing)}"
            yield Finding("session", "error", (host,), cause, cure)
        library = next((one for one in node.libraries if one.soname == "libmpi.so.40"), None)
        if library is not None and not library.path:
            lacks = f"LD_LIBRARY_PATH lacks {node.layout.openmpi}/lib"
            cause = f"a session's loader finds no libmpi.so.40: {lacks}"
            yield Finding("session", "error", (host,), cause, cure.replace("sets PATH", "sets LD_LIBRARY_PATH"))


def _leftovers(nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    for host, node in nodes.items():
        if not node.leftovers:
            continue
        ranks = [f"{one.pid} of {one.user}, {_age(one.age_s)} old: {one.command[:60]}" for one in node.leftovers]
        shown = and_more(ranks, _SHOWN_LEFTOVERS, "; ")
        cause = f"{_ranks(len(node.leftovers))} left over from jobs whose launcher is gone ({shown})"
        pids = [str(one.pid) for one in node.leftovers[:8]]
        cure = f"end them there: 'kill {' '.join(pids)}'"
        yield Finding("leftovers", "error", (host,), cause, cure, (("kill", *pids),))


def _ranks(count: int) -> str:
    return "a rank is" if count == 1 else f"{count} ranks are"


def _age(seconds: float) -> str:
    if seconds < 120:  # noqa: PLR2004
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"  # noqa: PLR2004


def _swap(nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    for host, node in nodes.items():
        if node.memory_bytes and node.swap_used_bytes > max(_GIB, _SWAPPED_PART * node.memory_bytes):
            cause = "more than a tenth of its memory is in swap, and ranks that wait for a disk have all others wait"
            yield Finding("swap", "warning", (host,), cause, "find who uses the memory, then 'swapoff -a'")


def _cores(view: View) -> Iterator[Finding]:
    for host, node in view.nodes.items():
        slots = view.slots.get(host, 0)
        if node.threads and slots > node.threads:
            cause = f"it has {slots} slots and {node.threads} hardware threads, so that ranks take turns"
            yield Finding("cores", "warning", (host,), cause, "give it fewer slots in the inventory")
        elif node.cpu_quota.cores is not None and node.cpu_quota.cores < slots:
            cause = f"it has {slots} slots, and its control group a CPU quota of {node.cpu_quota.cores:g} cores"
            cure = "raise the quota (cpu.max, CPUQuota, or the limit of the container), or give it fewer slots"
            yield Finding("cores", "warning", (host,), cause, cure)
    yield from _confined(view)
    smt = {
        host: "on" if node.threads > node.cores else "off"
        for host, node in view.nodes.items()
        if node.threads and node.cores
    }
    yield from compare("cores", "warning", "hyperthreading", smt, "set it alike in the firmware of all nodes")


def _confined(view: View) -> Iterator[Finding]:
    """Name nodes whose sessions may use fewer hardware threads than those of most nodes with as many online."""
    alike: dict[int, dict[str, int]] = {}
    for host, node in view.nodes.items():
        if node.threads and node.threads_online:
            alike.setdefault(node.threads_online, {})[host] = node.threads
    for online, usable in alike.items():
        usual = majority(usable).usual
        for host, threads in usable.items():
            if usual is not None and view.slots.get(host, 0) <= threads < usual:
                cause = f"a session may use {threads} of {online} hardware threads, and {usual} on most nodes"
                cure = "find what binds sshd: the affinity ('taskset -cp PID'), AllowedCPUs of its unit, or a cpuset"
                yield Finding("cores", "warning", (host,), f"{cause}, so ranks share cores or a socket", cure)


def clocks(found: Mapping[str, Clock]) -> Iterator[Finding]:
    """Name nodes whose clock is away from the median of all by more than the measurement's own error."""
    if len(found) < 2:  # noqa: PLR2004 - a difference needs two
        return
    middle = statistics.median(clock.offset_s for clock in found.values())
    unsure = statistics.median(clock.uncertainty_s for clock in found.values())
    for host, clock in found.items():
        away = clock.offset_s - middle
        least = abs(away) - clock.uncertainty_s - unsure
        if least > _CLOCK_WARNING_S:
            severity: Severity = "error" if least > _CLOCK_ERROR_S else "warning"
            cause = f"its clock is {abs(away):.1f} s {'ahead of' if away > 0 else 'behind'} most nodes'"
            yield Finding("clock", severity, (host,), cause, "have chrony or systemd-timesyncd set it")
