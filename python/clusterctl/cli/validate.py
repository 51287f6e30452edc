"""``clusterctl validate``."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from pathlib import Path  # noqa: TC003 - typer reads the annotations at run time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clusterctl.cli import options, output, pods_options, report, slurm_options
from clusterctl.cli.output import StreamFormat, shown_command

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Group, RenderableType
    from rich.live import Live
    from typing_extensions import Self

    from clusterctl.inventory.ansible_inventory import Cluster
    from clusterctl.model.hosts import AnyInventory, InventoryOptions
    from clusterctl.model.results import CheckResult, ValidationEvent, ValidationRecord
    from clusterctl.report.files import Places
    from clusterctl.suite import Suite
    from clusterctl.validation.run import ValidationOptions


_REFRESH_PER_S = 5
_VERDICT_AND_TIME = 25  # columns of them and between columns


def check_names() -> str:
    """Return the names of all checks in the order in which they run, those that need a training stack apart."""
    from clusterctl.diagnosis.training_stack import NodeStack  # noqa: PLC0415 - see cli.main
    from clusterctl.validation.checks import registry  # noqa: PLC0415 - see cli.main

    checks = registry.select(list(registry.registrations()))
    everywhere = [check.name for check in checks if not check.absent(NodeStack())]
    with_stack = [check.name for check in checks if check.absent(NodeStack())]
    return f"{', '.join(everywhere)} (MPI); {', '.join(with_stack)} (where they are installed)"


class Line(options.PanelCommand):
    """The command line of validate; its help names the checks of the registry."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options; completion does without the names of the checks, for importing them takes time."""
        found: list[Any] = super().get_params(ctx)
        for option in found:
            if option.name == "checks" and not ctx.resilient_parsing:
                option.help = f"Run only these checks of {check_names()}."
        return found


