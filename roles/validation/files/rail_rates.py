"""How fast each rail or cable of a node takes what another node sends to it: by TCP, one at a time.

The programs import this module by its bare name, because it lies in their folder. It needs Python 3.9 or newer.

A trial lasts a moment. The receiver counts what comes in that time, so a slow rail costs no more time than a fast one.
"""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import struct
import threading
import time
from pathlib import Path
from typing import Mapping, NamedTuple, Sequence

RECORD = Path("/etc/clusterctl/fabric.json")
TRIAL_S = 0.12
CONNECT_S = 1.0
PASSES = 3
MORE_S = 5.0  # for more passes where a rail seems slow, since the processor may be busy
SLOWER = 2.0  # times
LEAST = 2e6  # bytes per second; over a slower rail, an exchange of 64 MiB takes longer than its check has
_AT_ONCE = bytearray(1 << 20)
_LARGEST_RECORD = 1 << 20
_AT_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: what was not sent yet is dropped, and leaves the rail free


class Rail(NamedTuple):
    """One of several equal networks, as the fabric's record has it."""

    interface: str
    cidr: str
    address: str


class Way(NamedTuple):
    """From one rank to another over a rail or cable, with its place in the list of each of the two.

    Ways of one ``group`` that end at the same rank are compared there; ``number`` tells them apart.
    """

    source: int
    target: int
    at_source: int
    at_target: int
    group: int
    number: int


def carriers(record: Path = RECORD) -> tuple[bool, list[Rail]]:
    """Return whether cables carry the messages of this node, and the rails or cables; none where it has one network."""
    try:
        with record.open(encoding="utf-8") as stream:
            told = json.loads(stream.read(_LARGEST_RECORD))
        found = [Rail(str(one["interface"]), str(one["cidr"]), str(one["address"])) for one in told.get("carriers", ())]
        return bool(found) and all(one.cidr not in told["cidrs"] for one in found), found
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False, []


def speed(interface: str) -> int:
    """Return the speed of an interface in Mb/s, 0 where the kernel tells none."""
    try:
        return max(0, int(Path(f"/sys/class/net/{interface}/speed").read_text(encoding="ascii")))
    except (OSError, ValueError):
        return 0


def rounds(first: Sequence[int], carrying: Mapping[int, tuple[bool, Sequence[tuple[str, int]]]]) -> list[list[Way]]:
    """Return what is tried at a time: in each round, a rank sends to one and hears from one.

    Args:
        first: the first rank of each node.
        carrying: by these, whether they have cables; network and speed of each rail or cable.

    Returns:
        No rounds where the nodes do not have equal rails, nor a cable between each two.
    """
    if all(has_cables for has_cables, _own in carrying.values()):
        return _over_cables(first, {rank: own for rank, (_unused, own) in carrying.items()})
    count = len(carrying[first[0]][1])
    if count < 2 or any(has_cables or len(own) != count for has_cables, own in carrying.values()):  # noqa: PLR2004 - one is no rail
        return []
    return [
        [Way(source, target, rail, rail, source, rail) for source, target in _apart(first, distance)]
        for distance in range(1, min(len(first), 3))  # two others, where there are two
        for rail in range(count)
    ]


def _over_cables(first: Sequence[int], own: Mapping[int, Sequence[tuple[str, int]]]) -> list[list[Way]]:
    found = []
    for distance in range(1, len(first)):
        ways = []
        for source, target in _apart(first, distance):
            theirs = [name for name, _speed in own[target]]
            joined = [place for place, (name, _speed) in enumerate(own[source]) if name in theirs]
            if not joined:
                return []
            at = theirs.index(own[source][joined[0]][0])
            ways.append(Way(source, target, joined[0], at, own[target][at][1], source))
        found.append(ways)
    return found


def _apart(first: Sequence[int], distance: int) -> list[tuple[int, int]]:
    return [(source, first[(place + distance) % len(first)]) for place, source in enumerate(first)]


def listener(address: str) -> socket.socket:
    """Return a socket that listens on a free port of an address.

    Raises:
        OSError: the address is not there.
    """
    made = socket.socket(_family(address), socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        made.bind(_place(address, 0))
        made.listen(1)
    except OSError:
        made.close()
        raise
    return made


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _place(address: str, port: int) -> tuple[object, ...]:
    return socket.getaddrinfo(address, port, flags=socket.AI_NUMERICHOST)[0][4]


class Arrival(threading.Thread):
    """Receives for the time of a trial what one sender sends; ``rate`` is in bytes per second."""

    def __init__(self, listens: socket.socket, source: str) -> None:
        """Take the caller of this address alone."""
        super().__init__(daemon=True)
        self.listens, self.source, self.rate = listens, source.partition("%")[0], 0.0

    def run(self) -> None:
        """Count what comes."""
        end = time.monotonic() + CONNECT_S + TRIAL_S
        with contextlib.suppress(OSError):
            while time.monotonic() < end:
                self.listens.settimeout(max(0.01, end - time.monotonic()))
                link, place = self.listens.accept()
                with link:
                    if place[0].partition("%")[0] == self.source:
                        self.rate = _received(link)
                        return


def _received(link: socket.socket) -> float:
    buffer, count = bytearray(1 << 20), 0
    began = time.monotonic()
    while (left := TRIAL_S - (time.monotonic() - began)) > 0:
        link.settimeout(left)
        try:
            some = link.recv_into(buffer)
        except OSError:
            break
        if not some:
            break
        count += some
    return count / TRIAL_S


def send(source: str, address: str, port: int) -> None:
    """Send for the time of a trial, from one address to another; a rail that is down takes nothing."""
    if "%" in source:  # the scope of the other node is the name of its own interface
        address = f"{address.partition('%')[0]}%{source.partition('%')[2]}"
    made = socket.socket(_family(address), socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    with made as link, contextlib.suppress(OSError):
        link.settimeout(CONNECT_S)
        link.bind(_place(source, 0))
        link.connect(_place(address, port))
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_CLOSE)
        end = time.monotonic() + 2 * TRIAL_S
        while (left := end - time.monotonic()) > 0:
            link.settimeout(left)
            link.send(_AT_ONCE)


def doubtful(samples: Mapping[int, Mapping[int, Sequence[float]]]) -> bool:
    """Whether a rail or cable seems slow: the fastest of its rates is far below the median of another of its group.

    Args:
        samples: by :class:`Way`'s group and number, the rates.
    """
    return any(
        max(rates) * SLOWER < max(map(statistics.median, ways.values()))
        for ways in samples.values()
        for rates in ways.values()
    )
