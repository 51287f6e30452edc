"""Turn the end of an srun command into a kind of failure and one sentence: cause and cure.

The words are those of Slurm's own table of errors (src/common/slurm_errno.c) and of slurmstepd.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.model.probe import ProbeFailure
from clusterctl.remote import ssh_failure

if TYPE_CHECKING:
    from clusterctl.model.hosts import Host, SlurmStep
    from clusterctl.model.probe import FailureKind

_SSH_FAILED = 255
_COMMAND_NOT_FOUND = 127
_SLURM_SPEAKS = re.compile(r"^(?:srun|slurmstepd|slurmd|slurm_\w+)(?:\[\w+\])?:? ", re.MULTILINE)
_TASK_ENDED = re.compile(r"^srun: error: \S+: tasks? [\d,-]+: (?:Exited with exit code|Terminated|Killed|Aborted)")


@dataclass(frozen=True)
class _Meaning:
    """What words of Slurm mean; ``cause`` and ``cure`` may name {job}, {node} and {python}."""

    words: re.Pattern[str]
    kind: FailureKind
    cause: str
    cure: str


_SHOW_JOB = "see 'scontrol show job {job}'"
_MEANINGS = tuple(
    _Meaning(re.compile(words, re.IGNORECASE), kind, cause, cure)  # type: ignore[arg-type]
    for words, kind, cause, cure in (
        # The end of a whole job comes first: other words of the same output are its consequences.
        (r"DUE TO TIME LIMIT|exceeded its time limit", "unreachable", "the time limit ended Slurm job {job}",
         "give a longer --time"),
        (r"DUE TO PREEMPTION", "unreachable", "a job of higher priority took the nodes of Slurm job {job}",
         "choose another partition with -p, or try again later"),
        (r"DUE TO NODE FAILURE|Node failure on", "unreachable", "Slurm counts a node of job {job} as failed",
         "see 'sinfo -R', and look at slurmd on {node}"),
        ((r"Unable to contact slurm controller|Unable to establish (?:control|config)|"
         r"Slurm (?:backup )?controller (?:in standby|not responding)"),
         "error", "Slurm's controller does not answer", "see 'scontrol ping', and start slurmctld"),
        ((r"Invalid job id|Expired or invalid job|job \d+ has expired|already completing or completed|"
         r"Job is not running|has already finished|no longer pending"),
         "unreachable", "Slurm job {job} has ended", _SHOW_JOB),
        (r"CANCELLED AT|Force Terminated|allocation \d+ has been revoked", "unreachable",
         "Slurm job {job} or its step was cancelled", _SHOW_JOB),
        (r"Requested nodes are busy|step creation temporarily disabled", "timeout",
         "other steps of job {job} hold the node", "see 'squeue --steps --jobs={job}', and end them with scancel"),
        ((r"(?:Couldn't find|cannot find|Unable to load).*(?:plugin|mpi/)|Invalid MPI (?:type|plugin)|"
         r"MPI: (?:Unable|Cannot)"),
         "error", "this Slurm lacks the MPI plugin that srun was asked for",
         "see 'srun --mpi=list', and install Slurm's PMIx plugin"),
        (r"node configuration is not available", "unreachable",
         "Slurm starts nothing on {node}, which is down or not a node of job {job}",
         "see 'sinfo -R', and look at slurmd on {node}"),
        (r"Invalid node name|nodes? not in|Invalid hostname", "error",
         "{node} is not a node of Slurm job {job}", "see 'scontrol show job {job}' for its nodes"),
        (r"(?:More processors requested|Memory required by task|Invalid generic resource|Task count)", "error",
         "Slurm does not start a step beside the others of job {job}", "see what limits steps in slurm.conf"),
        (r"munge|authentication error|credential", "refused", "Slurm's authentication fails",
         "see that munged runs there with the same key, and that the clocks agree"),
        (r"Access/permission denied|Invalid user id|pam_slurm", "refused", "Slurm refuses this user",
         "use the user that submitted job {job}, whom each node knows"),
        (r"Incompatible versions|version number error", "error", "srun and slurmd have different versions of Slurm",
         "install one version of Slurm on all nodes"),
        (r"execve\(\)?: .*(?:No such file|Permission denied)|execve: .*No such file", "no_python",
         "the node has no {python}", "install python3 there, or set ansible_python_interpreter"),
        ((r"node not available|connection failure|Unable to communicate|Communication|timed? ?out|No route to host|"
         r"Connection refused|(?:Message )?receive failure|send failure|Zero Bytes|Can't find an address|"
         r"Unable to resolve|Failed to invoke task|Task launch .*failed"),
         "unreachable", "slurmd does not answer", "see 'sinfo -R', and start slurmd on {node}"),
    )
)  # fmt: skip


def classify(host: Host, step: SlurmStep, returncode: int, stderr: str) -> ProbeFailure:
    """Return why a step of a job failed.

    Args:
        host: the host of the step.
        step: the job and its node.
        returncode: of the local srun, or of the local ssh to the submit host.
        stderr: what ssh, srun, slurmstepd or the program wrote.
    """
    place = where(host.name, step)
    if step.submit is not None and returncode == _SSH_FAILED and not _SLURM_SPEAKS.search(stderr):
        of_submit = ssh_failure.classify(step.submit, returncode, stderr)
        return ProbeFailure(host.name, of_submit.kind, f"{place} is reached through {of_submit.message}")
    if returncode == _COMMAND_NOT_FOUND and re.search(r"\bsrun: (?:command )?not found", stderr):
        at = "this machine" if step.submit is None else ssh_failure.where(step.submit)
        return ProbeFailure(
            host.name, "error", f"{at} has no srun; install Slurm's client there, or name another --submit-host."
        )
    said = ssh_failure.shortened(_without_task_ends(stderr))
    names = {"job": step.job, "node": step.node, "python": host.python}
    for meaning in _MEANINGS if _SLURM_SPEAKS.search(stderr) else ():
        if meaning.words.search(stderr):
            cause, cure = meaning.cause.format(**names), meaning.cure.format(**names)
            return ProbeFailure(host.name, meaning.kind, f"{place}: {cause}; {cure} ({said}).")
    return ProbeFailure(host.name, "error", f"{place}: the probe ended with status {returncode}. {said}")


def where(name: str, step: SlurmStep) -> str:
    """Return host and job, for messages."""
    node = "" if name == step.node else f"{step.node} "
    return f"{name} ({node}in Slurm job {step.job})"


def by_hand(step: SlurmStep) -> str:
    """Return the command that tries the step by hand."""
    return f"'srun --jobid={step.job} --overlap --nodes=1 --ntasks=1 --nodelist={step.node} true'"


def _without_task_ends(stderr: str) -> str:
    """Return the text without srun's lines about exit codes, where it has others."""
    lines = [line for line in stderr.splitlines() if not _TASK_ENDED.match(line)]
    return "\n".join(lines) if any(line.strip() for line in lines) else stderr
