"""Nodes of the same kind, whose hardware can be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.diagnosis.skew import compare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.findings import Finding
    from clusterctl.model.hardware import Hardware

LEAST = 3  # of two nodes that differ, neither is the odd one


def groups(view: View, least: int = LEAST) -> tuple[Mapping[str, Hardware], ...]:
    """Return the last looks at nodes with equal boards, by host; groups of fewer nodes than ``least`` are left out."""
    found: dict[str, dict[str, Hardware]] = {}
    for host, looks in view.hardware.items():
        found.setdefault(looks.now.text("board", "model"), {})[host] = looks.now
    return tuple(group for group in found.values() if len(group) >= least)


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
