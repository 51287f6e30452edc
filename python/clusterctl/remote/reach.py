"""Build the command that runs a program on a node, through ssh or srun, and say why it failed.

Both take the program's stdin and stdout as pipes, and both end the program's stdin when they end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import shlex
import socket
import struct
import subprocess
from typing import TYPE_CHECKING, cast

from clusterctl.model.probe import ProbeFailure
from clusterctl.remote import ssh_failure
from clusterctl.support import content, held_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from module_utils import error_meanings  # mypy finds it by mypy_path

    from clusterctl.model.hosts import Host, SlurmStep
    from clusterctl.model.probe import FailureKind
else:
    error_meanings = content.module_util("error_meanings")

# What every call of ssh says against settings for people in somebody's ssh configuration.
NOT_INTERACTIVE: tuple[str, ...] = content.module_util("login_probe").NOT_INTERACTIVE
# A machine that freezes or loses its power says nothing: without these, a command waits a quarter of an hour for it.
NOTICE_SILENCE = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")

# A connection's socket in a folder of them, as Ansible's setting control_path names it: ssh replaces %C.
CONTROL_PATH = "%(directory)s/%%C"
# srun hands its whole environment to the node by default, with what a controller has in it and no node needs.
_EXPORTED = ("HOME", "USER", "LOGNAME", "SHELL", "LANG", "PATH", "LD_LIBRARY_PATH")
_AT_ONCE = 64
# One sshd begins to refuse logins when ten are on their way (MaxStartups).
_AT_ONCE_ON_ONE_SSHD = 8
_SSH_FAILED = 255
# What a client of a shared connection says, by PROTOCOL.mux of OpenSSH: hello in version 4, and that it is to end.
_HELLO, _TERMINATE = struct.pack(">III", 8, 0x00000001, 4), struct.pack(">III", 8, 0x10000005, 0)
_ENDING_S, _BLOCK = 5.0, 1 << 12
_COMMAND_NOT_FOUND = 127
_WITHOUT_SRUN = re.compile(r"\bsrun: (?:command )?not found")
_SLURM_SPEAKS = re.compile(r"^(?:srun|slurmstepd|slurmd|slurm_\w+)(?:\[\w+\])?:? ", re.MULTILINE)
_TASK_ENDED = re.compile(r"^srun: error: \S+: tasks? [\d,-]+: (?:Exited with exit code|Terminated|Killed|Aborted)")


def command(
    host: Host,
    remote: Sequence[str],
    *,
    as_user: str | None = None,
    control_dir: Path | None = None,
    connect_timeout_s: int = 10,
) -> list[str]:
    """Return the whole argv that runs ``remote`` on the host; each token arrives as it is.

    ``as_user`` is reached through ``sudo -n``; None is the login user, or the job's user. A submit host has a
    connection for each command: on a shared one, sshd allows ten sessions (MaxSessions). The rest is as in
    :func:`arguments`.
    """
    if host.step is None:
        return ssh_command(host, remote, as_user=as_user, control_dir=control_dir, connect_timeout_s=connect_timeout_s)
    argv = srun(host.step, as_another(host, remote, as_user))
    if host.step.submit is None:
        return argv
    return ssh_command(host.step.submit, argv, connect_timeout_s=connect_timeout_s)


def srun(step: SlurmStep, remote: Sequence[str]) -> list[str]:
    """Return the srun line that runs ``remote`` once, as one more step of the job on the step's node.

    The step shares the node with all other steps, and is not bound to a core: mpirun and its ranks run in one.
    ``--unbuffered`` is left out, for it gives the program a terminal; without it srun passes on whole lines.
    """
    return [
        "srun",
        f"--jobid={step.job}",
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        f"--nodelist={step.node}",
        "--cpu-bind=none",
        "--mpi=none",
        "--input=all",
        "--chdir=/",
        f"--export={','.join(_EXPORTED)}",
        *remote,
    ]


def lasting(host: Host) -> Host:
    """Return the host with options for a connection that outlives one command."""
    return dataclasses.replace(host, ssh_args=(*host.ssh_args, *NOTICE_SILENCE))


def client(host: Host) -> str:
    """Return the program that reaches the host, as messages name it."""
    return "ssh" if host.step is None else "srun"


def without_client(host: Host) -> str:
    """Return the sentence for a machine that lacks the program that reaches the host."""
    if host.step is None or host.step.submit is not None:
        return "There is no ssh client on this machine; install openssh-client."
    return "srun is missing on this machine; install Slurm's client, or name a host that has it with --submit-host."


def at_once(hosts: Iterable[Host]) -> int:
    """Return how many commands for these hosts may start at the same time."""
    return _AT_ONCE_ON_ONE_SSHD if through_one(tuple(hosts)) else _AT_ONCE


def through_one(hosts: Sequence[Host]) -> bool:
    """Return whether many logins go to one machine first: a submit host or a bastion.

    ssh is asked about the bastion of the first and of the last host alone.
    """
    if any(host.step is not None and host.step.submit is not None for host in hosts):
        return True
    by_ssh = [host for host in hosts if host.step is None]
    return len(by_ssh) > _AT_ONCE_ON_ONE_SSHD and any(map(has_bastion, (by_ssh[0], by_ssh[-1])))


def where(host: Host) -> str:
    """Return the host and how it is reached, for messages."""
    if host.step is None:
        return ssh_failure.where(host)
    node = "" if host.name == host.step.node else f"{host.step.node} "
    return f"{host.name} ({node}in Slurm job {host.step.job})"


def by_hand(host: Host) -> str:
    """Return the command that tries to reach the host by hand."""
    if host.step is None:
        return ssh_failure.by_hand(host)
    return f"'srun --jobid={host.step.job} --overlap --nodes=1 --ntasks=1 --nodelist={host.step.node} true'"


def classify(host: Host, returncode: int, stderr: str, output: bytes = b"") -> ProbeFailure:
    """Return why a command on a host failed.

    Return code and stderr are those of the local ssh or srun, or of ssh to the submit host where there is one.
    ``output`` is what came in place of an answer.
    """
    step = host.step
    if step is None:
        return ssh_failure.classify(host, returncode, stderr, output)
    slurm_speaks = _SLURM_SPEAKS.search(stderr) is not None
    if step.submit is not None and returncode == _SSH_FAILED and not slurm_speaks:
        of_submit = ssh_failure.classify(step.submit, returncode, stderr)
        return ProbeFailure(host.name, of_submit.kind, f"{where(host)} is reached through {of_submit.message}")
    if returncode == _COMMAND_NOT_FOUND and _WITHOUT_SRUN.search(stderr):
        at = "this machine" if step.submit is None else ssh_failure.where(step.submit)
        return ProbeFailure(
            host.name, "error", f"{at} has no srun; install Slurm's client there, or name another --submit-host."
        )
    lines = [line for line in stderr.splitlines() if not _TASK_ENDED.match(line)]
    said = ssh_failure.shortened("\n".join(lines) if any(line.strip() for line in lines) else stderr)
    found = error_meanings.find("srun", stderr) if slurm_speaks else None
    if found is None:
        return ProbeFailure(host.name, "error", f"{where(host)}: the probe ended with status {returncode}. {said}")
    cause, cure = found.meaning(job=step.job, node=step.node, python=host.python)
    return ProbeFailure(host.name, cast("FailureKind", found.row.kind), f"{where(host)}: {cause}; {cure} ({said}).")


# --- The one place that builds an ssh command line; everything in it is a token, nothing a shell string ---------------
#
# It also keeps and ends the connections that such commands share.


def arguments(host: Host, *, control_dir: Path | None = None, connect_timeout_s: int = 10) -> list[str]:
    """Return the argv up to and including the destination.

    Strictness of host keys is the inventory's and the user's ssh configuration's; nothing here relaxes it.
    ``control_dir`` is the folder (short path, mode 0700) of a shared connection that lives for a minute; None is a
    connection of its own. An address that does not answer is given up after ``connect_timeout_s``.

    A ControlPath of Ansible's arguments stays: a connection that its user opened may be the only way in.
    """
    argv = ["ssh", *NOT_INTERACTIVE, "-o", "BatchMode=yes", "-o", f"ConnectTimeout={connect_timeout_s}"]
    own = any(word == "-S" or "controlpath" in word.lower() for word in host.ssh_args)
    if control_dir is not None and not own:
        path = CONTROL_PATH % {"directory": control_dir}
        argv += ["-o", "ControlMaster=auto", "-o", "ControlPersist=60s", "-o", f"ControlPath={path}"]
    return [*argv, *host.login_words, "--", host.address]


def ssh_command(
    host: Host,
    remote: Sequence[str],
    *,
    as_user: str | None = None,
    control_dir: Path | None = None,
    connect_timeout_s: int = 10,
) -> list[str]:
    """Return the whole argv that runs ``remote`` on the host.

    ssh hands the remote shell one string; each token is quoted here so that it arrives as the token it was. ``as_user``
    is reached through ``sudo -n``; None is the login user. The rest is as in :func:`arguments`.
    """
    argv = as_another(host, remote, as_user)
    return [*arguments(host, control_dir=control_dir, connect_timeout_s=connect_timeout_s), shlex.join(argv)]


def has_bastion(host: Host) -> bool:
    """Return whether ssh logs in to another machine first, by the inventory or by the user's configuration."""
    return _has_bastion((*host.login_words, "--", host.address))


