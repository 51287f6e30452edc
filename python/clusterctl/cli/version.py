"""``clusterctl version``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from clusterctl.cli.output import Format


def version(
    form: Annotated[Format, typer.Option("--format", help="Text for people, or one JSON object.")] = Format.TEXT,
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
