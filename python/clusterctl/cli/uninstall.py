"""``clusterctl uninstall``."""

from __future__ import annotations

from typing import Annotated

import typer

from clusterctl.cli import change, options
from clusterctl.cli.output import StreamFormat
from clusterctl.support.errors import ConfigError


def uninstall(
    which: options.InventoriesGroup,
    how: change.ChangeGroup,
    limit: options.Limit = None,
    check: Annotated[bool, typer.Option("--check", "-C", help="Change nothing, say what would go.")] = False,
    diff: change.Diff = False,
    remove_user: Annotated[
        bool, typer.Option("--remove-user", help="Also remove the account that cluster_user made, with its home.")
    ] = False,
    forks: change.Forks = 32,
    skip_unreachable: change.SkipUnreachable = False,
    yes: change.Yes = False,
    while_busy: Annotated[bool, typer.Option("--while-busy", help="Go on also where jobs run.")] = False,
    form: options.StreamForm = StreamFormat.TEXT,
) -> int:
    """Put every node back to what it was before the first provision.

    Files get their first content, mode and owner. Artifacts, keys, settings, packages and logs of clusterctl go. Shows
    what goes and asks first. A package that something else needs, and the account for jobs, stay and are named.
    """
    from clusterctl.provisioning import remove as uninstalling  # noqa: PLC0415 - see cli.main: --help stays quick

    inventory = which.sources
    if not yes and not check:
        from clusterctl.cli import output  # noqa: PLC0415 - see cli.main

        if form is not StreamFormat.TEXT or not output.is_interactive():
            raise ConfigError("uninstall asks before it changes hosts, and there is no terminal to ask on; give --yes.")
    request = uninstalling.UninstallRequest(
        inventory=inventory,
        remove_user=remove_user,
        while_busy=while_busy,
        check=check,
        diff=diff,
        forks=forks,
        skip_unreachable=skip_unreachable,
    )
    with change.observer_for(form, ask=not (yes or check)) as observer:
        record = uninstalling.uninstall(how.asked(request, limit), observer)
    again = f"'clusterctl uninstall {inventory.shown}' does it." if check and record.outcome == "done" else ""
    return change.show(record, form, again)
