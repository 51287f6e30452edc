"""Ask suspected nodes what their hardware and their kernel tell: GPU errors, links, memory, disks, throttling."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Literal, TypeAlias

from pydantic import ValidationError

from clusterctl.analysis import rank_deaths
from clusterctl.model.job_outcome import NodeLook, Stack
from clusterctl.model.nodeset import folded
from clusterctl.model.probe import Probe
from clusterctl.remote import python, ssh_failure, supervised_job
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from clusterctl.analysis.rank_deaths import MemoryBlame, NodeLoss, RankDeath, RankExit, Tie
    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.hosts import Host
    from clusterctl.model.job_outcome import MemoryKills
    from clusterctl.remote.supervised_job import JobLogin


_MOST = 6  # sentences
_PEERS = 2  # with a suspect they are three, of which one can be the odd one
_KILLS_S = 22.0  # of the look at the end of a job, when a node may still be short of memory
_LOOK_S = 12.0  # of one trip: a node that does not answer must not hide what the others tell


@dataclass(frozen=True)
class JobNodes:
    """The nodes of a job, for a look at some of them."""

    cluster: str  # the cluster's id, whose earlier looks are compared with
    hosts: Sequence[Host]  # all hosts of the job; one with ``become`` is asked through sudo
    facts: Mapping[str, NodeFacts]  # by host name, from before the job
    control: Path  # folder of shared connections


def facts_of(names: Sequence[str], job: JobNodes) -> tuple[str, ...]:
    """Return what is wrong with the hardware of some nodes, a sentence each; nothing where all is well.

    The look is doctor's, at the suspects, at two more nodes of the job that are like them, and at the past. What is
    found of these two is left out. A node that does not answer holds up the others for seconds only.
    """
    # A job that goes on needs no rules, and their import takes a twentieth of a second of each run.
    from clusterctl.diagnosis import hardware  # noqa: PLC0415
    from clusterctl.diagnosis.rules import registry  # noqa: PLC0415
    from clusterctl.diagnosis.rules.evidence import View  # noqa: PLC0415
    from clusterctl.state import hardware_looks  # noqa: PLC0415

    asked = [host for host in job.hosts if host.name in names and host.name in job.facts]
    if not asked:
        return ()
    asked += _peers(names, job)
    there = [host.name for host in asked]
    # What was free on a disk before the job says nothing of now: the look tells.
    known = {name: job.facts[name].model_copy(update={"disk": ()}) for name in there}
    past = hardware_looks.past(job.cluster, there, datetime.now(timezone.utc))
    looks = hardware.look(asked, Probe(known, {}), past, job.control, _LOOK_S)
    view = View(tuple(asked), known)
    without = set(registry.diagnose(view))
    told = []
    for one in registry.diagnose(replace(view, hardware=looks)):
        hosts = [host for host in one.hosts if host in names]
        if hosts and one not in without:
            told.append(f"{folded(hosts)}: {one.cause} ({one.cure})")
    unseen = [
        f"{name}: {one.what} could not be read: {one.why}"
        for name, look in looks.items()
        for one in look.now.unseen
        if name in names and (one.what == "hardware" or "kernel log" in one.what)
    ]
    return (*told[:_MOST], *([] if told else unseen[:1]))


def _peers(names: Sequence[str], job: JobNodes) -> list[Host]:
    """Return a few nodes of the job that are no suspects, those first that are like the first suspect."""
    first = next(job.facts[name] for name in names if name in job.facts)
    others = [host for host in job.hosts if host.name not in names and host.name in job.facts]
    return sorted(others, key=lambda host: _kind(job.facts[host.name]) != _kind(first))[:_PEERS]


def _kind(node: NodeFacts) -> tuple[object, ...]:
    return (
        node.platform,
        node.cores,
        len(node.gpus),
        tuple(sorted(device.name for device in node.rdma)),
        tuple(sorted(link.name for link in node.interfaces if link.kind == "physical")),
    )


def lost_since(
    logins: Sequence[JobLogin], job: str, before: Mapping[str, MemoryKills]
) -> tuple[dict[str, NodeLoss], dict[str, str]]:
    """Return what the kernel has killed for lack of memory since the job began, by node that has some.

    With it goes, for each node that does not tell of kills, why it was not asked; '' where its counts do not compare. A
    node that does not answer is asked twice. ``before`` is what each node had killed before the job.
    """
    seen = {look.host: look for look in looks(logins, job, within_s=_KILLS_S)}
    again = [login for login in logins if seen[login.host.name].problem]
    seen.update({look.host: look for look in looks(again, job, within_s=_KILLS_S)})
    now = {name: look.memory for name, look in seen.items() if not look.problem}
    silent = {name: look.problem for name, look in seen.items() if look.problem}
    return rank_deaths.losses(before, now), silent | dict.fromkeys(rank_deaths.untold(before, now), "")


def lost_words(name: str, loss: NodeLoss, tie: Tie | None) -> str:
    """Return what a node lost to the kernel, and what ties that to the job."""
    whose = {"log": " of the job", "group": " of the job's user"}.get(tie or "", "")
    why = {
        "worker": ", and a rank there lost a worker of its data loader",
        "peers": ", and ranks lost their peer there",
    }
    names = sorted({kill.name for kill in loss.log or () if kill.name}) if tie == "log" else []
    program = f" ({and_more(names, _MOST)})" if names else ""
    lost = f"{name} lost {_processes(loss.count)}{whose}{program} to the kernel while the job ran, for lack of memory"
    return f"{lost}{why.get(tie or '', '')}"


def ours_words(blamed: MemoryBlame, lost: Mapping[str, NodeLoss]) -> str:
    """Return a sentence about the nodes that lost processes of the job."""
    return and_more([lost_words(name, lost[name], tie) for name, tie in blamed.ours.items()], _MOST)


def others_words(blamed: MemoryBlame, lost: Mapping[str, NodeLoss]) -> str:
    """Return a sentence about the nodes whose lost processes nothing ties to the job."""
    told = and_more([f"{_processes(lost[name].count)} on {name}" for name in blamed.others], _MOST)
    return f"While the job ran, the kernel killed {told} for lack of memory; nothing tells that it was the job's."


def untold_words(untold: Mapping[str, str]) -> str:
    """Return a sentence about the nodes that do not tell of kills, by :func:`lost_since`."""
    silent = [name for name, why in untold.items() if why]
    hidden = [name for name, why in untold.items() if not why]
    told = []
    if silent:
        were = "was" if len(silent) == 1 else "were"
        told.append(f"{folded(silent)} {were} not asked for kills for lack of memory: {untold[silent[0]]}")
    if hidden:
        words = "cannot be asked for kills for lack of memory"
        told.append(f"{folded(hidden)} {words}: counts before and after the job do not compare")
    return f"{'; '.join(told)}."


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def death_words(death: RankDeath, node: str, killed: int | None, facts: Sequence[str]) -> str:
    """Return a sentence about a rank that a signal ended, with what its node knows of the reason.

    ``node`` is empty where the launcher's name for it is unknown. ``killed`` is how many processes of the job the
    kernel has killed there for lack of memory; None if that is hidden, and the log of a whole day is asked.
    """
    sentence = f"{node or death.host} rank {death.rank} {death.words}"
    if killed:
        return f"{sentence}: the kernel has killed {_processes(killed)} of its control group for lack of memory"
    if killed is None and any("ran out of memory" in fact for fact in facts):
        return f"{sentence}: the kernel's log tells of a kill for lack of memory"
    return f"{sentence}; who sent it is not known"


def exit_words(left: RankExit, node: str) -> str:
    """Return a sentence about a rank that ended with an exit code and was lost by ranks of other nodes."""
    return f"{node} rank {left.rank} ended with exit code {left.code}, and ranks of other nodes lost it"


def left_words(rank: int, node: str) -> str:
    """Return a sentence about a rank that ended in the middle without a word, as by ``os._exit(0)``."""
    return f"{node} rank {rank} left without MPI_Finalize, as exit() and os._exit() do, and mpirun ended the job"


def unknown_peer_words(nodes: Sequence[str]) -> str:
    """Return a sentence about a rank that others lost, where nothing tells which it was."""
    return (
        f"Ranks on {folded(nodes)} lost a rank of another node and ended the job; which rank ended first is not known: "
        "look for one that leaves early, as by os._exit()"
    )


def peer_words(node: str) -> str:
    """Return a sentence about a node whose rank was lost by ranks of other nodes."""
    return f"Ranks of other nodes lost a rank on {node}, and one of them aborted; how that rank ended is not known"


# --- Look at the ranks of a running job on all its nodes: one trip each, as the job's user ----------------------------

Stacks: TypeAlias = Literal["none", "quick", "full"]

PROGRAM = "rank_look.py"
_OPTIONS: dict[Stacks, tuple[str, ...]] = {"none": (), "quick": ("--stacks", "--quick"), "full": ("--stacks",)}
_CONNECT_S = 5
_RANKS_S = 10.0
_STACKS_S = 20.0  # the program's own limit is shorter
_LOGIN_S = 6.0
_MOST_TRIED = 4


def looks(
    logins: Sequence[JobLogin],
    job: str,
    stacks: Stacks = "none",
    within_s: float | None = None,
    on_look: Callable[[str], None] = lambda _host: None,
) -> tuple[NodeLook, ...]:
    """Look at every node; a node that does not answer has a look that says so.

    Stacks of the ranks take some seconds; the quick ones lack a library's functions. A node counts as silent after
    ``within_s``, by default 10 s, and 20 s with stacks. ``on_look`` gets each node whose look has ended, from any
    thread.
    """
    limit_s = within_s or (_RANKS_S if stacks == "none" else _STACKS_S)

    def look(login: JobLogin) -> NodeLook:
        found = _look(login, job, stacks, limit_s)
        on_look(login.host.name)
        return found

    return tuple(supervised_job.of_each(logins, look))


def _look(login: JobLogin, job: str, stacks: Stacks, limit_s: float) -> NodeLook:
    name = login.host.name
    remote = login.program(PROGRAM, job, *_OPTIONS[stacks])
    argv = login.command(remote, connect_timeout_s=_CONNECT_S)
    try:
        reply = python.ask(argv, b"", limit_s, {"ranks", "at"})
    except OSError as error:  # this machine lacks ssh, memory or open files
        return NodeLook(host=name, problem=str(error))
    if reply.answer is None:
        return NodeLook(host=name, problem=reply.problem, silent=_is_silent(login, reply))
    try:
        given = [Stack(host=name, **entry) for entry in reply.answer.get("stacks", ())]
        return NodeLook.model_validate({**reply.answer, "host": name, "stacks": given, "problem": ""})
    except (TypeError, AttributeError, ValidationError):
        return NodeLook(host=name, problem="its answer is not readable")


def halted_logins(logins: Sequence[JobLogin]) -> tuple[str, ...]:
    """Try to log in to a few nodes anew, and return those whose sshd says its first line and then exchanges no keys.

    The first line is a small packet, and the lists of an exchange of keys fill a large one. A node that is frozen or
    away says no first line.
    """
    with ThreadPoolExecutor(_MOST_TRIED) as pool:
        tried = pool.map(_is_halted, few := logins[:_MOST_TRIED])
    return tuple(login.host.name for login, halted in zip(few, tried, strict=True) if halted)


def _is_halted(login: JobLogin) -> bool:
    own = replace(login, control_dir=None, as_user=None)  # a shared connection has its keys
    program, *words = own.command(["true"], connect_timeout_s=_CONNECT_S)
    if program != "ssh":
        return False
    with tempfile.NamedTemporaryFile(mode="r", encoding="utf-8", errors="replace") as told:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired, python.TooMuchOutputError):
            python.run([program, "-v", "-E", told.name, *words], b"", _LOGIN_S)
        return ssh_failure.lacks_keys(told.read())


def _is_silent(login: JobLogin, reply: python.Reply) -> bool:
    if reply.done is None or login.host.step is not None:
        return reply.timed_out
    return ssh_failure.is_silent(reply.done.returncode, reply.done.errors.decode("utf-8", "replace"))
