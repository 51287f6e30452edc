"""``clusterctl run``."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path  # noqa: TC003 - typer reads the annotations at run time
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from clusterctl.cli import options, output
from clusterctl.launch.compose import JobOptions
from clusterctl.launch.launchers import Launcher
from clusterctl.launch.mpirun import MapBy
from clusterctl.support.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from clusterctl.jobs.run import RunOptions
    from clusterctl.model.hosts import InventoryOptions, InventorySources
    from clusterctl.model.run_record import RunObserver
    from clusterctl.provisioning.project import Project


_RANKS = "Ranks"


class Prefix(str, Enum):
    """What each line of output begins with."""

    NONE = "none"
    RANK = "rank"
    HOST = "host"


def joined(arguments: Sequence[str]) -> list[str]:
    """Make one word of the two that follow ``--mca``, as mpirun has it; typer has no option with two words."""
    words: list[str] = []
    rest = list(arguments)
    while rest and rest[0] != "--":
        word = rest.pop(0)
        if word == "--mca" and len(rest) > 1 and "=" not in rest[0]:
            word = f"--mca={rest.pop(0)}={rest.pop(0)}"
        words.append(word)
    return [*words, *rest]


class Line(options.PanelCommand):
    """The command line of run."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse after :func:`joined`."""
        return super().parse_args(ctx, joined(args))


@dataclass(frozen=True)
class FoldersGroup:
    """Where a job starts on the nodes, and what is copied there."""

    PANEL: ClassVar[str] = "Folders"
    sync: Annotated[
        Path | None,
        typer.Option("--sync", metavar="PATH", help="Copy this folder to ~/clusterctl/NAME on all nodes; start there."),
    ] = None
    project: Annotated[
        Path | None,
        typer.Option(
            "--project",
            metavar="PATH",
            help="Do as --sync, in an environment on all nodes that the folder's lock decides.",
        ),
    ] = None
    remote_dir: Annotated[
        str,
        typer.Option(
            "--remote-dir", metavar="PATH", help="Copy to this folder with --sync; a relative path is in the home."
        ),
    ] = ""
    chdir: Annotated[
        str,
        typer.Option(
            "--chdir", metavar="PATH", help="Start in this folder of the nodes. Default: the copied folder, else home."
        ),
    ] = ""


@dataclass(frozen=True)
class WatchGroup:
    """What looks at a job while it runs, and what a job does that stands still."""

    PANEL: ClassVar[str] = "Watch"
    pace: Annotated[
        bool, typer.Option("--pace", help="Name the rank whose own part of a step is late; it calls clusterctl.pace.")
    ] = False
    pace_pattern: Annotated[
        str,
        typer.Option(
            "--pace-pattern",
            metavar="REGEX",
            help="Do as --pace, by step times that ranks print, as the pattern's group 'seconds'.",
        ),
    ] = ""
    watch: Annotated[
        bool, typer.Option("--watch/--no-watch", help="Name the node that stops a silent job of several nodes.")
    ] = True
    stall_after: Annotated[
        float,
        typer.Option("--stall-after", metavar="SECONDS", help="Look at a job that is silent for so long."),
    ] = 300.0
    restarts: Annotated[
        int,
        typer.Option(
            "--restart-without-suspects",
            metavar="N",
            min=0,
            help="End a job that stands still, and start it again so often.",
        ),
    ] = 0
    search: Annotated[
        bool, typer.Option("--search", help="Where no node is suspected, run on halves of the nodes to find it.")
    ] = False


@dataclass(frozen=True)
class RanksGroup:
    """How many ranks there are, and what each of them gets."""

    PANEL: ClassVar[str] = _RANKS
    ranks: Annotated[
        int | None,
        typer.Option("-np", metavar="N", min=1, help="Start so many ranks in all. Default: one for every slot."),
    ] = None
    processes: Annotated[
        int | None,
        typer.Option(
            "--nproc-per-node",
            metavar="N",
            min=1,
            help="A launcher starts so many processes on a node. Default: its slots.",
        ),
    ] = None
    oversubscribe: Annotated[bool, typer.Option("--oversubscribe", help="Start more ranks than there are slots.")] = (
        False
    )
    map_by: Annotated[MapBy, typer.Option("--map-by", help="The next rank goes to the next one of these.")] = MapBy.SLOT
    export: Annotated[
        list[str] | None,
        typer.Option("-x", metavar="NAME[=VALUE]", help="Give the ranks this variable; without a value, yours."),
    ] = None
    mca: Annotated[
        list[str] | None,
        typer.Option("--mca", metavar="NAME VALUE", help="Set a parameter of Open MPI, as mpirun does."),
    ] = None


