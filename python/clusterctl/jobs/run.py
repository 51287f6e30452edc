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

from clusterctl.jobs import first_look, flight, launcher_needs
from clusterctl.jobs import team as team_of_job
from clusterctl.jobs.output_lines import NoiseFilter, Prefixer
from clusterctl.jobs.watch import STALL_AFTER_S
from clusterctl.jobs.watched_run import RunEnd, StoodStillError, WatchedNodes, WatchedRun
from clusterctl.launch import compose, scheduler_env
from clusterctl.launch.launchers import TRAITS
from clusterctl.model.hosts import InventoryOptions
from clusterctl.model.job_outcome import TIMED_OUT, exit_code
from clusterctl.model.nodeset import folded
from clusterctl.model.rank_slots import slots_of
from clusterctl.remote import supervised_job
from clusterctl.state import environments, paths
from clusterctl.support.errors import ConfigError, HostFailedError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterctl.jobs.first_look import FirstLook
    from clusterctl.jobs.output_lines import Hear, Prefix, Take
    from clusterctl.jobs.team import JobTeam
    from clusterctl.launch.compose import JobOptions, LaunchPlan
    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.hosts import AnyInventory
    from clusterctl.model.job_outcome import JobOutcome, MemoryKills
    from clusterctl.remote.supervised_job import Look


_MOST_NAMED = 6
_IN_HOME = "clusterctl"  # the folder of copied code, in the home of the job's user


