"""Policy of the nights: the verdict of a night, its change since the last notification, and retention. Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from clusterctl.model import nodeset
from clusterctl.model.results import Verdict
from clusterctl.model.snapshot import SLICES
from clusterctl.nightly.records import BadCheck, Drift, HostDrift, Proof
from clusterctl.suite import GATE
from clusterctl.support.errors import ExitCode
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from clusterctl.model.results import CheckResult, ValidationRecord
    from clusterctl.model.run_record import RunRecord
    from clusterctl.nightly.records import Night

_SKEW = "skew"
_MOST_NAMED = 5


def proof_of(record: ValidationRecord) -> Proof:
    """Return the summary of a validation that a night keeps."""
    bad = tuple(
        BadCheck(
            check=check.check,
            verdict=check.verdict,
            reason=check.reason,
            hosts=check.named,
            certain=_certain(check),
            next_step=check.next_step,
        )
        for check in record.checks
        if check.is_bad
    )
    return Proof(
        run_id=record.run_id,
        folder=record.folder,
        verdict=record.verdict,
        bad=bad,
        culprits=tuple(culprit for check in record.checks for culprit in check.culprits),
        checks=len(record.checks),
        hosts=record.hosts,
        left_out=record.left_out,
        skew="; ".join(check.reason for check in bad if check.check == _SKEW),
    )


def drift_of(run: RunRecord) -> Drift:
    """Return the drift that a provision in check mode found.

    A host has drifted where it differs from its snapshot, or where Ansible would change it. An edit of the inventory
    that changes nothing on a host is not drift of that host.
    """
    changes = {host.host: host.changes for host in run.hosts if host.outcome == "changed"}
    names = [host.host for host in run.hosts if host.host in changes or host.host in run.drifted]
    problem = ""
    if run.exit_code != ExitCode.OK:
        told = [f"{one.host}: {one.problem}" for one in run.problems]
        told += [f"{host.host}: {host.message}" for host in run.hosts if host.outcome in {"failed", "unreachable"}]
        problem = _some(tuple(dict.fromkeys(told))) or run.message or f"the check ended with {run.exit_code}"
    return Drift(
        hosts=tuple(
            HostDrift(host=name, why=run.drifted.get(name, ""), changes=changes.get(name, ())) for name in names
        ),
        problem=problem,
        slice=run.slices[0] if run.slices else None,
        run_id=run.run_id,
        folder=run.folder,
    )


def next_slice(nights: Sequence[Night]) -> int:
    """Return the slice of the installed files that this night reads: the one whose last reading is the oldest.

    So each byte is read within a week of nights, and a night without a look leaves its slice to the next one. The
    nights are the newest first.
    """
    read: dict[int, int] = {}
    for age, night in enumerate(nights):
        if night.drift is not None and night.drift.slice is not None:
            read.setdefault(night.drift.slice, age)
    newest = min(read, key=lambda each: read[each], default=-1)
    in_turn = [(newest + 1 + step) % SLICES for step in range(SLICES)]
    return max(in_turn, key=lambda each: read.get(each, len(nights)))  # of equal ones, the first in turn


def verdict_of(proof: Proof | None, drift: Drift | None) -> Verdict:
    """Return the verdict of a night: drift is a FAIL, and an unknown drift or validation is an ERROR."""
    if proof is None:
        return Verdict.ERROR
    if proof.verdict is Verdict.FAIL or (drift is not None and drift.hosts):
        return Verdict.FAIL
    if proof.verdict is not Verdict.PASS or drift is None or drift.problem:
        return Verdict.ERROR
    return Verdict.PASS


def state_of(night: Night) -> tuple[str, ...]:
    """Return the state of a night; a night with the state of the last notified night is not news.

    The state is the verdict, the bad checks with their certain hosts, the culprits, the drifted hosts, and the nodes
    that became slower. Figures and wordings are left out, since they differ every night.
    """
    verdict = night.verdict.value if night.verdict is not None else Verdict.ERROR.value
    found: set[str] = set()
    if night.proof is not None:
        found |= {f"{bad.check} {bad.verdict.value} {' '.join(sorted(bad.certain))}".strip() for bad in night.proof.bad}
        found |= {
            f"{one.kind} {one.sides or ' '.join(sorted(one.nodes))} {one.quantity}".strip()
            for one in night.proof.culprits
        }
    if night.drift is not None:
        found |= {f"drift {host.host}" for host in night.drift.hosts}
        found |= {"drift unknown"} if night.drift.problem else set()
    found |= {f"slower {one.node} {one.check} {one.quantity}" for one in night.slower}
    if night.outcome == "failed":
        found.add("could not run")
    return (verdict, *sorted(found))


def carried(before: Sequence[str], now: Sequence[str], left_out: Iterable[str]) -> tuple[str, ...]:
    """Return the state of a night with what the last notified one said of nodes that this night has left out.

    A node that took no part is neither better nor worse, so its fault is not gone. Both states are those of
    :func:`state_of`.
    """
    names = set(left_out)
    kept = [entry for entry in before[1:] if names & set(entry.split()) and not entry.startswith("drift ")]
    if not kept or not now:
        return tuple(now)
    verdict = before[0] if now[0] == Verdict.PASS.value else now[0]
    return (verdict, *sorted({*now[1:], *kept}))


def change(before: Sequence[str], now: Sequence[str]) -> str:
    """Return in words how a night differs from the last notified night; empty where it does not.

    Both states are those of :func:`state_of`. An empty one counts as PASS, so a first good night is not news.
    """
    was = tuple(before) or (Verdict.PASS.value,)
    if was == tuple(now):
        return ""
    words = f"{was[0]} -> {now[0]}" if was[0] != now[0] else f"still {now[0]}"
    new = [each for each in now[1:] if each not in was[1:]]
    gone = [each for each in was[1:] if each not in now[1:]]
    return "; ".join(
        [
            words,
            *([f"new: {_some(new)}"] if new else []),
            *([f"gone: {_some(gone)}"] if gone else []),
        ]
    )


def part_of(proof: Proof) -> str:
    """Return which part of the nodes a night is about, '' where it is about all of them."""
    if not proof.left_out:
        return ""
    part = f"{len(proof.hosts)} of {len(proof.hosts) + len(proof.left_out)} nodes, {nodeset.folded(proof.hosts)}"
    told = and_more([f"{name} ({why})" for name, why in proof.left_out.items()], _MOST_NAMED, "; ")
    return f"{part}; left out: {told}"


def words_of(drift: Drift) -> str:
    """Return the drift as a sentence without a full stop."""
    if drift.problem:
        return f"drift is unknown: {drift.problem}"
    if drift.left_out:
        return f"drift is left out: {drift.left_out}"
    if not drift.hosts:
        return f"every host matches its last provision{_reading(drift)}"
    by_words: dict[str, list[str]] = {}
    for host in drift.hosts:
        would = f"provision would change {_some(host.changes)}" if host.changes else ""
        by_words.setdefault(", and ".join(word for word in (host.why, would) if word), []).append(host.host)
    return "; ".join(f"{nodeset.folded(hosts)}: {words}" for words, hosts in by_words.items()) + _reading(drift)


def _reading(drift: Drift) -> str:
    return f" (read: slice {drift.slice + 1} of {SLICES} of the installed files)" if drift.slice is not None else ""


def to_prune(nights: Iterable[tuple[str, datetime]], now: datetime, keep_days: int) -> tuple[str, ...]:
    """Return the nights to remove, oldest first; the newest night always stays.

    ``nights`` has name and start of each. It is kept for one day more, since the schedule looks back that far.
    """
    ordered = sorted(nights, key=lambda night: night[1])
    limit = now - timedelta(days=keep_days + 1)
    return tuple(name for name, started in ordered[:-1] if started < limit)


def _certain(check: CheckResult) -> tuple[str, ...]:
    if check.check in GATE:
        return check.hosts
    return tuple(dict.fromkeys(rank.host for rank in check.ranks if rank.compared and rank.wrong))


def _some(words: Sequence[str]) -> str:
    return and_more(words, _MOST_NAMED)