def run(
    which: options.OneInventoryGroup,
    login: options.LoginGroup,
    path: options.JobPathGroup,
    its: RanksGroup,
    folders: FoldersGroup,
    look: WatchGroup,
    program: Annotated[
        list[str] | None, typer.Argument(metavar="-- PROGRAM [ARGUMENT…]", help="The program, behind two dashes.")
    ] = None,
    launcher: Annotated[
        Launcher, typer.Option("--launcher", help="This program starts the ranks.", rich_help_panel=_RANKS)
    ] = Launcher.MPIRUN,
    prefix: Annotated[
        Prefix, typer.Option("--prefix", help="Each line of output begins with this.", rich_help_panel=options.OUTPUT)
    ] = Prefix.NONE,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", help="End the job then, with code 124.")
    ] = None,
    launch_node: Annotated[
        str | None,
        typer.Option(
            "--launch-node",
            metavar="HOST",
            help="Start the job on this host. Default: the first one.",
            rich_help_panel=options.HOSTS,
        ),
    ] = None,
    show: Annotated[
        bool,
        typer.Option(
            "--print", help="Show the command for the launch node, and run nothing.", rich_help_panel=options.OUTPUT
        ),
    ] = False,
    gate: Annotated[
        bool, typer.Option("--gate/--no-gate", help="Refuse nodes that differ.", rich_help_panel=options.HOSTS)
    ] = True,
    exclude: Annotated[
        str,
        typer.Option(
            "--exclude",
            metavar="HOSTS",
            help="Run without these hosts, such as node7,node9.",
            rich_help_panel=options.HOSTS,
        ),
    ] = "",
    limit: options.Limit = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Leave the job to the launch node and return; see 'clusterctl jobs'.")
    ] = False,
) -> int:
    """Start a program on the cluster by mpirun or another launcher.

    Brings its output and its exit code; Ctrl-C ends it on all nodes. Other codes: 1 for a bad configuration, 2 for
    wrong usage or a failed node, 4 for a node that does not answer, 10 for nodes that differ. 124 after --timeout, 130
    after Ctrl-C.
    """
    from clusterctl.launch import compose  # noqa: PLC0415 - see cli.main: --help stays quick
    from clusterctl.support.errors import ConfigError  # noqa: PLC0415

    if which.more and which.named is not None:  # with -i every word by position belongs to the program
        program = [str(which.named), *(program or ())]
        which = options.OneInventoryGroup(None, which.more)
    inventory = which.sources
    if not program or not program[0]:
        raise ConfigError("There is no program to start; name it behind '--', as in: -- ./program --its-option.")
    _refuse_times(timeout, look)
    pattern = _pattern(look.pace_pattern)
    pace = look.pace or pattern is not None
    again = look.restarts or look.search
    _refuse_together(look, pace=pace, again=bool(again), detach=detach)
    parameters = _parameters(its.mca or ())
    exported = tuple(its.export or ())
    for word in exported:
        compose.parse(word)
    of_inventory = login.options(_without(exclude, limit))
    if folders.sync is not None and folders.project is not None:
        raise typer.BadParameter(
            "it copies the folder as --sync does; leave out one of the two", param_hint="--project"
        )
    from clusterctl.jobs import first_look  # noqa: PLC0415 - see cli.main: --help stays quick

    def start(environment: Mapping[str, str], project: Project | None = None) -> int:
        wish = JobOptions(
            program=tuple(program),
            launcher=launcher,
            ranks=its.ranks,
            processes=its.processes,
            exported=project.exported(exported, folders.chdir) if project else exported,
            caller=dict(os.environ),
            mca=parameters,
            path=path.wish(its.map_by),
            oversubscribe=its.oversubscribe,
            directory=folders.chdir,
            pace=pace,
        )
        copied = folders.sync or folders.project
        wanted = None if copied else partial(first_look.files_of, wish)  # what is to be copied is not there yet
        with first_look.begun(inventory, of_inventory, wanted) as first:  # the nodes answer while the rest is imported
            from clusterctl.jobs import run as jobs  # noqa: PLC0415

            asked = jobs.RunOptions(
                wish=wish,
                inventory=of_inventory,
                launch_node=launch_node,
                sync=copied,
                remote_dir=folders.remote_dir,
                prefix=prefix.value,
                gate=gate,
                timeout_s=timeout,
                watch=look.watch,
                stall_after_s=look.stall_after,
                look=first,
                environment=environment,
            )
            return _carried_out(inventory, asked, look, pattern, show=show, detach=detach)

    if folders.project is None:
        return start({})
    return _in_project(folders.project, inventory, of_inventory, start, show=show)


