"""What the nodes say of themselves: typed records, gathered with one ssh connection per node.

The program that answers is ``plugins/module_utils/node_probe.py``; it travels over the connection's stdin, so a node
needs nothing but Python. The connections are asyncio subprocesses: ClusterShell's local workers take a shell string
(``WorkerPopen`` starts with ``shell=True``), and a command here is a list of tokens from birth to exec.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from clusterctl.model.facts import NodeFacts, Probe, ProbeFailure, WatchEntry
from clusterctl.remote import ssh
from clusterctl.support import content

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from clusterctl.model.hosts import Host


# Twin of node_probe.BOOT: argv[1] says how many bytes of stdin are the program, the rest is the request.
_BOOT = "import sys;exec(compile(sys.stdin.buffer.read(int(sys.argv[1])),'node_probe','exec'))"
# sudo resets the environment, so PATH and LD_LIBRARY_PATH of the session are taken along as arguments. The script is
# constant; whatever varies comes to it by position.
_THROUGH_SUDO = 'user=$1; shift; exec sudo -n -H -u "$user" -- "$@" "$PATH" "${LD_LIBRARY_PATH-}"'
_SSH_FAILED = 255
_COMMAND_NOT_FOUND = 127
_MOST_CONNECT_SECONDS = 10
_MOST_EVIDENCE = 300

_HOST_KEY_WORDS = ("REMOTE HOST IDENTIFICATION HAS CHANGED", "Host key verification failed", "No matching host key")
_REFUSED_WORDS = ("Permission denied", "Too many authentication failures", "no mutual signature", "account is locked")
_UNREACHABLE_WORDS = (
    "Connection refused",
    "Connection timed out",
    "Operation timed out",
    "No route to host",
    "Network is unreachable",
    "Could not resolve hostname",
    "Connection closed",
    "Connection reset",
    "kex_exchange_identification",
    "banner exchange",
)


def gather(
    hosts: Iterable[Host],
    *,
    watch: Mapping[str, Sequence[WatchEntry]] | None = None,
    artifacts: Sequence[Mapping[str, Any]] | None = None,
    libraries: Sequence[Mapping[str, Any]] = (),
    resolve: Sequence[str] | None = None,
    leftovers: bool = False,
    check_sudo: bool = False,
    timeout_s: float = 30,
    fanout: int = 64,
    control_dir: Path | None = None,
) -> Probe:
    """Ask every host for its facts, at most ``fanout`` at a time.

    Args:
        hosts: whom to ask, all of them reachable by plain ssh (``Host.by_ssh``). A host with ``become`` is asked
            through sudo.
        watch: by host name, the entries whose present state is wanted.
        artifacts: what to verify, each with ``name`` and ``link``, and ``inputs`` (names of what shaped it, to be told
            as well) where wanted; None for whatever is installed.
        libraries: what to look for as a session's loader does, each with ``soname``, and ``also`` (patterns of further
            files to tell of) where wanted.
        resolve: names that every node looks up besides its own, as it would for ssh; None looks up none at all.
        leftovers: also find ranks whose launcher is gone.
        check_sudo: also find out whether the login user may sudo without a password.
        timeout_s: seconds from the start of a host's connection until it is given up.
        fanout: connections at a time.
        control_dir: folder of shared connections, see :func:`clusterctl.remote.ssh.arguments`.

    Returns:
        A record or a failure for every host; nothing is raised for a host.
    """
    program = content.probe_program().encode()
    requests = {
        host: json.dumps(
            {
                "watch": [{"path": entry["path"], "kind": entry["kind"]} for entry in (watch or {}).get(host.name, ())],
                "artifacts": None if artifacts is None else [dict(entry) for entry in artifacts],
                "libraries": [dict(entry) for entry in libraries],
                "resolve": None if resolve is None else list(resolve),
                "leftovers": leftovers,
                "check_sudo": check_sudo,
            }
        ).encode()
        for host in hosts
    }

    async def everyone() -> list[NodeFacts | ProbeFailure]:
        turn = asyncio.Semaphore(fanout)

        async def one(host: Host, request: bytes) -> NodeFacts | ProbeFailure:
            async with turn:
                return await _ask(host, program, request, timeout_s, control_dir)

        return await asyncio.gather(*(one(host, request) for host, request in requests.items()))

    answers = asyncio.run(everyone())
    probe = Probe()
    for host, answer in zip(requests, answers, strict=True):
        if isinstance(answer, ProbeFailure):
            probe.failures[host.name] = answer
        else:
            probe.facts[host.name] = answer
    return probe


async def _ask(
    host: Host, program: bytes, request: bytes, timeout_s: float, control_dir: Path | None
) -> NodeFacts | ProbeFailure:
    remote = [host.python, "-I", "-c", _BOOT, str(len(program))]
    if host.become and host.become_user != host.user:
        remote = ["sh", "-c", _THROUGH_SUDO, "sh", host.become_user, *remote]
    argv = ssh.command(
        host,
        remote,
        control_dir=control_dir,
        connect_timeout_s=max(1, min(_MOST_CONNECT_SECONDS, int(timeout_s))),
    )
    pipe = asyncio.subprocess.PIPE
    try:
        # A group of its own, so that whatever ssh starts (a ProxyCommand) can be ended with it.
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
    except FileNotFoundError:
        return ProbeFailure(host.name, "error", "There is no ssh client on this machine; install openssh-client.")
    try:
        output, errors = await asyncio.wait_for(process.communicate(program + request), timeout_s)
    except asyncio.TimeoutError:
        return ProbeFailure(
            host.name,
            "timeout",
            f"{_where(host)} did not answer within {timeout_s:g} s; see whether it hangs: {_by_hand(host)}.",
        )
    finally:
        if process.returncode is None:  # given up, or the whole run is being stopped
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode == 0:
        return _read(host, output, errors)
    return classify(host, int(process.returncode or 0), errors.decode("utf-8", "replace"))


def _read(host: Host, output: bytes, errors: bytes) -> NodeFacts | ProbeFailure:
    """Make a record of what came back, tolerating lines that a login script prints around it."""
    line = next((line for line in reversed(output.splitlines()) if line.startswith(b'{"schema_version"')), b"")
    try:
        return NodeFacts.model_validate_json(line)
    except ValidationError as problem:
        first = problem.errors()[0]
        cause = f"{'.'.join(str(part) for part in first['loc']) or 'the answer'}: {first['msg']}"
        evidence = _shortened(errors.decode("utf-8", "replace"))
        return ProbeFailure(host.name, "error", f"{_where(host)} gave no readable record ({cause}). {evidence}".strip())


def classify(host: Host, returncode: int, stderr: str) -> ProbeFailure:
    """Turn how a probe's ssh ended into a kind and one sentence.

    Args:
        host: who was asked.
        returncode: of the local ssh process: 255 is ssh's own failure, anything else the remote command's.
        stderr: what ssh, sudo or the remote shell said.
    """
    where = _where(host)
    if returncode == _SSH_FAILED:
        return _classify_ssh(host, where, stderr)
    sudo = next((line.strip() for line in stderr.splitlines() if line.startswith("sudo: ")), "")
    if sudo and host.python not in sudo:
        return ProbeFailure(
            host.name,
            "no_sudo",
            f"{where}: {_login(host)} cannot use sudo without a password ({sudo}); allow it in /etc/sudoers.d, "
            "or log in as root.",
        )
    if host.become and returncode == _COMMAND_NOT_FOUND and "sudo" in stderr:
        return ProbeFailure(host.name, "no_sudo", f"{where} has no sudo; install it, or log in as root.")
    if sudo or returncode == _COMMAND_NOT_FOUND or f"{host.python}: No such file" in stderr:
        return ProbeFailure(
            host.name,
            "no_python",
            f"{where} has no {host.python}; install python3 there, or set ansible_python_interpreter.",
        )
    return ProbeFailure(
        host.name, "error", f"{where}: the probe ended with status {returncode}. {_shortened(stderr)}".strip()
    )


def _classify_ssh(host: Host, where: str, stderr: str) -> ProbeFailure:
    said = _shortened(stderr)
    if any(word in stderr for word in _HOST_KEY_WORDS):
        return ProbeFailure(
            host.name,
            "host_key",
            f"{where} shows a host key that this machine does not know or that has changed; verify it with the node's "
            "owner, then put it in known_hosts.",
        )
    if any(word in stderr for word in _REFUSED_WORDS):
        return ProbeFailure(
            host.name,
            "refused",
            f"{where} refuses the login of {_login(host)}; add your public key to its authorized_keys, or name the "
            f"right user and key in the inventory ({said}).",
        )
    if any(word in stderr for word in _UNREACHABLE_WORDS):
        return ProbeFailure(
            host.name,
            "unreachable",
            f"{where} does not answer; see that it is up and that ansible_host and ansible_port are right ({said}).",
        )
    return ProbeFailure(host.name, "error", f"{where}: ssh failed ({said}); try {_by_hand(host)}.")


def _where(host: Host) -> str:
    return f"{host.name} ({host.address} port {host.port})"


def _login(host: Host) -> str:
    return f"user {host.user}" if host.user else "the login user"


def _by_hand(host: Host) -> str:
    user = f"-l {host.user} " if host.user else ""
    return f"'ssh -p {host.port} {user}{host.address} true'"


def _shortened(text: str) -> str:
    """Return the last words that matter of a stderr text, on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Warning: Permanently")]
    return " / ".join(lines[-3:])[-_MOST_EVIDENCE:] or "nothing on stderr"
