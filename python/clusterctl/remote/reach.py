"""Build the command that runs a program on a node, through ssh or srun, and say why it failed.

Both take the program's stdin and stdout as pipes, and both end the program's stdin when they end.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

from clusterctl.model.probe import ProbeFailure
from clusterctl.remote import ssh, ssh_failure
from clusterctl.support import content

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from module_utils import known_messages  # mypy finds it by mypy_path

    from clusterctl.model.hosts import Host, SlurmStep
    from clusterctl.model.probe import FailureKind
else:
    known_messages = content.module_util("known_messages")

# srun hands its whole environment to the node by default, with what a controller has in it and no node needs.
_EXPORTED = ("HOME", "USER", "LOGNAME", "SHELL", "LANG", "PATH", "LD_LIBRARY_PATH")
_AT_ONCE = 64
# One sshd begins to refuse logins when ten are on their way (MaxStartups).
_AT_ONCE_ON_ONE_SSHD = 8
_SSH_FAILED = 255
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

    Args:
        host: where to run it.
        remote: argv on the node.
        as_user: run it through ``sudo -n`` as this user; None runs it as the login user, or as the job's user.
        control_dir: see :func:`clusterctl.remote.ssh.arguments`. A submit host has a connection for each command: on a
            shared one, sshd allows ten sessions (MaxSessions).
        connect_timeout_s: see :func:`clusterctl.remote.ssh.arguments`.
    """
    if host.step is None:
        return ssh.command(host, remote, as_user=as_user, control_dir=control_dir, connect_timeout_s=connect_timeout_s)
    argv = srun(host.step, ssh.as_another(host, remote, as_user))
    if host.step.submit is None:
        return argv
    return ssh.command(host.step.submit, argv, connect_timeout_s=connect_timeout_s)


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
    return len(by_ssh) > _AT_ONCE_ON_ONE_SSHD and any(map(ssh.has_bastion, (by_ssh[0], by_ssh[-1])))


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


def classify(host: Host, returncode: int, stderr: str) -> ProbeFailure:
    """Return why a command on a host failed.

    Args:
        host: the host.
        returncode: of the local ssh or srun; of the local ssh to the submit host where there is one.
        stderr: what ssh, srun, slurmstepd, sudo or the program wrote.
    """
    step = host.step
    if step is None:
        return ssh_failure.classify(host, returncode, stderr)
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
    found = known_messages.find("srun", stderr) if slurm_speaks else None
    if found is None:
        return ProbeFailure(host.name, "error", f"{where(host)}: the probe ended with status {returncode}. {said}")
    cause, cure = found.meaning(job=step.job, node=step.node, python=host.python)
    return ProbeFailure(host.name, cast("FailureKind", found.row.kind), f"{where(host)}: {cause}; {cure} ({said}).")