def validate(
    which: options.InventoriesGroup,
    login: options.LoginGroup,
    path: options.JobPathGroup,
    slurm: slurm_options.AllocationGroup,
    pods: pods_options.PodsGroup,
    reports: report.ReportsGroup,
    limit: options.Limit = None,
    checks: Annotated[
        list[str] | None,
        typer.Option("--checks", metavar="NAME[,NAME…]", help="Run only these checks.", rich_help_panel=options.SUITE),
    ] = None,
    launch_node: Annotated[
        str | None,
        typer.Option(
            "--launch-node",
            metavar="HOST",
            help="Start mpirun on this host. Default: the first one.",
            rich_help_panel=options.HOSTS,
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            help="End each check after so long, instead of its own deadline.",
            rich_help_panel=options.SUITE,
        ),
    ] = None,
    patience: Annotated[
        str | None,
        typer.Option(
            "--patience",
            metavar="DURATION",
            help="Measure each check that compares nodes or links on, until it would see a fault of 10 %, for at most"
            " so long: 90, '5 min'. Default: one run, and a second where something stands out.",
            rich_help_panel=options.SUITE,
        ),
    ] = None,
    no_gate: Annotated[
        bool,
        typer.Option(
            "--no-gate",
            help="Launch the checks on nodes that differ in their versions as well.",
            rich_help_panel=options.SUITE,
        ),
    ] = False,
    suite: Annotated[
        str | None,
        typer.Option(
            "--suite",
            metavar="NAME",
            help="Run this suite: smoke (the shortest, and the default), nightly, full, or one of your own.",
            rich_help_panel=options.SUITE,
        ),
    ] = None,
    suite_file: Annotated[
        Path | None,
        typer.Option(
            "--suite-file",
            metavar="PATH",
            help="Read your own suite and references here. Default: validation.yml beside the inventory.",
            rich_help_panel=options.SUITE,
        ),
    ] = None,
    search: Annotated[
        bool | None,
        typer.Option(
            "--search/--no-search",
            help="Launch a check that hung, crashed or got wrong values on ever fewer nodes until it is known whose"
            " fault it is.",
            rich_help_panel=options.SUITE,
        ),
    ] = None,
    no_history: Annotated[
        bool,
        typer.Option(
            "--no-history",
            help="Compare with no earlier run, and do not keep this one beside them.",
            rich_help_panel=options.SUITE,
        ),
    ] = False,
    via: pods_options.Via = None,
    form: options.StreamForm = StreamFormat.TEXT,
) -> int:
    """Prove the cluster again and name what is wrong.

    Runs small jobs through mpirun on all hosts, each under its own deadline, and compares every answer with the known
    one. Ends with 0 when all is right, 10 when something is wrong, 11 when the checks could not be run.
    """
    if timeout is not None and not 0 < timeout < float("inf"):
        raise typer.BadParameter("a deadline is a positive number of seconds", param_hint="--timeout")
    from clusterctl.validation import run as validation  # noqa: PLC0415 - see cli.main

    alone = {
        "--limit": limit,
        "--launch-node": launch_node,
        "--patience": patience,
        "--search": search,
        "--no-gate": no_gate,
    }
    others = [*options.given(which, login, path), *(name for name, value in alone.items() if value)]
    in_pods = pods.wish(via, slurm, others)
    way = None if via is None else via.without_pods
    in_slurm = slurm.wish(way) if in_pods is None else None
    inventory = slurm_options.sources(in_slurm, which) if in_pods is None else None
    names = [word.strip() for value in checks for word in value.split(",") if word.strip()] if checks else None
    asked = validation.ValidationOptions(
        inventory=login.options(limit),
        launch_node=launch_node,
        suite=_suite(inventory, suite, suite_file),
        via=in_slurm,
        pods=in_pods,
        skip_busy=slurm.skip_busy,
        drains=slurm.drains(way),
        checks=None if names is None else tuple(names),
        timeout_s=timeout,
        patience_s=_patience(patience),
        gate=not no_gate,
        path=path.wish(),
        search=search,
        remembered=not no_history,
        argv=shown_command(sys.argv[1:], login.extra_vars or ()),
    )
    code = None if in_pods is None else pods_options.shown(asked, in_pods, pods)
    return _run(inventory, asked, form, reports.places) if code is None else code


