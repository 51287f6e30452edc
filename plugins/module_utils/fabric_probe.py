# SPDX-License-Identifier: Apache-2.0
"""Try real TCP connections between nodes, from the address and to the address that a job would use.

A node first listens on an ephemeral port of each candidate address. When every node listens, it connects to the others,
with its own address bound as the source. Both sides send their name and a token of this run. So a connection that ends
at another machine (docker0: at the node itself), or comes from another address, differs from one that is refused or
lost. Every step has a deadline.

The program runs over ssh (requests and answers are lines of JSON on stdin and stdout), and inside the modules
``fabric_listen`` and ``fabric_connect``. It needs the standard library of Python 3.9 alone.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import random
import selectors
import socket
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple, cast

Json = Dict[str, Any]

_GREETING = "clusterctl-fabric"
_MOST_BYTES = 512  # of a greeting or an answer
_BACKLOG = 256
_MOST_PORTS_TRIED = 256
_STRANGER_S = 5.0  # until a silent caller is dropped
_UNBINDABLE = {errno.EADDRNOTAVAIL, errno.ENODEV}


def _socket(address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return made


def _bind(link: socket.socket, address: str, ports: Sequence[int]) -> None:
    """Bind a socket to a free port of a range; the first attempts are spread over it."""
    first, count = ports
    for port in random.sample(range(first, first + count), min(count, _MOST_PORTS_TRIED)):
        try:
            link.bind((address, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return
    raise OSError(errno.EADDRINUSE, f"every port that was tried from {first} to {first + count - 1} is in use")


def _same_address(one: str, other: str) -> bool:
    try:
        return ipaddress.ip_address(one.partition("%")[0]) == ipaddress.ip_address(other)
    except ValueError:
        return False


class _Call:
    """One open connection: the words still to be sent, the words that came back, and its deadline."""

    def __init__(self, link: socket.socket, until: float, target: Optional[Json] = None, words: str = "") -> None:
        self.link = link
        self.until = until
        self.target = target  # None: an incoming call
        self.words = words.encode()
        self.heard = b""


class Exchange:
    """Listens, answers and calls, all in one thread.

    Attributes:
        ports: by network, the port that this node listens on.
        problems: by network, why it does not listen.
        results: of the calls, each ``[network, target, kind, problem]``.
        answered: callers of this run that got an answer, each with the port.
    """

    def __init__(self, name: str, token: str) -> None:
        """Prepare to speak as the node of that name, with callers that know the token."""
        self.name, self.token = name, token
        self.ports: Dict[str, int] = {}
        self.problems: Dict[str, str] = {}
        self.results: List[List[str]] = []
        self.answered: Set[Tuple[str, int]] = set()
        self._selector = selectors.DefaultSelector()
        self._calls: Dict[int, _Call] = {}
        self._open = 0  # our own calls without a result

    def listen(self, addresses: Dict[str, str], ports: Sequence[int] = (0, 1)) -> None:
        """Listen on a port of each address; the addresses are by network.

        ``ports`` are the first port and their number; port 0 is an ephemeral one.
        """
        for network, address in addresses.items():
            link = _socket(address)
            try:
                _bind(link, address, ports)
                link.listen(_BACKLOG)
            except OSError as error:
                link.close()
                self.problems[network] = f"cannot listen on {address}: {error.strerror}"
                continue
            self.ports[network] = int(link.getsockname()[1])
            self._selector.register(link, selectors.EVENT_READ, None)

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
                self._end(call, *self._failure(target, code))
                continue
            self._calls[link.fileno()] = call
            self._selector.register(link, selectors.EVENT_WRITE, call)

    def connect_all(self, targets: List[Json], timeout_s: float, *, stdin: bool = False) -> None:
        """Call every target and wait for the results; a call that timed out is tried once more."""
        for is_last in (False, True):
            self.connect(targets, timeout_s)
            self.run(lambda: self._open > 0, time.monotonic() + timeout_s + _STRANGER_S, stdin=stdin)
            late = {(network, name) for network, name, kind, _unused in self.results if kind == "timeout"}
            if is_last or not late:
                break
            targets = [one for one in targets if (one["network"], one["name"]) in late]
            self.results = [one for one in self.results if (one[0], one[1]) not in late]

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
                code = call.link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    self._end(call, *self._failure(call.target or {}, code))
                    return
                call.words = call.words[call.link.send(call.words) :]
                if not call.words:
                    self._selector.modify(call.link, selectors.EVENT_READ, call)
                return
            block = call.link.recv(_MOST_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(call, *self._failure(call.target or {}, error.errno or errno.EIO))
            return
        call.heard += block
        if block and b"\n" not in call.heard and len(call.heard) < _MOST_BYTES:
            return
        words = call.heard.partition(b"\n")[0].decode("utf-8", "replace").split(" ")
        if call.target is None:
            self._answer(call, words)
        else:
            self._end(call, *self._verdict(call.target, words))

    def _answer(self, call: _Call, words: List[str]) -> None:
        """Tell a caller of this run our name and the address that it came from; a stranger gets no answer."""
        if len(words) == 3 and words[:2] == [_GREETING, self.token]:  # noqa: PLR2004 - as connect sends it
            try:
                peer = call.link.getpeername()[0]
                call.link.send(f"{_GREETING} {self.token} {self.name} {peer}\n".encode())
                self.answered.add((words[2], int(call.link.getsockname()[1])))
            except OSError:  # the caller has hung up, and knows it
                pass
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
        return "error", os.strerror(code)

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
            self._end(call, "timeout", "timed out" if call.words else "connected, but no answer came")

    def _end(self, call: _Call, kind: str, problem: str) -> None:
        if self._calls.pop(call.link.fileno(), None):
            self._selector.unregister(call.link)
        call.link.close()
        if call.target is not None:
            self._open -= 1
            self.results.append([str(call.target["network"]), str(call.target["name"]), kind, problem])


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

    The first line of stdin is ``{name, token, addresses, lifetime_s}``, and ``ports`` as in :meth:`Exchange.listen`.
    The second is ``{targets, timeout_s}``. The end of stdin ends the listeners.
    """
    request = json.loads(sys.stdin.buffer.readline())
    until = time.monotonic() + float(request["lifetime_s"])
    exchange = Exchange(str(request["name"]), str(request["token"]))
    exchange.listen(request["addresses"], request.get("ports", (0, 1)))
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