@functools.cache
def _has_bastion(destination: tuple[str, ...]) -> bool:
    asking = ["ssh", "-G", *destination]
    try:
        asked = subprocess.run(
            asking, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False, timeout=10
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):  # a Match exec may hang; the call itself tells then
        return False
    settings = dict(line.partition(" ")[::2] for line in asked.stdout.split("\n"))
    return any(settings.get(name, "none") != "none" for name in ("proxyjump", "proxycommand"))


def as_another(host: Host, remote: Sequence[str], user: str | None) -> list[str]:
    """Return an argv that runs ``remote`` through ``sudo -n`` as a user; None and the login user need no sudo."""
    if user is None or user == host.user:
        return list(remote)
    return ["sudo", "-n", "-H", "-u", user, "--", *remote]


@contextlib.contextmanager
def control_folder() -> Iterator[Path]:
    """Yield a folder (mode 0700) for shared ssh connections, and close them all afterwards.

    A unix socket's path ends at 104 bytes on macOS, so it cannot lie in the state folder.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    base = runtime if runtime and os.access(runtime, os.W_OK) and len(runtime) < 25 else held_files.short_base()  # noqa: PLR2004
    with held_files.folder(base) as folder:
        try:
            yield folder
        finally:
            close_connections(folder)


def close_connections(folder: Path) -> None:
    """Ask every ssh master whose socket lies in ``folder`` to end, and wait until it has."""
    for path in folder.glob("*"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ENDING_S)
            connection.connect(str(path))
            connection.sendall(_HELLO + _TERMINATE)
            while connection.recv(_BLOCK):
                pass
