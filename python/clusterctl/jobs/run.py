"""The verb run: start the user's program on all nodes, bring its output and its exit code, leave nothing behind.

The story: read the inventory, look at every node, refuse nodes that would hurt the job (the gate), compose the launch
line. Copy the code where asked to, check that every node has the program, and start the line under a supervisor.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.diagnosis import training_stack
from clusterctl.jobs import flight, program
from clusterctl.jobs import team as team_of_job
from clusterctl.jobs.launcher_noise import NoiseFilter
from clusterctl.jobs.prefixer import Prefixer
from clusterctl.jobs.watch import STALL_AFTER_S
from clusterctl.jobs.watched_run import RunEnd, StoodStillError, WatchedNodes, WatchedRun
from clusterctl.launch import compose, environment, member
from clusterctl.launch.compose import JobOptions, Launcher
from clusterctl.model.hosts import InventoryOptions
from clusterctl.model.nodeset import folded
from clusterctl.model.rank_slots import slots_of
from clusterctl.remote import supervised_job, sync
from clusterctl.state import paths
from clusterctl.support.errors import ConfigError, HostFailedError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clusterctl.jobs.first_look import FirstLook
    from clusterctl.jobs.prefixer import Hear, Prefix, Take
    from clusterctl.jobs.team import JobTeam
    from clusterctl.launch.compose import LaunchPlan
    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.hosts import AnyInventory
    from clusterctl.model.job_outcome import JobOutcome
    from clusterctl.model.memory_kills import MemoryKills

TIMED_OUT = 124  # as timeout(1) has it
_SIGNALLED = 128
_MOST_NAMED = 6
_IN_HOME = "clusterctl"  # the folder of copied code, in the home of the job's user


@dataclass(frozen=True)
class RunOptions:
    """What the user asked for, apart from the parts of the launch line.

    ``sync`` is a folder here, ``remote_dir`` its place on the nodes: an absolute path, or one from the home. ``hear``
    gets each line of a rank, where the launcher tells which rank prints. ``look`` is one that is under way.
    """

    wish: JobOptions
    inventory: InventoryOptions = field(default_factory=InventoryOptions)
    launch_node: str | None = None
    sync: Path | None = None
    remote_dir: str = ""
    prefix: Prefix = "none"
    hear: Hear | None = None
    gate: bool = True
    timeout_s: float | None = None
    watch: bool = True
    stall_after_s: float = STALL_AFTER_S
    ends_at_stall: bool = False
    look: FirstLook | None = None


def shown(inventory: AnyInventory, options: RunOptions, tell: Callable[[str], None]) -> str:
    """Return the launch line as it can be pasted on the launch node; nothing is started or copied.

    Raises:
        ClusterctlError: as :func:`run`.
    """
    with team_of_job.gathered(inventory, _of_team(options), tell) as team:
        return _plan(team, _started(team, options), tell).shown()


@dataclass(frozen=True)
class RankPlaces:
    """Where the ranks of a job are, by the inventory's names.

    ``nodes`` has the node of each rank where the launcher is told it, and ``hostnames`` the node that calls itself so.
    ``heard`` says whether ``RunOptions.hear`` gets the lines.
    """

    nodes: tuple[str, ...]
    hostnames: Mapping[str, str]
    heard: bool = False

    def node(self, rank: int, hostname: str) -> str:
        """Return the node of a rank, and what it calls itself where the node is not known."""
        return self.nodes[rank] if rank < len(self.nodes) else self.hostnames.get(hostname, hostname)


def run(
    inventory: AnyInventory,
    options: RunOptions,
    take: Take,
    tell: Callable[[str], None],
    placed: Callable[[RankPlaces], None] | None = None,
) -> int:
    """Run the user's program and return its exit code; see :func:`run_watched`."""
    return run_watched(inventory, options, take, tell, placed).code


