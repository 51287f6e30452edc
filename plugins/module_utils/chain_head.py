# SPDX-License-Identifier: Apache-2.0
"""Lead a chain of nodes from its first one: start a taker on each node by ssh, follow the plan, and end it all.

The file on this node may still grow while the controller copies it here. The standard library of Python 3.9 is enough.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import secrets
import selectors
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set

from .chain_plan import ChainPlan
from .chain_relay import command, ended, open_regular
from .login_probe import NOT_INTERACTIVE

Json = Dict[str, Any]

SSH = (
    "ssh",
    *NOT_INTERACTIVE,
    "-o",
    "BatchMode=yes",
    "-o",
    "StrictHostKeyChecking=yes",
    "-o",
    "UpdateHostKeys=no",
    "-o",
    "ControlMaster=no",
    "-o",
    "ControlPath=none",
    "-o",
    "ConnectTimeout=10",
    "-o",
    "ServerAliveInterval=5",
    "-o",
    "ServerAliveCountMax=3",
    "-o",
    "Compression=no",
    "-o",
    "Ciphers=^aes128-gcm@openssh.com",
)
AT_ONCE = 128  # nodes with a connection of the head
_LOGINS = 16  # that are under way at once
_GATHER_S = 3.0  # from the first node that is ready until the chain begins without the others
_LOGIN_S = 30.0
_STALL_S = 30.0  # without a byte, while the source has more
_LEAST_RATE = 1 << 20  # bytes/s from a node that has the whole pack; the controller serves a slower node itself
_LONGEST_START_S = 120.0
_ARRIVAL_S = 60.0  # without a byte from the controller
_PLAN_EVERY_S = 1.0
_FAREWELL_S = 5.0
_BLOCK = 1 << 16
_MOST_LINE = 1 << 20
_MOST_SAID = 300


class ChainError(Exception):
    """The chain cannot be made, or was cut; the message is one sentence."""


@dataclass
class Taking:
    """One node of the chain."""

    name: str
    python: str
    file: str
    folders: Sequence[str]
    process: Optional["subprocess.Popen[bytes]"] = None
    streams: Sequence[int] = ()  # its standard input, output and errors
    unsent: bytes = b""
    heard: bytes = b""
    said: bytes = b""
    state: str = "waiting"  # login, ready, taking, done, keeping; at the end has, kept or failed
    why: str = ""
    folder: int = 0
    since: float = 0.0  # of the last step forward
    whole_since: float = 0.0  # from when on its source has had the whole pack; 0 is not yet

    @property
    def path(self) -> str:
        """The file on the node."""
        return f"{self.folders[self.folder]}/{self.file}"


class ChainHead:
    """All takers of one pack; ``plan`` tells who takes from whom."""

    def __init__(
        self, name: str, paths: Sequence[str], request: Json, nodes: Sequence[Mapping[str, Any]], text: bytes
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            name: this node's name in the mesh.
            paths: where the pack may lie on this node; it may appear later and grow.
            request: ``size``, ``piece_bytes``, ``sums``, ``marker``, ``bytes_per_s``, ``ssh``, and this node's
                ``python``.
            nodes: the others, each ``{name, python, file, folders}``.
            text: the program that takes and gives.
        """
        self._name, self._paths, self._text = name, paths, text
        self._request = {**request, "do": "take", "mark": secrets.token_hex(16)}
        self._size = int(request["size"])
        least = min(_LEAST_RATE, float(request["bytes_per_s"]) / 4 or _LEAST_RATE)
        self._longest_s = _LONGEST_START_S + self._size / least
        self._nodes = {
            str(node["name"]): Taking(str(node["name"]), str(node["python"]), str(node["file"]), list(node["folders"]))
            for node in nodes
        }
        self.plan = ChainPlan(name, self._size)
        self._selector = selectors.DefaultSelector()
        self._piece, self._sums = int(request["piece_bytes"]), base64.b64decode(request["sums"])
        self._accusers: Set[str] = set()
        self._begun = False
        self._first_ready = 0.0
        self._handle = -1
        self._path = ""
        self._arrived, self._arrived_at = 0, time.monotonic()

    def run(self, tick: Callable[[str], None] = lambda _line: None) -> Json:
        """Bring the pack to all nodes; returns ``delivered`` (folder by node), ``has``, and ``reasons`` by node.

        Raises:
            ChainError: the pack does not arrive on this node, or does not arrive whole.
        """
        planned = 0.0
        try:
            while self._open():
                self._start()
                for key, mask in self._selector.select(0.1):
                    key.data[1](key.data[0], mask)
                now = time.monotonic()
                self._look_at_own_file(now)
                self._begin(now)
                if now - planned > _PLAN_EVERY_S:
                    planned = now
                    self._give_up_the_silent(now)
                    self._order(self.plan.around_slow_nodes(now))
                    tick(self._line())
            self._farewell()
        finally:
            self._end()
        return {
            "delivered": {node.name: node.folder for node in self._in_state("kept")},
            "has": [node.name for node in self._in_state("has")],
            "reasons": {node.name: node.why for node in self._in_state("failed")},
            "slow": sorted(self.plan.slow & self._nodes.keys()),
        }

    def _in_state(self, *states: str) -> List[Taking]:
        return [node for node in self._nodes.values() if node.state in states]

    def _open(self) -> bool:
        return bool(self._in_state("waiting", "login", "ready", "taking"))

    def _line(self) -> str:
        done = len(self._in_state("done", "has", "kept"))
        return f"{done} of {len(self._nodes)} other nodes have the pack"

    # --- this node's own file -----------------------------------------------------------------------------------

    def _look_at_own_file(self, now: float) -> None:
        if self._handle < 0:
            for path in self._paths:
                with contextlib.suppress(OSError):
                    self._handle = open_regular(path)
                    self._path = path
                    break
        if self._handle >= 0:
            state = os.fstat(self._handle)
            if state.st_nlink == 0:
                raise ChainError("the copy from the controller was given up.")
            size = min(state.st_size, self._size)
            if size > self._arrived or size == self._size:
                self._arrived_at = now
            self._arrived = size
            self.plan.progress(self._name, size, now)
        if now - self._arrived_at > _ARRIVAL_S:
            raise ChainError(f"nothing came from the controller for {_ARRIVAL_S:.0f} s.")

    # --- connections --------------------------------------------------------------------------------------------

    def _start(self) -> None:
        connected = len(self._in_state("login", "ready", "taking"))
        for node in self._in_state("waiting"):
            if connected >= AT_ONCE or len(self._in_state("login")) >= _LOGINS:
                return
            connected += 1
            request = {**self._request, "file": node.file, "folders": node.folders}
            node.unsent = self._text + json.dumps(request).encode() + b"\n"
            node.process = process = subprocess.Popen(
                [*self._request["ssh"], "--", node.name, command(node.python, self._text)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                bufsize=0,
            )
            node.state, node.since = "login", time.monotonic()
            node.streams = tuple(
                stream.fileno() for stream in (process.stdin, process.stdout, process.stderr) if stream
            )
            for stream in node.streams:
                os.set_blocking(stream, False)
            self._selector.register(node.streams[1], selectors.EVENT_READ, (node, self._hear))
            self._selector.register(node.streams[2], selectors.EVENT_READ, (node, self._overhear))
            self._selector.register(node.streams[0], selectors.EVENT_WRITE, (node, self._speak))

    def _speak(self, node: Taking, _mask: int) -> None:
        try:
            sent = os.write(node.streams[0], node.unsent[:_BLOCK])
            node.unsent = node.unsent[sent:]
        except BlockingIOError:
            return
        except OSError:
            node.unsent = b""  # the end of its output says why
        if not node.unsent:
            self._selector.unregister(node.streams[0])

    def _send(self, node: Taking, order: Json) -> None:
        if not node.streams:
            return
        if not node.unsent:
            self._selector.register(node.streams[0], selectors.EVENT_WRITE, (node, self._speak))
        node.unsent += json.dumps(order).encode() + b"\n"

    def _overhear(self, node: Taking, _mask: int) -> None:
        data = os.read(node.streams[2], _BLOCK)
        node.said = (node.said + data)[-_BLOCK:]
        if not data:
            self._selector.unregister(node.streams[2])

    def _hear(self, node: Taking, _mask: int) -> None:
        data = os.read(node.streams[1], _BLOCK)
        if not data or len(node.heard) > _MOST_LINE:
            self._selector.unregister(node.streams[1])
            if node.state == "keeping":
                self._kept(node)
            elif node.state != "has":
                self._fail(node, self._last_words(node))
            return
        node.heard += data
        mark = f"{self._request['mark']} ".encode()
        while b"\n" in node.heard:
            line, _unused, node.heard = node.heard.partition(b"\n")
            if line.startswith(mark):
                self._note(node, line[len(mark) :])

    def _note(self, node: Taking, line: bytes) -> None:
        """Take one report of a node; a report of another form ends its part."""
        now = time.monotonic()
        try:
            said = json.loads(line)
            event = said["event"]
            if event == "ready" and node.state == "login":
                node.folder = int(said["folder"])
                node.state, node.since = "ready", now
                if not 0 <= node.folder < len(node.folders):
                    raise ValueError(event)  # noqa: TRY301 - as for any other form
                self._first_ready = self._first_ready or now
            elif event == "has" and node.state == "login":
                node.state = "has"
            elif event == "have":
                self._forward(node, min(int(said["bytes"]), self._size), now)
            elif event == "done":
                self._forward(node, self._size, now)
                node.state = "done"
                if self._in_state("waiting"):  # more nodes than connections: its own is needed no longer
                    self._keep(node)
            elif event in {"lost", "damaged"}:
                self._replace_source(node, str(said["source"]), str(said["why"])[:_MOST_SAID], said)
            elif event == "refused":
                self._fail(node, str(said["why"])[:_MOST_SAID])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            self._fail(node, "it answers in another form")

    def _forward(self, node: Taking, have: int, now: float) -> None:
        node.since = now
        self.plan.progress(node.name, have, now)

    # --- the plan -----------------------------------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        """Put the nodes that are ready into the chain, in the order of the inventory."""
        if self._handle < 0 or not self._first_ready:
            return
        if not self._begun and self._in_state("login") and now - self._first_ready < _GATHER_S:
            return
        self._begun = True
        for node in self._in_state("ready"):
            node.state, node.since = "taking", now
            self._order(self.plan.join(node.name))

    def _order(self, changes: Mapping[str, str]) -> None:
        for name, source in changes.items():
            node = self._nodes[name]
            if source == self._name:
                origin = {"name": self._name, "path": self._path, "python": self._request["python"]}
            else:
                giver = self._nodes[source]
                origin = {"name": source, "path": giver.path, "python": giver.python}
            node.since = time.monotonic()
            self._send(node, {"from": origin})

    def _replace_source(self, node: Taking, source: str, why: str, said: Json) -> None:
        if self.plan.source.get(node.name) != source:
            return  # a new order is on its way
        if said["event"] == "damaged":
            if source == self._name and self._is_damaged(int(said["bytes"]) // self._piece):
                raise ChainError(f"the copy on this node is damaged: {why}.")
            why = f"it calls the copy on {source} damaged"
        self._accuse(node, source, why or f"it lost the connection to {source}")

    def _is_damaged(self, number: int) -> bool:
        """Whether a piece that has arrived here is not what the controller sent."""
        begin = number * self._piece
        end = min(begin + self._piece, self._size)
        if not 0 <= begin < end <= self._arrived:
            return False
        piece = os.pread(self._handle, end - begin, begin)
        return hashlib.sha256(piece).digest() != self._sums[number * 32 : number * 32 + 32]

    def _accuse(self, node: Taking, source: str, why: str) -> None:
        """Let nobody take from a node, by the word of one that takes from it; one node's word counts once."""
        if source == self._name or node.name in self._accusers:
            self._fail(node, why)
        else:
            self._accusers.add(node.name)
            self._order(self.plan.pass_over(source))

    def _give_up_the_silent(self, now: float) -> None:
        for node in self._in_state("login"):
            if now - node.since > _LOGIN_S:
                self._fail(node, f"it did not answer within {_LOGIN_S:.0f} s")
        for node in self._in_state("taking"):
            source = self.plan.source[node.name]
            if self.plan.have(source) >= self._size:
                node.whole_since = node.whole_since or now
            if node.whole_since and now - node.whole_since > self._longest_s:
                self._fail(node, f"it did not take the whole pack within {self._longest_s:.0f} s")
            elif self.plan.have(source) <= self.plan.have(node.name):
                node.since = now
            elif now - node.since > _STALL_S:
                self._accuse(node, source, f"it took nothing for {_STALL_S:.0f} s")

    def _fail(self, node: Taking, why: str) -> None:
        if node.state in {"failed", "has"}:
            return
        node.state, node.why = "failed", why
        self._order(self.plan.leave(node.name))
        if node.process is not None:
            node.process.kill()

    @staticmethod
    def _last_words(node: Taking) -> str:
        lines = [line.strip() for line in node.said.decode("utf-8", "replace").splitlines() if line.strip()]
        return lines[-1][:_MOST_SAID] if lines else "the connection ended"

    # --- the end ------------------------------------------------------------------------------------------------

    def _keep(self, node: Taking) -> None:
        node.state = "keeping"
        self._send(node, {"keep": True})

    def _kept(self, node: Taking) -> None:
        """Take the end of a node's program; only a clean end says that it has kept the file."""
        code: Optional[int] = None
        if node.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = node.process.wait(_FAREWELL_S)
        if code == 0:
            node.state = "kept"
        else:
            self._fail(node, "it did not keep the file")

    def _farewell(self) -> None:
        """Have the nodes keep their files."""
        for node in self._in_state("done"):
            self._keep(node)
        until = time.monotonic() + _FAREWELL_S
        while self._in_state("keeping") and time.monotonic() < until:
            for key, mask in self._selector.select(0.1):
                key.data[1](key.data[0], mask)
        for node in self._in_state("keeping"):
            self._fail(node, "it did not keep the file")

    def _end(self) -> None:
        for node in self._nodes.values():
            if node.process is not None:
                ended(node.process)
        self._selector.close()
        if self._handle >= 0:
            os.close(self._handle)


def relay_text() -> bytes:
    """Return the program for the nodes; a module of Ansible finds it in its own zip."""
    from . import chain_relay  # noqa: PLC0415 - only the head sends it

    loader = getattr(chain_relay, "__loader__", None)
    if loader is not None and hasattr(loader, "get_data"):
        return bytes(loader.get_data(chain_relay.__file__))
    return Path(str(chain_relay.__file__)).read_bytes()
