"""Ask nodes one question each by a program of ``plugins/module_utils``: one trip per node, many nodes at a time.

The connections are asyncio subprocesses, because ClusterShell's local workers take a shell string (``WorkerPopen``
starts with ``shell=True``), and a command here is a list of tokens.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from clusterctl.model.probe import ProbeFailure
from clusterctl.remote import python, reach, ssh_failure
from clusterctl.remote.reach import by_hand, classify, where
from clusterctl.remote.ssh_failure import shortened
from clusterctl.support import machine_load, memory_room

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from clusterctl.model.hosts import Host


_MOST_CONNECT_SECONDS = 10
_GREETING, _GREETING_S = b"SSH-2.0-", 3.0

Answer = TypeVar("Answer")


async def ask(
    requests: Mapping[Host, bytes],
    module: str,
    read: Callable[[Host, python.Ending], Answer | ProbeFailure],
    *,
    timeout_s: float,
    fanout: int = 64,
    control_dir: Path | None = None,
    ended: Callable[[int], None] = lambda _count: None,
    beside: tuple[str, ...] = (),
) -> tuple[dict[str, Answer], dict[str, ProbeFailure]]:
    """Send each host its request, at most ``fanout`` at a time.

    ``requests`` has by host (``Host.by_ssh``) what the program reads from standard input. A host with ``become`` is
    asked through sudo, with its password where it has one. ``read`` makes the answer out of the output of a program
    that ended with 0. ``timeout_s`` counts from the start of a connection. Where memory is short, connections are
    fewer, and none is shared. ``ended`` hears how many hosts have answered or failed by now, whenever some have.
    ``beside`` is as in :func:`clusterctl.remote.python.program`.

    Returns:
        The answers and the failures by the host's name; nothing is raised for a host.
    """
    room = memory_room.for_questions(len(requests), min(fanout, reach.at_once(requests)))
    program = python.program(module, beside)
    questions = _Questions(requests, program, timeout_s, control_dir if room.shared else None)
    endings = await questions.everyone(room.at_once, ended)
    answers: dict[str, Answer] = {}
    failures: dict[str, ProbeFailure] = {}
    for host in requests:
        ending = endings[host]
        answer = ending if isinstance(ending, ProbeFailure) else read(host, ending)
        if isinstance(answer, ProbeFailure):
            failures[host.name] = answer
        else:
            answers[host.name] = answer
    return answers, failures


@dataclass(frozen=True)
class _Questions:
    """One question to many hosts."""

    requests: Mapping[Host, bytes]
    program: python.Program
    timeout_s: float
    control_dir: Path | None

    async def everyone(self, at_once: int, ended: Callable[[int], None]) -> dict[Host, python.Ending | ProbeFailure]:
        turn = asyncio.Semaphore(at_once)
        endings: dict[Host, python.Ending | ProbeFailure] = {}

        async def one(host: Host) -> None:
            async with turn:
                endings[host] = await self._talk(host, self.control_dir)
            ended(len(endings))

        await asyncio.gather(*map(one, self.requests))
        return endings

    @property
    def _connect_timeout_s(self) -> int:
        return max(1, min(_MOST_CONNECT_SECONDS, int(self.timeout_s)))

    async def _talk(self, host: Host, control_dir: Path | None) -> python.Ending | ProbeFailure:
        """Return how the program ended, if it ended with 0."""
        remote, first = as_become_user(host, self.program.argv(host.python))
        argv = reach.command(host, remote, control_dir=control_dir, connect_timeout_s=self._connect_timeout_s)
        opening = first + self.program.data + self.requests[host]
        began = time.time()
        try:
            async with python.talk(argv) as talk:
                try:
                    ending = await asyncio.wait_for(talk.finish(opening), self.timeout_s)
                except asyncio.TimeoutError:
                    return await self._late(host, talk.reading)
        except python.NoClientError:
            return ProbeFailure(host.name, "error", reach.without_client(host))
        except python.TooMuchOutputError as error:
            words = f"{where(host)}: {error}; see what a login prints there: {by_hand(host)}."
            return ProbeFailure(host.name, "error", words)
        if control_dir is not None and ssh_failure.hides_the_bastion(ending.errors):
            return await self._talk(host, None)
        if ending.returncode == 0:
            return replace(ending, began=began, ended=time.time())
        failure = classify(host, ending.returncode, ending.errors, ending.output)
        return await self._without_path(host, failure) if failure.kind in {"no_python", "no_sudo"} else failure

    async def _without_path(self, host: Host, failure: ProbeFailure) -> ProbeFailure:
        """Return the failure of a node without a program, or say that its sessions lack the folder of programs."""
        remote = [*ssh_failure.SHOW_PATH, host.python.rpartition("/")[2]]
        argv = reach.command(host, remote, connect_timeout_s=self._connect_timeout_s)
        try:
            async with python.talk(argv) as talk:
                ending = await asyncio.wait_for(talk.finish(), self.timeout_s)
        except (asyncio.TimeoutError, ValueError, python.NoClientError):
            return failure
        cause = ssh_failure.path_words(ending.output)
        return ProbeFailure(host.name, "error", f"{where(host)}: {cause}.") if cause else failure

    async def _late(self, host: Host, reads: str) -> ProbeFailure:
        reading = f", while it read '{shortened(reads)}'" if reads else ""
        late = f"{where(host)} did not answer within {self.timeout_s:g} s{reading}"
        cure = f"see whether it hangs: {by_hand(host)}"
        if not reads and await _greets(host):
            late += ", though its sshd greets"
            lost = f"see whether large packets get lost, as with too small an MTU: 'ping -M do -s 1400 {host.address}'"
            cure = f"{lost}; else whether a session hangs: {by_hand(host)}"
        if busy := machine_load.busy_words():
            cure += f"; {busy}, so try again with less work on it"
        return ProbeFailure(host.name, "timeout", f"{late}; {cure}.")


async def _greets(host: Host) -> bool:
    """Whether something at the host's address and port begins as sshd does; its greeting is one small packet."""
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host.address, host.port), _GREETING_S)
    except (OSError, ValueError, asyncio.TimeoutError):
        return False
    try:
        return await asyncio.wait_for(reader.readexactly(len(_GREETING)), _GREETING_S) == _GREETING
    except (OSError, EOFError, asyncio.TimeoutError):
        return False
    finally:
        writer.close()


