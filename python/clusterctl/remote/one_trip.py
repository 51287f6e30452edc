"""Ask nodes one question each by a program of ``plugins/module_utils``: one trip per node, many nodes at a time.

The connections are asyncio subprocesses, because ClusterShell's local workers take a shell string (``WorkerPopen``
starts with ``shell=True``), and a command here is a list of tokens.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from clusterctl.model.probe import ProbeFailure
from clusterctl.remote import bounded, python, reach, ssh_failure, sudo
from clusterctl.remote.reach import by_hand, classify, where
from clusterctl.remote.ssh_failure import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from clusterctl.model.hosts import Host

_MOST_CONNECT_SECONDS = 10

Answer = TypeVar("Answer")


def ask(
    requests: Mapping[Host, bytes],
    module: str,
    read: Callable[[Host, python.Ending], Answer | ProbeFailure],
    *,
    timeout_s: float,
    fanout: int = 64,
    control_dir: Path | None = None,
) -> tuple[dict[str, Answer], dict[str, ProbeFailure]]:
    """Send each host its request, at most ``fanout`` at a time.

    Args:
        requests: by host (``Host.by_ssh``), what the program reads from standard input. A host with ``become``
            is asked through sudo, with its password where it has one.
        module: see :func:`clusterctl.remote.python.program`.
        read: makes the answer out of the output of a program that ended with 0.
        timeout_s: seconds from the start of a connection until it is given up.
        fanout: connections at a time.
        control_dir: folder of shared connections, see :func:`clusterctl.remote.ssh.arguments`.

    Returns:
        The answers and the failures by the host's name; nothing is raised for a host.
    """
    return asyncio.run(asking(requests, module, read, timeout_s=timeout_s, fanout=fanout, control_dir=control_dir))


async def asking(
    requests: Mapping[Host, bytes],
    module: str,
    read: Callable[[Host, python.Ending], Answer | ProbeFailure],
    *,
    timeout_s: float,
    fanout: int = 64,
    control_dir: Path | None = None,
) -> tuple[dict[str, Answer], dict[str, ProbeFailure]]:
    """Do what :func:`ask` does, inside a loop of the caller's."""
    turn = asyncio.Semaphore(min(fanout, reach.at_once(requests)))

    async def one(host: Host, request: bytes) -> Answer | ProbeFailure:
        async with turn:
            ending = await _talk(host, request, module, timeout_s, control_dir)
        return ending if isinstance(ending, ProbeFailure) else read(host, ending)

    said = await asyncio.gather(*(one(host, request) for host, request in requests.items()))
    answers: dict[str, Answer] = {}
    failures: dict[str, ProbeFailure] = {}
    for host, answer in zip(requests, said, strict=True):
        if isinstance(answer, ProbeFailure):
            failures[host.name] = answer
        else:
            answers[host.name] = answer
    return answers, failures


async def _talk(
    host: Host, request: bytes, module: str, timeout_s: float, control_dir: Path | None
) -> python.Ending | ProbeFailure:
    """Return how the program ended, if it ended with 0."""
    program = python.program(module)
    remote, first = sudo.as_become_user(host, program.argv(host.python))
    connect_timeout_s = max(1, min(_MOST_CONNECT_SECONDS, int(timeout_s)))
    argv = reach.command(host, remote, control_dir=control_dir, connect_timeout_s=connect_timeout_s)
    try:
        async with python.talk(argv) as talk:
            try:
                ending = await asyncio.wait_for(talk.finish(first + program.data + request), timeout_s)
            except asyncio.TimeoutError:
                reading = f", while it read '{shortened(talk.reading)}'" if talk.reading else ""
                late = f"{where(host)} did not answer within {timeout_s:g} s{reading}"
                return ProbeFailure(host.name, "timeout", f"{late}; see whether it hangs: {by_hand(host)}.")
    except python.NoClientError:
        return ProbeFailure(host.name, "error", reach.without_client(host))
    except bounded.TooMuchOutputError as error:
        words = f"{where(host)}: {error}; see what a login prints there: {by_hand(host)}."
        return ProbeFailure(host.name, "error", words)
    if control_dir is not None and ssh_failure.hides_the_bastion(ending.errors):
        return await _talk(host, request, module, timeout_s, None)
    return ending if ending.returncode == 0 else classify(host, ending.returncode, ending.errors)
