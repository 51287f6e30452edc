"""The texts that Slurm's commands take and give: arguments of salloc, answers of sinfo, squeue and scontrol, refusals.

Formats and words are those that Slurm 22.05 to 24.11 share; ``--json`` is missing in parts of them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from clusterctl.model import nodeset
from clusterctl.remote import ssh_failure
from clusterctl.support import content

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from module_utils import error_meanings  # mypy finds it by mypy_path

    from clusterctl.model.hosts import Host
else:
    error_meanings = content.module_util("error_meanings")

# Partition ('*': the default one), node, address, sockets, cores of each, threads of each, gres, state, reason.
# The reason comes last, since it is a text of people.
_SINFO = "%P|%N|%o|%X|%Y|%Z|%G|%T|%E"
_SINFO_FIELDS = _SINFO.count("|") + 1
_SQUEUE = "%T|%N|%r"
_SQUEUE_FIELDS = _SQUEUE.count("|") + 1
# A number of a machine that answers for Slurm may have any length, which neither the memory nor int() takes.
_COUNT = re.compile(r"(\d{1,9})(?:\(x(\d{1,9})\))?")
_GPUS = re.compile(r"gpu(?::[^:]+)?:(\d{1,9})")
_BRACKETS = re.compile(r"\([^()]*\)")  # the sockets of a resource
_STATE_MARKS = "*~#!%$@^-+"
_UNUSABLE = re.compile(r"down|drain|fail|maint|reboot|unk|future|no_respond|inval", re.IGNORECASE)
_GRANTED = re.compile(r"(?:Pending|Granted) job allocation (\d{1,10})\b|\bjob (\d{1,10}) (?:queued|has been allocated)")
EVERY_PARTITION = "*"
_TIME_LIMIT = re.compile(r"(?:(?P<days>\d{1,4})-)?(?P<clock>\d{1,6}(?::\d{1,2}){0,2})")
_IDLE = "idle"
_JOB_NAME = "clusterctl-validate"
_WITHOUT = re.compile(r"\b(salloc|squeue|sinfo|scontrol|scancel)\b[^\n]{0,200}?(?:not found|No such file)")
_MOST_READ = 1 << 14  # characters of what a command says
_BY_TIME = "TimeLimit"  # Slurm's reason
_NO_END_YET = frozenset({"RUNNING", "CONFIGURING", "COMPLETING"})


@dataclass(frozen=True)
class SlurmNode:
    """A node as Slurm knows it; ``name`` is its NodeName, ``gpus`` the GPUs that Slurm hands out."""

    name: str
    address: str
    sockets: int
    cores_per_socket: int
    threads: int
    gpus: int
    state: str
    reason: str = ""

    @property
    def cores(self) -> int:
        """The cores of all sockets."""
        return max(1, self.sockets * self.cores_per_socket)

    @property
    def is_usable(self) -> bool:
        """Whether Slurm may start a job there, now or once other jobs have ended."""
        return not _UNUSABLE.search(self.state)

    @property
    def at_work(self) -> str:
        """Why a validation that skips busy nodes leaves the node out, '' for an idle one."""
        return "" if self.state == _IDLE else f"{self.state}{f': {self.reason}' if self.reason else ''}"

    @property
    def hardware(self) -> str:
        """What nodes of one kind have in common, in words."""
        gpus = f", {self.gpus} GPUs" if self.gpus else ""
        threads = f" with {self.threads} threads" if self.threads > 1 else ""
        return f"{self.sockets} x {self.cores_per_socket} cores{threads}{gpus}"


@dataclass(frozen=True)
class SlurmRequest:
    """The allocation that is asked for.

    ``nodes`` is their number, ``nodelist`` are NodeNames that all belong to it, ``exclude`` those that must not.
    ``gpus`` is the number on each node. ``time_s`` is the job's own time limit.
    """

    nodes: int
    time_s: float
    partition: str = ""
    account: str = ""
    nodelist: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    gpus: int = 0


@dataclass(frozen=True)
class JobState:
    """The state of a job (RUNNING, PENDING, TIMEOUT), the reason that Slurm gives, and its nodes in Slurm's folds."""

    state: str
    reason: str = ""
    nodes: str = ""


