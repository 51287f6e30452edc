"""The way that NCCL's connections take on one node, as its ranks told it of NCCL's log (``nccl_log.py``).

``clusterctl launch`` imports this module, so it needs the standard library alone.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

NET, _SOCKET = "NET/", "NET/Socket"
_MOST_DIGITS = 4
_DEVICE_OF_WAY = re.compile(r"NET/[^/]+/([0-9]{1,6})(?![0-9])")


@dataclass(frozen=True)
class NcclPath:
    """What NCCL's log says on one node, of all its ranks together."""

    network: str = ""
    ports: tuple[str, ...] = ()  # mlx5_0:1, in the order of NCCL's numbers
    numbers: Mapping[int, str] = field(default_factory=dict)
    interfaces: tuple[str, ...] = ()
    ways: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    not_direct: tuple[str, ...] = ()
    no_device: bool = False
    named: str = "IB"  # the network whose devices ``numbers`` names; a plugin built on NCCL's own begins so too
    devices: int = 0  # that a plugin offers, 0 where it does not tell
    told: int = 0  # ranks of the node that told it
    ring: tuple[int, ...] = ()  # ranks in the order of the first ring, where this node's ranks told it

    def via(self, begin: str) -> tuple[str, ...]:
        """Return the ways between nodes that begin so."""
        return tuple(way for way in self.ways if way.startswith(begin))

    @property
    def is_socket(self) -> bool:
        """Whether connections between nodes go over sockets; with NVLink between nodes there may be none."""
        return bool(self.via(_SOCKET)) or (self.network == "Socket" and not self.ways)

    @property
    def rails(self) -> tuple[str, ...]:
        """The ways over a network of devices that have numbers: NCCL's own RDMA, or a plugin's."""
        return () if self.is_socket else self.via(NET)

    @property
    def used_numbers(self) -> tuple[int, ...]:
        """The numbers of the devices that carry connections."""
        return tuple(sorted({int(number) for way in self.rails if (number := _number(way))}))

    @property
    def used(self) -> tuple[str, ...]:
        """The RDMA ports that carry connections, where the log names them."""
        numbers = self.used_numbers if self.has_names else ()
        return unique(self.numbers[number] for number in numbers if number in self.numbers)

    @property
    def has_names(self) -> bool:
        """Whether the devices that carry connections are those that the log names."""
        return bool(self.numbers) and any(way.startswith(f"{NET}{self.named}") for way in self.rails)


def joined(events: Sequence[Mapping[str, Any]]) -> NcclPath:
    """Return what the ranks of one node told; a part of another form is passed over."""
    numbers: dict[int, str] = {}
    ways: dict[str, int] = defaultdict(int)
    settings: dict[str, str] = {}
    interfaces: list[str] = []
    closed: list[str] = []
    devices = 0
    ring: tuple[int, ...] = ()
    for event in events:
        for number, name in pairs(event.get("hcas")):
            if number.isascii() and number.isdigit() and len(number) < _MOST_DIGITS:
                numbers[int(number)] = str(name).partition("/")[0]
        for way, count in pairs(event.get("ways")):
            ways[way] += count if type(count) is int else 0
        settings |= {name: str(value) for name, value in pairs(event.get("settings"))}
        listed = event.get("interfaces")
        interfaces += [str(name) for name in listed] if isinstance(listed, list) else []
        closed += [name for name, on in pairs(event.get("direct")) if on is False]
        devices = max(devices, _count(event.get("devices")))
        ring = ring or _order(event.get("ring"))
    return NcclPath(
        network=next((str(event["network"]) for event in events if event.get("network")), ""),
        named=next((str(event["named"]) for event in events if event.get("named")), "IB"),
        ports=unique(numbers[number] for number in sorted(numbers)),
        numbers=numbers,
        interfaces=unique(interfaces),
        ways=dict(ways),
        settings=settings,
        not_direct=unique(name for name in closed if not name.startswith("lo")),
        no_device=any(event.get("no_device") is True for event in events),
        devices=devices,
        told=len(events),
        ring=ring,
    )


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0


def _order(value: Any) -> tuple[int, ...]:
    """Return a list of ranks, () for anything else."""
    listed = value if isinstance(value, list) else []
    return tuple(listed) if all(type(rank) is int for rank in listed) else ()


def pairs(value: Any) -> list[tuple[str, Any]]:
    """Return the items of a dict, [] of anything else."""
    return list(value.items()) if isinstance(value, dict) else []


def _number(way: str) -> str:
    """Return the number of the device in a way such as ``NET/IB/0(1)/GDRDMA``, '' without one."""
    match = _DEVICE_OF_WAY.match(way)
    return match.group(1) if match else ""


def unique(words: Iterable[str]) -> tuple[str, ...]:
    """Return each word once, in order."""
    return tuple(dict.fromkeys(words))
