"""``clusterctl env``: the environments of projects that ``clusterctl run --project`` has installed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clusterctl.cli import change, options, output
from clusterctl.cli.output import Format, StreamFormat
from clusterctl.support.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from clusterctl.jobs.environments import ListedEnvironment
    from clusterctl.model.hosts import InventorySources

app = typer.Typer(no_args_is_help=True, help="Environments of projects: list, gc.")
_DIGEST = 12  # characters of a digest that are shown


@app.command("list", short_help="Show the environments that 'run --project' has installed.")
def list_environments(
    which: options.OneInventoryGroup,
    login: options.LoginGroup,
    form: Annotated[Format, typer.Option("--format", help="Print text, or JSON on stdout.")] = Format.TEXT,
    limit: options.Limit = None,
) -> int:
    """Show the environments that 'run --project' of this controller has installed, the one used last first.

    SIZE is that of the pack that a node gets. Ends with 4 where a node did not answer.
    """
    from clusterctl.jobs import environments  # noqa: PLC0415 - see cli.main: --help stays quick

    found = environments.listed(which.sources, login.options(limit))
    if form is Format.JSON:
        rows = [_data(one) for one in found.environments]
        output.data(json.dumps({"environments": rows, "problems": [str(problem) for problem in found.problems]}))
    else:
        _show(found.environments)
        for problem in found.problems:
            output.tell(str(problem))
    return max((int(problem.exit_code) for problem in found.problems), default=int(ExitCode.OK))


@app.command(short_help="Remove environments of projects from nodes.")
def gc(
    which: options.OneInventoryGroup,
    how: change.ChangeGroup,
    environment: Annotated[
        str | None,
        typer.Argument(
            metavar="[ENVIRONMENT]", help="Remove only this one: the beginning of its digest, or the project's folder."
        ),
    ] = None,
    limit: options.Limit = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="AGE", help="Remove those that no job has used for so long, such as 12h, 30d or 4w."
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", "-C", help="Change nothing, and say what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before something is removed.")] = False,
    form: options.StreamForm = StreamFormat.TEXT,
) -> int:
    """Remove environments of projects from nodes: a named one, or those that no job has used for 30 days.

    What a process uses stays, and so does what the cluster's own software needs. Packs stay in the cache, so the next
    job with the lock only copies; 'clusterctl gc' removes those.
    """
    from clusterctl.provisioning import collect  # noqa: PLC0415 - only the command needs it

    inventory, word = which.and_run(environment)
    if word and older_than:
        raise typer.BadParameter("it goes without the name of an environment", param_hint="--older-than")
    if not yes and not check and (form is not StreamFormat.TEXT or not output.is_interactive()):
        raise ConfigError("env gc asks before it removes something, and there is no terminal to ask on; give --yes.")
    trees = _chosen(inventory, word, older_than)
    if not trees:
        output.tell("Nothing to do: no environment has been unused for so long.")
        return ExitCode.OK
    request = collect.CollectRequest(inventory=inventory, check=check, only=trees)
    with change.observer_for(form, ask=not (yes or check)) as observer:
        record = collect.collect(how.asked(request, limit), observer)
    return change.show(record, form)


def _chosen(inventory: InventorySources, word: str | None, older_than: str | None) -> frozenset[str]:
    """Return the folders that are to go.

    Raises:
        BadParameter: the age is malformed.
        ConfigError: the word names no environment.
    """
    from datetime import timedelta  # noqa: PLC0415 - only the command needs it

    from clusterctl.inventory.ansible_inventory import Cluster  # noqa: PLC0415
    from clusterctl.provisioning import collect  # noqa: PLC0415
    from clusterctl.provisioning.host_run import now  # noqa: PLC0415
    from clusterctl.state import environments  # noqa: PLC0415

    known = environments.read(Cluster(inventory).id)
    if word:
        found = environments.chosen(known, word)
        if not found:
            raise ConfigError(f"There is no environment '{word}'; see 'clusterctl env list {inventory.shown}'.")
    else:
        try:
            age = environments.KEPT_FOR if older_than is None else timedelta(seconds=collect.age(older_than))
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--older-than") from None
        found = {digest: one for digest, one in known.items() if now() - one.used >= age}
        used = {tree for digest, one in known.items() if digest not in found for tree in one.trees.values()}
        return frozenset(tree for one in found.values() for tree in one.trees.values()) - used
    return frozenset(tree for one in found.values() for tree in one.trees.values())


def _show(found: Sequence[ListedEnvironment]) -> None:
    from rich.table import Table  # noqa: PLC0415 - text output only

    if not found:
        output.answer_line("There is no environment of a project; 'clusterctl run --project' installs one.")
        return
    table = Table(box=None, pad_edge=False)
    for column in ("LOCK", "PYTHON", "PACKAGES", "SIZE", "NODES", "USED"):
        table.add_column(column, no_wrap=True, vertical="top")
    table.add_column("PROJECT", overflow="fold", vertical="top")
    for one in found:
        packages, size = "" if one.packages is None else str(one.packages), "" if one.size is None else _size(one.size)
        columns = (one.digest[:_DIGEST], one.python, packages, size, output.folded(one.hosts), _time(one.known.used))
        table.add_row(*columns, f"{one.known.project}/{one.known.lock}")
    output.answer().print(table)
    for one in found:
        if one.gone_from:
            hosts = output.folded(one.gone_from)
            output.answer_line(f"{one.digest[:_DIGEST]} is gone from {hosts}; a job installs it again.")


def _time(used: datetime) -> str:
    return f"{used.astimezone():%Y-%m-%d %H:%M}"


def _size(count: int) -> str:
    from clusterctl.provisioning import collect  # noqa: PLC0415 - see cli.main

    return collect.size_words(count)


def _data(one: ListedEnvironment) -> dict[str, Any]:
    return {
        "digest": one.digest,
        "project": one.known.project,
        "lock": one.known.lock,
        "python": one.python,
        "packages": one.packages,
        "pack_bytes": one.size,
        "used": one.known.used.isoformat(),
        "hosts": list(one.hosts),
        "gone_from": list(one.gone_from),
        "folders": dict(one.known.trees),
    }
