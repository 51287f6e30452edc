"""The options that several commands have, in groups, under Ansible's own names."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias, get_type_hints

import typer
from typer.core import TyperCommand

from clusterctl.cli.output import StreamFormat
from clusterctl.launch.mpirun import Affinity, Bind, MapBy, PathOptions, Transport
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from _typeshed import DataclassInstance

    from clusterctl.model.hosts import InventoryOptions, InventorySources
    from clusterctl.model.layout import Layout

HOSTS = "Which hosts"
LOGIN = "Login and variables"
OPTIONS = "Options"
SUITE = "Suite"
OUTPUT = "Output"

_ANY = "Read any inventory that Ansible accepts: INI, YAML, a folder, a script, a list such as node1,node2,"
More: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--inventory",
        "-i",
        metavar="INVENTORY",
        help="Read this inventory too; repeat it for several.",
        rich_help_panel=HOSTS,
    ),
]
A_RUN = "A run is an id or the beginning of one, last, last-1, or the path of a record or of a run's folder."
RunWords: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="INVENTORY|RUN",
        help=f"Name an inventory or a run. {A_RUN}",
    ),
]
WhoseRuns: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--inventory", "-i", metavar="INVENTORY", help="Take the runs of this inventory; repeat it for several."
    ),
]
Limit: TypeAlias = Annotated[
    str | None, typer.Option("--limit", "-l", metavar="PATTERN", help="Take only these hosts.", rich_help_panel=HOSTS)
]
PREFIX_HELP = "Look for the software in this folder of the nodes (cluster_prefix). Default: /usr/local."
ClusterPrefix: TypeAlias = Annotated[str, typer.Option("--cluster-prefix", metavar="PATH", help=PREFIX_HELP)]
StreamForm: TypeAlias = Annotated[
    StreamFormat,
    typer.Option(
        "--format", help="Print text, the record (json), or all events and the record (jsonl).", rich_help_panel=OUTPUT
    ),
]


class PanelCommand(TyperCommand):
    """A command whose help puts options in panels, by the PANEL of their group or their own; the login comes last."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and each panel."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is None or "--help" in parameter.opts:  # None: hidden
                continue
            if parameter.param_type_name == "argument":
                metavar = parameter.metavar or ""
                names_hosts = metavar.startswith("INVENTORY") and "RUN" not in metavar
                panels.setdefault(HOSTS if names_hosts else OPTIONS, []).append(
                    (parameter.metavar or record[0], record[1])
                )
            else:
                panels.setdefault(getattr(parameter, "rich_help_panel", "") or OPTIONS, []).append(record)
        order = (HOSTS, SUITE, OPTIONS, "", OUTPUT, LOGIN)  # "": the others
        for name, rows in sorted(panels.items(), key=lambda panel: order.index(panel[0] if panel[0] in order else "")):
            with formatter.section(name):
                formatter.write_dl(rows)


def grouped(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command for typer, in which each parameter that is a dataclass stands for the options of its fields.

    The dataclass' PANEL is the panel of those that name no other.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {
        name: kind for name, kind in hints.items() if isinstance(kind, type) and dataclasses.is_dataclass(kind)
    }
    if not groups:
        return command
    parameters = []
    for given in inspect.signature(command).parameters.values():
        if given.name not in groups:
            parameters.append(given.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[given.name]))
            continue
        its, panel = get_type_hints(groups[given.name], include_extras=True), getattr(groups[given.name], "PANEL", "")
        parameters += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=_in_panel(its[field.name], panel),
            )
            for field in dataclasses.fields(groups[given.name])
        ]

    @functools.wraps(command)
    def spread(**given: Any) -> Any:
        made = {
            name: kind(**{field.name: given.pop(field.name) for field in dataclasses.fields(kind)})
            for name, kind in groups.items()
        }
        return command(**made, **given)

    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread.__annotations__ = {each.name: each.annotation for each in parameters}
    return spread


