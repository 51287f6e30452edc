"""GPUs of one model, on one node or on many, whose states can be held against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from clusterctl.model.findings import majority

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.readings import Value

LEAST = 3  # of two that differ, neither is the odd one


class OddOnes(NamedTuple):
    """The GPUs of a host that have another value than most of their model."""

    host: str
    devices: tuple[str, ...]
    value: Value
    usual: Value


class LowOnes(NamedTuple):
    """The GPUs of a host whose number is lower than that of most of their model."""

    host: str
    devices: tuple[str, ...]
    value: float
    usual: float


def values(view: View, kind: str, name: str) -> dict[str, dict[tuple[str, str], Value]]:
    """Return a reading by the GPU's model, then by host and device."""
    found: dict[str, dict[tuple[str, str], Value]] = {}
    for host, looks in view.hardware.items():
        models = looks.now.texts("gpu", "model")
        for device, value in looks.now.values(kind, name).items():
            found.setdefault(models.get(device, ""), {})[host, device] = value
    return found


def number(value: Value | None) -> float:
    """Return a reading as a number; 0 where a node told something else."""
    return float(value) if isinstance(value, (int, float)) else 0.0


def built_so(members: Mapping[tuple[str, str], Value], place: tuple[str, str]) -> bool:
    """Whether most other hosts have the same value at the same PCI address: it is how the machines are built."""
    others = [value for (host, device), value in members.items() if device == place[1] and host != place[0]]
    return len(others) + 1 >= LEAST and others.count(members[place]) * 2 > len(others)


def odd(view: View, kind: str, name: str) -> Iterator[OddOnes]:
    """Yield the GPUs whose reading differs from that of most GPUs of their model, host by host.

    What is so at the same PCI address of most hosts is left out.
    """
    for members in values(view, kind, name).values():
        found = majority(members)
        if len(members) < LEAST or found.usual is None:
            continue
        for value, places in found.others.items():
            by_host: dict[str, list[str]] = {}
            for host, device in (place for place in places if not built_so(members, place)):
                by_host.setdefault(host, []).append(device)
            for host, devices in by_host.items():
                yield OddOnes(host, tuple(devices), value, found.usual)


def lower(view: View, kind: str, name: str) -> Iterator[LowOnes]:
    """Yield the GPUs whose number is lower than that of most GPUs of their model."""
    for found in odd(view, kind, name):
        value, usual = number(found.value), number(found.usual)
        if value < usual:
            yield LowOnes(found.host, found.devices, value, usual)