@dataclass(frozen=True)
class RunOptions:
    """What the user asked for, apart from the parts of the launch line.

    ``sync`` is a folder here, ``remote_dir`` its place on the nodes: an absolute path, or one from the home. ``hear``
    gets each line of a rank, where the launcher tells which rank prints. ``look`` is one that is under way.
    ``environment`` has the folder of a project's environment on each node, and is empty for the cluster's own.
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
    environment: Mapping[str, str] = field(default_factory=dict)


def shown(inventory: AnyInventory, options: RunOptions, tell: Callable[[str], None]) -> str:
    """Return the launch line as it can be pasted on the launch node; nothing is started or copied."""
    with team_of_job.gathered(inventory, of_team(options), tell) as team:
        return _plan(team, started_in(team, options), tell).shown()


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

    ``take`` gets the output as it comes, ``stdout`` or ``stderr`` and bytes; nothing of it is kept here. ``placed``
    gets where the ranks are, before the program starts.

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
        compose.parse(word)
    with team_of_job.gathered(inventory, of_team(options), tell) as team, contextlib.ExitStack() as kept:
        job_id = new_id()
        started = started_in(team, options)
        if options.watch:
            recorder = kept.enter_context(flight.recorded(team, started.wish, job_id, tell))
            started = replace(started, wish=replace(started.wish, exported=(*started.wish.exported, *recorder)))
        ready = prepared(team, options, started, tell, job_id)
        plan = ready.plan
        if placed is not None:
            placed(_places(team, options, plan))
        prefixer = Prefixer(plan.hosts, options.prefix, take, options.hear) if plan.tags else None
        quiet = NoiseFilter(prefixer or take)
        with _watched(team, options, plan, _WatchedStart(job_id, ready.memory), tell) as watch:
            try:
                outcome = supervised_job.run(
                    team.login(team.launch_node),
                    ready.spec,
                    peers=team.peers,
                    on_data=quiet if watch is None else watch.through(quiet),
                    on_poll=None if watch is None else watch.poll,
                )
            except StoodStillError:
                return RunEnd(TIMED_OUT, tuple(team.hosts), watch.suspects if watch else (), stood_still=True)
            quiet.end()
            if prefixer is not None:
                prefixer.end()
            ended_well = (outcome.ending, outcome.rc) == ("exited", 0)
            if ended_well and watch is not None and watch.lost_a_daemon:  # the ranks did not end by themselves
                outcome, ended_well = replace(outcome, rc=1), False
            if watch is not None and outcome.ending != "not_started" and not ended_well:
                watch.died(by_itself=outcome.ending == "exited")
    code = _concluded(outcome, team.launch_node, options, tell)
    return RunEnd(code, tuple(team.hosts), watch.suspects if watch is not None and code else ())


def of_team(options: RunOptions) -> team_of_job.TeamOptions:
    return team_of_job.TeamOptions(
        options.inventory, options.launch_node, options.gate, options.look, options.environment
    )


@dataclass(frozen=True)
class ReadyJob:
    """A job that can be started; ``memory`` is what each node had killed for lack of memory before it."""

    plan: LaunchPlan
    spec: supervised_job.JobSpec
    memory: Mapping[str, MemoryKills]


def new_id() -> str:
    return f"run-{secrets.token_hex(6)}"


def prepared(
    team: JobTeam, options: RunOptions, started: StartedIn, tell: Callable[[str], None], job_id: str
) -> ReadyJob:
    """Compose the launch line, copy the code, and look for the program on every node.

    Raises:
        ConfigError: something asked for cannot be, or is missing on a node.
        UnreachableError: a node does not answer.
        HostFailedError: the code could not be copied.
    """
    plan = _plan(team, started, tell, job_id)
    if options.sync is not None:
        _sync(team, options.sync, started.copied_to, tell)
    memory = refuse_missing(team, started.wish)
    first = team.facts[team.launch_node]
    session = {name: value for name, value in first.environment.items() if name in compose.ALWAYS}
    spec = supervised_job.JobSpec(
        job=job_id,
        argv=plan.argv,
        deadline_s=options.timeout_s,
        environment={**session, **launcher_needs.secrets_of(started.wish), **plan.environment},
        port=plan.port,
        literal=plan.literal,
        directory=started.wish.directory,
    )
    return ReadyJob(plan, spec, memory)


def _places(team: JobTeam, options: RunOptions, plan: LaunchPlan) -> RankPlaces:
    """Return the place of each rank; a name that two nodes call themselves by tells nothing."""
    own = TRAITS[options.wish.launcher].numbers_ranks
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
    ranks = _places(team, options, plan).nodes
    unplaced = max(0, (options.wish.ranks or 0) - len(ranks))  # with --oversubscribe
    nodes = WatchedNodes(
        cluster=paths.cluster_id(team.cluster.sources),
        hosts=team.cluster.selected_hosts,
        facts=team.facts,
        logins=team.logins,
        ranks=ranks,
        control=team.control,
        memory=start.memory,
        counts={
            name: ranks.count(name) + unplaced if ranks else options.wish.processes or slots_of(team.hosts[name], node)
            for name, node in team.facts.items()
        },
        speakers=plan.hosts if plan.tags else None,
    )
    return contextlib.closing(WatchedRun(start.job, nodes, options.stall_after_s, tell, ends=options.ends_at_stall))


# --- the line ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StartedIn:
    """The wish with the folder in which the program starts, and where on the nodes the code is copied to."""

    wish: JobOptions
    copied_to: str = ""
    folder: Path | None = None

    @property
    def synced(self) -> launcher_needs.Synced | None:
        """The folder that is copied, and its place on the nodes."""
        return None if self.folder is None else launcher_needs.Synced(self.folder, self.copied_to)


def started_in(team: JobTeam, options: RunOptions) -> StartedIn:
    """Settle where the program starts: in the folder asked for, else in the copied one, else in the home.

    Raises:
        ConfigError: the folder is not valid, or the homes of the nodes differ.
    """
    wish = replace(options.wish, tagged=_has_tags(options))
    copied_to = "" if options.sync is None else _copied_to(team, options.sync, options.remote_dir)
    if options.sync is None and options.remote_dir:
        raise ConfigError("--remote-dir says where --sync copies to; give it with --sync PATH.")
    directory = os.path.normpath(f"{copied_to}/{wish.directory}") if _is_below(copied_to, wish) else wish.directory
    if directory and not directory.startswith("/"):
        raise ConfigError(f"--chdir is {directory!r}; it takes an absolute path, which nodes share.")
    return StartedIn(replace(wish, directory=directory), copied_to, options.sync and _absolute(options.sync))


def _has_tags(options: RunOptions) -> bool:
    """Whether it counts who prints a line: a job that is started again must not leave a node out by another's words."""
    return options.prefix != "none" or options.hear is not None or options.ends_at_stall


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
    refuse_silent(looks)
    homes: dict[str, list[str]] = {}
    for one in looks:
        homes.setdefault(one.folder, []).append(one.host)
    if len(homes) > 1:
        words = "; ".join(f"{home} on {folded(hosts)}" for home, hosts in list(homes.items())[:_MOST_NAMED])
        raise ConfigError(f"The cluster's user has different homes ({words}); give --remote-dir an absolute path.")
    return os.path.normpath(f"{next(iter(homes))}/{asked}")


