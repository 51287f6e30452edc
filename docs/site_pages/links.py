"""Links and headings of Markdown files: the site rewrites links with it, and a test looks for dead ones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FENCE = re.compile(r"^( *)(`{3,}|~{3,})[^\n]*\n.*?(?:^\1\2[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_INLINE_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_LINK = re.compile(r"\]\(\s*<?([^()\s<>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_DEFINITION = re.compile(r"^ {0,3}\[[^\]]+\]:\s+<?(\S+?)>?(?:\s+\".*\")?\s*$", re.MULTILINE)
_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*$", re.MULTILINE)
_OWN_ANCHOR = re.compile(r"\{\s*#([\w.:-]+)[^}]*\}")
_HTML_ANCHOR = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")
_ELSEWHERE = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*:|^//")


class Link(NamedTuple):
    """One link of a page: where its target stands in the text, the path, and the anchor behind ``#``."""

    start: int
    end: int
    path: str
    anchor: str


def links(text: str) -> Iterator[Link]:
    """Give the links to other files and to anchors; addresses of other machines and links in code are passed over."""
    masked = _masked(text)
    for pattern in (_LINK, _DEFINITION):
        for found in pattern.finditer(masked):
            target = text[found.start(1) : found.end(1)]
            if not _ELSEWHERE.match(target):
                path, _, anchor = target.partition("#")
                yield Link(found.start(1), found.end(1), path, anchor)


def rewritten(text: str, change: Callable[[Link], str | None]) -> str:
    """Return the text with the targets that ``change`` returns; None leaves a target as it is."""
    for link in sorted(links(text), reverse=True):
        target = change(link)
        if target is not None:
            text = text[: link.start] + target + text[link.end :]
    return text


def anchors(text: str) -> set[str]:
    """Return the anchors of a page: those of its headings, as GitHub and the site make them, and explicit ones."""
    masked = _masked(text)
    found: dict[str, int] = {}
    every = set()
    for heading in _HEADING.finditer(_FENCE.sub("", text)):
        name = slug(heading[2])
        count = found[name] = found.get(name, -1) + 1
        every.add(f"{name}-{count}" if count else name)
    return every | set(_OWN_ANCHOR.findall(masked)) | set(_HTML_ANCHOR.findall(masked))


def slug(heading: str, _separator: str = "-") -> str:
    """Return the anchor of a heading as GitHub makes it."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", _OWN_ANCHOR.sub("", heading))
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def _masked(text: str) -> str:
    """Return the text with code and comments blanked, everything else at its place."""
    for pattern in (_FENCE, _COMMENT, _INLINE_CODE):
        text = pattern.sub(lambda found: re.sub(r"[^\n]", "x", found[0]), text)
    return text
