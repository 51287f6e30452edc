"""Gather the facts of all nodes: one typed record per node, over one ssh connection each.

The program that answers is the package ``plugins/module_utils/node_probe``. The connections are asyncio subprocesses,
because ClusterShell's local workers take a shell string (``WorkerPopen`` starts with ``shell=True``), and a command
here is a list of tokens.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from clusterctl.model.facts import NodeFacts, Probe, ProbeFailure, WatchEntry
from clusterctl.remote import bounded, python, ssh, sudo
from clusterctl.remote.ssh_failure import by_hand, classify, shortened, where
from clusterctl.support import node_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from clusterctl.model.hosts import Host


NODE_PROBE = "node_probe.__main__"
_MOST_CONNECT_SECONDS = 10


def gather(
    hosts: Iterable[Host],
    *,
    watch: Mapping[str, Sequence[WatchEntry]] | None = None,
    content: Sequence[int] = (),
    artifacts: Sequence[Mapping[str, Any]] | None = None,
    libraries: Sequence[Mapping[str, Any]] = (),
    resolve: Sequence[str] | None = None,
    leftovers: bool = False,
    busy: bool = False,
    check_sudo: bool = False,
    job_users: Mapping[str, str] | None = None,
    timeout_s: float = 30,
    fanout: int = 64,
    control_dir: Path | None = None,
) -> Probe:
    """Ask every host for its facts, at most ``fanout`` at a time.

    Args:
        hosts: the hosts, reachable by plain ssh (``Host.by_ssh``). A host with ``become`` is asked through sudo,
            with its password where it has one.
        watch: by host name, the entries whose present state is wanted.
        content: slices of the watched artifacts' files whose content is compared, from 0 to 6.
        artifacts: artifacts to verify, each with ``name`` and ``link``, and optionally ``inputs``: names of inputs to
            report. None verifies every installed artifact.
        libraries: libraries to find as the loader does, each with ``soname``, and optionally ``also``: patterns of
            further files to report.
        resolve: names that every node looks up in addition to its own, as for ssh; None looks up nothing.
        leftovers: also find ranks whose launcher is gone.
        busy: also find ranks, and processes that use an artifact.
        check_sudo: also find out whether the login user has sudo without a password.
        job_users: by host name, the account that jobs run as, '' for the login user. It is then looked at, too.
        timeout_s: seconds from the start of a connection until it is given up.
        fanout: connections at a time.
        control_dir: folder of shared connections, see :func:`clusterctl.remote.ssh.arguments`.

    Returns:
        A record or a failure for every host; nothing is raised for a host.
    """
    requests = {
        host: json.dumps(
            {
                "watch": [_asked(entry) for entry in (watch or {}).get(host.name, ())],
                "content": list(content),
                "artifacts": None if artifacts is None else [dict(entry) for entry in artifacts],
                "libraries": [dict(entry) for entry in libraries],
                "resolve": None if resolve is None else list(resolve),
                "leftovers": leftovers,
                "busy": busy,
                "check_sudo": check_sudo,
                "job_user": (job_users or {}).get(host.name),
            }
        ).encode()
        for host in hosts
    }

    async def everyone() -> list[NodeFacts | ProbeFailure]:
        turn = asyncio.Semaphore(fanout)

        async def one(host: Host, request: bytes) -> NodeFacts | ProbeFailure:
            async with turn:
                return await _ask(host, request, timeout_s, control_dir)

        return await asyncio.gather(*(one(host, request) for host, request in requests.items()))

    answers = asyncio.run(everyone())
    probe = Probe()
    for host, answer in zip(requests, answers, strict=True):
        if isinstance(answer, ProbeFailure):
            probe.failures[host.name] = answer
        else:
            probe.facts[host.name] = answer
    return probe


def _asked(entry: WatchEntry) -> dict[str, Any]:
    return {key: entry[key] for key in ("path", "kind", "marker") if key in entry}


async def _ask(host: Host, request: bytes, timeout_s: float, control_dir: Path | None) -> NodeFacts | ProbeFailure:
    program = python.program(NODE_PROBE)
    remote, first = sudo.as_become_user(host, program.argv(host.python))
    argv = ssh.command(
        host,
        remote,
        control_dir=control_dir,
        connect_timeout_s=max(1, min(_MOST_CONNECT_SECONDS, int(timeout_s))),
    )
    try:
        async with python.talk(argv) as talk:
            ending = await asyncio.wait_for(talk.finish(first + program.data + request), timeout_s)
    except python.NoClientError:
        return ProbeFailure(host.name, "error", "There is no ssh client on this machine; install openssh-client.")
    except asyncio.TimeoutError:
        return ProbeFailure(
            host.name,
            "timeout",
            f"{where(host)} did not answer within {timeout_s:g} s; see whether it hangs: {by_hand(host)}.",
        )
    except bounded.TooMuchOutputError as error:
        return ProbeFailure(
            host.name, "error", f"{where(host)}: {error}; see what a login prints there: {by_hand(host)}."
        )
    if ending.returncode == 0:
        return _read(host, ending)
    return classify(host, ending.returncode, ending.errors)


def _read(host: Host, ending: python.Ending) -> NodeFacts | ProbeFailure:
    """Return the record in the output, which may have lines of a login script around it."""
    line = next((line for line in reversed(ending.output.splitlines()) if line.startswith(b'{"schema_version"')), b"")
    try:
        found = NodeFacts.model_validate_json(line)
        node_json.loads(line)  # a part of any form may hold NaN, which no record can hold
    except ValidationError as problem:
        first = problem.errors()[0]
        cause = f"{'.'.join(str(part) for part in first['loc']) or 'the answer'}: {first['msg']}"
    except ValueError as problem:
        cause = str(problem)
    else:
        return found
    evidence = shortened(ending.errors)
    return ProbeFailure(host.name, "error", f"{where(host)} gave no readable record ({cause}). {evidence}".strip())
