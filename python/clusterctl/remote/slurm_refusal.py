"""Turn what Slurm's commands say of a request that fails into one sentence: cause and cure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from clusterctl.remote import ssh_failure

if TYPE_CHECKING:
    from clusterctl.remote.slurm_text import JobState, SlurmRequest

_OTHER_ACCOUNT = (
    "name another account with -A or a partition with -p; 'sacctmgr show associations' lists what is allowed"
)
_SHORTER = "give a shorter --time"
_WITHOUT = re.compile(r"\b(salloc|squeue|sinfo|scontrol|scancel)\b.*(?:not found|No such file)")
# Words of Slurm's own table of errors (src/common/slurm_errno.c). A cause may name {account} and {partition}.
_REFUSALS = tuple(
    (re.compile(words, re.IGNORECASE), cause, cure)
    for words, cause, cure in (
        (
            (r"Unable to contact slurm controller|Unable to establish (?:control|config)|controller in standby"
            r"|controller not responding|DNS SRV|Could not establish a configuration source"),
            "Slurm's controller does not answer",
            "see 'scontrol ping', and start slurmctld",
        ),
        (
            r"munge|authentication error",
            "Slurm's authentication fails",
            "see that munged runs with the cluster's key, and that the clocks agree",
        ),
        (
            r"Invalid account|account/partition combination",
            "{account} may not submit jobs to {partition}",
            _OTHER_ACCOUNT,
        ),
        (
            r"Invalid partition name",
            "Slurm has no {partition}",
            "name one of 'sinfo' with -p",
        ),
        (
            r"No partition specified",
            "Slurm has no default partition",
            "name one of 'sinfo' with -p",
        ),
        (
            r"group not permitted|permission denied|Invalid user id|Invalid qos",
            "this user may not submit jobs to {partition}",
            "name another account with -A or a partition with -p, or ask Slurm's administrator",
        ),
        (
            r"Only batch jobs",
            "{partition} takes no jobs of salloc",
            "name a partition with -p that does",
        ),
        (
            r"time limit is invalid|exceeds some limit",
            "{partition} does not allow a job of that length",
            _SHORTER,
        ),
        (
            r"violates accounting|QOS|job submit limit|MaxJobCount",
            "a limit of Slurm's accounting refuses the job",
            "ask for fewer --nodes or a shorter --time, or name another account with -A",
        ),
        (
            r"Partition in DOWN|partition not available|partition configuration not available",
            "{partition} is down, or too small for the job",
            "name another partition with -p, or ask for fewer --nodes",
        ),
        (
            (r"Node count|node configuration is not available|nodes not in this partition|Invalid node name"
            r"|More processors|generic resource"),
            "{partition} has no such nodes",
            "see 'sinfo --Node', and ask for nodes that it has",
        ),
        (
            r"submissions disabled",
            "Slurm takes no jobs at present",
            "try again later, or ask Slurm's administrator",
        ),
    )
)  # fmt: skip
_ENDS = {
    "TIMEOUT": ("its time limit ended it", "give a longer --time"),
    "CANCELLED": ("it was cancelled", "see 'scontrol show job {job}' for who did"),
    "PREEMPTED": ("a job of higher priority took its nodes", "choose another partition with -p, or try again later"),
    "NODE_FAIL": ("Slurm counts one of its nodes as failed", "see 'sinfo -R'"),
    "FAILED": ("Slurm counts it as failed", "see 'scontrol show job {job}'"),
}
# Slurm's reasons for which a job waits for ever, as words or as sentences of Slurm's partition policies.
_HOPELESS = (
    (r"AccountNotAllowed|InvalidAccount|Job's account .*not (?:known|permitted).*",
     "{account} may not submit jobs to {partition}", _OTHER_ACCOUNT),
    (r"QOSNotAllowed|InvalidQOS|Job's QOS .*not (?:known|permitted).*",
     "this user may not submit jobs to {partition}", _OTHER_ACCOUNT),
    (r"Partition(?:Down|Inactive)", "{partition} is down", "name another partition with -p"),
    (r"PartitionTimeLimit|.*WallDurationPerJobLimit", "{partition} does not allow a job of that length", _SHORTER),
    (r"PartitionNodeLimit|.*Max(?:Node|Cpu|GRES|TRES)\w*PerJob\w*", "{partition} does not allow a job of that size",
     "ask for fewer --nodes, or name another partition with -p"),
    (r"BadConstraints", "{partition} has no such nodes", "see 'sinfo --Node', and ask for nodes that it has"),
    (r"JobHeld(?:Admin|User)", "Slurm holds the job", "ask Slurm's administrator"),
)  # fmt: skip
_BY_TIME = "TimeLimit"  # Slurm's reason
_NO_END_YET = frozenset({"RUNNING", "CONFIGURING", "COMPLETING"})
_OTHER_END = ("it has ended", "see 'scontrol show job {job}'")


def sentence(said: str, request: SlurmRequest | None = None, *, place: str = "this machine") -> str:
    """Return why Slurm refuses, with the cure.

    Args:
        said: stderr of a command of Slurm.
        request: the allocation that it was about.
        place: where the command ran.
    """
    missing = _WITHOUT.search(said)
    if missing is not None:
        return f"{place} has no {missing.group(1)}; install Slurm's client there, or name a --submit-host that has it."
    evidence = ssh_failure.shortened(said)
    for words, cause, cure in _REFUSALS:
        if words.search(said):
            return _told(cause, cure, evidence, request)
    return f"Slurm refused the request ({evidence}); try the same by hand: 'salloc --nodes=1 true'."


def hopeless(job: int, state: JobState | None, request: SlurmRequest) -> str:
    """Return the sentence for a job that Slurm has queued and will not start as it is; '' for one that may start.

    Slurm refuses such a job at once only where its administrator has set EnforcePartLimits.
    """
    for words, cause, cure in _HOPELESS if state is not None and state.state == "PENDING" else ():
        if state is not None and re.fullmatch(words, state.reason):
            evidence = f"Slurm job {job} would wait with the reason {state.reason}, and is cancelled"
            return _told(cause, cure, evidence, request)
    return ""


def _told(cause: str, cure: str, evidence: str, request: SlurmRequest | None) -> str:
    account = f"the account '{request.account}'" if request and request.account else "your default account"
    partition = f"partition '{request.partition}'" if request and request.partition else "the default partition"
    clause = cause.format(account=account, partition=partition)
    return f"{clause[0].upper()}{clause[1:]}; {cure} ({evidence})."


def never_started(job: int | None, state: JobState | None, waited_s: float) -> str:
    """Return the sentence for an allocation that did not start in time; it is cancelled."""
    called = f"Slurm job {job}" if job is not None else "The job for Slurm"
    why = f"; Slurm's reason is {state.reason}" if state is not None and state.reason else ""
    return (
        f"{called} did not start within {waited_s:.0f} s and is cancelled{why}; give a longer --start-within, ask for "
        "fewer --nodes, or name another partition with -p."
    )


def tells_end(state: JobState) -> bool:
    """Return whether the state says why a job ended; while its processes end, Slurm often says only that they do."""
    return state.state not in _NO_END_YET or state.reason == _BY_TIME


def ended(job: int, state: JobState | None, limit_minutes: int) -> str:
    """Return the sentence for an allocation that ended while checks ran in it."""
    word = state.state.partition(" ")[0] if state is not None else ""
    if state is not None and state.reason == _BY_TIME:  # it is COMPLETING for a moment
        word = "TIMEOUT"
    cause, cure = _ENDS.get(word, _OTHER_END)
    if word == "TIMEOUT":
        cause = f"its time limit of {limit_minutes} min ended it"
    return f"Slurm job {job} is gone: {cause}; {cure.format(job=job)}"