def _absolute(folder: Path) -> Path:
    return Path(os.path.abspath(folder))  # noqa: PTH100 - a link keeps the name that the user typed


def _plan(team: JobTeam, started: StartedIn, tell: Callable[[str], None], job_id: str = "") -> LaunchPlan:
    scheduler_env.refuse_outside(started.wish.caller, list(team.hosts.values()))
    launcher_needs.refuse_without(team.facts, started.wish)
    wish = replace(started.wish, config=launcher_needs.config(team, started.wish, started.synced))
    plan = compose.compose(team.members, team.launch_node, wish, job_id)
    for note in plan.notes:
        tell(f"Note: {note}")
    return plan


# --- the program ------------------------------------------------------------------------------------------------------


def _sync(team: JobTeam, folder: Path, target: str, tell: Callable[[str], None]) -> None:
    from clusterctl.remote import sync  # noqa: PLC0415 - most jobs copy nothing

    place = _absolute(folder)
    paths = {name: node.environment.get("PATH", "") for name, node in team.facts.items()}
    has_rsync = {one.host: bool(one.found.get("rsync")) for one in supervised_job.look(team.logins, ["rsync"], paths)}
    copied = sync.copy(place, target, team.logins, has_rsync)
    if copied.note:
        tell(copied.note)
    files = "1 file" if copied.files == 1 else f"{copied.files} files"
    tell(f"{files} of {place} copied to {target} on {folded(team.hosts)}.")


# --- the end ----------------------------------------------------------------------------------------------------------


def not_started(launch_node: str, problem: str) -> HostFailedError:
    return HostFailedError(f"The job could not be started on {launch_node}: {problem}.")


def _concluded(outcome: JobOutcome, launch_node: str, options: RunOptions, tell: Callable[[str], None]) -> int:
    for swept in outcome.sweeps:
        for words in (*swept.left, swept.problem):
            if words:
                tell(f"May still be running on {swept.host}: {words}")
    if outcome.ending == "not_started":
        raise not_started(launch_node, outcome.problem)
    if outcome.ending == "lost":
        raise UnreachableError(f"The connection to the launch node {launch_node} was lost: {outcome.problem}.")
    if outcome.ending == "stopped":
        raise HostFailedError(f"The job was ended on {launch_node} by another process or user.")
    if outcome.ending == "deadline":
        tell(f"The job had not ended after {options.timeout_s:g} s and was ended.")
        return TIMED_OUT
    return exit_code(outcome.rc, outcome.signal)


# --- Find out which nodes lack the user's program, its script or its folder, before anything of a job is started ------


