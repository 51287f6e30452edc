"""``clusterctl gc``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import change, options, output
from clusterctl.cli.output import StreamFormat
from clusterctl.support.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from clusterctl.provisioning.collect import Retention


def gc(
    which: options.OneInventoryGroup,
    how: change.ChangeGroup,
    limit: options.Limit = None,
    keep: Annotated[
        int, typer.Option("--keep", min=2, metavar="N", help="How many different sets of versions stay; 2 or more.")
    ] = 2,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE", help="Only what is older: 12h, 30d, 4w. Also sources and wheels."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", "-C", help="Change nothing, say what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before something is removed.")] = False,
    form: options.StreamForm = StreamFormat.TEXT,
) -> int:
    """Remove old versions of artifacts from nodes and from the cache.

    What a link leads to, what a process uses, and the newest sets of every cluster of this controller stay, so that
    'rollback' to the one before works. Without INVENTORY, only the controller's cache is looked at.
    """
    from clusterctl.provisioning import collect  # noqa: PLC0415 - only the command needs it

    try:
        limits = collect.Retention(keep, None if older_than is None else collect.age(older_than))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--older-than") from None
    if not yes and not check and (form is not StreamFormat.TEXT or not output.is_interactive()):
        raise ConfigError("gc asks before it removes something, and there is no terminal to ask on; give --yes.")
    if which.named is None and not which.more:
        return _of_cache(limits, form, check=check, ask=not yes)
    request = collect.CollectRequest(
        inventory=which.sources,
        limits=limits,
        check=check,
    )
    with change.observer_for(form, ask=not (yes or check)) as observer:
        record = collect.collect(how.asked(request, limit), observer)
    return change.show(record, form)


def _of_cache(limits: Retention, form: StreamFormat, *, check: bool, ask: bool) -> int:
    """Remove old files of the controller's cache alone."""
    from clusterctl.provisioning import collect  # noqa: PLC0415 - only the command needs it

    files = collect.old_cache_files(limits)
    lines = collect.artifact_lines({}, files) or ["Nothing to do: the cache has nothing old."]
    if form is StreamFormat.TEXT:
        for line in lines:
            output.line(line)
    if files and not check:
        if ask and not typer.confirm("Go on?", default=False, err=True):
            return ExitCode.INTERRUPTED
        gone, _ = collect.remove(files)
        files = gone
    if form is not StreamFormat.TEXT:
        answer = [{"kind": file.kind, "name": file.name, "bytes": file.size} for file in files]
        sys.stdout.write(json.dumps({"cache": answer, "check": check}) + "\n")
    return ExitCode.OK