def _in_panel(annotation: Any, panel: str) -> Any:
    info = copy.copy(annotation.__metadata__[0])
    info.rich_help_panel = info.rich_help_panel or panel or None
    return Annotated[annotation.__origin__, info]


def given(*groups: DataclassInstance) -> dict[str, object]:
    """Return the values of groups of options that are not the default, by the name of the option."""
    found: dict[str, object] = {}
    for group in groups:
        hints = get_type_hints(type(group), include_extras=True)
        for field in dataclasses.fields(group):
            value = getattr(group, field.name)
            if value != field.default:
                info = hints[field.name].__metadata__[0]
                # In an annotation, the first word of typer.Option stands where a default would; an argument has none.
                found[info.default if isinstance(info.default, str) else info.metavar] = value
    return found


@dataclass(frozen=True)
class InventoriesGroup:
    """The inventories of a command, by position and by ``-i``."""

    named: Annotated[
        list[Path] | None, typer.Argument(metavar="INVENTORY", help=f"{_ANY}; several are read in their order.")
    ] = None
    more: More = None

    @property
    def sources(self) -> InventorySources:
        """The inventories: those by position, then those of ``-i``.

        Raises:
            BadParameter: there is none.
        """
        return sources(self.named, self.more)


@dataclass(frozen=True)
class OneInventoryGroup:
    """The inventory of a command by position, or several by ``-i``; other words may follow by position."""

    named: Annotated[Path | None, typer.Argument(metavar="INVENTORY", help=f"{_ANY}; several are given by -i.")] = None
    more: More = None

    @property
    def sources(self) -> InventorySources:
        """As for :class:`InventoriesGroup`."""
        return sources(self.named, self.more)

    def and_run(self, run: str | None) -> tuple[InventorySources, str | None]:
        """Return the inventories and the run behind them; with ``-i``, the first word by position is the run.

        Raises:
            BadParameter: there is no inventory, or one of both kinds.
        """
        if not self.more or self.named is None:
            return self.sources, run
        if run is not None:
            raise typer.BadParameter("give the inventory by position or with -i, not both", param_hint="INVENTORY")
        return sources(None, self.more), str(self.named)


@dataclass(frozen=True)
class ReadingGroup:
    """How Ansible reads the inventory."""

    PANEL: ClassVar[str] = LOGIN
    extra_vars: Annotated[
        list[str] | None,
        typer.Option(
            "--extra-vars",
            "-e",
            metavar="KEY=VALUE|JSON|@PATH",
            help="Set these variables above all others. Other users see a value in 'ps', so give a secret in @PATH.",
        ),
    ] = None
    vault_id: Annotated[
        list[str] | None,
        typer.Option("--vault-id", metavar="[LABEL@]PATH", help="Read a vault's password from this file."),
    ] = None
    vault_password_file: Annotated[
        list[str] | None,
        typer.Option("--vault-password-file", metavar="PATH", help="Read a vault's password from this file."),
    ] = None

    def options(self, limit: str | None = None) -> InventoryOptions:
        """Return what these options make of an inventory."""
        from clusterctl.model.hosts import InventoryOptions  # noqa: PLC0415 - see cli.main: --help stays quick

        return InventoryOptions(
            limit=limit,
            extra_vars=tuple(self.extra_vars or ()),
            vault_ids=tuple(self.vault_id or ()),
            vault_password_files=tuple(self.vault_password_file or ()),
        )


@dataclass(frozen=True)
class LoginGroup(ReadingGroup):
    """How Ansible reads the inventory, and how it and ssh log in."""

    user: Annotated[str | None, typer.Option("--user", "-u", metavar="NAME", help="Log in as this user.")] = None
    private_key: Annotated[str | None, typer.Option("--private-key", metavar="PATH", help="Log in with this key.")] = (
        None
    )

    def options(self, limit: str | None = None) -> InventoryOptions:
        """Return what these options make of an inventory."""
        return dataclasses.replace(super().options(limit), user=self.user, private_key=self.private_key)


