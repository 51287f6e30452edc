"""Have NCCL write its log into memory, pass its warnings on, and tell in one line which way its connections take.

NCCL's user guide, "Environment Variables", has NCCL_DEBUG, NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE; "Troubleshooting" has
the lines. The watching process makes the memory file before the working one exists, so warnings of a rank that hangs or
dies are not lost. A NCCL_DEBUG_FILE of the user stays; then nothing is told.

It needs the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections import Counter
from typing import Any, Iterable, Iterator, Mapping, MutableMapping

# Ask NCCL's RAS how a job stands that does not end: which ranks do not answer, and which operation each is in.
#
# NCCL 2.24 and later listen for such questions in each process (its user guide, "Troubleshooting", "RAS"): one line of
# text goes there, and text comes back until the end. ``NCCL_RAS_ADDR`` names the place, by default localhost:28028.
#
# It needs the standard library only.

ADDRESS = "localhost:28028"
QUESTION = b"verbose status\n"
SECONDS = 10.0  # NCCL itself waits five seconds for its other processes
MOST_ANSWER, MOST_LINES, MOST_LINE = 1 << 16, 30, 200
ASKED_AT = 0.7  # of the deadline


def said(environment: Mapping[str, str], seconds: float = SECONDS) -> str:
    """Return what NCCL says, '' where nobody listens."""
    host, _colon, port = environment.get("NCCL_RAS_ADDR", ADDRESS).rpartition(":")
    found = b""
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(OSError, ValueError, OverflowError))
        line = stack.enter_context(socket.create_connection((host.strip("[]"), int(port)), seconds))
        line.sendall(QUESTION)
        while len(found) < MOST_ANSWER:
            data = line.recv(4096)
            if not data:
                break
            found += data
    return found.decode("utf-8", "replace")


def answer(environment: Mapping[str, str], seconds: float = SECONDS, most: int = MOST_LINES) -> list[str]:
    """Return the first lines that NCCL says, [] where nobody listens."""
    return [text[:MOST_LINE] for text in said(environment, seconds).splitlines() if text.strip()][:most]


def tell() -> None:
    """Print the answer into the job's output, from a thread, for the question may take as long as its deadline."""

    def ask() -> None:
        for text in answer(os.environ):
            with contextlib.suppress(OSError):
                os.write(2, f"NCCL RAS: {text}\n".encode())

    threading.Thread(target=ask, daemon=True).start()


LEVEL, SUBSYSTEMS, FILE = "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"
TALKATIVE = ("INFO", "ABORT", "TRACE")
WANTED = "INIT,ENV,NET,GRAPH"
BLOCK = 1 << 16
MOST_BYTES = 1 << 24  # of a log that is read; NCCL writes some kilobytes for each rank
# What a line tells stays below what a pipe writes in one piece. A rank may use each of 16 rails of a node.
MOST_HCAS, MOST_WAYS, MOST_NAMED, MOST_TEXT = 40, 20, 12, 40
MOST_RING = 64  # ranks; NCCL itself cuts the line of a longer ring off

