"""Options that every command which changes nodes has in common."""

from __future__ import annotations

import pytest
import typer
from clusterctl.cli.app import application

CHANGING = (
    ("provision",),
    ("rollback",),
    ("remove",),
    ("replace",),
    ("uninstall",),
    ("gc",),
    ("rotate",),
    ("ca", "renew"),
    ("ca", "revoke"),
)


@pytest.mark.parametrize("words", CHANGING, ids=" ".join)
def test_a_command_that_changes_nodes_can_take_them_over(words: tuple[str, ...]) -> None:
    command = typer.main.get_command(application(list(words)))
    for word in words:
        command = command.commands[word]  # type: ignore[attr-defined]
    given = {option for parameter in command.params for option in parameter.opts}
    assert {"--adopt", "--take-lock"} <= given