def refuse_missing(team: JobTeam, wish: JobOptions) -> dict[str, MemoryKills]:
    """Refuse nodes that lack the program, its script or the folder; return what the kernel has killed on each so far.

    Returns:
        What was killed for lack of memory before, by host.

    Raises:
        ConfigError: something is missing; the sentence says where and what to do.
        UnreachableError: a node does not answer.
    """
    nodes = team.facts
    needed = compose.needed_files(wish, nodes[team.launch_node].layout)
    layouts = {name: node.layout for name, node in nodes.items()}
    own = {name: layout.own_python for name, layout in layouts.items() if layout.environment}
    packages = launcher_needs.package_files(nodes, wish)
    files = {path for own in packages.values() for path in own.values()}
    asked = dict.fromkeys((*own.values(), *needed.names, *sorted(files)))
    looks = _looks(team, first_look.WantedFiles(tuple(asked), wish.directory))
    refuse_silent(looks)
    adrift = [one.host for one in looks if not one.has_folder]
    if adrift:
        raise ConfigError(
            f"The folder {wish.directory} is not on {folded(adrift)}; --sync copies one to all nodes, --chdir names "
            "another."
        )
    gone = [one.host for one in looks if one.host in own and not one.found.get(own[one.host])]
    if gone:
        raise environments.GoneError({name: layouts[name].environment for name in gone})
    launcher_needs.refuse_without_packages(wish.launcher, packages, looks, in_project=bool(own))
    for name in needed.names:
        missing = [one.host for one in looks if not one.found.get(name)]
        blocked = [one.host for one in looks if name == needed.program and one.found.get(name) and name not in one.runs]
        if missing and name == layouts[missing[0]].own_python:
            raise ConfigError(_without_python(name, missing, nodes[missing[0]]))
        if missing or blocked:
            raise ConfigError(_missing_words(name, missing, blocked, looks))
    return {one.host: one.memory for one in looks}


def _looks(team: JobTeam, wanted: first_look.WantedFiles) -> list[Look]:
    """Return where the nodes have files: as the first look told, where it asked for just these, else ask them now."""
    if wanted == team.wanted and not any(team.users.values()):  # the first look is the login user's
        told = [_look_of(name, node, wanted.names) for name, node in team.facts.items()]
        if all(told):
            return [one for one in told if one]
    paths = {name: node.environment.get("PATH", "") for name, node in team.facts.items()}
    return supervised_job.look(team.logins, wanted.names, paths, wanted.directory)


def _look_of(host: str, node: NodeFacts, names: Sequence[str]) -> Look | None:
    """Return what a node told with its facts; None where it told of other files, or of none."""
    told = node.job_look
    if told is None or not len(told.found) == len(told.runs) == len(names):
        return None
    found = {name: name if there else "" for name, there in zip(names, told.found, strict=True)}
    runs = frozenset(name for name, can_run in zip(names, told.runs, strict=True) if can_run)
    return supervised_job.Look(host, found, runs, told.folder, told.has_folder, told.memory)


def refuse_silent(looks: Sequence[Look]) -> None:
    """Refuse nodes that could not be asked."""
    silent = [one for one in looks if one.problem]
    if silent:
        raise UnreachableError("; ".join(f"{one.host}: {one.problem}" for one in silent[:_MOST_NAMED]) + ".")


def _without_python(python: str, missing: Sequence[str], node: NodeFacts) -> str:
    why = node.artifact("python_env").problem or "its environment was removed"
    return (
        f"{python}, the cluster's Python, is missing on {folded(missing)} ({why}); put that right and run 'clusterctl "
        "provision', or leave them out with --limit."
    )


def _missing_words(name: str, missing: Sequence[str], blocked: Sequence[str], looks: Sequence[Look]) -> str:
    if not missing:
        return f"{name} is not executable on {folded(blocked)}; run 'chmod +x' there, or name its interpreter first."
    where = "the PATH of the nodes' sessions" if "/" not in name else f"{looks[0].folder}"
    looked = "" if name.startswith("/") else f" (looked in {where})"
    if len(missing) < len(looks):
        return f"{name} is missing on {folded(missing)}{looked}; --sync PATH copies your code to all nodes."
    return f"{name} is missing on all nodes{looked}; give its full path, or copy it there with --sync PATH."
