"""Strategies of hypothesis for what a node may write: text, JSON, and real records and logs with parts changed."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

from hypothesis import strategies as st

NASTY = (
    "\x1b[2J\x1b]0;title\x07",
    "\x9b31m",
    "\u202egnp.exe",
    "\x00",
    "\r\n",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[/red]",
    "[bold",
    "../../../etc/shadow",
    "$(reboot)",
    "%s{0}{name}",
    "\ud800",
    "\u2028",
    "",
    "9" * 5000,
    "-1",
    "1e999",
    "NaN",
    "²",
    "٣",
)
TEXT = st.sampled_from(NASTY) | st.text(max_size=30)
NUMBERS = st.sampled_from((0, -1, 1 << 31, 1 << 63, 10**400, -0.0, 1e308, float("nan"), float("inf"), True))
LEAVES = st.none() | TEXT | NUMBERS | st.integers() | st.floats()
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=6
)


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to every part of JSON's data."""
    found = [here] if here else []
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        found += places(part, (*here, key))
    return found


@st.composite
def changed(draw: st.DrawFn, record: Any, most: int = 3) -> Any:
    """Return JSON's data with some parts replaced, removed or added."""
    found = copy.deepcopy(record)
    for _ in range(draw(st.integers(1, most))):
        ways = places(found)
        if not ways:
            break
        way = draw(st.sampled_from(ways))
        parent = found
        for step in way[:-1]:
            parent = parent[step]
        action = draw(st.sampled_from(("replace", "replace", "same kind", "remove", "add")))
        if action == "remove":
            del parent[way[-1]]
        elif action == "add" and isinstance(parent, dict):
            parent[draw(TEXT)] = draw(JSON)
        elif action == "same kind" and isinstance(parent[way[-1]], str):
            parent[way[-1]] = draw(TEXT)
        elif action == "same kind" and isinstance(parent[way[-1]], (int, float)):
            parent[way[-1]] = draw(NUMBERS | st.integers() | st.floats())
        else:
            parent[way[-1]] = draw(JSON)
    return found


def written(value: Any) -> str:
    """Return data as JSON, numbers of any length included, as a node may write them."""
    words: list[str] = []

    def write(part: Any) -> None:
        if isinstance(part, dict):
            words.append("{")
            for at, (key, inner) in enumerate(part.items()):
                words.append(("," if at else "") + json.dumps(str(key)) + ":")
                write(inner)
            words.append("}")
        elif isinstance(part, (list, tuple)):
            words.append("[")
            for at, inner in enumerate(part):
                words.append("," if at else "")
                write(inner)
            words.append("]")
        elif part is not True and part is not False and isinstance(part, int) and part.bit_length() > 10_000:
            words.append("9" * 5000)
        else:
            words.append(json.dumps(part))

    write(value)
    return "".join(words)


@st.composite
def altered(draw: st.DrawFn, texts: Sequence[str]) -> str:
    """Return a real text with words replaced, and lines removed, doubled, cut and put in."""
    lines = draw(st.sampled_from(list(texts))).splitlines()
    for _ in range(draw(st.integers(0, 5))):
        if not lines:
            break
        at = draw(st.integers(0, len(lines) - 1))
        action = draw(st.sampled_from(("word", "word", "remove", "double", "cut", "put")))
        if action == "word":
            words = lines[at].split(" ")
            words[draw(st.integers(0, len(words) - 1))] = draw(TEXT)
            lines[at] = " ".join(words)
        elif action == "remove":
            del lines[at]
        elif action == "double":
            lines.insert(at, lines[at])
        elif action == "cut":
            lines[at] = lines[at][: draw(st.integers(0, len(lines[at])))]
        else:
            lines.insert(at, draw(TEXT))
    return "\n".join(lines)


class Tags(HTMLParser):
    """The elements of a page, and its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.handlers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def shape(text: str) -> tuple[int, list[str]]:
    """Return how many scripts a page has, and its handlers of events."""
    tags = Tags(text)
    return tags.found.count("script"), tags.handlers
