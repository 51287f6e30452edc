"""Parser of what mpirun and ssh say when a launch fails: causes with the nodes that the messages name.

The rules know the messages of Open MPI 4.1 (ORTE) and 5.0 (PRRTE). A node is taken from the place where a message
names it, and never from other words of the output. The captured messages stand in ``tests/data/launcher``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.support import content
from clusterctl.validation.checks.causes import Cause

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from module_utils import known_messages  # mypy finds it by mypy_path
else:
    known_messages = content.module_util("known_messages")

_MOST_TEXT = 4096  # characters of a passage; help messages have half of it, and some patterns take long on long texts
_TAG = re.compile(r"^\[(?P<host>[^\]\[:,\s]+):\d+\]\s*")
_RULE_OFF = re.compile(r"^-{20,}$")
_RANK_LINE = re.compile(r'\{"(?:clusterctl|rank)"')


@dataclass(frozen=True)
class _Passage:
    """A line, or the lines of a help message; ``speaker`` is the node of its tag, ``line`` is shown as evidence."""

    speaker: str
    text: str
    line: str


def read(lines: Iterable[str], names: Mapping[str, str], launch_node: str) -> tuple[Cause, ...]:
    """Return the causes that the output gives, strongest first; ``hosts`` of a cause is empty where none is named.

    Where a message gives the cause, messages of lost daemons count as its consequence and are left out.

    Args:
        lines: the output of mpirun, both streams; lines of ranks may be among them.
        names: the inventory's name for each name and address of a node.
        launch_node: the inventory's name of the node on which mpirun ran.
    """
    said = [
        (message.row.whom, _cause(message, passage, names, launch_node))
        for passage in _passages(lines)
        if (message := known_messages.find("mpirun", passage.text)) is not None
    ]
    lost = tuple(dict.fromkeys(host for _, cause in said if cause.is_consequence for host in cause.hosts))
    # One lost daemon is the one that a message of its node is about; of several, no message says which.
    given = [
        cause.at(*lost) if whom == "daemon" and len(lost) == 1 else cause
        for whom, cause in said
        if not cause.is_consequence
    ] or [cause for _, cause in said]
    first: dict[tuple[tuple[str, ...], str], Cause] = {}
    for cause in sorted(given, key=lambda cause: not cause.hosts):
        first.setdefault((cause.hosts, cause.cause), cause)
    return tuple(first.values())


def _cause(message: known_messages.Message, passage: _Passage, names: Mapping[str, str], launch_node: str) -> Cause:
    row = message.row
    named = _host(passage.speaker if row.whom == "speaker" else message.words.get("node", ""), names)
    hosts = (launch_node, named) if row.whom == "way" and named not in ("", launch_node) else (named,)
    cause, cure = message.meaning()
    is_loss = row.kind == "lost"
    return Cause(
        hosts=hosts if named else (),
        kind="one_way" if len(hosts) > 1 else "node",
        cause=cause,
        cure=cure,
        line=passage.line,
        is_consequence=is_loss,
        subject="" if is_loss else row.kind,
    )


def _host(name: str, names: Mapping[str, str]) -> str:
    """Return the inventory's name of a node, empty for one that is unknown."""
    bare = name.strip("[]().,;:'\"")
    found = names.get(bare) or names.get(bare.lower())
    if found:
        return found
    short = {value for key, value in names.items() if key.partition(".")[0] == bare.partition(".")[0]}
    is_address = bare.replace(".", "").isdigit() or ":" in bare
    return short.pop() if len(short) == 1 and not is_address else ""


def _passages(lines: Iterable[str]) -> Iterator[_Passage]:
    """Return single lines, and the lines of a help message, which stands between two rules, as one passage."""
    block: list[str] | None = None
    for raw in lines:
        line = raw.replace("\0", "").strip()[:_MOST_TEXT]
        if _RULE_OFF.match(line):
            if block:
                yield _help(block)
            block = [] if block is None else None
            continue
        if not line or _RANK_LINE.search(line):
            continue
        tag = _TAG.match(line)
        if block is not None and tag is None:
            block.append(line)
        else:  # a tag never stands in a help message, so the end of that one was lost between other lines
            if block:
                yield _help(block)
            block = None
            yield _Passage(tag["host"] if tag else "", line[tag.end() :] if tag else line, line)
    if block:
        yield _help(block)


def _help(block: Sequence[str]) -> _Passage:
    return _Passage("", "\n".join(block)[:_MOST_TEXT], next((line for line in block if line), ""))