def _carried_out(
    inventory: InventorySources,
    asked: RunOptions,
    look: WatchGroup,
    pattern: re.Pattern[str] | None,
    *,
    show: bool,
    detach: bool,
) -> int:
    from clusterctl.jobs import run as jobs  # noqa: PLC0415 - see cli.main: --help stays quick

    if show:
        sys.stdout.write(jobs.shown(inventory, asked, output.tell) + "\n")
        return ExitCode.OK
    if detach:
        return _detached(inventory, asked)
    if asked.wish.pace:
        from clusterctl.jobs import pace as paced  # noqa: PLC0415

        return paced.run(inventory, asked, _take, output.tell, pattern)
    if look.restarts or look.search:
        from clusterctl.jobs import relaunch  # noqa: PLC0415

        how = relaunch.RelaunchOptions(look.restarts, look.search)
        return relaunch.run(inventory, asked, how, _take, output.tell)
    return jobs.run(inventory, asked, _take, output.tell)


def _in_project(
    folder: Path,
    inventory: InventorySources,
    of_inventory: InventoryOptions,
    start: Callable[[Mapping[str, str], Project], int],
    *,
    show: bool,
) -> int:
    """Start the job in the environment of a project, which is installed before where it is missing."""
    from clusterctl.provisioning import project as projects  # noqa: PLC0415 - see cli.main: --help stays quick
    from clusterctl.state.environments import GoneError  # noqa: PLC0415

    def observer() -> AbstractContextManager[RunObserver]:
        from clusterctl.cli import change  # noqa: PLC0415 - a known environment needs none of it

        return change.observer_for(output.StreamFormat.TEXT, ask=False)

    project = projects.Project.of(folder)
    place = partial(
        projects.environment, project, inventory, of_inventory, None if show else observer, tell=output.tell
    )
    try:
        try:
            return start(place(), project)
        except GoneError as error:
            if show:
                raise
            output.tell(str(error))
            return start(place(gone_from=error.hosts), project)
    except projects.NotInstalledError as error:
        from clusterctl.cli import change  # noqa: PLC0415

        return change.show(error.record, output.StreamFormat.TEXT)


def _refuse_times(timeout: float | None, look: WatchGroup) -> None:
    if timeout is not None and not 0 < timeout < float("inf"):
        raise typer.BadParameter("a deadline is a positive number of seconds", param_hint="--timeout")
    if not 0 < look.stall_after < float("inf"):
        raise typer.BadParameter("it is a positive number of seconds", param_hint="--stall-after")


def _refuse_together(look: WatchGroup, *, pace: bool, again: bool, detach: bool) -> None:
    """Refuse options of the watch that do not go together, and beside ``--detach`` those that need this process."""
    if again and (pace or not look.watch):
        raise typer.BadParameter(
            "it needs the watch, and goes without --pace", param_hint="--search, --restart-without-suspects"
        )
    needs = [name for name in options.given(look) if detach and name != "--watch/--no-watch"]
    if needs:
        raise typer.BadParameter(f"nobody stays for {needs[0]}; leave out one of the two", param_hint="--detach")


def _detached(inventory: InventorySources, asked: RunOptions) -> int:
    from clusterctl.jobs import detached  # noqa: PLC0415 - see cli.main: --help stays quick

    return detached.detach(inventory, asked, _take, output.tell, output.data)


def _pattern(text: str) -> re.Pattern[str] | None:
    if not text:
        return None
    from clusterctl.analysis import step_times  # noqa: PLC0415 - see cli.main: --help stays quick

    try:
        return step_times.compiled(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--pace-pattern") from None


def _without(exclude: str, limit: str | None) -> str | None:
    """Return a ``--limit`` that leaves out some hosts."""
    names = [name.strip() for name in re.split(r",(?![^\[]*\])", exclude) if name.strip()]
    bad = [name for name in names if name.startswith(("!", "&", "@", "~"))]
    if bad:
        raise typer.BadParameter(f"'{bad[0]}' is not the name of a host", param_hint="--exclude")
    return ",".join([limit or "all", *(f"!{name}" for name in names)]) if names else limit


def _parameters(words: Iterable[str]) -> dict[str, str]:
    from clusterctl.support.errors import ConfigError  # noqa: PLC0415 - see cli.main: --help stays quick

    found: dict[str, str] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign:
            raise ConfigError(f"--mca {name} has no value; it takes two words, as in --mca btl_tcp_links 2.")
        if found.get(name, value) != value:
            raise ConfigError(f"--mca {name} is given twice, as {found[name]!r} and {value!r}; mpirun takes it once.")
        found[name] = value
    return found


def _take(stream: str, data: bytes) -> None:
    target = (sys.stdout if stream == "stdout" else sys.stderr).buffer
    target.write(data)
    target.flush()