_SAID = re.compile(r"NCCL (INFO|WARN) (.*)")
_NETWORK = re.compile(r"Using network (.+)")
_USING = re.compile(r"NET/(\S+?) ?: Using (\[.+)")
_PROVIDER = re.compile(r"NET/OFI Selected provider is ([\w;-]+).*\(found ([0-9]{1,6}) nics\)", re.IGNORECASE)
_GROUP = re.compile(r"NET/OFI NIC group ([0-9]{1,6}) device #\d+ ")
_RING = re.compile(r"Channel \d+(?:/\d+)? ?:((?: +[0-9]{1,9})+)$")
_ENTRY = re.compile(r"\[(\d+)\](\S+?)(?:/(IB|RoCE|Ethernet))?(?=\s|$)")
# Of NCCL 2.22 and 2.23: two ports of one card are one device, ``[0]={[0] mlx5_2:1/RoCE, [1] mlx5_3:1/RoCE}``.
_FUSED, _PORT = re.compile(r"\[(\d+)\]=\{([^}]*)\}"), re.compile(r"\[\d+\] ?([^\s,/:]+)(?::\d+)?/(?:IB|RoCE|Ethernet)")
_SOCKET = re.compile(r"\[\d+\]([^:\s]+):\S+<\d+>")
_ENDS = r"\d+\[[^\]]*\] -> \d+\[[^\]]*\]"
_CHANNEL = re.compile(rf"Channel \d+(?:/\d+)? ?: {_ENDS}(?: \[(send|receive)\])? via (\S+(?: \S+)*)")
_MERGED = re.compile(r"NET/IB : Made virtual device \[(\d+)\] name=(\S+)")
# "set by environment to" is of all variables; names of interfaces and ports are told again, by old releases only so.
_SET = re.compile(r"(NCCL_[A-Z0-9_]+) set (?:by environment )?to (.*?)\.?$")
# NVIDIA's plugin leaves the last quotation mark out. It tells what a card can, and NCCL after it what is used.
_DIRECT = re.compile(r"NET/.+? : GPU Direct RDMA (\([\w-]+\) )?([Ee]nabled|[Dd]isabled) for HCA \d+ '([^']+)")
# As two numbers of eight bytes each, in the order of the bytes of a little-endian machine.
_HALF = "([0-9A-F]{1,16})"
_GID = re.compile(rf"NET/IB ?: (?:NCCL )?Dev \d+ I[Bb]Dev (\d{{1,4}}) Port \d+ .*?GID (\d{{1,3}}) \({_HALF}/{_HALF}\)")
_NO_DEVICE = "NET/IB : No device found"
_VERSION = re.compile(r"NCCL version (\d+(?:\.\d+)+)")
_NOT_THE_WAY = re.compile(r"\(\d+\)|/Shared$")  # which rank of the node serves a rail, and that buffers are shared


class Log:
    """NCCL's log of one rank, in memory that this process shares with its children."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        """Set the variables by which NCCL writes it."""
        self.handle = -1
        self.asked = environment.get(LEVEL, "").upper() in TALKATIVE  # the user wants to read all of it
        self._told, self._rest = 0, b""
        if environment.get(FILE):
            return
        self.handle = os.memfd_create("clusterctl_nccl", 0)
        environment[FILE] = f"/proc/self/fd/{self.handle}"
        if not self.asked:
            environment[LEVEL] = "INFO"
            environment[SUBSYSTEMS] = WANTED

    def fresh(self) -> Iterator[str]:
        """Yield the lines since the last call that belong into the job's output: warnings, or all on request."""
        while self.handle >= 0:
            data = os.pread(self.handle, BLOCK, self._told)
            self._told += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                text = line.decode("utf-8", "replace")
                if self.asked or " NCCL WARN " in text:
                    yield text
            if len(data) < BLOCK:
                return

    def lines(self) -> list[str]:
        if self.handle < 0:
            return []
        text = b""
        while len(text) < MOST_BYTES:
            data = os.pread(self.handle, BLOCK, len(text))
            if not data:
                break
            text += data
        return text.decode("utf-8", "replace").splitlines()


def told(lines: Iterable[str]) -> dict[str, Any]:
    """Return what a log says of the way that NCCL's connections take; {} for a log without a word of NCCL.

    Returns:
        ``network`` is NCCL's name of it. ``hcas`` are the RDMA ports that the network ``named`` opened,
        ``mlx5_0:1/RoCE``, and ``interfaces`` those for its sockets. ``ways`` counts connections by their way,
        ``NET/IB/0/GDRDMA`` or ``P2P/CUMEM``. ``settings`` were set by somebody, ``direct`` is GPUDirect by HCA,
        ``no_device``: no RDMA port was found that it could use. ``ring`` is the order of the ranks in the first ring,
        which rank 0 tells. ``gids`` has index and GID of connections over RoCE by the number of the port.
        ``devices`` counts what a plugin offers, where it tells it (aws-ofi-nccl), 0 otherwise.
        ``version`` is that of NCCL.
    """
    found = _Found()
    for line in lines:
        match = _SAID.search(line)
        if match:
            found.take(match.group(2).strip())
        version = _VERSION.search(line)  # since 2.27 on a line of its log
        if version:
            found.version = version.group(1)
    return found.answer()