# --- Run a command on a node through sudo, with or without a password: the words, and what goes to stdin first --------

# sudo resets the environment, so PATH and LD_LIBRARY_PATH of the session become arguments. The script is constant; its
# parameters come by position.
_THROUGH_SUDO = 'user=$1; shift; exec sudo -n -H -u "$user" -- "$@" "$PATH" "${LD_LIBRARY_PATH-}"'
# The same with a password, the first line of stdin. A wrong one is tried once, or sudo would take our program for the
# next two. Where sudo asks for none, that line is read away. A builtin writes it, so it is in no process's arguments.
# One line: csh, as a login shell, takes no newline within quotes.
_THROUGH_SUDO_ASKING = (
    "user=$1; shift; IFS= read -r word; "
    'if sudo -k -n -u "$user" true 2>/dev/null; then '
    'exec sudo -n -H -u "$user" -- "$@" "$PATH" "${LD_LIBRARY_PATH-}"; fi; '
    "printf '%s\\n' \"$word\" | sudo -k -S -p '' -u \"$user\" true || exit $?; "
    "{ printf '%s\\n' \"$word\"; cat; } | "
    'sudo -k -S -p "" -H -u "$user" -- "$@" "$PATH" "${LD_LIBRARY_PATH-}"'
)


def as_become_user(host: Host, remote: Sequence[str]) -> tuple[list[str], bytes]:
    """Return the command with the inventory's privileges, and the bytes that its stdin begins with.

    Through sudo, the command gets PATH and LD_LIBRARY_PATH of the session as two further arguments.
    """
    if not host.become or host.become_user == host.user:
        return list(remote), b""
    if host.sudo_password is None:
        return ["sh", "-c", _THROUGH_SUDO, "sh", host.become_user, *remote], b""
    first = host.sudo_password.encode() + b"\n"
    return ["sh", "-c", _THROUGH_SUDO_ASKING, "sh", host.become_user, *remote], first
