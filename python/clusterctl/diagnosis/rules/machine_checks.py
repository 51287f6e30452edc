"""Do the processors report machine checks: exceptions, thresholds of corrected errors, and polls that speed up?

An exception is an error that the hardware could not correct (Intel SDM volume 3, "Machine-Check Architecture"). A
threshold interrupt tells of corrected errors. The kernel polls every five minutes, and faster and faster while it finds
errors (Linux, Documentation/arch/x86/x86_64/machinecheck.rst, check_interval). Corrected errors have no limit of their
own in these sources, so a node is held against its neighbours.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from clusterctl.analysis.counter_growth import growth
from clusterctl.diagnosis.growing import span
from clusterctl.diagnosis.rules import alike
from clusterctl.model.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clusterctl.analysis.counter_growth import Growth
    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.hardware import HardwareLooks

ORDER = 69
_CHECK = "machine checks"
_KIND = "machine check"
_EXCEPTIONS, _THRESHOLDS, _POLLS = "machine check exceptions", "threshold interrupts", "machine check polls"
_LEAST = {_THRESHOLDS: 10, _POLLS: 100}  # smaller growth tells nothing
_TIMES = 10.0  # as fast as the median of the others
_ERROR = "drain the node and read 'ras-mc-ctl --errors' or the board's log; replace the processor or module named there"
_CURE = "read 'ras-mc-ctl --errors', 'mcelog' or the board's log, which name the module or processor"


def findings(view: View) -> Iterator[Finding]:
    """Return nodes with exceptions, and those whose corrected errors grow far faster than on their like."""
    for host, looks in view.hardware.items():
        for (kind, _device, name), one in _grown(looks).items():
            if kind == _KIND and name == _EXCEPTIONS and one.grown:
                cause = f"{one.grown} {name} in {span(one.seconds)}, each counted once for a processor that took it"
                yield Finding(_CHECK, "error", (host,), cause, _ERROR)
    for group in alike.groups(view):
        for name, least in _LEAST.items():
            rates = {host: grown for host in group if (grown := _grown(view.hardware[host]).get((_KIND, "", name)))}
            for host, one in rates.items():
                if one.grown < least or len(rates) < alike.LEAST:
                    continue
                usual = statistics.median(other.per_hour for peer, other in rates.items() if peer != host)
                if one.per_hour > _TIMES * usual:
                    often = f"{one.grown} {name} in {span(one.seconds)}"
                    beside = f"{usual * one.seconds / 3600:.3g} are the median of its like"
                    cause = f"{often}, and {beside}; they tell of errors that were corrected"
                    yield Finding(_CHECK, "warning", (host,), cause, _CURE)


def _grown(looks: HardwareLooks) -> Mapping[tuple[str, str, str], Growth]:
    """Return the growth since the oldest look that the counters can be compared with."""
    earlier = [look for look in looks.earlier() if look.boot_id == looks.now.boot_id]
    return growth(earlier[-1], looks.now) if earlier else {}
