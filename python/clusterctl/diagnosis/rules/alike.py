"""Nodes of the same kind, whose hardware can be compared."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from clusterctl.diagnosis.growing import span
from clusterctl.diagnosis.skew import compare
from clusterctl.model.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.hardware import Hardware

LEAST = 3  # of two nodes that differ, neither is the odd one
_LARGE = 0.9  # of the memory of another node: it is of the same size, and may lack a module


def groups(view: View, least: int = LEAST) -> tuple[Mapping[str, Hardware], ...]:
    """Return the last looks at nodes with equal boards, by host; groups of fewer nodes than ``least`` are left out."""
    found: dict[str, dict[str, Hardware]] = {}
    for host, looks in view.hardware.items():
        found.setdefault(looks.now.text("board", "model"), {})[host] = looks.now
    return tuple(group for group in found.values() if len(group) >= least)


def without(view: View, kind: str, section: str, check: str, what: str) -> Iterator[Finding]:
    """Name the nodes that have no device of a kind, and should have some.

    That is an error where an earlier look at the node saw some. It is a warning where most nodes with its board and as
    much memory have some, since a node may be built without. Virtual machines of all sizes may have the same board.
    Nodes of unknown boards are not compared.

    Args:
        view: all that was seen.
        kind: the kind of the devices' readings.
        section: the section of the look that reads them.
        check: the check of the findings.
        what: a device in words.
    """
    for group in groups(view, least=1):
        for host, look in group.items():
            if not look.lacks(kind, section):
                continue
            counts = [len(other.devices(kind)) for other in group.values() if _is_as_large(other, look)]
            some = [count for count in counts if count]
            most = len(counts) >= LEAST and len(some) * 2 > len(counts)
            before = next((one for one in reversed(view.hardware[host].past) if one.devices(kind)), None)
            cure = f"look with 'lspci' and in the kernel's log, then reseat the {what} or its riser"
            if before is not None:
                ago = f"{len(before.devices(kind))} at a look {span(look.time - before.time)} ago"
                yield Finding(check, "error", (host,), f"it has no {what}, and had {ago}", cure)
            elif most and look.text("board", "model"):
                cause = f"it has no {what}, and {statistics.mode(some)} are in most nodes with its board and memory"
                yield Finding(check, "warning", (host,), cause, f"{cure}; a node that is built so needs nothing")


def _is_as_large(one: Hardware, other: Hardware) -> bool:
    """Whether two nodes have about as much memory, as far as it is known."""
    low, high = sorted(look.number("memory", "memory in KiB") or 0.0 for look in (one, other))
    return not low or low > high * _LARGE


def mtu_fix(interfaces: Iterable[str]) -> Callable[[str], tuple[tuple[str, ...], ...]]:
    """Return what makes the command that sets the usual MTU, where the interface has the same name on all nodes."""
    names = set(interfaces) - {""}

    def commands(usual: str) -> tuple[tuple[str, ...], ...]:
        is_one = len(names) == 1 and usual.isdecimal()
        return tuple(("ip", "link", "set", "dev", name, "mtu", usual) for name in names) if is_one else ()

    return commands


def compare_readings(
    view: View,
    check: str,
    kind: str,
    name: str,
    cure: str,
    fix: Callable[[str], tuple[tuple[str, ...], ...]] = lambda _usual: (),
) -> Iterator[Finding]:
    """Warn of nodes whose reading differs from that of most nodes of their kind, device by device."""
    for group in groups(view):
        by_device: dict[str, dict[str, str]] = {}
        for host, seen in group.items():
            for device, value in seen.values(kind, name).items():
                by_device.setdefault(device, {})[host] = str(value)
        for device, values in by_device.items():
            what = f"{name} of {device}" if device else name
            yield from compare(check, "warning", what, values, cure, fix)
