"""What disks say of their own health.

The spare of NVMe and its threshold: NVM Express Base Specification, "SMART / Health Information".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.analysis.counter_growth import growth
from clusterctl.model.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.hardware import HardwareLooks

ORDER = 75
_CHECK = "disks"
_REPLACE = "save what is on it, and replace the disk"
_WORN = 100  # percent of the endurance that the vendor states


def findings(view: View) -> Iterator[Finding]:
    """Return disks that fail or are worn, and arrays that lost a member."""
    for host, looks in view.hardware.items():
        yield from _disks(host, looks)
        there = looks.now.numbers("array", "members working")
        for array, members in looks.now.numbers("array", "members").items():
            if there.get(array, members) != members:
                cause = f"the array {array} has {there[array]} of {members} members"
                yield Finding(_CHECK, "error", (host,), cause, f"replace the lost one: 'mdadm --detail /dev/{array}'")


def _disks(host: str, looks: HardwareLooks) -> Iterator[Finding]:
    seen = looks.now
    failing = {disk for disk, healthy in seen.flags("disk", "healthy").items() if healthy is False}
    for disk in sorted(failing):
        yield Finding(_CHECK, "error", (host,), f"{disk} says that it is failing (SMART)", _REPLACE)
    least = seen.numbers("disk", "least spare in percent")
    for disk, spare in seen.numbers("disk", "spare in percent").items():
        if spare < least.get(disk, 0) and disk not in failing:
            cause = (
                f"{disk} has {spare:g} % of its spare blocks left, below its vendor's threshold of {least[disk]:g} %"
            )
            yield Finding(_CHECK, "error", (host,), cause, _REPLACE)
    for disk, bits in seen.numbers("disk", "critical warning").items():
        if bits and disk not in failing:
            yield Finding(_CHECK, "error", (host,), f"{disk} has the critical warning {bits} (NVMe)", _REPLACE)
    for disk, used in seen.numbers("disk", "endurance used in percent").items():
        if used >= _WORN:
            cause = f"{disk} has used {used} % of the endurance that its vendor states"
            yield Finding(_CHECK, "warning", (host,), cause, _REPLACE)
    for disk, state in seen.texts("disk", "state").items():
        if state not in {"running", "live"}:
            yield Finding(_CHECK, "error", (host,), f"{disk} is in the state '{state}'", _REPLACE)
    yield from _grown(host, looks)


def _grown(host: str, looks: HardwareLooks) -> Iterator[Finding]:
    earlier = list(looks.earlier())
    for (kind, disk, name), grown in (growth(earlier[-1], looks.now) if earlier else {}).items():
        if kind == "disk" and grown.grown:
            cause = f"{disk} has {grown.grown} more {name} than {grown.seconds / 3600:.2g} h before"
            yield Finding(_CHECK, "warning", (host,), cause, _REPLACE)