@dataclass(frozen=True)
class JobPathGroup:
    """What a job's messages go through, and where its ranks are kept."""

    PANEL: ClassVar[str] = "Network and cores"
    network: Annotated[
        Transport,
        typer.Option("--network", help="Send MPI's messages through this; auto takes UCX where RDMA is, else TCP."),
    ] = Transport.AUTO
    bind: Annotated[
        Bind, typer.Option("--bind-to", help="Each rank is kept on this; none: the ranks of a node share its cores.")
    ] = Bind.NONE
    affinity: Annotated[
        Affinity,
        typer.Option(
            "--affinity",
            help="Keep each rank on the cores and the network port nearest to its GPU, and tell why (auto).",
        ),
    ] = Affinity.NONE

    def wish(self, map_by: MapBy = MapBy.SLOT) -> PathOptions:
        """Return what the user asks for."""
        return PathOptions(self.network, self.bind, map_by, self.affinity)


def sources(named: Sequence[Path] | Path | None, more: Sequence[Path] | None) -> InventorySources:
    """Return the inventories of the command line: those named by position, then those of ``-i``.

    Raises:
        BadParameter: there is none.
    """
    from clusterctl.model.hosts import InventorySources  # noqa: PLC0415 - see cli.main: --help stays quick

    found = [*((named,) if isinstance(named, Path) else named or ()), *(more or ())]
    if not found:
        raise typer.BadParameter("it is missing; name one by position or with -i", param_hint="INVENTORY")
    return InventorySources(tuple(map(str, found)))


def whose(given: Sequence[Path] | None) -> InventorySources | None:
    """Return the inventories whose runs are meant, None where none is named."""
    return sources(None, given) if given else None


def inventory_and_words(
    words: Sequence[str], more: Sequence[Path] | None, what: str
) -> tuple[InventorySources, tuple[str, ...]]:
    """Return the inventories and the words behind them; with ``-i``, all words by position are the latter.

    Raises:
        BadParameter: one of the two is missing.
    """
    named, rest = ([], list(words)) if more else ([Path(word) for word in words[:1]], list(words[1:]))
    inventory = sources(named, more)
    if not rest:
        raise typer.BadParameter("it is missing; name it behind the inventory", param_hint=what)
    return inventory, tuple(rest)


def inventory_and_runs(
    words: Sequence[str] | None, more: Sequence[Path] | None, most: int = 1
) -> tuple[InventorySources | None, tuple[str, ...]]:
    """Return the inventories, None where none is named, and the runs behind them.

    Args:
        words: those by position; those before the first run are inventories.
        more: the inventories of ``-i``.
        most: so many runs may be named.

    Raises:
        BadParameter: neither is named, or more runs are.
    """
    from clusterctl.report import run_resolver  # noqa: PLC0415 - see cli.main: --help stays quick

    named = [Path(word) for word in itertools.takewhile(run_resolver.is_inventory, words or ())]
    runs = list(words or ())[len(named) :]
    inventory = whose([*named, *(more or ())])
    if inventory is None and not runs:
        raise typer.BadParameter(
            "give an inventory, or a run's id, 'last', 'last-1', or the path of a record", param_hint="INVENTORY or RUN"
        )
    if len(runs) > most:
        raise typer.BadParameter(f"'{runs[most]}' is one run too many; give at most {most}", param_hint="RUN")
    return inventory, tuple(runs)


def layout_of(prefix: str) -> Layout:
    """Return where the software lies.

    Args:
        prefix: the value of the option, '' for the default.

    Raises:
        ConfigError: it is not a folder for software.
    """
    from clusterctl.model import layout  # noqa: PLC0415 - see cli.main: --help stays quick

    if wrong := layout.prefix_problem({"cluster_prefix": prefix}):
        raise ConfigError(f"--cluster-prefix: {wrong}.")
    return layout.Layout(prefix) if prefix else layout.DEFAULT_LAYOUT
