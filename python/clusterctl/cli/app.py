"""The typer application, made of the commands that a call needs; ``clusterctl version``."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand

from clusterctl import __version__
from clusterctl.cli.commands import COMMANDS
from clusterctl.cli.options import PanelCommand, grouped
from clusterctl.cli.output import Format

if TYPE_CHECKING:
    from collections.abc import Sequence


def application(argv: Sequence[str]) -> typer.Typer:
    """Return the typer application with the command that ``argv`` asks for, or with all of them."""
    app = typer.Typer(
        name="clusterctl",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_top)
    word = next((word for word in argv if not word.startswith("-")), None)
    for name, command in COMMANDS.items():
        if word in COMMANDS and name != word:
            continue
        found = getattr(importlib.import_module(f"clusterctl.cli.{command.module}"), command.attribute)
        if isinstance(found, typer.Typer):
            for its in found.registered_commands:
                its.callback = grouped(its.callback) if its.callback else None
                its.cls = PanelCommand if its.cls is TyperCommand else its.cls
            app.add_typer(found, name=name, help=command.summary)
        else:
            # A module's own class, where its command line or its help is unlike that of the others.
            own = getattr(importlib.import_module(f"clusterctl.cli.{command.module}"), "Line", PanelCommand)
            app.command(name, cls=own, short_help=command.summary, hidden=command.hidden)(grouped(found))
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"clusterctl {__version__}")
        raise typer.Exit


def _top(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Turn machines that answer ssh into one proven MPI/NCCL cluster."""


# --- ``clusterctl version`` -------------------------------------------------------------------------------------------


def version(
    form: Annotated[Format, typer.Option("--format", help="Print text, or one JSON object.")] = Format.TEXT,
) -> None:
    """Show the versions of clusterctl and of what it stands on."""
    from clusterctl.state import paths  # noqa: PLC0415 - completion needs none of it
    from clusterctl.state.runs import versions  # noqa: PLC0415
    from clusterctl.support import content  # noqa: PLC0415 - see cli.main

    found = versions()
    places = {
        "content": str(content.root()),
        "state": str(paths.state_dir().value),
        "cache": str(paths.cache_dir().value),
    }
    if form is Format.JSON:
        typer.echo(json.dumps({"versions": found, "places": places}))
        return
    for name, text in {**found, **places}.items():
        typer.echo(f"{name:15} {text}")