def salloc(request: SlurmRequest, holder: Sequence[str]) -> list[str]:
    """Return the salloc line that runs ``holder`` where salloc runs, for as long as the allocation is to last.

    All of each node is asked for, since figures of a shared node tell nothing. GPUs are named as well: the steps of a
    job do not see those that it has only because it is alone on its node. A node that fails does not end the job,
    so that the checks can name it.
    """
    line = [
        "salloc",
        f"--job-name={_JOB_NAME}",
        f"--nodes={request.nodes}",
        "--exclusive",
        "--mem=0",
        "--wait-all-nodes=1",
        "--no-kill",
        f"--time={minutes(request.time_s)}",
        "--kill-command=TERM",
    ]
    line += [f"--partition={request.partition}"] if request.partition else []
    line += [f"--account={request.account}"] if request.account else []
    line += [f"--nodelist={','.join(request.nodelist)}"] if request.nodelist else []
    line += [f"--exclude={','.join(request.exclude)}"] if request.exclude else []
    line += [f"--gres=gpu:{request.gpus}"] if request.gpus else []
    return [*line, *holder]


def minutes(seconds: float) -> int:
    """Return a time limit as Slurm counts it: whole minutes, at least one."""
    return max(1, math.ceil(seconds / 60))


def time_limit(text: str) -> float:
    """Return the seconds of a time limit as Slurm takes it: 30 (minutes), 45:00, 1:30:00, 2-00, 2-12:00.

    Raises:
        ValueError: it has another form, or is 0.
    """
    match = _TIME_LIMIT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a time limit such as 30 (minutes), 1:30:00 or 2-12:00")
    numbers = [int(number) for number in match["clock"].split(":")]
    if match["days"] is not None:  # days-hours:minutes:seconds
        hours, at_minute, at_second = [*numbers, 0, 0][:3]
    elif len(numbers) == len(("h", "m", "s")):
        hours, at_minute, at_second = numbers
    else:  # minutes, or minutes:seconds
        hours, at_minute, at_second = [0, *numbers, 0][:3]
    found = ((int(match["days"] or 0) * 24 + hours) * 60 + at_minute) * 60 + at_second
    if not found:
        raise ValueError(f"{text!r} is not above 0")
    return float(found)


def sinfo(partition: str = "") -> list[str]:
    """Return the line that lists nodes for :func:`nodes`."""
    return ["sinfo", "--noheader", "--Node", f"--format={_SINFO}", *([f"--partition={partition}"] if partition else [])]


def nodes(text: str, partition: str = "") -> tuple[SlurmNode, ...]:
    """Return the nodes of a partition, of the default one where none is named; each node once.

    The text is the answer to :func:`sinfo`. ``partition`` may be several with commas; :data:`EVERY_PARTITION` takes all
    of them.
    """
    everywhere = partition == EVERY_PARTITION
    wanted = set(partition.split(",")) if partition else set()
    found: dict[str, SlurmNode] = {}
    for line in text.split("\n"):
        fields = [field.strip() for field in line.split("|", _SINFO_FIELDS - 1)]
        if len(fields) != _SINFO_FIELDS:
            continue
        where, name, address, sockets, cores, threads, gres, state, reason = fields
        if not everywhere and ((where.rstrip("*") not in wanted) if wanted else (not where.endswith("*"))):
            continue
        node = SlurmNode(
            name,
            address,
            _number(sockets),
            _number(cores),
            _number(threads),
            gpus_of(gres),
            state.rstrip(_STATE_MARKS).lower() if not state.endswith("*") else "down (does not respond)",
            "" if reason == "none" else reason,
        )
        found.setdefault(name, node)
    return tuple(found.values())


