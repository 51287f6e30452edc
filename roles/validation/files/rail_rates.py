"""How fast each rail of a node takes what another node sends to it: by TCP, one rail at a time.

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


def rails(record: Path = RECORD) -> list[Rail]:
    """Return the networks that share the messages of this node; none where it has one network, or cables."""
    try:
        with record.open(encoding="utf-8") as stream:
            told = json.loads(stream.read(_LARGEST_RECORD))
        found = [Rail(str(one["interface"]), str(one["cidr"]), str(one["address"])) for one in told.get("carriers", ())]
        return found if any(one.cidr in told["cidrs"] for one in found) else []
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


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
    """Whether a rail seems slow: the fastest of its rates from a node is far below the median of another rail.

    Args:
        samples: by the sender's rank and by rail, the rates.
    """
    return any(
        max(rates) * SLOWER < max(map(statistics.median, rails.values()))
        for rails in samples.values()
        for rates in rails.values()
    )


def distances(nodes: int) -> Sequence[int]:
    """Return how far on in the ring the nodes are to whom each node sends: two others, where there are two."""
    return range(1, min(nodes, 3))
