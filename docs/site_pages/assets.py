"""Finds files that a built page would load from another machine."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_REMOTE = re.compile(r"^(?:https?:)?//", re.IGNORECASE)
_CSS = re.compile(r"(?:url\(\s*|@import\s+)[\"']?((?:https?:)?//[^\"')\s]+)", re.IGNORECASE)
_LOADING = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
}
_HARMLESS_RELATIONS = {"canonical", "alternate", "next", "prev", "edit", "license", "author"}


class _Loads(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        address = values.get(_LOADING.get(tag, ""))
        if tag == "link" and not _HARMLESS_RELATIONS & set((values.get("rel") or "").split()):
            address = values.get("href")
        if address and _REMOTE.match(address):
            self.found.append(address)
        self.found += _CSS.findall(values.get("style") or "")


def remote(site: Path) -> Iterator[tuple[Path, str]]:
    """Give each file of the built site with an address that it loads from elsewhere."""
    for path in sorted(site.rglob("*.html")):
        parser = _Loads()
        parser.feed(path.read_text(encoding="utf-8"))
        yield from ((path, address) for address in parser.found)
    for path in sorted(site.rglob("*.css")):
        yield from ((path, address) for address in _CSS.findall(path.read_text(encoding="utf-8")))
