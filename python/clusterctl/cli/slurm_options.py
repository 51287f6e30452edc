"""The options of validate that take its nodes from Slurm."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeAlias

import typer

from clusterctl.cli import options

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.model.hosts import InventorySources
    from clusterctl.model.scheduler_options import SlurmOptions
    from clusterctl.model.slurm_drain_choice import DrainOptions

PANEL = "Slurm"
_MOST_NODES = 100_000


class Way(str, Enum):
    """How the nodes are reached."""

    SSH = "ssh"
    SLURM = "slurm"


class RankStarter(str, Enum):
    """What starts the ranks inside an allocation."""

    MPIRUN = "mpirun"
    SRUN = "srun"


class NodeSource(str, Enum):
    """Who names the nodes, beside an inventory."""

    SLURM = "slurm"


Via: TypeAlias = Annotated[
    Way | None,
    typer.Option(
        "--via", help="Run the checks in one allocation of 'slurm', without ssh to the nodes.",
        rich_help_panel=PANEL,
    ),
]  # fmt: skip


@dataclass(frozen=True)
class SlurmGroup:
    """What a validation asks of Slurm, and what it tells Slurm."""

    PANEL: ClassVar[str] = PANEL
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", metavar="NAME", help="Use this partition. Default: Slurm's own.")
    ] = None
    account: Annotated[
        str | None, typer.Option("--account", "-A", metavar="NAME", help="Use this account. Default: your own.")
    ] = None
    time: Annotated[
        str | None,
        typer.Option(
            "--time",
            metavar="TIME",
            help="Limit the job to this time, as Slurm takes it: 30 (minutes), 2:00:00. Default: 60.",
        ),
    ] = None
    start_within: Annotated[
        str | None,
        typer.Option(
            "--start-within", metavar="DURATION", help="Cancel a job that waits longer for its nodes. Default: 5 min."
        ),
    ] = None
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            metavar="N",
            min=1,
            max=_MOST_NODES,
            help="Let Slurm choose N of the nodes. Default: all of them.",
        ),
    ] = None
    submit_host: Annotated[
        str | None,
        typer.Option(
            "--submit-host",
            metavar="HOST",
            help="Run Slurm's commands there over ssh: a host of the inventory, or user@host. Default: this machine.",
        ),
    ] = None
    skip_busy: Annotated[
        bool,
        typer.Option(
            "--skip-busy",
            help="Leave out by name nodes with ranks or GPU processes; with --via slurm, nodes that are not idle.",
            rich_help_panel=options.HOSTS,
        ),
    ] = False
    drain_failed: Annotated[
        bool,
        typer.Option("--drain-failed", help="Drain in Slurm each node that failed, with the finding as the reason."),
    ] = False
    undrain_proved: Annotated[
        bool,
        typer.Option(
            "--undrain-proved",
            help="Take back drains of clusterctl where everything passed. Needs ssh: Slurm runs nothing on a drained"
            " node.",
        ),
    ] = False

    def wish(self, via: Way | None) -> SlurmOptions | None:
        """Return how Slurm is asked for the nodes, None where they are reached by ssh.

        Raises:
            BadParameter: an option needs ``--via slurm``, or is not what it takes.
        """
        from clusterctl.model.scheduler_options import AN_HOUR_S, START_WITHIN_S, SlurmOptions  # noqa: PLC0415 - see cli.main

        if via is not Way.SLURM:
            anywhere = {"--skip-busy", "--drain-failed", "--undrain-proved"}
            if self.drain_failed or self.undrain_proved:
                anywhere.add("--submit-host")
            if alone := next((name for name in options.given(self) if name not in anywhere), ""):
                raise typer.BadParameter("it needs --via slurm", param_hint=alone)
            return None
        _check_word("--partition", self.partition)
        _check_word("--account", self.account)
        time_s, start_within_s = times(self.time, self.start_within, AN_HOUR_S, START_WITHIN_S)
        return SlurmOptions(
            partition=self.partition or "",
            account=self.account or "",
            time_s=time_s,
            start_within_s=start_within_s,
            nodes=self.nodes,
            submit_host=self.submit_host or "",
        )

    def drains(self, via: Way | None) -> DrainOptions | None:
        """Return what Slurm is told of the result, None where it is told nothing.

        Raises:
            BadParameter: a drain cannot be taken back in an allocation.
        """
        from clusterctl.model.slurm_drain_choice import DrainOptions  # noqa: PLC0415 - see cli.main

        if self.undrain_proved and via is Way.SLURM:
            raise typer.BadParameter(
                "Slurm starts no job on a drained node; give it without --via slurm", param_hint="--undrain-proved"
            )
        if not self.drain_failed and not self.undrain_proved:
            return None
        return DrainOptions(failed=self.drain_failed, proved=self.undrain_proved, submit_host=self.submit_host or "")


@dataclass(frozen=True)
class AllocationGroup(SlurmGroup):
    """The same, and who names the nodes and starts the ranks."""

    inventory_from: Annotated[
        NodeSource | None,
        typer.Option(
            "--inventory-from", help="Take all usable nodes of the partition of 'slurm', instead of an inventory."
        ),
    ] = None
    launcher: Annotated[
        RankStarter | None,
        typer.Option("--launcher", help="Start the ranks by mpirun, or by 'srun --mpi=pmix'. Default: mpirun."),
    ] = None
    mpi: Annotated[
        str | None,
        typer.Option(
            "--mpi",
            metavar="TYPE",
            help="With --launcher srun, use this PMIx type of 'srun --mpi=list'. Default: pmix.",
        ),
    ] = None

    def wish(self, via: Way | None) -> SlurmOptions | None:
        """As for :class:`SlurmGroup`."""
        found = super().wish(via)
        if found is None:
            return None
        _check_word("--mpi", self.mpi)
        if self.mpi is not None and self.launcher is not RankStarter.SRUN:
            raise typer.BadParameter("it needs --launcher srun", param_hint="--mpi")
        return dataclasses.replace(
            found,
            names_nodes=self.inventory_from is NodeSource.SLURM,
            launcher="srun" if self.launcher is RankStarter.SRUN else "mpirun",
            mpi=self.mpi or "pmix",
        )


def times(
    time: str | None, start_within: str | None, otherwise_s: float, otherwise_start_s: float
) -> tuple[float, float]:
    """Return the seconds of ``--time`` and ``--start-within``.

    Raises:
        BadParameter: one is not a time.
    """
    from clusterctl.model import units  # noqa: PLC0415 - see cli.main
    from clusterctl.remote import slurm_text  # noqa: PLC0415 - see cli.main

    return (
        _read("--time", time, otherwise_s, slurm_text.time_limit),
        _read("--start-within", start_within, otherwise_start_s, units.seconds),
    )


def sources(slurm: SlurmOptions | None, which: options.InventoriesGroup) -> InventorySources | None:
    """Return the inventories of the command line; None where Slurm names the nodes.

    Raises:
        BadParameter: there is none, or Slurm names the nodes and an inventory is given as well.
    """
    if slurm is None or not slurm.names_nodes:
        return which.sources
    if which.named or which.more:
        raise typer.BadParameter("give it or an inventory, not both", param_hint="--inventory-from")
    return None


def _check_word(name: str, value: object) -> None:
    if value is not None and (not str(value).strip() or not str(value).isprintable()):
        raise typer.BadParameter("it is not a name", param_hint=name)


def _read(name: str, text: str | None, otherwise: float, seconds: Callable[[str], float]) -> float:
    try:
        return otherwise if text is None else seconds(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=name) from None
