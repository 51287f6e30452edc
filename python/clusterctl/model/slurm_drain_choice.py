"""Which of Slurm's nodes a validation drains, and which drains it takes back. No I/O.

Only a reason that begins with a prefix of clusterctl is its own. A node that somebody else drained stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.model.results import Verdict
from clusterctl.support.words import visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.model.results import CheckResult, ValidationRecord

PREFIX = "clusterctl"
OF_CHECK_NODE = f"{PREFIX} check-node:"
OF_VALIDATE = f"{PREFIX} validate:"
_OWN = (OF_CHECK_NODE, OF_VALIDATE)
_LONGEST_REASON = 400
_ALMOST_ALL = 0.5  # a finding about more of the nodes is about what they share


@dataclass(frozen=True)
class DrainOptions:
    """What a validation tells Slurm: drain nodes that ``failed``, take back own drains of nodes that are ``proved``.

    ``partition`` and ``submit_host`` are those of :class:`clusterctl.model.scheduler_options.SlurmOptions`.
    """

    failed: bool = False
    proved: bool = False
    submit_host: str = ""

    @property
    def words(self) -> list[str]:
        """The options of the command line that ask for the same, without the submit host."""
        return [*(["--drain-failed"] if self.failed else []), *(["--undrain-proved"] if self.proved else [])]


@dataclass(frozen=True)
class SlurmState:
    """The state of a node of Slurm and its reason."""

    state: str
    reason: str = ""

    @property
    def takes_no_jobs(self) -> bool:
        return any(word in self.state for word in ("drain", "down", "fail", "maint"))


@dataclass(frozen=True)
class DrainDecision:
    """Reasons of the nodes to drain, the nodes to resume, and a sentence for each that stays as it is."""

    drain: Mapping[str, str]
    resume: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def decide(record: ValidationRecord, states: Mapping[str, SlurmState], wish: DrainOptions) -> DrainDecision:
    """Decide what to tell Slurm after a validation.

    ``states`` has by the record's name of a host its state in Slurm before; a host that Slurm lacks is left out.
    """
    drain, notes = _failed(record, states) if wish.failed else ({}, [])
    resume = [
        name
        for name, now in states.items()
        if wish.proved and _is_own(now) and name in record.slots and _is_proved(record, now.reason)
    ]
    if wish.proved:
        notes += [
            f"{name} stays drained: its reason is not of clusterctl ({now.reason or now.state})."
            for name, now in states.items()
            if now.takes_no_jobs and not _is_own(now) and name in record.slots
        ]
    return DrainDecision(drain, tuple(resume), tuple(notes))


def _failed(record: ValidationRecord, states: Mapping[str, SlurmState]) -> tuple[dict[str, str], list[str]]:
    found: dict[str, str] = {}
    for check in record.checks:
        if check.verdict is Verdict.FAIL:
            for name, words in _blamed(check).items():
                found.setdefault(name, _reason(f"{OF_VALIDATE} {check.check}: {words}"))
    if len(found) > max(1, _ALMOST_ALL * len(record.hosts)):
        whose = f"the checks blame {len(found)} of {len(record.hosts)} nodes, which points to what they share"
        return {}, [f"No node was drained: {whose}; look at the network, the file servers and the last change."]
    notes = [f"{name} was not drained: Slurm does not know it." for name in found if name not in states]
    notes += [
        f"{name} was not drained: it is {states[name].state} already ({states[name].reason})."
        for name in found
        if name in states and states[name].takes_no_jobs
    ]
    return {name: why for name, why in found.items() if name in states and not states[name].takes_no_jobs}, notes


def _blamed(check: CheckResult) -> dict[str, str]:
    """Return the nodes that a failed check blames by themselves; of a link, either end may be to blame."""
    culprits = [*check.culprits, *(check.search.culprits if check.search else ())]
    if culprits:
        return {one.nodes[0]: one.words for one in culprits if one.kind == "node" and one.nodes}
    lines = dict(line.split(": ", 1) for line in reversed(check.evidence) if ": " in line)  # the gate's, a host each
    return {name: lines.get(name, check.reason) for name in check.named}


def _is_own(now: SlurmState) -> bool:
    return "drain" in now.state and now.reason.startswith(_OWN)


def _is_proved(record: ValidationRecord, reason: str) -> bool:
    """Whether a record proves that the reason of a drain is gone: all passed, also the check that the reason names."""
    passed = {check.check for check in record.checks if check.verdict is Verdict.PASS}
    launched = any(check.command for check in record.checks if check.check in passed)
    check = reason.removeprefix(OF_VALIDATE).strip().partition(":")[0] if reason.startswith(OF_VALIDATE) else ""
    return record.verdict is Verdict.PASS and launched and (not check or check in passed)


def _reason(words: str) -> str:
    """Return a reason as Slurm takes it: one line without quotes, of a bearable length."""
    plain = visible(" ".join(words.replace('"', "'").split()))  # 'sinfo -R' shows it on the terminals of others
    return plain if len(plain) <= _LONGEST_REASON else f"{plain[: _LONGEST_REASON - 1]}…"


def words_of(done: Mapping[str, str], resumed: Sequence[str]) -> tuple[str, ...]:
    """Return a note for each node that was drained or resumed."""
    return (
        *(f"{name} was drained in Slurm: {why}" for name, why in done.items()),
        *(f"{name} takes jobs again: it was drained by clusterctl, and is proved now." for name in resumed),
    )
