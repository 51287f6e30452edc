"""``nccl``: NCCL's own collectives between GPUs; without a GPU, the proof that NCCL is found and loads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.model import nodeset
from clusterctl.model.findings import majority
from clusterctl.model.results import Measurement, Verdict
from clusterctl.validation.checks import base, causes, judging, nccl_diagnostics
from clusterctl.validation.checks.base import Registration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.diagnosis.training_stack import NodeStack
    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.model.results import RankReport

_TIME, _BUS = "_us", "_bus_bytes_per_s"  # how the program's figures end


class WithNccl(base.Check):
    """A check that runs the program of NCCL."""

    file = "nccl_checks.py"

    def absent(self, stack: NodeStack) -> str:
        if stack.nccl:
            return ""
        if stack.idle_gpus:
            return f"no NCCL, and jobs cannot use {stack.idle_gpus}"
        return "no NCCL" if stack.gpus else "no GPU and no NCCL"


@dataclass(frozen=True)
class Nccl(WithNccl):
    """Collectives of NCCL, bootstrapped by MPI, one rank a slot.

    Nodes without a GPU only load NCCL. If all nodes are without a GPU, the verdict is SKIP, and its reason names the
    NCCL that was loaded.
    """

    name: str = "nccl"
    title: str = "NCCL's collectives on the GPUs: right answers, time and bus bandwidth"
    deadline_s: float = 180.0

    def judge(self, site: base.Site, outcome: JobOutcome) -> base.Judgement:
        """Judge which NCCL answered, then the answers."""
        judgement = judged(site, outcome)
        if judgement.verdict is not Verdict.PASS:
            return nccl_diagnostics.judged(judgement, site, outcome)
        version = judgement.ranks[0].facts.get("nccl_version", "")
        reason = "; ".join(_words(site, judgement.ranks, version, bare(judgement.ranks)))
        passed = base.passed(judgement, reason, *_figures(judgement.ranks))
        passed = nccl_diagnostics.path_judged(passed, site, outcome, users(judgement.ranks))
        return nccl_diagnostics.judged(passed, site, outcome)


NCCL = Nccl()


def judged(site: base.Site, outcome: JobOutcome) -> base.Judgement:
    """Judge what all checks of NCCL have in common; without a GPU in the cluster, that is a SKIP.

    The library comes first, since a wrong library alone can cause wrong answers and errors.
    """
    judgement = judging.judge(site, outcome)
    if judgement.verdict is Verdict.ERROR:
        return judgement
    loaded = [report for report in judgement.ranks if report.facts.get("nccl_version")]
    wrong = _other_library(site, loaded) or _other_header(loaded) or _skew(loaded)
    if wrong is not None:
        return base.fail(judgement, *wrong)
    if judgement.verdict is not Verdict.PASS:
        return judgement
    missing = _without_gpu(site, judgement.ranks) or _broken_driver(site)
    if missing is not None:
        return base.fail(judgement, *missing)
    without = bare(judgement.ranks)
    if len(without) == len(site.slots):
        facts = judgement.ranks[0].facts
        where = f"NCCL {facts.get('nccl_version', '')} loads there ({facts.get('nccl_path', '')})"
        reason = f"{_idle(site, without)}; {where}"
        return base.Judgement(Verdict.SKIP, reason, (), judgement.ranks, judgement.measurements)
    return judgement


def bare(reports: Sequence[RankReport]) -> tuple[str, ...]:
    """Return the nodes without a GPU."""
    return base.unique(report.host for report in reports if "gpu" not in report.facts)


def users(reports: Sequence[RankReport]) -> tuple[str, ...]:
    """Return the nodes with a rank on a GPU; ranks that stand aside do not count."""
    return base.unique(report.host for report in reports if "gpu" in report.facts and "aside" not in report.facts)


def _other_library(site: base.Site, reports: Sequence[RankReport]) -> tuple[str, tuple[str, ...]] | None:
    """Find ranks that loaded another libnccl than the installed one."""
    other = []
    for report in reports:
        facts, stack = report.facts, site.stack.get(report.host)
        same = bool(facts.get("nccl_path")) and facts["nccl_path"] == facts.get("nccl_installed")
        if not same or (stack is not None and facts["nccl_version"] != stack.nccl):
            other.append(report)
    if not other:
        return None
    first = other[0]
    stack, facts = site.stack.get(first.host), first.facts
    installed = f"NCCL {stack.nccl} " if stack is not None else "one "
    loaded = facts.get("nccl_path") or "an unknown file"
    missing = f"{site.layout.link('nccl')}, which does not exist"
    reason = (
        f"{causes.named(other)} loaded NCCL {facts['nccl_version']} of {loaded} and "
        f"not the installed {installed}of {facts.get('nccl_installed') or missing}: "
        "'ldconfig -p' and LD_LIBRARY_PATH there show why"
    )
    return reason, base.unique(report.host for report in other)


def _other_header(reports: Sequence[RankReport]) -> tuple[str, tuple[str, ...]] | None:
    """Find nodes where a compiled program gets another NCCL than that of its header."""
    other = [
        report
        for report in reports
        if "proof_version" in report.facts
        and (report.facts["proof_header"], report.facts["proof_path"])
        != (report.facts["proof_version"], report.facts["nccl_path"])
    ]
    if not other:
        return None
    facts = other[0].facts
    reason = (
        f"on {other[0].host} a program compiled against NCCL {facts['proof_header']} gets {facts['proof_version']} of "
        f"{facts['proof_path']}, and Python gets {facts['nccl_version']} of {facts['nccl_path']}"
    )
    return reason, base.unique(report.host for report in other)


def _skew(reports: Sequence[RankReport]) -> tuple[str, tuple[str, ...]] | None:
    """Name the hosts whose version differs from the majority; without a majority, all of them."""
    found = majority(dict(enumerate(str(report.facts["nccl_version"]) for report in reports)))
    if not found.others:
        return None
    words = "; ".join(
        f"{version} on {nodeset.folded(base.unique(reports[number].host for number in numbers))}"
        for version, numbers in found.others.items()
    )
    rest = "" if found.usual is None else f"; all others: {found.usual}"
    return f"different versions of NCCL: {words}{rest}", base.unique(
        reports[number].host for number in sorted(found.odd)
    )


def _without_gpu(site: base.Site, reports: Sequence[RankReport]) -> tuple[str, tuple[str, ...]] | None:
    """Find ranks that cannot open a GPU on nodes that have GPUs and a driver."""
    blind = [r for r in reports if "gpu" not in r.facts and r.host in site.stack and site.stack[r.host].gpus]
    if not blind:
        return None
    gpus = site.stack[blind[0].host].gpus
    reason = (
        f"{causes.named(blind)} found no GPU where the node has {gpus}: "
        f"{blind[0].facts.get('no_gpu') or 'no reason was given'}"
    )
    return reason, base.unique(report.host for report in blind)


def _broken_driver(site: base.Site) -> tuple[str, tuple[str, ...]] | None:
    """Find nodes with GPUs that the host is meant to use and cannot.

    A driver in a container is meant for pods. A driver that is missing on all nodes is the state of a cluster for
    CPUs; missing on some, it is a fault of these.
    """
    faults = ("library", "versions", "mig", *(("driver",) if any(stack.gpus for stack in site.stack.values()) else ()))
    broken = [node for node, stack in site.stack.items() if stack.idle_why in faults]
    if not broken:
        return None
    named = f"{site.stack[broken[0]].idle_gpus} ({nodeset.folded(broken)})"
    return f"jobs cannot use {named}; 'clusterctl doctor' has the cure", tuple(broken)


def _idle(site: base.Site, without: Sequence[str]) -> str:
    """Return which nodes have no GPU, and which have GPUs that jobs cannot use."""
    found: dict[str, list[str]] = {}
    for node in without:
        stack = site.stack.get(node)
        found.setdefault(stack.idle_gpus if stack is not None else "", []).append(node)
    words = [f"no GPU on {nodeset.folded(found.pop(''))}"] if "" in found else []
    return "; ".join(words + [f"jobs cannot use {idle} ({nodeset.folded(nodes)})" for idle, nodes in found.items()])


def _words(site: base.Site, reports: Sequence[RankReport], version: str, without: Sequence[str]) -> list[str]:
    """Return what a PASS proves, and what it leaves out."""
    players = [report for report in reports if "largest" in report.facts]
    gpus, hosts = len(_gpus(players)), len({report.host for report in players})
    compared = sum(report.compared for report in players)
    instances = {(report.host, report.facts["mig_instance"]) for report in players if "mig_instance" in report.facts}
    cut = f"{_count(len(instances), 'MIG instance')} of " if instances else ""
    where = f"{_count(len(players), 'rank')} on {cut}{_count(gpus, 'GPU')} of {_count(hosts, 'node')}"
    words = [f"{where}, {compared:,} values right, NCCL {version}"]
    best = {name: value for report in players for name, value in report.figures.items() if name.endswith(_BUS)}
    allreduce = [name for name in best if name.startswith("allreduce_")]
    shared = next((report.facts["shared"] for report in players if "shared" in report.facts), "")
    if allreduce:
        size = allreduce[-1].removesuffix(_BUS).removeprefix("allreduce_")
        words.append(f"allreduce of {size} at {best[allreduce[-1]] / 1e9:.4g} GB/s of bus bandwidth")
    elif shared:
        words.append(f"bus bandwidth is not meaningful and left out ({shared})")
    elif len(players) == 1:
        words.append("bus bandwidth needs a second GPU")
    aside = [report for report in reports if "aside" in report.facts]
    if aside:
        words.append(f"{causes.named(aside)} stood aside ({aside[0].facts['aside']})")
    beside = [report for report in reports if "nccl_beside" in report.facts]
    if beside:
        words.append(f"mapped beside it on {beside[0].host}: {beside[0].facts['nccl_beside']}")
    if without:
        words.append(f"{_idle(site, without)}, where NCCL {version} loads")
    return words


def _gpus(reports: Sequence[RankReport]) -> set[tuple[str, str]]:
    return {(report.host, report.facts.get("gpu_place", "")) for report in reports}


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _figures(reports: Sequence[RankReport]) -> list[Measurement]:
    """Return times and bus bandwidths by collective and size; one rank reports them all."""
    players = [report for report in reports if "largest" in report.facts]
    figures = [Measurement(name="gpus", value=len(_gpus(players)), unit="GPUs")]
    for report in players:
        for name, value in report.figures.items():
            if name.endswith(_BUS):
                figures.append(Measurement(name=f"{name.removesuffix(_BUS)}_bus", value=value, unit="B/s"))
            elif name.endswith(_TIME):
                figures.append(Measurement(name=f"{name.removesuffix(_TIME)}_time", value=value, unit="us"))
    return figures


CHECKS = (Registration(name="nccl", order=60, first_suite="smoke", make=lambda _options: NCCL),)
