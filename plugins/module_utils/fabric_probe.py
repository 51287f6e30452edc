# SPDX-License-Identifier: Apache-2.0
"""Try real TCP connections between nodes, from the address and to the address that a job would use.

A node first listens on an ephemeral port of each candidate address. When every node listens, it connects to the others,
with its own address bound as the source. Both sides send their name and a token of this run. So a connection that ends
at another machine (docker0: at the node itself), or comes from another address, differs from one that is refused or
lost. Then 64 KiB go there and back, because small packets pass where an MTU is wrong on the way. Every step has a
deadline.

The program runs over ssh (requests and answers are lines of JSON on stdin and stdout), and inside the modules
``fabric_listen`` and ``fabric_connect``. It needs the standard library of Python 3.9 alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import json
import os
import random
import selectors
import socket
import sys
import termios
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple, cast

Json = Dict[str, Any]

_GREETING = "clusterctl-fabric"
_MOST_BYTES = 512  # of a greeting or an answer
_BACKLOG = 256
_MOST_PORTS_TRIED = 256
_STRANGER_S = 5.0  # until a silent caller is dropped
_BULK_S = 30.0  # until a caller of this run is dropped
_BULK = b"x" * 65536  # more than the largest MTU, many times
_ARRIVED = b"+"  # alone in its packet, so it passes where large ones do not
PAUSES_S = (0.0, 6.0)  # before a late call is tried again; a full neighbour table drops what is unused for 5 s
_LATE = {"timeout", "cut", "cut_back"}
_UNBINDABLE = {errno.EADDRNOTAVAIL, errno.ENODEV}
# What a firewall on the way or at the other end makes of a connection; firewalld's reject is EHOSTUNREACH.
_REJECTIONS = {
    errno.EHOSTUNREACH,
    errno.EHOSTDOWN,
    errno.ENETUNREACH,
    errno.EACCES,
    errno.EPERM,
    errno.ECONNRESET,
    errno.ECONNABORTED,
    errno.EPIPE,
    errno.EPROTO,
}
# What the kernel of the caller answers at once: no route, a route that forbids it (EINVAL: blackhole), or its policy.
_OWN_REJECTIONS = {*_REJECTIONS, errno.EINVAL, errno.ENETDOWN}
_NO_PORT = "no port is free for them"
_PORT_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
_USUAL_RANGE = (32768, 28232)
_PORTS = 8  # that a node listens on
_PART_OF_RANGE = 4  # of a small range, jobs need the most


def _socket(address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return made


def _bind(link: socket.socket, address: str, ports: Sequence[int], chance: random.Random) -> None:
    """Bind a socket to a free port of a range; the first attempts are spread over it."""
    first, count = ports
    for port in chance.sample(range(first, first + count), min(count, _MOST_PORTS_TRIED)):
        try:
            link.bind((address, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return
    raise OSError(errno.EADDRINUSE, f"every port that was tried from {first} to {first + count - 1} is in use")


def spread(ranges: Sequence[Sequence[int]]) -> List[Tuple[int, int]]:
    """Return the ranges in each of which a node listens on one port, each as its first port and their number.

    The last range is cut into equal parts, so that a firewall that closes a part of it is seen. Of each range before
    it, one port is enough. A range that begins with 0 is the one that the kernel takes ephemeral ports from.
    """
    *others, last = [(int(first), int(count)) if first else _ephemeral() for first, count in ranges]
    first, count = last
    parts = max(1, min(_PORTS - len(others), count // _PART_OF_RANGE))
    size = count // parts
    begins = [(first + size * number, size) for number in range(parts - 1)]
    return [*others, *begins, (first + size * (parts - 1), count - size * (parts - 1))]


def _ephemeral() -> Tuple[int, int]:
    try:
        low, high = (int(word) for word in Path(_PORT_RANGE).read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return _USUAL_RANGE
    return (low, high - low + 1) if 0 < low <= high else _USUAL_RANGE


def _same_address(one: str, other: str) -> bool:
    try:
        return ipaddress.ip_address(one.partition("%")[0]) == ipaddress.ip_address(other)
    except ValueError:
        return False


class _Call:
    """One open connection: the words still to be sent, the words that came back, and its deadline.

    ``due`` are the bytes of 64 KiB and their signs that are still to come; None before both sides know each other.
    """

    def __init__(self, link: socket.socket, until: float, target: Optional[Json] = None, words: str = "") -> None:
        self.link = link
        self.until = until
        self.target = target  # None: an incoming call
        self.words = words.encode()
        self.heard = b""
        self.due: Optional[int] = None
        self.caller = ""

    def unheard(self) -> int:
        """Return how many bytes the kernel of the other side has not confirmed yet."""
        try:
            waiting = fcntl.ioctl(self.link.fileno(), termios.TIOCOUTQ, b"\0" * 4)
        except OSError:
            return 0
        return len(self.words) + int.from_bytes(waiting, sys.byteorder)


class Exchange:
    """Listens, answers and calls, all in one thread.

    Attributes:
        ports: by network, the ports that this node listens on.
        problems: by network, why it does not listen.
        results: of the calls, each ``[network, target, kind, problem, port]``.
        answered: callers of this run that got an answer, each with the port.
    """

    def __init__(self, name: str, token: str) -> None:
        """Prepare to speak as the node of that name, with callers that know the token."""
        self.name, self.token = name, token
        self.ports: Dict[str, List[int]] = {}
        self.problems: Dict[str, str] = {}
        self.results: List[List[str]] = []
        self.answered: Set[Tuple[str, int]] = set()
        self._selector = selectors.DefaultSelector()
        self._calls: Dict[int, _Call] = {}
        self._open = 0  # our own calls without a result

    def listen(
        self, addresses: Dict[str, str], ranges: Sequence[Sequence[int]] = ((0, 1),), seed: Optional[str] = None
    ) -> None:
        """Listen on ports of each address; the addresses are by network.

        ``ranges`` have the first port and their number, for one port each; port 0 is an ephemeral one. The same seed
        leads to the same ports while they are free.
        """
        for network, address in addresses.items():
            chance = random.Random(seed)  # noqa: S311 - a choice, not a secret
            for ports in ranges:
                link = _socket(address)
                try:
                    _bind(link, address, ports, chance)
                    link.listen(_BACKLOG)
                except OSError as error:
                    link.close()
                    self.problems[network] = f"cannot listen on {address}: {error.strerror}"
                    continue
                self.ports.setdefault(network, []).append(int(link.getsockname()[1]))
                self._selector.register(link, selectors.EVENT_READ, None)
            if network in self.ports:
                self.problems.pop(network, None)

    def connect(self, targets: List[Json], timeout_s: float) -> None:
        """Call every target, ``{network, source, name, address, port}``, all at once."""
        until = time.monotonic() + timeout_s
        for target in targets:
            link = _socket(str(target["address"]))
            words = f"{_GREETING} {self.token} {self.name}\n"
            call = _Call(link, until, target, words)
            self._open += 1
            try:
                link.bind((str(target["source"]), 0))
                code = link.connect_ex((str(target["address"]), int(target["port"])))
            except OSError as error:
                code = error.errno or errno.EIO
                if code in _UNBINDABLE:
                    self._end(call, "error", f"{self.name} no longer has the address {target['source']}")
                    continue
            if code not in {0, errno.EINPROGRESS}:
                if code in _OWN_REJECTIONS:
                    self._end(call, "no_route", os.strerror(code))
                elif code == errno.EADDRINUSE:  # of a port that the kernel was to choose
                    self._end(call, "no_route", _NO_PORT)
                else:
                    self._end(call, *self._failure(target, code))
                continue
            self._calls[link.fileno()] = call
            self._selector.register(link, selectors.EVENT_WRITE, call)

    def connect_all(
        self, targets: List[Json], timeout_s: float, *, stdin: bool = False, pauses_s: Sequence[float] = PAUSES_S[:1]
    ) -> None:
        """Call every target and wait for the results; after each pause, a call that was late is tried once more."""
        self._call_all(targets, timeout_s, stdin=stdin)
        for pause_s in pauses_s:
            late = {(one[0], one[1], one[4]) for one in self.results if one[2] in _LATE}
            if not late:
                return
            self.run(lambda: True, time.monotonic() + pause_s, stdin=stdin)
            self.results = [one for one in self.results if (one[0], one[1], one[4]) not in late]
            again = [one for one in targets if (str(one["network"]), str(one["name"]), str(one["port"])) in late]
            self._call_all(again, timeout_s, stdin=stdin)

    def _call_all(self, targets: List[Json], timeout_s: float, *, stdin: bool) -> None:
        self.connect(targets, timeout_s)
        self.run(lambda: self._open > 0, time.monotonic() + timeout_s + _STRANGER_S, stdin=stdin)

    def run(self, go_on: Callable[[], bool], until: float, *, stdin: bool = False) -> None:
        """Answer and call while ``go_on()``, at most until a time (of time.monotonic()).

        With ``stdin``, the end of standard input ends it as well.
        """
        if stdin:
            self._selector.register(0, selectors.EVENT_READ, None)
        try:
            while go_on():
                now = time.monotonic()
                if now >= until:
                    break
                soonest = min([call.until for call in self._calls.values()] + [until])
                for key, _unused in self._selector.select(max(0.0, min(soonest - now, 1.0))):
                    if key.fd == 0:
                        if not os.read(0, 4096):
                            return
                    elif key.data is None:
                        self._accept(cast("socket.socket", key.fileobj))
                    else:
                        self._advance(key.data)
                self._expire()
        finally:
            if stdin:
                self._selector.unregister(0)

    def settle(self) -> None:
        """Register the sockets anew after a fork: the epoll set is shared, and the parent empties it."""
        before, self._selector = self._selector, selectors.DefaultSelector()
        for key in before.get_map().values():
            self._selector.register(key.fileobj, key.events, key.data)

    def close(self) -> None:
        """Close every socket."""
        for key in list(self._selector.get_map().values()):
            self._selector.unregister(key.fileobj)
            cast("socket.socket", key.fileobj).close()
        self._selector.close()

    def _accept(self, listener: socket.socket) -> None:
        try:
            link, _unused = listener.accept()
        except OSError:  # the caller has gone
            return
        link.settimeout(0)
        call = _Call(link, time.monotonic() + _STRANGER_S)
        self._calls[link.fileno()] = call
        self._selector.register(link, selectors.EVENT_READ, call)

    def _advance(self, call: _Call) -> None:
        try:
            if call.words:
                self._push(call)
            elif call.due is None:
                self._hear(call, call.link.recv(_MOST_BYTES))
            else:
                self._received(call, call.link.recv(len(_BULK)))
        except BlockingIOError:
            return
        except OSError as error:
            self._end(call, *self._failure(call.target or {}, error.errno or errno.EIO))

    def _push(self, call: _Call) -> None:
        """Send what the connection takes, once it stands."""
        code = call.link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._end(call, *self._failure(call.target or {}, code))
            return
        call.words = call.words[call.link.send(call.words) :]
        if not call.words:
            self._sent(call)

    def _hear(self, call: _Call, block: bytes) -> None:
        """Take a part of a greeting or of an answer."""
        call.heard += block
        if block and b"\n" not in call.heard and len(call.heard) < _MOST_BYTES:
            return
        words = call.heard.partition(b"\n")[0].decode("utf-8", "replace").split(" ")
        if call.target is None:
            self._answer(call, words)
            return
        kind, problem = self._verdict(call.target, words)
        if kind == "ok":
            self._send(call, _BULK, len(_ARRIVED + _BULK))
        else:
            self._end(call, kind, problem)

    def _send(self, call: _Call, words: bytes, due: int) -> None:
        """Begin to send many bytes; so many are due afterwards."""
        call.words, call.due = words, due
        self._selector.modify(call.link, selectors.EVENT_WRITE, call)

    def _sent(self, call: _Call) -> None:
        """Go on when all was sent: the answer of the other side is due, or its end, so that no port of ours waits."""
        self._selector.modify(call.link, selectors.EVENT_READ, call)
        if call.target is None:
            call.due = 0
            self.answered.add((call.caller, int(call.link.getsockname()[1])))

    def _received(self, call: _Call, block: bytes) -> None:
        """Count what came of the 64 KiB; when all came, a listener says so, and sends as much."""
        if not block or not call.due:
            self._end(call, "rejected", "the connection was ended while 64 KiB were sent")
            return
        call.due -= len(block)
        if call.due > 0:
            return
        if call.target is not None:
            self._end(call, "ok", "")
        else:
            call.link.send(_ARRIVED)
            self._send(call, _BULK, 0)

    def _answer(self, call: _Call, words: List[str]) -> None:
        """Tell a caller of this run our name and the address that it came from; a stranger gets no answer."""
        if len(words) == 3 and words[:2] == [_GREETING, self.token]:  # noqa: PLR2004 - as connect sends it
            with contextlib.suppress(OSError):  # the caller has hung up, and knows it
                call.link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                call.link.send(f"{_GREETING} {self.token} {self.name} {call.link.getpeername()[0]}\n".encode())
                call.caller, call.due, call.until = words[2], len(_BULK), time.monotonic() + _BULK_S
                return
        self._end(call, "", "")

    def _verdict(self, target: Json, words: List[str]) -> Tuple[str, str]:
        where = f"{target['address']} port {target['port']}"
        if len(words) != 4 or words[0] != _GREETING or words[1] != self.token:  # noqa: PLR2004 - as _answer sends it
            return "wrong_node", f"another program than the probe of {target['name']} answers at {where}"
        if words[2] == self.name:
            return "wrong_node", f"{where} leads back to {self.name} itself"
        if words[2] != target["name"]:
            return "wrong_node", f"{words[2]} answers at {where}"
        if not _same_address(words[3], str(target["source"])):
            return "wrong_source", f"it arrives from {words[3]} instead of {target['source']}"
        return "ok", ""

    def _failure(self, target: Json, code: int) -> Tuple[str, str]:
        if code == errno.ETIMEDOUT:
            return "timeout", "timed out"
        if code == errno.ECONNREFUSED:
            if self._is_mine(str(target.get("address", ""))):
                return "wrong_node", f"{target['address']} is an address of {self.name} itself"
            return "refused", f"connection refused by {target.get('address')} port {target.get('port')}"
        return "rejected" if code in _REJECTIONS else "error", os.strerror(code)

    @staticmethod
    def _late(call: _Call) -> Tuple[str, str]:
        """Say how far a call came until its deadline: a wrong MTU lets nothing pass of 64 KiB, a slow link a part."""
        size = len(_BULK)
        if call.due is None:
            return "timeout", "timed out" if call.words else "connected, but no answer came"
        if call.due > size:
            arrived = size - call.unheard()
            if arrived <= 0:
                return "cut", "large packets are lost"
            return "timeout", f"{arrived} of {size} bytes arrived"
        if call.due < size:
            return "timeout", f"{size - call.due} of {size} bytes came back"
        return "cut_back", "large packets are lost on their way back"

    @staticmethod
    def _is_mine(address: str) -> bool:
        try:
            with _socket(address) as link:
                link.bind((address, 0))
        except OSError:
            return False
        return True

    def _expire(self) -> None:
        now = time.monotonic()
        for call in [call for call in self._calls.values() if call.until <= now]:
            self._end(call, *self._late(call))

    def _end(self, call: _Call, kind: str, problem: str) -> None:
        if self._calls.pop(call.link.fileno(), None):
            self._selector.unregister(call.link)
        call.link.close()
        if call.target is not None:
            self._open -= 1
            network, name, port = (str(call.target[key]) for key in ("network", "name", "port"))
            self.results.append([network, name, kind, problem, port])


def listen_apart(exchange: Exchange, callers: int, lifetime_s: float) -> None:
    """Leave a process behind that answers until every caller had its answer, or its time is up.

    It has a session of its own, and holds no file of the caller open.
    """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        exchange.settle()
        os.chdir("/")
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        exchange.run(lambda: len(exchange.answered) < callers, time.monotonic() + lifetime_s)
    finally:
        os._exit(0)


def _say(answer: Json) -> None:
    sys.stdout.write(json.dumps(answer, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def main(_arguments: Sequence[str] = ()) -> int:
    """Work for the controller: listen, write the ports, call, write the results, keep answering.

    The first line of stdin is ``{name, token, addresses, lifetime_s, ports, seed}``; ``ports`` are the ranges of
    :func:`spread`. The second is ``{targets, timeout_s}``. The end of stdin ends the listeners.
    """
    request = json.loads(sys.stdin.buffer.readline())
    until = time.monotonic() + float(request["lifetime_s"])
    exchange = Exchange(str(request["name"]), str(request["token"]))
    exchange.listen(request["addresses"], spread(request["ports"]), f"{request['seed']} {request['name']}")
    _say({"fabric": 1, "ports": exchange.ports, "problems": exchange.problems})
    line = sys.stdin.buffer.readline()  # the controller writes it when every node listens
    if not line:
        return 0
    order = json.loads(line)
    exchange.connect_all(order["targets"], float(order["timeout_s"]), stdin=True)
    _say({"fabric": 2, "results": exchange.results})
    exchange.run(lambda: True, until, stdin=True)
    exchange.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
