"""Commands that look at nodes: ``doctor``, ``drift``, ``hardware`` and ``check-node``."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from clusterctl.cli import change, options, output
from clusterctl.cli.output import Format
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from rich.text import Text

    from clusterctl.inventory.ansible_inventory import Cluster
    from clusterctl.model.findings import Diagnosis
    from clusterctl.model.hardware import Stay
    from clusterctl.model.hosts import InventorySources
    from clusterctl.model.snapshot import DriftReport


_STYLES = {"ERROR": "red", "WARNING": "yellow"}
_NARROW = 120  # columns; below, a cure has its own line under the cause


def doctor(
    which: options.InventoriesGroup,
    login: options.LoginGroup,
    limit: options.Limit = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Look at each host alone: no logins or connections between hosts.")
    ] = False,
    fix_script: Annotated[
        bool,
        typer.Option("--fix-script", help="Print the commands that cure findings on stdout, and run none of them."),
    ] = False,
    form: Annotated[
        Format, typer.Option("--format", help="Print text, or findings and notes as JSON on stdout.")
    ] = Format.TEXT,
) -> int:
    """Look at the hosts, change nothing, say what would hurt.

    Needs no provisioned cluster. Ends with 0 when nothing was found, 10 when there are errors or warnings, 4 when a
    host is out of reach.
    """
    from clusterctl.diagnosis.doctor import DoctorOptions, examine, exit_code  # noqa: PLC0415 - see cli.main: --help stays quick
    from clusterctl.inventory.ansible_inventory import Cluster  # noqa: PLC0415 - the same

    if fix_script and form is Format.JSON:
        raise ConfigError("--fix-script and --format json both write to stdout; give one of them.")
    cluster = Cluster.of(which.sources, login.options(limit))
    found = examine(cluster, DoctorOptions(quick=quick), _transient)
    _transient("")
    if form is Format.JSON:
        output.data(json.dumps(found.model_dump(mode="json")))
    else:
        _show(found)
    if fix_script:
        _print_cures(found, cluster)
    return int(exit_code(found))


def _print_cures(found: Diagnosis, cluster: Cluster) -> None:
    from clusterctl.report import tables  # noqa: PLC0415 - see cli.main

    sys.stdout.write(tables.fix_script(found, {host.name: host for host in cluster.inventory.selected_hosts}))
    sys.stdout.flush()


def _transient(text: str) -> None:
    """Show what is going on."""
    output.transient(f"{text} …" if text else "")


def _show(found: Diagnosis) -> None:
    from rich.table import Table  # noqa: PLC0415 - text output only

    from clusterctl.report import tables  # noqa: PLC0415

    console = output.answer()
    narrow = console.width < _NARROW
    table = Table(box=None, pad_edge=False)
    for column in ("", "CHECK", "NODES"):
        table.add_column(column, no_wrap=column != "NODES", overflow="fold", vertical="top")
    table.add_column("CAUSE AND CURE" if narrow else "CAUSE", overflow="fold", ratio=3)
    if not narrow:
        table.add_column("CURE", overflow="fold", ratio=2)
    for row in tables.doctor_rows(found):
        cells: list[str | Text] = [output.text((row.severity, _STYLES[row.severity])), row.check, row.nodes]
        cause = row.cause.split("\n")  # the source has a line of its own
        if narrow:
            table.add_row(*cells, output.text(*cause, ("→ " + row.cure, "dim")))
        else:
            table.add_row(*cells, output.text(*cause), row.cure)
    if found.findings:
        console.print(table)
    for line in tables.doctor_closing(found):
        output.answer_line(line)


# --- ``clusterctl drift`` ---------------------------------------------------------------------------------------------


def drift(
    which: options.InventoriesGroup,
    how: change.SudoGroup,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Compare the content of every installed file too; this takes seconds per GB."),
    ] = False,
    limit: options.Limit = None,
    form: Annotated[
        Format, typer.Option("--format", help="Print text, or every difference as JSON on stdout.")
    ] = Format.TEXT,
) -> int:
    """Say what differs from what the last run left, and change nothing.

    Asks every host once over ssh. Ends with 0 where every host is as it was left, with 10 where one differs or has no
    snapshot, and with 4 where a host is out of reach. 'clusterctl provision' repairs what differs.
    """
    from clusterctl.provisioning import look  # noqa: PLC0415 - see cli.main: --help stays quick

    inventory = which.sources
    request = look.DriftRequest(inventory, how.options(limit), verify=verify, sudo_password=how.password())
    report = look.examine(request)
    if form is Format.JSON:
        output.data(report.model_dump_json())
    else:
        _show_drift(report, inventory.shown)
    return int(look.exit_code(report))


def _show_drift(report: DriftReport, inventory: str) -> None:
    from clusterctl.provisioning import plan as words  # noqa: PLC0415 - text only

    def say(text: str) -> None:
        output.answer_line(text)

    for hosts, difference in words.folded(report.hosts):
        say(f"{hosts}: {difference}")
    for hosts, why in words.folded_words(report.unknown):
        say(f"{hosts}: {why}")
    same = [name for name in report.compared if name not in report.hosts]
    if same:
        how = "every file was compared" if report.verified else "contents of installed files were not compared"
        say(f"{output.folded(same)}: as the last run left {'it' if len(same) == 1 else 'them'} ({how}).")
    for note in report.notes:
        say(f"Note: {note}")
    if report.hosts or report.unknown.keys() - {*report.unreachable, *report.failed}:
        say(f"Next: 'clusterctl provision {inventory}' repairs it.")
    if report.unreachable:
        names = output.folded(report.unreachable)
        say(f"Next: see that {names} can be reached; 'clusterctl doctor {inventory}' says why not.")


# --- ``clusterctl hardware`` ------------------------------------------------------------------------------------------


Parts: TypeAlias = Annotated[
    Format, typer.Option("--format", help="Print text, or every stay of a part as JSON on stdout.")
]


def inventory_of(
    host: Annotated[str, typer.Argument(metavar="HOST")], which: options.InventoriesGroup, form: Parts = Format.TEXT
) -> int:
    """Do as 'clusterctl hardware INVENTORY NODE', whose old name this is."""
    output.tell(
        "'inventory-of HOST INVENTORY' is now 'hardware INVENTORY NODE'; the old name goes in the next release."
    )
    return _hardware(which.sources, host, form)


def hardware(
    words: Annotated[
        list[str], typer.Argument(metavar="INVENTORY NODE", help="Show this node, as the inventory names it.")
    ],
    more: options.More = None,
    form: Parts = Format.TEXT,
) -> int:
    """Show the parts of a node, and since when it has them.

    'clusterctl doctor' fills the ledger. A part that left is shown with the day on which it was last seen. No host is
    asked.
    """
    inventory, nodes = options.inventory_and_words(words, more, "NODE")
    if len(nodes) > 1:
        raise typer.BadParameter("one node at a time is shown", param_hint="NODE")
    return _hardware(inventory, nodes[0], form)


def _hardware(inventory: InventorySources, host: str, form: Format) -> int:
    from clusterctl.inventory import ansible_inventory  # noqa: PLC0415 - see cli.main: --help stays quick
    from clusterctl.model.hardware import PartLedger  # noqa: PLC0415
    from clusterctl.model.hosts import InventoryOptions  # noqa: PLC0415
    from clusterctl.state import hardware_looks  # noqa: PLC0415
    from clusterctl.support.errors import ConfigError  # noqa: PLC0415

    ansible_inventory.refuse_missing(inventory)
    stays = hardware_looks.ledger(ansible_inventory.Cluster(inventory).id).of_host(host)
    if not stays:
        ansible_inventory.load(inventory, InventoryOptions(limit=host))  # refuses what is no host
        raise ConfigError(
            f"No part of {host} is known for {inventory.shown}; run 'clusterctl doctor {inventory.shown}' first, with "
            "become in the inventory, since only root may read most serial numbers."
        )
    if form is Format.JSON:
        output.data(PartLedger(stays=stays).model_dump_json())
    else:
        _show_parts(stays)
    return 0


def _show_parts(stays: tuple[Stay, ...]) -> None:
    from rich.table import Table  # noqa: PLC0415 - text output only

    newest = {stay.kind: max(one.last for one in stays if one.kind == stay.kind) for stay in stays}
    with_uuid = any(stay.uuid for stay in stays)
    table = Table(box=None, pad_edge=False)
    columns = (
        "KIND",
        "PLACE",
        "MODEL",
        "SERIAL NUMBER",
        *(("UUID",) if with_uuid else ()),
        "FIRMWARE",
        "SINCE",
        "UNTIL",
    )
    for column in columns:
        table.add_column(column, overflow="fold")
    for stay in sorted(stays, key=lambda one: (one.kind, one.place, one.first)):
        until = "" if stay.last == newest[stay.kind] else f"{stay.last:%Y-%m-%d}"
        names = (stay.serial, stay.uuid) if with_uuid else (stay.serial,)
        cells = (stay.kind, stay.place, stay.model, *names, stay.firmware, f"{stay.first:%Y-%m-%d}", until)
        table.add_row(*cells)
    output.answer().print(table)


# --- ``clusterctl check-node`` ----------------------------------------------------------------------------------------

_PROGRAM = "check_node.py"


def check_node(
    quick: Annotated[
        bool, typer.Option("--quick", help="Look only at what takes less than a second; there is nothing else yet.")
    ] = False,
    node: Annotated[
        str | None,
        typer.Option("--node", metavar="NAME", help="Put this name into the line. Default: Slurm's."),
    ] = None,
    user: Annotated[
        int | None,
        typer.Option(
            "--job-user", metavar="UID", min=0, help="Look whether this user can write temporary files; only root can."
        ),
    ] = None,
    old_user: Annotated[int | None, typer.Option("--user", min=0, hidden=True)] = None,
    deadline: Annotated[
        float | None,
        typer.Option("--deadline", metavar="SECONDS", min=0.1, help="End all looks after so long. Default: 10."),
    ] = None,
    prefix: options.ClusterPrefix = "",
) -> int:
    """Say in one line whether the node on which this runs is fit for a job.

    Starts the program that provision left on the node. It needs no controller, no inventory and no clusterctl: a
    scheduler's prolog starts it by itself ('clusterctl render slurm-prolog'). Ends with 0 when the node is fit, 10
    when it is not, and 11 when somebody killed the look.
    """
    from clusterctl.support.errors import ConfigError  # noqa: PLC0415 - see cli.main: --help stays quick

    if old_user is not None:
        output.tell("check-node's --user is now --job-user; the old name goes in the next release.")
        user = old_user
    path = options.layout_of(prefix).program(_PROGRAM)
    if not os.access(path, os.R_OK):
        raise ConfigError(
            f"{path} is missing, so this machine is not a node that this release provisioned; run 'clusterctl "
            "provision' for it, and run the command there."
        )
    given = {"--node": node, "--user": user, "--deadline": deadline}
    words = ["--quick"] if quick else []
    words += [word for option, value in given.items() if value is not None for word in (option, str(value))]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-I", path, *words])  # noqa: S606 - a program of ours