def run_watched(
    inventory: AnyInventory,
    options: RunOptions,
    take: Take,
    tell: Callable[[str], None],
    placed: Callable[[RankPlaces], None] | None = None,
) -> RunEnd:
    """Run the user's program and stay until nothing of it is left.

    Args:
        inventory: the inventory.
        options: what the user asked for.
        take: gets the output as it comes, ``stdout`` or ``stderr`` and bytes; nothing of it is kept here.
        tell: gets sentences for the user.
        placed: gets where the ranks are, before the program starts.

    Returns:
        How it ended. The code is the job's own; 128 and its number where a signal ended the launcher; 124 after the
        deadline, or where the job stood still and was ended.

    Raises:
        ConfigError: something asked for cannot be, and nothing was started.
        GateError: the nodes differ.
        UnreachableError: a node does not answer, or the launch node was lost.
        HostFailedError: the code could not be copied, or the job was ended on the node by somebody else.
    """
    for word in options.wish.exported:
        environment.parse(word)
    with team_of_job.gathered(inventory, _of_team(options), tell) as team, contextlib.ExitStack() as kept:
        job_id = f"run-{secrets.token_hex(6)}"
        started = _started(team, options)
        if options.watch:
            recorder = kept.enter_context(flight.recorded(team, started.wish, job_id, tell))
            started = replace(started, wish=replace(started.wish, exported=(*started.wish.exported, *recorder)))
        plan = _plan(team, started, tell, job_id)
        if options.sync is not None:
            _sync(team, options.sync, started.copied_to, tell)
        if placed is not None:
            placed(_places(team, options, plan))
        kills = program.refuse_missing(team.logins, team.facts, team.launch_node, started.wish)
        first = team.facts[team.launch_node]
        session = {name: value for name, value in first.environment.items() if name in environment.ALWAYS}
        spec = supervised_job.JobSpec(
            job=job_id,
            argv=plan.argv,
            deadline_s=options.timeout_s,
            environment={**session, **plan.environment},
            port=plan.port,
            literal=plan.literal,
            directory=started.wish.directory,
        )
        prefixer = Prefixer(plan.hosts, options.prefix, take, options.hear) if plan.tags else None
        others = [team.login(name) for name in team.hosts if name != team.launch_node]
        quiet = NoiseFilter(prefixer or take)
        with _watched(team, options, plan, _WatchedStart(job_id, kills), tell) as watch:
            try:
                outcome = supervised_job.run(
                    team.login(team.launch_node),
                    spec,
                    peers=others,
                    on_data=quiet if watch is None else watch.through(quiet),
                    on_poll=None if watch is None else watch.poll,
                )
            except StoodStillError:
                return RunEnd(TIMED_OUT, tuple(team.hosts), watch.suspects if watch else (), stood_still=True)
            quiet.end()
            if prefixer is not None:
                prefixer.end()
            ended_well = (outcome.ending, outcome.rc) == ("exited", 0)
            if watch is not None and outcome.ending != "not_started" and not ended_well:
                watch.died(by_itself=outcome.ending == "exited")
    code = _concluded(outcome, team.launch_node, options, tell)
    return RunEnd(code, tuple(team.hosts), watch.suspects if watch is not None and code else ())


def _of_team(options: RunOptions) -> team_of_job.TeamOptions:
    return team_of_job.TeamOptions(options.inventory, options.launch_node, options.gate, options.look)


def _places(team: JobTeam, options: RunOptions, plan: LaunchPlan) -> RankPlaces:
    """Return the place of each rank; a name that two nodes call themselves by tells nothing."""
    own = options.wish.launcher is Launcher.TORCHRUN  # it numbers its ranks itself
    called: dict[str, list[str]] = {}
    for name, node in team.facts.items():
        called.setdefault(node.hostname.partition(".")[0], []).append(name)
    only = {hostname: names[0] for hostname, names in called.items() if len(names) == 1}
    heard = plan.tags and options.hear is not None
    return RankPlaces(() if own else tuple(plan.hosts[: options.wish.ranks]), only, heard)


@dataclass(frozen=True)
class _WatchedStart:
    """The id of a job, and what each node had killed for lack of memory before it."""

    job: str
    memory: Mapping[str, MemoryKills]


def _watched(
    team: JobTeam, options: RunOptions, plan: LaunchPlan, start: _WatchedStart, tell: Callable[[str], None]
) -> contextlib.AbstractContextManager[WatchedRun | None]:
    if not options.watch or (len(team.hosts) == 1 and not options.ends_at_stall):  # nobody waits for another node
        return contextlib.nullcontext()
    nodes = WatchedNodes(
        cluster=paths.cluster_id(team.cluster.sources),
        hosts=team.cluster.selected_hosts,
        facts=team.facts,
        logins=team.logins,
        ranks=_places(team, options, plan).nodes,
        control=team.control,
        memory=start.memory,
    )
    return contextlib.closing(WatchedRun(start.job, nodes, options.stall_after_s, tell, ends=options.ends_at_stall))


# --- the line ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Started:
    """The wish with the folder in which the program starts, and where on the nodes the code is copied to."""

    wish: JobOptions
    copied_to: str = ""


