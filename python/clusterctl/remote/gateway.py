"""Have a host of the mesh ask its neighbours: one connection of the controller, one line of JSON per neighbour.

The program there is ``plugins/module_utils/gateway_relay.py``. ClusterShell's tree is left out: its gateways and the
controller send each other pickles, so a node could run code on the controller, and all hosts get the same stdin.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterctl.remote import python, reach, sudo

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from clusterctl.model.hosts import Host

_PROGRAM = "gateway_relay"
_MARK = b'{"relayed":'
_FANOUT = 32  # logins of one gateway at a time
_MOST_BYTES = 1 << 23  # of one host; in base64 it stays below bounded.MOST_BYTES
_SILENT_S = 20.0  # the relay writes a line every five seconds
_SSH_FAILED = 255
_HOP = ("BatchMode=yes", "StrictHostKeyChecking=yes", "UpdateHostKeys=no", "ControlMaster=no", "ControlPath=none")


@dataclass(frozen=True)
class HostEnding:
    """How the program ended on a host; ``late`` if it did not end in time, with what it ``reads``."""

    ending: python.Ending
    late: bool = False
    reads: str = ""


@dataclass
class Relayed:
    """What a gateway answered for its hosts, and why it did not answer for the others."""

    endings: dict[Host, HostEnding] = field(default_factory=dict)
    why: str = ""


async def ask(
    gateway: Host,
    requests: Mapping[Host, bytes],
    module: str,
    *,
    timeout_s: float,
    connect_timeout_s: int,
    control_dir: Path | None,
) -> Relayed:
    """Send hosts their requests through a gateway.

    A host that the gateway cannot log in to, or that answers with more than a gateway passes on, has no ending.

    Args:
        gateway: where the relay runs, as its login user and without sudo.
        requests: by host, what the program reads from standard input; no password is among it.
        module: see :func:`clusterctl.remote.python.program`.
        timeout_s: seconds from the start of a connection of the gateway until it is given up.
        connect_timeout_s: seconds until an address that does not answer is given up.
        control_dir: folder of shared connections, see :func:`clusterctl.remote.ssh.arguments`.
    """
    found = Relayed()
    relay = python.program(_PROGRAM)
    argv = reach.command(
        gateway, relay.argv(gateway.python), control_dir=control_dir, connect_timeout_s=connect_timeout_s
    )
    patience_s = _SILENT_S + timeout_s * math.ceil(len(requests) / _FANOUT)
    opening = relay.data + order(requests, module, timeout_s=timeout_s, connect_timeout_s=connect_timeout_s)
    try:
        async with python.talk(argv) as talk:
            await asyncio.wait_for(_converse(talk, opening, list(requests), found), patience_s)
    except asyncio.TimeoutError:
        found.why = "did not answer in time"
    except python.NoClientError:
        found.why = "cannot be reached, for there is no ssh client on this machine"
    except python.EndedError as ended:
        found.why = f"ended before that ({ended})" if str(ended) else "ended before that"
    except (ValueError, LookupError, TypeError):
        found.why = "gave an answer that is not readable"
    return found


def order(requests: Mapping[Host, bytes], module: str, *, timeout_s: float, connect_timeout_s: int) -> bytes:
    """Return what the relay reads: a line of JSON, and the program that the hosts run; equal requests go once."""
    program = python.program(module)
    numbers: dict[bytes, int] = {}
    hosts = [
        {"argv": hop(host, program, connect_timeout_s), "request": numbers.setdefault(request, len(numbers))}
        for host, request in requests.items()
    ]
    line = {
        "hosts": hosts,
        "requests": [base64.b64encode(request).decode("ascii") for request in numbers],
        "program_bytes": len(program.data),
        "timeout_s": timeout_s,
        "most_bytes": _MOST_BYTES,
        "fanout": _FANOUT,
    }
    return json.dumps(line).encode() + b"\n" + program.data


def hop(host: Host, program: python.Program, connect_timeout_s: int) -> list[str]:
    """Return the argv by which a gateway runs a program on a host.

    Nothing of the inventory's way to the host is in it: the mesh knows address, port and host key by the name.
    """
    remote, _ = sudo.as_become_user(host, program.argv(host.python))
    settings = [word for setting in (*_HOP, f"ConnectTimeout={connect_timeout_s}") for word in ("-o", setting)]
    user = ["-l", host.user] if host.user else []
    return ["ssh", "-T", "-a", "-x", *settings, *user, "--", host.name, shlex.join(remote)]


async def _converse(talk: python.Conversation, opening: bytes, hosts: list[Host], found: Relayed) -> None:
    await asyncio.wait_for(talk.send(opening), _SILENT_S)
    left = set(range(len(hosts)))
    while left:
        line = await asyncio.wait_for(talk.answer(_MARK), _SILENT_S)
        number = line["relayed"]
        if number not in left:  # a sign of life
            continue
        left.remove(number)
        said = base64.b64decode(line["err"], validate=True)
        if (ending := _ending(line, said)) is not None:
            found.endings[hosts[number]] = ending
        else:
            words = python.last_line(python.errors_in(said)) or "no answer in time"
            found.why = found.why or f"could not ask them ({words})"


def _ending(line: Mapping[str, Any], said: bytes) -> HostEnding | None:
    """Return how a host's program ended; None where the controller has to ask it."""
    errors, reads = python.errors_in(said), python.reading_in(said)
    if line["end"] == "late" and reads:  # a login that hangs may be the gateway's fault
        return HostEnding(python.Ending(-1, b"", errors), late=True, reads=reads)
    if line["end"] != "done" or int(line["code"]) == _SSH_FAILED:
        return None
    return HostEnding(python.Ending(int(line["code"]), base64.b64decode(line["out"], validate=True), errors))