def of_hosts(hosts: Iterable[Host], found: Iterable[SlurmNode]) -> dict[str, SlurmNode]:
    """Return by host name Slurm's node of each host that it knows: by name, by the name's first part, or by address."""
    by_name = {node.name.lower(): node for node in found}
    by_address = {node.address: node for node in by_name.values()}
    pairs: dict[str, SlurmNode] = {}
    for host in hosts:
        name = host.name.lower()
        node = by_name.get(name) or by_name.get(name.partition(".")[0]) or by_address.get(host.address)
        if node is not None:
            pairs[host.name] = node
    return pairs


def default_partition(text: str) -> str:
    """Return the name of the default partition in an answer to :func:`sinfo`, '' where Slurm has none."""
    names = (line.partition("|")[0].strip() for line in text.split("\n"))
    return next((name.rstrip("*") for name in names if name.endswith("*")), "")


def gpus_of(gres: str) -> int:
    """Return the GPUs of a list of generic resources: ``gpu:a100:4(S:0-1),gpu:2,nvme:1`` has 6."""
    matches = (_GPUS.fullmatch(part.strip()) for part in _BRACKETS.sub("", gres).split(","))
    return sum(int(match.group(1)) for match in matches if match)


def squeue(job: int) -> list[str]:
    """Return the line that asks for the state of a job in the queue, for :func:`job_state`."""
    return ["squeue", "--noheader", f"--jobs={job}", "--states=all", f"--format={_SQUEUE}"]


def job_state(text: str) -> JobState | None:
    """Return the state of a job; None where Slurm no longer knows it.

    The text is the answer to :func:`squeue`.
    """
    for line in text.split("\n"):
        fields = [field.strip() for field in line.split("|", _SQUEUE_FIELDS - 1)]
        if len(fields) == _SQUEUE_FIELDS and fields[0]:
            state, names, reason = fields
            return JobState(state.upper(), "" if reason in {"None", "none"} else reason, names)
    return None


def host_names(text: str) -> tuple[str, ...]:
    """Return the NodeNames in the answer to ``scontrol show hostnames``."""
    return tuple(line.strip() for line in text.split("\n") if line.strip())


def mpi_types(text: str) -> tuple[str, ...]:
    """Return the types in the answer to ``srun --mpi=list``: of 22.05 and later, and of releases before.

    The former has a type in each line, and a list of PMIx plugins by version. The latter has "srun: " before each type.
    """
    found: list[str] = []
    for line in text.split("\n"):
        words = line.removeprefix("srun: ").strip()
        if words.lower().startswith("specific pmix plugin versions available:"):
            found += [word.strip() for word in words.partition(":")[2].split(",")]
        elif re.fullmatch(r"[a-z]\w*", words):
            found.append(words)
    return tuple(dict.fromkeys(word for word in found if word))


def cluster_name(text: str) -> str:
    """Return the name of the cluster in the answer to ``scontrol show config``, '' if it is missing."""
    match = re.search(r"^ClusterName\s*=\s*(\S+)", text, re.MULTILINE)
    return match.group(1) if match else ""


def job_id(line: str) -> int | None:
    """Return the job's number in a line of salloc on stderr, None where it has none."""
    match = _GRANTED.search(line)
    return int(match.group(1) or match.group(2)) if match else None


def counts(text: str) -> tuple[int, ...]:
    """Return the numbers per node that Slurm folds as ``2(x3),4``; () for more nodes than a cluster may have."""
    found: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part.strip())
        if match is not None:
            many = int(match.group(2) or 1)
            if len(found) + many > nodeset.MOST_HOSTS:
                return ()
            found += [int(match.group(1))] * many
    return tuple(found)


def folded_counts(numbers: Iterable[int]) -> str:
    """Return numbers per node as Slurm folds them: ``2(x3),4``."""
    runs = [(number, len(list(same))) for number, same in groupby(numbers)]
    return ",".join(str(number) if many == 1 else f"{number}(x{many})" for number, many in runs)


