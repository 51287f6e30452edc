"""Look at the mark of a cluster on nodes, write it, and take and release the lock of a run: one ssh per node."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from clusterctl.model.facts import ProbeFailure
from clusterctl.model.node_claim import ClaimAnswer
from clusterctl.remote import bounded, python, ssh, sudo
from clusterctl.remote.ssh_failure import by_hand, classify, where
from clusterctl.support import node_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.model.hosts import Host

NODE_CLAIM = "node_claim.__main__"
_ANSWER = "node_claim"
_FANOUT = 64
_TIMEOUT_S = 30.0


def ask(
    requests: Mapping[Host, Mapping[str, Any]], timeout_s: float = _TIMEOUT_S
) -> tuple[dict[str, ClaimAnswer], dict[str, ProbeFailure]]:
    """Send each host its request, see ``plugins/module_utils/node_claim``.

    Returns:
        The answers and the failures by the host's name; nothing is raised for a host.
    """

    async def everyone() -> list[ClaimAnswer | ProbeFailure]:
        turn = asyncio.Semaphore(_FANOUT)

        async def one(host: Host, request: Mapping[str, Any]) -> ClaimAnswer | ProbeFailure:
            async with turn:
                return await _ask(host, json.dumps(request).encode(), timeout_s)

        return await asyncio.gather(*(one(host, request) for host, request in requests.items()))

    answers: dict[str, ClaimAnswer] = {}
    failures: dict[str, ProbeFailure] = {}
    for host, answer in zip(requests, asyncio.run(everyone()), strict=True):
        if isinstance(answer, ProbeFailure):
            failures[host.name] = answer
        else:
            answers[host.name] = answer
    return answers, failures


async def _ask(host: Host, request: bytes, timeout_s: float) -> ClaimAnswer | ProbeFailure:
    program = python.program(NODE_CLAIM)
    remote, first = sudo.as_become_user(host, program.argv(host.python))
    try:
        async with python.talk(ssh.command(host, remote, connect_timeout_s=max(1, min(10, int(timeout_s))))) as talk:
            ending = await asyncio.wait_for(talk.finish(first + program.data + request), timeout_s)
    except python.NoClientError:
        return ProbeFailure(host.name, "error", "There is no ssh client on this machine; install openssh-client.")
    except asyncio.TimeoutError:
        words = f"{where(host)} did not answer within {timeout_s:g} s; see whether it hangs: {by_hand(host)}."
        return ProbeFailure(host.name, "timeout", words)
    except bounded.TooMuchOutputError as error:
        return ProbeFailure(host.name, "error", f"{where(host)}: {error}; see what a login prints: {by_hand(host)}.")
    if ending.returncode != 0:
        return classify(host, ending.returncode, ending.errors)
    for line in reversed(ending.output.splitlines()):
        if line.startswith(f'{{"{_ANSWER}"'.encode()):
            try:
                return ClaimAnswer.model_validate(node_json.loads(line)[_ANSWER])
            except (ValidationError, ValueError):
                break
    words = f"{where(host)} gave no readable answer about its cluster; see what a login prints: {by_hand(host)}."
    return ProbeFailure(host.name, "error", words)
