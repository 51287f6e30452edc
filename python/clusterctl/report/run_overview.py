"""History of a cluster: its runs, what each run changed, the trends of its figures, and the state of each node.

A check that named a node must pass with it before the node is healthy. A run that leaves the node out, and a check that
is SKIP, ERROR or FAIL, prove nothing.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from pydantic import Field

from clusterctl import suite
from clusterctl.analysis import trend
from clusterctl.inventory import ansible_inventory
from clusterctl.model import nodeset
from clusterctl.model.base import Record
from clusterctl.model.findings import NodeHealth
from clusterctl.model.hosts import InventoryOptions, InventorySources
from clusterctl.model.results import Trend, Verdict
from clusterctl.report import run_resolver, slow_nodes
from clusterctl.state import clusters, hardware_looks, paths
from clusterctl.state import history as run_history
from clusterctl.state.history import Baseline
from clusterctl.state.runs import newest_stalls, settled
from clusterctl.support.errors import ExitCode
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from clusterctl.model.findings import DoctorErrors
    from clusterctl.model.hosts import AnyInventory
    from clusterctl.model.run_record import RunRecord
    from clusterctl.state.history import StoredResult, StoredRun

NEW_PAST = clusters.NEW
_MOST_NAMED = 8
_STOPPED_JOBS = 3


class HistoryLine(Record):
    """One run of the history; ``reason`` is that of the requested check."""

    run_id: str
    started: datetime
    suite: str
    verdict: Verdict
    accepted: bool = False
    checks: dict[str, Verdict] = Field(default_factory=dict)
    reason: str = ""
    changes: tuple[str, ...] = ()


class Change(Record):
    """A run that provisioned or changed the cluster: its verb, how it ended, and what it did in a few words."""

    run_id: str
    started: datetime
    verb: str
    outcome: str
    words: str


class StoppedJob(Record):
    """A job of ``clusterctl run`` that stood still or that a death ended: when, why, and the path of its record."""

    at: datetime
    job: str
    sentence: str
    record: str


class History(Record):
    """The runs of a cluster, oldest first.

    ``changes`` are the runs that changed the cluster since the first of ``runs``. ``total`` counts the kept runs,
    ``trends`` are of the last run. ``drifts`` says who became a little slower over all runs, or after how many more
    runs that would show. ``nodes`` says of each node whether it is healthy. ``stopped_jobs`` are the newest of them.
    """

    cluster: str
    inventory: str
    total: int
    baseline: Baseline | None
    runs: tuple[HistoryLine, ...]
    changes: tuple[Change, ...] = ()
    trends: tuple[Trend, ...] = ()
    drifts: tuple[str, ...] = ()
    nodes: tuple[NodeHealth, ...] = ()
    stopped_jobs: tuple[StoppedJob, ...] = ()
    notes: tuple[str, ...] = ()


def overview(given: AnyInventory | run_resolver.OfRun, check: str | None = None, last: int | None = None) -> History:
    """Return the history of an inventory's cluster.

    Args:
        given: the inventory, or a run's cluster.
        check: only the verdicts, reasons and figures of this check; runs without it are left out.
        last: the newest runs, at most so many.

    Raises:
        ConfigError: the cluster has not run yet, or the check is unknown.
        StoreError: the history cannot be read.
    """
    cluster = run_resolver.cluster_of(given)
    with run_history.open() as history:
        changes = () if check is not None else tuple(_changes(cluster))
        if changes and not history.runs(cluster, 1):  # it was never validated
            return without_runs(given).model_copy(update={"changes": changes})
        runs = run_resolver.runs_of(history, given, check)
        record = history.record(runs[-1].run_id, cluster)
        if check is not None:
            only = tuple(one for one in record.checks if one.check == check)
            record = record.model_copy(update={"checks": only})
        lines = tuple(_lines(runs, check))
        shown = lines if last is None else lines[-last:]
        return History(
            cluster=cluster,
            inventory=_words_of(given),
            total=len(runs),
            baseline=history.baseline(cluster),
            runs=shown,
            changes=tuple(one for one in changes if len(shown) == len(lines) or one.started >= shown[0].started),
            trends=history.trends(cluster, record, noise=trend.noise_of(suite.HistoryOptions())),
            drifts=slow_nodes.sentences(history, cluster, record),
            nodes=node_states(history.runs(cluster)[::-1], hardware_looks.read_errors(cluster)),
            stopped_jobs=tuple(
                StoppedJob(at=one.at, job=one.job, sentence=one.verdict.sentence, record=str(path))
                for path, one in newest_stalls(cluster, _STOPPED_JOBS)
            ),
            notes=tuple(history.warnings),
        )


def without_runs(given: AnyInventory | run_resolver.OfRun) -> History:
    """Return the history of a cluster that was never validated.

    Raises:
        ConfigError: the inventory is missing, or its machines have more than one past.
    """
    cluster = run_resolver.cluster_of(given)
    return History(cluster=cluster, inventory=_words_of(given), total=0, baseline=None, runs=())


def _words_of(given: AnyInventory | run_resolver.OfRun) -> str:
    return given.inventory if isinstance(given, run_resolver.OfRun) else str(InventorySources.of(given))


def choose_past(given: InventorySources, past: str) -> None:
    """Let an inventory go on with a past, or with none by :data:`NEW_PAST`.

    Raises:
        ConfigError: the inventory cannot be read, or there is no such past.
    """
    clusters.choose(given, ansible_inventory.read(given, InventoryOptions()).hosts, past)


def forget(given: AnyInventory | run_resolver.OfRun, keep_runs: int | None, keep_days: float | None) -> int:
    """Forget old runs of an inventory's cluster and return how many; the newest and the accepted run stay.

    Args:
        given: the inventory, or a run's cluster.
        keep_runs: keep so many of the newest; None keeps any number.
        keep_days: keep runs up to this age; None keeps any age.

    Raises:
        ConfigError: the cluster has not run yet.
        StoreError: the history cannot be written.
    """
    cluster = run_resolver.cluster_of(given)
    with run_history.open() as history:
        run_resolver.runs_of(history, given)
        return history.prune(cluster, keep_runs=keep_runs, keep_days=keep_days)


def _changes(cluster: str) -> Iterator[Change]:
    """Yield the kept runs that are no validation, oldest first; an unreadable record is passed over."""
    for folder in sorted(paths.runs_dir(cluster).glob("*T*Z-*")):
        if "-validate-" in folder.name or folder.is_symlink():
            continue
        with contextlib.suppress(OSError, ValueError):
            run = settled(folder)
            about = {name: getattr(run, name) for name in ("run_id", "started", "verb", "outcome")}
            yield Change(**about, words=_change_words(run))


def _change_words(run: RunRecord) -> str:
    """Return which hosts a run changed and which it lost, and else what stood in its way or what it has to say."""
    changed = [host.host for host in run.hosts if host.outcome == "changed"]
    if not changed and run.exit_code == ExitCode.BAD_CONFIG and run.problems:
        return run.problems[0].problem
    lost = [host.host for host in run.hosts if host.outcome in {"failed", "unreachable"}]
    words = [f"{nodeset.folded(changed)} changed"] if changed else []
    words += [f"{nodeset.folded(lost)} did not get through"] if lost else []
    return "; ".join(words) or run.message


def _lines(runs: Sequence[StoredRun], check: str | None) -> Iterator[HistoryLine]:
    known = _LastKnown()
    for run in runs:
        results = [one for one in run.results if check is None or one.check == check]
        asked = results[0] if check is not None else None
        yield HistoryLine(
            run_id=run.run_id,
            started=run.started,
            suite=run.suite,
            verdict=run.verdict if asked is None else asked.verdict,
            accepted=run.accepted,
            checks={one.check: one.verdict for one in results},
            reason="" if asked is None else asked.reason,
            changes=tuple(known.changes(run, results)),
        )


class _Named(NamedTuple):
    """Nodes that a check named, the last run in which it did, and whether it was told that they wait for a proof."""

    nodes: tuple[str, ...]
    run_id: str
    told: bool = False


class _LastKnown:
    """The last known state of each check and node, from the oldest run on; a SKIP changes nothing."""

    def __init__(self) -> None:
        self._hosts: tuple[str, ...] | None = None
        self._versions: dict[str, str] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._culprits: dict[str, dict[str, _Named]] = {}

    def changes(self, run: StoredRun, results: Iterable[StoredResult]) -> Iterator[str]:
        """Yield each difference between this run and the last known state, in a few words."""
        for one in results:
            if one.verdict is not Verdict.SKIP:
                yield from self._of_check(run, one)
        yield from self._of_nodes(run.hosts)
        for name, version in run.versions.items():
            before = self._versions.get(name, version)
            if version and before != version:
                yield f"{name} {before} → {version}"
        self._versions.update({name: version for name, version in run.versions.items() if version})

    def _of_check(self, run: StoredRun, one: StoredResult) -> Iterator[str]:
        before = self._verdicts.get(one.check)
        if before is not None and before is not one.verdict:
            yield f"{one.check} {before.value} → {one.verdict.value}"
        elif before is None and one.verdict is not Verdict.PASS:
            yield f"{one.check} {one.verdict.value}"
        self._verdicts[one.check] = one.verdict
        if one.verdict is Verdict.ERROR:
            return
        known = self._culprits.setdefault(one.check, {})
        named = {
            nodeset.folded(culprit.nodes): _Named(culprit.nodes, run.run_id)
            for culprit in one.culprits
            if culprit.kind not in OF_ALL
        }
        absent = known.keys() - named.keys()
        proved = {name for name in absent if proves(run, one, known[name].nodes)}
        left = {name: known[name] for name in sorted(absent - proved)}
        if new := sorted(name for name in named if name not in known or known[name].told):
            yield f"{and_more(new, _MOST_NAMED)} named by {one.check}"
        if proved:
            yield f"{and_more(sorted(proved), _MOST_NAMED)} no longer named by {one.check}"
        untold: dict[str, list[str]] = {}
        for name, last in left.items():
            if not last.told:
                untold.setdefault(last.run_id, []).append(name)
        for run_id, names in untold.items():
            yield f"{and_more(names, _MOST_NAMED)} not proved since {run_id}"
        waiting = {name: last._replace(told=True) for name, last in left.items()}
        self._culprits[one.check] = {**waiting, **named}

    def _of_nodes(self, hosts: tuple[str, ...]) -> Iterator[str]:
        if self._hosts is not None:
            gone, new = set(self._hosts) - set(hosts), set(hosts) - set(self._hosts)
            if gone:
                yield f"without {nodeset.folded(sorted(gone))}"
            if new:
                yield f"with {nodeset.folded(sorted(new))}"
        self._hosts = hosts


OF_ALL = ("together", "boundary")  # kinds of culprits that blame no node
_BAD = frozenset({Verdict.FAIL, Verdict.ERROR})


@dataclass
class _NodePast:
    """What the runs so far tell of a node; ``waits`` has the last run that named it by check."""

    waits: dict[str, str] = field(default_factory=dict)
    passed: bool = False
    good_at: datetime | None = None


def blamed(result: StoredResult) -> frozenset[str]:
    """Return the nodes that a bad check blames by themselves, in a pair, or without any culprit."""
    if result.verdict not in _BAD:
        return frozenset()
    single = {node for one in result.culprits if one.kind not in OF_ALL for node in one.blamed}
    of_all = {node for one in result.culprits if one.kind in OF_ALL for node in one.nodes}
    return frozenset(single | (set(result.named) - of_all))


def proves(run: StoredRun, result: StoredResult, nodes: Iterable[str]) -> bool:
    """Whether nodes passed a check: they took part in it, and its verdict is PASS."""
    there = set(run.hosts) - set(result.apart)
    return result.verdict is Verdict.PASS and set(nodes) <= there


def node_states(runs: Iterable[StoredRun], doctor: Mapping[str, DoctorErrors]) -> tuple[NodeHealth, ...]:
    """Return the state of each node of the runs, in the order in which runs first had them.

    Args:
        runs: of one cluster, the oldest first.
        doctor: the last errors that doctor found, by node.
    """
    seen: dict[str, _NodePast] = {}
    newest = ""
    for run in runs:
        newest = run.run_id
        for node in run.hosts:
            _add(seen.setdefault(node, _NodePast()), node, run)
    names = dict.fromkeys([*seen, *doctor])
    return tuple(_state(node, seen.get(node) or _NodePast(), doctor.get(node), newest) for node in names)


def _add(seen: _NodePast, node: str, run: StoredRun) -> None:
    named = {one.check for one in run.results if node in blamed(one)}
    passed = {one.check for one in run.results if proves(run, one, [node])}
    if not named and not passed:
        return  # it took no part, or nothing was found out
    seen.waits = {check: at for check, at in seen.waits.items() if check not in passed}
    seen.waits.update(dict.fromkeys(sorted(named), run.run_id))
    seen.passed = seen.passed or bool(passed)
    if run.verdict is Verdict.PASS:
        seen.good_at = run.started


def _state(node: str, seen: _NodePast, doctor: DoctorErrors | None, newest: str) -> NodeHealth:
    errors = None if doctor is None or (seen.good_at is not None and seen.good_at > doctor.at) else doctor
    healthy = seen.passed and not seen.waits and errors is None
    last = max(seen.waits.values(), default="")
    return NodeHealth(
        node=node,
        state="failed" if last and last == newest else "healthy" if healthy else "not proved",
        checks=tuple(seen.waits),
        run_id=last,
        doctor=errors,
    )
