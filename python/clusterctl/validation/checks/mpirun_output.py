"""Reading what mpirun itself says of a job that went wrong: the dead rank, the signal and the cause."""

from __future__ import annotations

import re
import signal
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.model.job_outcome import SIGNALLED
from clusterctl.support import content
from clusterctl.validation.checks.causes import Cause, CauseKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterctl.model.job_outcome import JobOutcome


# Parser of what mpirun and ssh say when a launch fails: causes with the nodes that the messages name.
#
# The rules know the messages of Open MPI 4.1 (ORTE) and 5.0 (PRRTE). A node is taken from the place where a message
# names it, and never from other words of the output. The captured messages stand in ``tests/data/launcher``.

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from module_utils import error_meanings  # mypy finds it by mypy_path
else:
    error_meanings = content.module_util("error_meanings")

_MOST_SEARCHED = 8 << 20  # characters at each end of what is not a rank's line
_MOST_TEXT = 4096  # characters of a passage; help messages have half of it, and some patterns take long on long texts
# Who says it: [node1:77] of Open MPI, [time] [node1:77:0:77] of UCX, [node1][[463,1],0] of a transport of Open MPI,
# node1:77:78 [0] of NCCL, node1:rank3.program: of PSM3.
_TAG = re.compile(
    r"^(?:\[[\d.]+\] )?(?:\[([^\]\[:,\s]+)(?::\d+ ?)+\]|\[([^\]\[:,\s]+)\](?=\[\[\d+,\d+\],\d+\])"
    r"|([\w.-]+):\d+:\d+ (?=\[\d+\] )|([\w.-]+):(?:rank|pid)\d+[\w.-]*: )\s*"
)
_SSH = "ssh"
PEER = "peer"  # the subject of a cause that a rank only saw, such as the end of a connection
KILLED = "killed"  # the subject of a cause that a signal ended a rank
_RULE_OFF = re.compile(r"^-{20,}$")
_RANK_LINE = re.compile(r'\{"(?:clusterctl|rank)"')


@dataclass(frozen=True)
class _Passage:
    """A line, or the lines of a help message; ``speaker`` is the node of its tag, ``line`` is shown as evidence."""

    speaker: str
    text: str
    line: str


def read(lines: Iterable[str], names: Mapping[str, str], launch_node: str) -> tuple[Cause, ...]:
    """Return the causes that the output gives, strongest first; ``hosts`` of a cause is empty where none is named.

    Where a message gives the cause, messages of lost daemons count as its consequence and are left out. ``names`` has
    the inventory's name for each name and address of a node; lines of ranks may be among ``lines``.
    """
    said = [
        (message.row.whom, _cause(message, passage, names, launch_node))
        for passage in _passages(_ends_of(line for line in lines if not _RANK_LINE.search(line)))
        if (message := error_meanings.find("mpirun", passage.text)) is not None
    ]
    lost = tuple(dict.fromkeys(host for _, cause in said if _is_loss(cause) for host in cause.hosts))
    has_way = any(cause.subject == _SSH and cause.hosts for _, cause in said)  # of which ssh says more in a bare line
    said = [one for one in said if one[1].hosts or one[1].subject != _SSH or not has_way]
    # One lost daemon is the one that a message of its node is about; of several, no message says which.
    given = [
        cause.at(*lost) if whom == "daemon" and len(lost) == 1 else cause
        for whom, cause in said
        if not cause.is_consequence
    ] or [cause for _, cause in said if cause.subject != PEER or not lost]
    first: dict[tuple[tuple[str, ...], str], Cause] = {}
    for cause in sorted(given, key=lambda cause: not cause.hosts):
        first.setdefault((cause.hosts, cause.cause), cause)
    return tuple(first.values())


def _is_loss(cause: Cause) -> bool:
    return cause.is_consequence and cause.subject != PEER


def _cause(message: error_meanings.Message, passage: _Passage, names: Mapping[str, str], launch_node: str) -> Cause:
    row, speaker = message.row, _host(passage.speaker, names)
    named = speaker if row.whom == "speaker" else _host(message.words.get("node", ""), names)
    hosts: tuple[str, ...] = (named,) if named else ()
    if row.whom == "way" and named not in ("", launch_node):
        hosts = (launch_node, named)
    elif row.whom in ("one_way", "pair"):  # one end alone has only seen it
        near = _host(message.words["near"], names) if "near" in message.words else speaker
        hosts = tuple(dict.fromkeys((near, named))) if near and named else ()
    cause, cure = message.meaning(speaker=speaker or passage.speaker or "a node")
    kind: CauseKind = "pair" if row.whom == "pair" else "one_way"
    return Cause(
        hosts=hosts,
        kind=kind if len(hosts) > 1 else "node",
        cause=cause,
        cure=cure,
        line=passage.line,
        is_consequence=row.kind in ("lost", PEER),
        subject="" if row.kind == "lost" else row.kind,
    )


def _host(name: str, names: Mapping[str, str]) -> str:
    """Return the inventory's name of a node, empty for one that is unknown."""
    bare = name.strip("[]().,;:'\"").lower()
    known = {key.lower(): value for key, value in names.items()}
    if bare in known:
        return known[bare]
    short = {value for key, value in known.items() if key.partition(".")[0] == bare.partition(".")[0]}
    is_address = bare.replace(".", "").isdigit() or ":" in bare
    return short.pop() if len(short) == 1 and not is_address else ""