def launch_variables(job: int, names: Sequence[str], slots: Sequence[int]) -> tuple[tuple[str, str], ...]:
    """Return what mpirun reads of an allocation, for a step that has the variables of one node alone.

    ``names`` are the NodeNames of the allocation, in Slurm's order; ``slots`` says how many ranks mpirun may start on
    each.

    Returns:
        Pairs of name and value. mpirun starts its daemons by srun, which needs ``SLURM_OVERLAP`` beside the step of
        mpirun itself. Daemons inherit TMPDIR, and the job's own folder is on the launch node alone.
    """
    listed = ",".join(names)
    return (
        ("SLURM_EXPORT_ENV", "ALL"),  # the step's own srun exports a few names, which is not meant for the daemons
        ("SLURM_JOBID", str(job)),
        ("SLURM_JOB_ID", str(job)),
        ("SLURM_JOB_NODELIST", listed),
        ("SLURM_JOB_NUM_NODES", str(len(names))),
        ("SLURM_NNODES", str(len(names))),
        ("SLURM_NODELIST", listed),
        ("SLURM_OVERLAP", "1"),
        ("SLURM_TASKS_PER_NODE", folded_counts(slots)),
        ("TMPDIR", "/tmp"),  # noqa: S108 - the name that every node knows
    )


def mixed(found: Iterable[SlurmNode]) -> str:
    """Return the kinds of hardware among nodes as a clause; '' where all are of one kind."""
    kinds: dict[str, list[str]] = {}
    for node in found:
        kinds.setdefault(node.hardware, []).append(node.name)
    if len(kinds) < 2:  # noqa: PLR2004 - one kind is none too many
        return ""
    largest_first = sorted(kinds.items(), key=lambda kind: -len(kind[1]))
    return "; ".join(f"{nodeset.folded(names)}: {hardware}" for hardware, names in largest_first)


def refusal(said: str, request: SlurmRequest | None = None, *, place: str = "this machine") -> str:
    """Return why Slurm refuses, with the cure.

    ``said`` is stderr of a command of Slurm, ``place`` where it ran.
    """
    said = said[-_MOST_READ:]
    missing = _WITHOUT.search(said)
    if missing is not None:
        return f"{place} has no {missing.group(1)}; install Slurm's client there, or name a --submit-host that has it."
    evidence = ssh_failure.shortened(said)
    found = error_meanings.find("salloc", said)
    if found is None:
        return f"Slurm refused the request ({evidence}); try the same by hand: 'salloc --nodes=1 true'."
    return _told(found, evidence, request)


def hopeless(job: int, state: JobState | None, request: SlurmRequest) -> str:
    """Return the sentence for a job that Slurm has queued and will not start as it is; '' for one that may start.

    Slurm refuses such a job at once only where its administrator has set EnforcePartLimits.
    """
    waits = state is not None and state.state == "PENDING"
    found = error_meanings.find("queue", state.reason) if state is not None and waits else None
    if state is None or found is None:
        return ""
    return _told(found, f"Slurm job {job} would wait with the reason {state.reason}, and is cancelled", request)


def _told(found: error_meanings.Message, evidence: str, request: SlurmRequest | None) -> str:
    account = f"the account '{request.account}'" if request and request.account else "your default account"
    partition = f"partition '{request.partition}'" if request and request.partition else "the default partition"
    cause, cure = found.meaning(account=account, partition=partition)
    return f"{cause[0].upper()}{cause[1:]}; {cure} ({evidence})."


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
    by_time = state is not None and state.reason == _BY_TIME  # it is COMPLETING for a moment
    found = error_meanings.find("job state", "TIMEOUT" if by_time else state.state if state is not None else "")
    cause, cure = (
        found.meaning(job=job, minutes=limit_minutes) if found else ("it has ended", f"see 'scontrol show job {job}'")
    )
    return f"Slurm job {job} is gone: {cause}; {cure}"


def _number(text: str) -> int:
    match = re.match(r"\d{1,9}", text)
    return int(match.group()) if match else 1
