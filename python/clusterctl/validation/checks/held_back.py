"""Nodes that a CPU quota held back during a check, by the kernel's own count: no statistics are needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.model.results import CheckResult, Culprit, Verdict
from clusterctl.support.words import and_more
from clusterctl.validation.checks.rank_output import events_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterctl.model.job_outcome import OutputLine
    from clusterctl.validation.checks.base import Site

QUANTITY = "cpu_quota"
_LEAST_S, _LEAST_PART = 0.5, 0.1  # seconds, and part of the quota's periods; less does not explain a slow node
_MOST_NAMED = 6
_CURE = "raise its CPU quota (cpu.max, CPUQuota, or the limit of the container), or give it fewer slots"


@dataclass(frozen=True)
class HeldBack:
    """A node whose quota is below its slots, and the seconds for which its processes stood still."""

    host: str
    seconds: float
    cores: float
    slots: int

    @property
    def words(self) -> str:
        """One sentence with the kernel's count and the quota."""
        quota = f"{self.cores:g} {'of a core' if self.cores < 1 else 'cores'}"
        slots = f"{self.slots} slot{'s' if self.slots > 1 else ''}"
        return f"{self.host} was held back {self.seconds:.1f} s by its control group (quota {quota} for {slots})"


def found(lines: Iterable[OutputLine], site: Site) -> tuple[HeldBack, ...]:
    """Return the nodes that were held back, in the order of the hostfile.

    A quota that covers the slots is meant so, and its node is not named.
    """
    last: dict[str, HeldBack] = {}
    for event in events_of(lines, "held_back"):
        try:
            host = site.names.get(str(event["host"]), str(event["host"]))
            seconds, part, cores = (float(event[name]) for name in ("held_s", "held_part", "quota_cores"))
        except (LookupError, TypeError, ValueError, OverflowError):
            continue
        slots = site.slots.get(host, 0)
        if _LEAST_S <= seconds < math.inf and part >= _LEAST_PART and 0 <= cores < slots:
            last[host] = HeldBack(host, seconds, cores, slots)
    return tuple(last[host] for host in site.slots if host in last)


def explained(result: CheckResult, held: Sequence[HeldBack]) -> CheckResult:
    """Return the result as a FAIL by the quota; what else these nodes are blamed for follows from it.

    Wrong answers do not follow from a quota, so they keep their place. A check that could not be judged stays so.
    """
    names = tuple(one.host for one in held)
    words = and_more((one.words for one in held), _MOST_NAMED, "; ")
    others = tuple(culprit for culprit in result.culprits if not set(culprit.nodes) & set(names))
    is_wrong = any(report.wrong and report.compared for report in result.ranks)
    blamed = dict.fromkeys((*(result.hosts if is_wrong else ()), *names, *(n for one in others for n in one.blamed)))
    return result.model_copy(
        update={
            "verdict": result.verdict if result.verdict is Verdict.ERROR else Verdict.FAIL,
            "reason": "; ".join((words, *([] if result.verdict is Verdict.PASS else [result.reason]), _CURE)),
            "hosts": tuple(blamed),
            "culprits": (
                *(
                    Culprit(
                        kind="node",
                        nodes=(one.host,),
                        quantity=QUANTITY,
                        ratio=one.cores / one.slots,
                        words=one.words,
                        cure=_CURE,
                    )
                    for one in held
                ),
                *others,
            ),
        }
    )