def _ends_of(lines: Iterable[str]) -> Iterator[str]:
    """Yield the first and the last lines, of so many characters: a rank may print what takes hours to search."""
    left = _MOST_SEARCHED
    last: deque[str] = deque()
    for line in lines:
        if left > 0:
            left -= len(line) + 1
            yield line
            continue
        last.append(line)
        left -= len(line) + 1
        while left < -_MOST_SEARCHED:
            left += len(last.popleft()) + 1
    yield from last


def _passages(lines: Iterable[str]) -> Iterator[_Passage]:
    """Return single lines, and the lines of a help message, which stands between two rules, as one passage."""
    block: list[str] | None = None
    for raw in lines:
        line = raw.replace("\0", "").strip()[:_MOST_TEXT]
        if _RULE_OFF.match(line):
            if block:
                yield _help(block)
            block = [] if block is None else None
            continue
        if not line or _RANK_LINE.search(line):
            continue
        tag = _TAG.match(line)
        if block is not None and tag is None:
            block.append(line)
        else:  # a tag never stands in a help message, so the end of that one was lost between other lines
            if block:
                yield _help(block)
            block = None
            yield _Passage(tag[tag.lastindex or 0] if tag else "", line[tag.end() :] if tag else line, line)
    if block:
        yield _help(block)


def _help(block: Sequence[str]) -> _Passage:
    return _Passage("", "\n".join(block)[:_MOST_TEXT], next((line for line in block if line), ""))


_MOST_LINES = 4
_MOST_WORDS = 300
# What mpirun of both series says of a rank that a signal ended.
_DIED = re.compile(
    r"process rank (?P<rank>\d{1,9}) with PID \d+ on node (?P<host>\S+) (?P<how>exited on signal[^.]{0,200})\."
)
# mpirun 5.0 loses that message where a rank ends while others start. With this parameter its error manager tells each
# process that ends badly as it hears of it: process 8 of job 1 is rank 8, the processes of job 0 are the daemons.
ENDS_ARE_TOLD = {"errmgr_base_verbose": "1"}
_END = re.compile(
    r"errmgr:dvm: for proc \[\S+@(?P<job>\d{1,9}),(?P<process>\d{1,9})\] state (?P<state>[A-Z-]+(?: [A-Z-]+)*)"
)
_BY_SIGNAL, _BY_CODE, _BY_MPIRUN = "ABORTED BY SIGNAL", "EXITED WITH NON-ZERO STATUS", "KILLED BY INTERNAL COMMAND"
_NOISE = re.compile(
    r"^[-=*\s]*$|setpgid\(|more processes? (has|have) sent help message|Set MCA parameter \"orte_base_help_aggregate"
    r"|^Warning: Permanently added|help-aggregate"
    rf"|errmgr:dvm: for proc \S+ state (?:COMMUNICATION FAILURE|{_BY_MPIRUN})",
)


@dataclass(frozen=True)
class ProcessEnd:
    """The process whose end made mpirun end the job."""

    process: int  # its number in hostfile order, from 0
    how: str  # "exited on signal 11 (Segmentation fault)", "was ended by SIGSEGV"
    by_signal: bool  # whether a signal ended it
    line: str  # the line of output that says so
    host: str = ""  # as mpirun names it; empty where mpirun names only the process


def first_end(lines: Sequence[str], outcome: JobOutcome) -> ProcessEnd | None:
    """Return the first process that ended badly: from mpirun's message, else from :data:`ENDS_ARE_TOLD`.

    None where mpirun tells none, where it was another fault than the end of the process, or where mpirun lost a daemon
    before: the processes of that node end in consequence.
    """
    died = _DIED.search(" ".join(lines))
    if died is not None:
        return ProcessEnd(int(died["rank"]), died["how"], by_signal=True, line=died[0], host=died["host"])
    for line in lines:
        match = _END.search(line)
        if match is None or match["state"] == _BY_MPIRUN:
            continue
        if match["job"] == "0" or match["state"] not in {_BY_SIGNAL, _BY_CODE}:
            return None
        by_signal = match["state"] == _BY_SIGNAL
        how = f"was ended by {ending_signal(outcome) or 'a signal'}" if by_signal else f"ended with {code(outcome)}"
        return ProcessEnd(int(match["process"]), how, by_signal=by_signal, line=line)
    return None


def code(outcome: JobOutcome) -> str:
    """Return mpirun's exit code in words: ``code 139 (SIGSEGV)``, ``code 1`` or ``a signal``."""
    if outcome.rc is None:
        return "a signal"
    name = ending_signal(outcome)
    return f"code {outcome.rc} ({name})" if name else f"code {outcome.rc}"


def ending_signal(outcome: JobOutcome) -> str:
    """Return the name of the signal that ended a rank, empty where mpirun's exit code holds none."""
    return {SIGNALLED + known: known.name for known in signal.Signals}.get(outcome.rc or 0, "")


def with_cause(reason: str, lines: Sequence[str]) -> str:
    """Return the reason and the cause that mpirun gives; its help messages begin with the cause."""
    text = " ".join(" ".join(without_noise(lines)[:_MOST_LINES]).split())
    if not text:
        return reason
    return f"{reason}: {text if len(text) <= _MOST_WORDS else text[: _MOST_WORDS - 3] + '...'}"


def without_noise(lines: Iterable[str]) -> list[str]:
    """Return the lines that say something about this job."""
    return [line for line in lines if not _NOISE.search(line)]
