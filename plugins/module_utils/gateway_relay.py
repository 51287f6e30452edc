# SPDX-License-Identifier: Apache-2.0
"""Ask other nodes for the controller: run ssh to each, a few at a time, and write one line of JSON for each.

``clusterctl.remote.gateway`` sends this text to a node that logs in to its neighbours, so that the controller has one
connection in place of many. It changes nothing, and needs the standard library of Python 3.9 and an ssh client. It ends
when its stdin ends, and its logins with it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import sys
from typing import Any, Dict, List, Optional, Sequence

_BLOCK = 1 << 16
_MOST_ERRORS = 1 << 16
_ALIVE_S = 5.0
_ALIVE = -1
# Nothing of this session but what ssh needs: no agent, and no language that sshd would take over.
_KEPT = ("HOME", "USER", "LOGNAME", "PATH")

Json = Dict[str, Any]


class FloodError(Exception):
    """A host writes more than an answer has."""


class Relay:
    """All logins of this gateway."""

    def __init__(self, request: Json, program: bytes) -> None:
        """Prepare the logins."""
        self._hosts: List[Json] = request["hosts"]
        self._inputs = [program + base64.b64decode(one) for one in request["requests"]]
        self._timeout_s = float(request["timeout_s"])
        self._most_bytes = int(request["most_bytes"])
        self._fanout = int(request["fanout"])
        self._environment = {name: os.environ[name] for name in _KEPT if name in os.environ}

    async def run(self) -> int:
        """Ask every host; at the end of stdin, stop."""
        turn = asyncio.Semaphore(self._fanout)
        everyone = asyncio.gather(*(self._in_turn(turn, number) for number in range(len(self._hosts))))
        loop = asyncio.get_running_loop()

        def heard() -> None:
            if not os.read(0, _BLOCK):
                loop.remove_reader(0)
                everyone.cancel()

        loop.add_reader(0, heard)
        alive = asyncio.ensure_future(_say_alive())
        try:
            await everyone
        except asyncio.CancelledError:
            return 1
        finally:
            alive.cancel()
            loop.remove_reader(0)
        return 0

    async def _in_turn(self, turn: asyncio.Semaphore, number: int) -> None:
        async with turn:
            host = self._hosts[number]
            out, err = bytearray(), bytearray()
            try:
                code, end = await self._ask(host["argv"], self._inputs[int(host["request"])], out, err), "done"
            except FloodError:
                code, end, err = -1, "much", bytearray(b"more than an answer has")
            except asyncio.TimeoutError:
                code, end = -1, "late"
            except OSError as error:
                code, end, err = -1, "failed", bytearray(f"ssh could not be started: {error.strerror}".encode())
            if end != "done":
                out.clear()
            say({"relayed": number, "end": end, "code": code, "out": _text(out), "err": _text(err)})

    async def _ask(self, argv: Sequence[str], data: bytes, out: bytearray, err: bytearray) -> int:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=pipe, stdout=pipe, stderr=pipe, cwd="/", env=self._environment, start_new_session=True
        )
        try:
            await asyncio.wait_for(_exchange(process, data, out, err, self._most_bytes), self._timeout_s)
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.communicate()  # asyncio sees no end of a process whose pipes are full
        return int(process.returncode or 0)


async def _exchange(
    process: asyncio.subprocess.Process, data: bytes, out: bytearray, err: bytearray, most_bytes: int
) -> None:
    """Write a process its input, and read what it says until its end.

    Raises:
        FloodError: it says too much.
    """
    work = (_send(process, data), _take(process.stdout, out, most_bytes), _hear(process.stderr, err))
    parts = [asyncio.ensure_future(part) for part in work]
    try:
        await asyncio.gather(*parts)
        await process.wait()
    finally:
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)


async def _send(process: asyncio.subprocess.Process, data: bytes) -> None:
    if process.stdin:
        with contextlib.suppress(ConnectionError):
            process.stdin.write(data)
            await process.stdin.drain()
        process.stdin.close()


async def _take(stream: Optional[asyncio.StreamReader], out: bytearray, most_bytes: int) -> None:
    while stream:
        more = await stream.read(_BLOCK)
        out.extend(more)
        if len(out) > most_bytes:
            raise FloodError
        if not more:
            return


async def _hear(stream: Optional[asyncio.StreamReader], err: bytearray) -> None:
    while stream:
        more = await stream.read(_BLOCK)
        err.extend(more)
        del err[:-_MOST_ERRORS]
        if not more:
            return


async def _say_alive() -> None:
    while True:
        say({"relayed": _ALIVE})
        await asyncio.sleep(_ALIVE_S)


def _text(data: bytearray) -> str:
    return base64.b64encode(bytes(data)).decode("ascii")


def say(line: Json) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def main(_arguments: Sequence[str] = ()) -> Optional[int]:
    """Answer one request: ``{hosts: [{argv, request}], requests, program_bytes, timeout_s, most_bytes, fanout}``.

    The program that the hosts run follows its line. ``requests`` are in base64, and a host names its own by number.
    """
    request = json.loads(sys.stdin.buffer.readline())
    program = sys.stdin.buffer.read(int(request["program_bytes"]))
    return asyncio.run(Relay(request, program).run())


if __name__ == "__main__":
    raise SystemExit(main())
