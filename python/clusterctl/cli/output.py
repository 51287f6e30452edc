"""What the commands' outputs have in common: where text goes, and how times and host lists are written."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any

from clusterctl.support import words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.text import Text

_PLAIN_WIDTH = 160  # without a terminal and COLUMNS; 80 columns would cut paths
_MINUTE = 60
_BLANK_ENDS = re.compile(r" +$", re.MULTILINE)  # with which rich fills a table up
VERDICT_STYLES = {"PASS": "green", "FAIL": "red", "ERROR": "magenta", "SKIP": "dim"}
_HOUR = 3600
_LEAD = re.compile(r"^( *)(\d+\. )?")  # of a line: its indent, and its number in a list


class Format(str, Enum):
    """How a command answers on stdout: words for people, or JSON for programs."""

    TEXT = "text"
    JSON = "json"


class StreamFormat(str, Enum):
    """How a command that takes a while answers: as :class:`Format`, or one JSON object per event on stdout."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


def answer() -> Console:
    """Return the console for what a command was asked for, on stdout; :func:`console` is for all other text."""
    return console(stderr=False)


@cache
def console(*, stderr: bool = True) -> Console:
    """Return the console for progress, warnings and what a run changed, on stderr.

    Words of a node reach no terminal as they are: what a terminal would obey is shown as its number, and a plain
    string is one line without markup. What has several lines, or a style, is made by :func:`text`. Where the output is
    not a terminal, no line ends with blanks.
    """
    from rich.console import Console  # noqa: PLC0415 - not for --format json

    class SafeConsole(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(words.escaped(text), **options)

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=words.visible(segment.text))

        def print(self, *objects: Any, **options: Any) -> None:
            if self.is_terminal:
                super().print(*objects, **options)
                return
            with self.capture() as captured:
                super().print(*objects, **options)
            try:
                self.file.write(_BLANK_ENDS.sub("", captured.get()))
                self.file.flush()
            except BrokenPipeError as error:
                raise SystemExit(1) from error  # as rich does: it passes over what handles an OSError; see cli.main

    width = None if (sys.stderr if stderr else sys.stdout).isatty() else _asked_width() or _PLAIN_WIDTH
    return SafeConsole(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)


def text(*lines: str | tuple[str, str], style: str = "") -> Text:
    """Return text for the console, one line for each part.

    Args:
        lines: words that may come from a node, or such words with their style.
        style: of all lines.
    """
    from rich.text import Text  # noqa: PLC0415 - not for --format json

    made = Text(style=style)
    for number, line in enumerate(lines):
        said, own = (line, "") if isinstance(line, str) else line
        made.append("\n" if number else "").append(words.escaped(said), own or None)
    return made


def line(sentence: str, to: Console | None = None, style: str | None = None) -> None:
    """Print one sentence: on a terminal, and where COLUMNS is set, wrapped at words with further lines indented.

    Args:
        sentence: words that may come from a node; its blanks at the start count as its indent.
        to: None takes :func:`console`.
        style: of the whole sentence.
    """
    to = to or console()
    lines = [words.escaped(sentence)]
    if to.is_terminal or _asked_width():
        lines = _wrapped(lines[0], to.width)
    for text_line in lines or [""]:
        to.print(text_line, soft_wrap=True, style=style)


def _wrapped(sentence: str, width: int) -> list[str]:
    blanks, number = _LEAD.findall(sentence)[0]
    indent = blanks + " " * (len(number) or 2)
    return textwrap.wrap(sentence, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def answer_line(sentence: str, style: str | None = None) -> None:
    """Print one sentence as :func:`line` does, on stdout."""
    line(sentence, answer(), style)


def cut(sentence: str, room: int) -> str:
    """Return words that may come from a node, cut to so many characters."""
    shown = words.escaped(sentence)
    return shown if len(shown) <= room else f"{shown[: max(room - 1, 0)]}…"


def data(text: str) -> None:
    """Write one line of data to stdout."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def say(sentence: str) -> None:
    """Write one line to stderr, without the console, which takes a while to load."""
    sys.stderr.write(words.escaped(sentence) + "\n")
    sys.stderr.flush()


def tell(sentence: str) -> None:
    """Write one sentence of ours to stderr: on a terminal, and where COLUMNS is set, as :func:`line` wraps it."""
    whole = f"clusterctl: {words.escaped(sentence)}"
    width = _asked_width() or (os.get_terminal_size(sys.stderr.fileno()).columns if sys.stderr.isatty() else 0)
    sys.stderr.write("\n".join(_wrapped(whole, width) if width else [whole]) + "\n")
    sys.stderr.flush()


def transient(sentence: str, width: int = _PLAIN_WIDTH) -> None:
    """Show on a terminal what is going on, in a line that goes again; an empty one leaves nothing."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K" + words.escaped(sentence)[: width - 1])
        sys.stderr.flush()


def show_diff(diff: str) -> None:
    """Write a diff of files, which has lines of its own."""
    sys.stderr.write(words.visible(diff))
    sys.stderr.flush()


def is_one_file() -> bool:
    """Whether stdout and stderr are one file or pipe, where a line that stands on both would stand there twice."""
    try:
        return not sys.stderr.isatty() and os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError):
        return False


def _asked_width() -> int | None:
    """Return the width that COLUMNS asks for, None where it is unset or not a positive number."""
    asked = os.environ.get("COLUMNS", "")
    return int(asked) if asked.isascii() and asked.isdigit() and int(asked) > 0 else None


def is_interactive() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def duration(seconds: float) -> str:
    """Return a duration as people say it: 0.8s, 42s, 1m12s, 1h03m."""
    if seconds < 10:  # noqa: PLR2004 - below this, tenths are of interest
        return f"{max(seconds, 0.0):.1f}s"
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m{whole % _MINUTE:02d}s"
    return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02d}m"


def folded(hosts: Iterable[str]) -> str:
    """Return hosts as one word, node[1-3,7]."""
    from clusterctl.model import nodeset  # noqa: PLC0415 - see cli.main: --help stays quick

    return nodeset.folded(hosts)


def plural(count: int, word: str) -> str:
    """Return '1 host' or '3 hosts'."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def shown_command(argv: Sequence[str], extra_vars: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the command as it may be kept and shown: extra variables by name only, for they may be secrets.

    Args:
        argv: the words behind ``clusterctl``.
        extra_vars: the values that the parser of the command line found, in whichever form they stand in ``argv``:
            behind ``-e``, joined to ``-e`` or ``-be``, or behind ``--extra-vars=``.
    """
    values = sorted({value for value in extra_vars if value and not value.startswith("@")}, key=len, reverse=True)
    return ("clusterctl", *(_without_value(word, values) for word in argv))


def _without_value(word: str, values: Sequence[str]) -> str:
    for value in values:
        if word == value or (word.startswith("-") and word.endswith(value)):
            return word.removesuffix(value) + _name_only(value)
    return word


def _name_only(value: str) -> str:
    """Return the name of the first variable; the others, and a mapping, may hold secrets in every part."""
    if value.lstrip().startswith("{"):
        return "{…}"
    name, equals, _ = value.partition("=")
    return f"{name}=…" if equals and name.strip().isidentifier() else "…"