def _patience(text: str | None) -> float:
    """Return the seconds of ``--patience``, 0 without it."""
    from clusterctl.model import units  # noqa: PLC0415 - see cli.main

    try:
        return 0.0 if text is None else units.seconds(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--patience") from None


def after_provision(inventory: AnyInventory | Cluster, asked: ValidationOptions, form: StreamFormat) -> int:
    """Validate what ``clusterctl provision`` has just made, and return the exit code."""
    from clusterctl.report import files  # noqa: PLC0415 - see cli.main

    return _run(inventory, asked, form, files.Places())


def in_short(inventory: AnyInventory, options: InventoryOptions) -> ValidationOptions:
    """Return the short validation that ends a provision, with the references of a validation.yml beside the inventory.

    Raises:
        ConfigError: that file is wrong.
    """
    from clusterctl.suite import DEFAULT  # noqa: PLC0415 - see cli.main
    from clusterctl.validation import run as validation  # noqa: PLC0415 - see cli.main

    return validation.ValidationOptions(
        inventory=options, suite=_suite(inventory, DEFAULT, None), argv=shown_command(sys.argv[1:], options.extra_vars)
    )


def _suite(inventory: AnyInventory | None, name: str | None, file: Path | None) -> Suite:
    """Return the suite that is asked for; a validation.yml beside the inventory counts where no other is given."""
    from clusterctl.suite import beside  # noqa: PLC0415 - see cli.main
    from clusterctl.validation.checks import registry  # noqa: PLC0415 - see cli.main

    return registry.load(file or (beside(inventory) if inventory is not None else None), name)


def _run(inventory: AnyInventory | Cluster | None, asked: ValidationOptions, form: StreamFormat, places: Places) -> int:
    from clusterctl.report import files  # noqa: PLC0415 - see cli.main
    from clusterctl.validation import run as validation  # noqa: PLC0415 - see cli.main

    places.refuse_impossible()
    with contextlib.ExitStack() as stack:
        tell = stack.enter_context(_Lines()) if form is StreamFormat.TEXT else None
        record = _record(inventory, asked, _stream if form is StreamFormat.JSONL else tell)
    files.write(record, places)
    if form is StreamFormat.TEXT:
        report.show(record, told=output.is_one_file())
    else:
        data = record.model_dump(mode="json")
        output.data(json.dumps({"event": "Record", **data} if form is StreamFormat.JSONL else data))
    return int(validation.exit_code(record))


def _record(
    inventory: AnyInventory | Cluster | None,
    asked: ValidationOptions,
    tell: Callable[[ValidationEvent], None] | None,
) -> ValidationRecord:
    from clusterctl.validation import run as validation  # noqa: PLC0415 - see cli.main
    from clusterctl.validation import via_pods, via_slurm  # noqa: PLC0415 - see cli.main

    if asked.pods is not None:
        return via_pods.validate(asked, asked.pods, tell)
    if asked.via is not None:
        return via_slurm.validate(inventory, asked, asked.via, tell)
    if inventory is None:  # pragma: no cover - options.sources has refused it
        raise AssertionError
    return validation.validate(inventory, asked, tell)


def _stream(event: ValidationEvent) -> None:
    data = dataclasses.asdict(event)
    if "result" in data:
        data["result"] = event.result.model_dump(mode="json")  # type: ignore[union-attr]
    output.data(json.dumps({"event": type(event).__name__, **data}))


class _Lines:
    """The checks while they run: on a terminal the table as it grows, which goes at the end; elsewhere a line each."""

    def __init__(self) -> None:
        self._console = output.console()
        self._live: Live | None = None
        self._results: list[CheckResult] = []
        self._now = ("", "")  # the running check, and what it does

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            from rich.live import Live  # noqa: PLC0415 - on a terminal only

            self._live = Live(
                console=self._console, get_renderable=self._page, refresh_per_second=_REFRESH_PER_S, transient=True
            )
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: BaseException | None, _trace: object) -> None:
        if self._live is not None:
            self._live.transient = kind is None  # what was found before an interruption stays
            self._live.stop()

    def __call__(self, event: ValidationEvent) -> None:
        from clusterctl.model.results import CheckFinished, CheckProgress, CheckStarted  # noqa: PLC0415 - see cli.main

        if isinstance(event, CheckStarted):
            self._now = (f"[{event.number}/{event.total}] {event.check}", "")
        elif isinstance(event, CheckProgress):
            self._now = (self._now[0] or event.check, event.text)
        elif isinstance(event, CheckFinished):
            self._now = ("", "")
            self._results.append(event.result)
            if self._live is None:
                self._verdict(event.result)

    def _page(self) -> Group:
        from rich.console import Group  # noqa: PLC0415 - on a terminal only

        from clusterctl.report import tables  # noqa: PLC0415 - the same

        shown = self._results[-max(self._console.height - 4, 1) :]
        rows = [tables.validation_row(result) for result in shown]
        room = self._console.width - max((len(row.check) for row in rows), default=0) - _VERDICT_AND_TIME
        rows = [dataclasses.replace(row, reason=output.cut(row.reason, room)) for row in rows]
        parts: list[RenderableType] = [report.table(rows)]
        if self._now[0]:
            now = output.text(f"{self._now[0]}: {self._now[1]}" if self._now[1] else f"{self._now[0]} …", style="dim")
            now.no_wrap, now.overflow = True, "ellipsis"
            parts.append(now)
        return Group(*parts)

    @staticmethod
    def _verdict(result: CheckResult) -> None:
        output.line(f"{result.verdict.value:5} {result.check:<15} {result.seconds:6.2f} s  {result.reason}")
