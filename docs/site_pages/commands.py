"""Reference of commands and options, made from the command line application."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import typer
from clusterctl.cli.app import application
from clusterctl.cli.commands import COMMANDS

from site_pages import markdown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PAGE = "reference/commands.md"
_INTRODUCTION = """\
# Commands

These pages are made from the program itself. `clusterctl COMMAND --help` prints the same text.
Options have Ansible's names and letters.

Results go to stdout, as text, or as records by `--format json` and `--format jsonl`. Progress, warnings and what a run
changed go to stderr.
[Exit codes](exit-codes.md) lists the numbers that a command ends with.
"""
_LIMITS = re.compile(r"\s*\[([^\[\]]*)\]$")


def pages() -> dict[str, str]:
    """Return the list of commands and the page of each one, as Markdown by its place below docs/."""
    root = typer.main.get_command(application(()))
    context = root.context_class(root, info_name="clusterctl", **root.context_settings)
    entries = list(_entries(root, context))
    rows = [
        (f"[{path}](commands/{_name(path)}.md#{anchor(path)})", markdown.escaped(command.get_short_help_str(200)))
        for path, command, _ in entries
    ]
    lines: dict[str, list[str]] = {}
    for path, command, own in entries:
        lines.setdefault(_place(_name(path)), []).extend(_command(path, command, own))
    head = "\n".join([_INTRODUCTION, *markdown.table(("command", "purpose"), rows)])
    return {PAGE: head, **{place: "\n".join(text) for place, text in lines.items()}}


def in_navigation(nav: list[Any], made: Iterable[str]) -> list[Any]:
    """Return the site's navigation with the page of each command behind the list of commands.

    Args:
        nav: pages and sections as mkdocs.yml has them.
        made: places of the generated pages, in their order.
    """
    folder = PAGE.removesuffix(".md") + "/"
    each = [{place.removeprefix(folder).removesuffix(".md"): place} for place in made if place.startswith(folder)]

    def changed(entry: Any) -> Any:
        if isinstance(entry, dict):
            return {name: [PAGE, *each] if under == PAGE else changed(under) for name, under in entry.items()}
        return [changed(one) for one in entry] if isinstance(entry, list) else entry

    return [changed(entry) for entry in nav]


def _name(path: str) -> str:
    return path.partition(" ")[0]


def _place(name: str) -> str:
    return f"{PAGE.removesuffix('.md')}/{name}.md"


def anchor(path: str) -> str:
    """Return the anchor of a command on the page: ``sandbox up`` is ``sandbox-up``."""
    return path.replace(" ", "-")


def parameters() -> dict[str, tuple[str, ...]]:
    """Return the names of every option by the anchor of its row, for a test that the page holds them all."""
    root = typer.main.get_command(application(()))
    context = root.context_class(root, info_name="clusterctl", **root.context_settings)
    return {
        _row_anchor(path, shown): tuple(shown.opts) if shown.param_type_name == "option" else ()
        for path, command, own in _entries(root, context)
        for shown in _own(command, own)
    }


def _row_anchor(path: str, parameter: Any) -> str:
    return f"{anchor(path)}--{parameter.opts[0].lstrip('-')}"


def _entries(group: Any, context: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Give each command with its path and context; a group comes before its commands."""
    ours = [name for name, command in COMMANDS.items() if not command.hidden]
    names = ours if not prefix else group.list_commands(context)
    for name in names:
        command = group.get_command(context, name)
        own = command.context_class(command, info_name=name, parent=context, **command.context_settings)
        yield f"{prefix}{name}", command, own
        if hasattr(command, "list_commands"):
            yield from _entries(command, own, f"{prefix}{name} ")


def _own(command: Any, context: Any) -> list[Any]:
    """Return a command's options and arguments without old names, and without ``--help``, which all have."""
    return [
        one for one in command.get_params(context) if "--help" not in one.opts and not getattr(one, "hidden", False)
    ]


def _command(path: str, command: Any, context: Any) -> list[str]:
    level = "#" if " " not in path else "##"
    lines = [f"{level} {path} {{ #{anchor(path)} }}", ""]
    lines += markdown.block(command.get_usage(context).removeprefix("Usage: "), "console")
    text = inspect.cleandoc(command.help or "").replace("\b", "")
    lines += [markdown.escaped(text), ""] if text else []
    rows = [row for parameter in _own(command, context) if (row := _parameter(path, parameter, context))]
    return lines + (markdown.table(("option", "meaning", "default, limits"), rows) if rows else [])


def _parameter(path: str, parameter: Any, context: Any) -> tuple[str, str, str] | None:
    record = parameter.get_help_record(context)
    if record is None:  # hidden
        return None
    name, text = record
    if parameter.param_type_name == "argument":  # without its type in Python
        name = parameter.metavar or name
    limits = _LIMITS.search(text)
    meaning = text[: limits.start()] if limits else text
    return (
        markdown.code(name, _row_anchor(path, parameter)),
        markdown.escaped(meaning),
        markdown.escaped(limits[1].removeprefix("default: ")) if limits else "",
    )