class _Found:
    def __init__(self) -> None:
        self.some = self.no_device = False
        self.ring: list[int] = []
        self.nics, self.groups, self.named = 0, 0, ""
        self.network = self.version = ""
        self.hcas: dict[int, str] = {}
        self.interfaces: list[str] = []
        self.ways: Counter[str] = Counter()
        self.settings: dict[str, str] = {}
        self.direct: dict[str, bool] = {}
        self.gids: dict[int, tuple[int, str]] = {}

    def take(self, text: str) -> None:
        self.some = True
        self.no_device |= text.startswith(_NO_DEVICE)
        for pattern, take in (
            (_NETWORK, self._network),
            (_USING, self._using),
            (_MERGED, self._merged),
            (_SET, self._set),
            (_DIRECT, self._direct),
            (_CHANNEL, self._channel),
            (_PROVIDER, self._provider),
            (_GROUP, self._group),
            (_RING, self._ring),
            (_GID, self._gid),
        ):
            match = pattern.match(text)
            if match:
                take(*match.groups())

    def _network(self, name: str) -> None:
        self.network = name

    def _using(self, kind: str, rest: str) -> None:
        if kind == "Socket":
            self.interfaces = _SOCKET.findall(rest)
        else:
            self.named, ports = kind, rest.partition(";")[0]
            self.hcas.update({int(at): f"{name}/{layer}" for at, name, layer in _ENTRY.findall(ports) if layer})
            self.hcas.update({int(at): "+".join(_PORT.findall(fused)) for at, fused in _FUSED.findall(ports)})

    def _merged(self, at: str, name: str) -> None:
        self.hcas[int(at)] = name

    def _set(self, name: str, value: str) -> None:
        if name not in {LEVEL, SUBSYSTEMS, FILE}:
            self.settings[name] = value

    def _direct(self, able: str | None, state: str, name: str) -> None:
        if not able or name not in self.direct:
            self.direct[name] = state.lower() == "enabled"

    def _channel(self, _side: str | None, way: str) -> None:
        self.ways[_NOT_THE_WAY.sub("", way)] += 1

    def _provider(self, _name: str, nics: str) -> None:
        self.nics = int(nics)

    def _group(self, number: str) -> None:
        """Count groups: NCCL sees one device for each group of NICs."""
        self.groups = max(self.groups, int(number) + 1)

    def _ring(self, order: str) -> None:
        if not self.ring:
            self.ring = [int(rank) for rank in order.split()]

    def _gid(self, at: str, index: str, *halves: str) -> None:
        gid = b"".join(int(half, 16).to_bytes(8, "little") for half in halves)
        self.gids[int(at)] = (int(index), socket.inet_ntop(socket.AF_INET6, gid))

    def answer(self) -> dict[str, Any]:
        """Return what was found, cut to what one line may tell."""
        if not self.some:
            return {}
        ways, gids = dict(self.ways.most_common(MOST_WAYS)), sorted(self.gids.items())[:MOST_NAMED]
        return {
            "network": self.network[:MOST_TEXT],
            "hcas": {str(at): name[:MOST_TEXT] for at, name in sorted(self.hcas.items())[:MOST_HCAS]},
            "interfaces": [name[:MOST_TEXT] for name in self.interfaces[:MOST_NAMED]],
            "ways": {way[:MOST_TEXT]: count for way, count in ways.items()},
            "settings": {
                name[:MOST_TEXT]: value[:MOST_TEXT] for name, value in list(self.settings.items())[:MOST_NAMED]
            },
            "direct": {name[:MOST_TEXT]: on for name, on in list(self.direct.items())[:MOST_NAMED]},
            "no_device": self.no_device,
            "named": self.named[:MOST_TEXT],
            "ring": self.ring if len(self.ring) <= MOST_RING else [],
            "devices": self.groups or self.nics,
            "version": self.version,
            **({"gids": {str(at): list(gid) for at, gid in gids}} if gids else {}),
        }