def _started(team: JobTeam, options: RunOptions) -> _Started:
    """Settle where the program starts: in the folder asked for, else in the copied one, else in the home.

    Raises:
        ConfigError: the folder is not valid, or the homes of the nodes differ.
    """
    wish = replace(options.wish, tagged=options.prefix != "none" or options.hear is not None)
    copied_to = "" if options.sync is None else _copied_to(team, options.sync, options.remote_dir)
    if options.sync is None and options.remote_dir:
        raise ConfigError("--remote-dir says where --sync copies to; give it with --sync DIR.")
    directory = os.path.normpath(f"{copied_to}/{wish.directory}") if _is_below(copied_to, wish) else wish.directory
    if directory and not directory.startswith("/"):
        raise ConfigError(f"--chdir is {directory!r}; it takes an absolute path, which nodes share.")
    return _Started(replace(wish, directory=directory), copied_to)


def _is_below(copied_to: str, wish: JobOptions) -> bool:
    return bool(copied_to) and not wish.directory.startswith("/")


def _copied_to(team: JobTeam, folder: Path, remote_dir: str) -> str:
    """Return the absolute path on the nodes: ``remote_dir``, or ``clusterctl/NAME`` in the home of the job's user."""
    place = _absolute(folder)
    if not place.is_dir():
        raise ConfigError(f"{place} is not a folder; --sync takes the folder of your program.")
    asked = remote_dir.removeprefix("~/") or f"{_IN_HOME}/{place.name}"
    if asked.startswith("/"):
        return os.path.normpath(asked)
    looks = supervised_job.look(team.logins, (), {})
    program.refuse_silent(looks)
    homes: dict[str, list[str]] = {}
    for one in looks:
        homes.setdefault(one.folder, []).append(one.host)
    if len(homes) > 1:
        words = "; ".join(f"{home} on {folded(hosts)}" for home, hosts in list(homes.items())[:_MOST_NAMED])
        raise ConfigError(f"The cluster's user has different homes ({words}); give --remote-dir an absolute path.")
    return os.path.normpath(f"{next(iter(homes))}/{asked}")


def _absolute(folder: Path) -> Path:
    return Path(os.path.abspath(folder))  # noqa: PTH100 - a link keeps the name that the user typed


def _plan(team: JobTeam, started: _Started, tell: Callable[[str], None], job_id: str = "") -> LaunchPlan:
    _refuse_without_stack(team.facts, started.wish.launcher)
    members = {
        name: member.member(node, slots_of(host := team.hosts[name], node), team.users[name], host.cluster_address)
        for name, node in team.facts.items()
    }
    plan = compose.compose(members, team.launch_node, started.wish, job_id)
    for note in plan.notes:
        tell(f"Note: {note}")
    return plan


def _refuse_without_stack(nodes: Mapping[str, NodeFacts], launcher: Launcher) -> None:
    have = {name: training_stack.of(node) for name, node in nodes.items()}
    if launcher is Launcher.TORCHRUN:
        without = [name for name, one in have.items() if one.framework != "pytorch"]
        lack, cure = "PyTorch", "provision them with python_env_framework: pytorch"
    elif launcher is Launcher.HOROVODRUN:
        without = [name for name, one in have.items() if not one.horovod]
        lack, cure = "Horovod", "provision them with horovod_install: auto"
    else:
        return
    if without:
        raise ConfigError(
            f"--launcher {launcher.value} needs {lack}, which is missing on {folded(without)}; {cure}, or leave "
            "them out with --limit."
        )


# --- the program ------------------------------------------------------------------------------------------------------


def _sync(team: JobTeam, folder: Path, target: str, tell: Callable[[str], None]) -> None:
    place = _absolute(folder)
    paths = {name: node.environment.get("PATH", "") for name, node in team.facts.items()}
    has_rsync = {one.host: bool(one.found.get("rsync")) for one in supervised_job.look(team.logins, ["rsync"], paths)}
    count = sync.copy(place, target, team.logins, has_rsync)
    files = "1 file" if count == 1 else f"{count} files"
    tell(f"{files} of {place} copied to {target} on {folded(team.hosts)}.")


# --- the end ----------------------------------------------------------------------------------------------------------


def _concluded(outcome: JobOutcome, launch_node: str, options: RunOptions, tell: Callable[[str], None]) -> int:
    for swept in outcome.sweeps:
        for words in (*swept.left, swept.problem):
            if words:
                tell(f"May still be running on {swept.host}: {words}")
    if outcome.ending == "not_started":
        raise HostFailedError(f"The job could not be started on {launch_node}: {outcome.problem}.")
    if outcome.ending == "lost":
        raise UnreachableError(f"The connection to the launch node {launch_node} was lost: {outcome.problem}.")
    if outcome.ending == "stopped":
        raise HostFailedError(f"The job was ended on {launch_node} by another process or user.")
    if outcome.ending == "deadline":
        tell(f"The job had not ended after {options.timeout_s:g} s and was ended.")
        return TIMED_OUT
    return _SIGNALLED + (outcome.signal or 0) if outcome.rc is None else outcome.rc
