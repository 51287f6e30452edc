"""``clusterctl version``."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated

import typer


class Format(str, Enum):
    """How to answer."""

    TEXT = "text"
    JSON = "json"


def version(
    form: Annotated[Format, typer.Option("--format", help="Text for people, or one JSON object.")] = Format.TEXT,
) -> None:
    """Show the versions of clusterctl and of what it stands on."""
    from clusterctl import content, settings  # noqa: PLC0415 - completion needs none of it
    from clusterctl.journal import versions  # noqa: PLC0415

    found = versions()
    places = {
        "content": str(content.root()),
        "state": str(settings.state_dir().value),
        "cache": str(settings.cache_dir().value),
    }
    if form is Format.JSON:
        typer.echo(json.dumps({"versions": found, "places": places}))
        return
    for name, text in {**found, **places}.items():
        typer.echo(f"{name:15} {text}")
