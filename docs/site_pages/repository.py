"""Files outside docs/ that the site shows: READMEs as pages, and the source files that pages link."""

from __future__ import annotations

import posixpath
from pathlib import Path

from site_pages import links, markdown

ROOT = Path(__file__).resolve().parents[2]
_TOP_LEVEL = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "README.md": "index.md",  # the site's first page says the same, in fewer words
    "examples/README.md": "how-to/examples.md",
    "tests/molecule/README.md": "project/molecule.md",
}
_LANGUAGES = {
    ".c": "c", ".cfg": "ini", ".ini": "ini", ".j2": "jinja", ".json": "json", ".md": "markdown", ".py": "python",
    ".sh": "bash", ".toml": "toml", ".yml": "yaml",
}  # fmt: skip
_PICTURES = {".png", ".jpg", ".svg"}


def pages() -> dict[str, str]:
    """Return the READMEs that become pages: repository path to place on the site; the site's own index stays."""
    found = {source: place for source, place in _TOP_LEVEL.items() if place != "index.md" and (ROOT / source).is_file()}
    for readme in sorted(ROOT.glob("roles/*/README.md")):
        found[f"roles/{readme.parent.name}/README.md"] = f"reference/roles/{readme.parent.name}.md"
    return found


def place(source: str) -> str | None:
    """Return where the site has a file of the repository, None where there is no such file."""
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    path = ROOT / source
    if not path.is_file():
        return None
    if source in _TOP_LEVEL:
        return _TOP_LEVEL[source]
    if source.startswith("roles/") and source.count("/") == 2 and path.name == "README.md":  # noqa: PLR2004 - roles/ROLE/README.md
        return f"reference/roles/{path.parent.name}.md"
    return f"source/{source}" if path.suffix in _PICTURES else f"source/{source}.md"


def target(origin: str, link: links.Link) -> str | None:
    """Return the repository path that a link of the file ``origin`` leads to; None within a page."""
    if not link.path:
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), link.path))


def on_site(origin: str, at: str, text: str) -> str:
    """Return a page's text with its links as they have to be on the site.

    Args:
        origin: the page's path in the repository, to which its links are relative.
        at: its place on the site.
        text: its Markdown.
    """

    def change(link: links.Link) -> str | None:
        source = target(origin, link)
        there = place(source) if source else None
        if there is None:
            return None  # a dead link stays as it is, and mkdocs names it
        return posixpath.relpath(there, posixpath.dirname(at) or ".") + (f"#{link.anchor}" if link.anchor else "")

    return links.rewritten(text, change)


def linked_sources(texts: dict[str, str]) -> dict[str, str]:
    """Return the files outside docs/ that pages link and that are no pages themselves.

    Args:
        texts: Markdown of each page by its path in the repository.

    Returns:
        Repository path to place on the site.
    """
    known = {*pages().values(), "index.md"}
    found = {}
    for origin, text in texts.items():
        for link in links.links(text):
            source = target(origin, link)
            there = place(source) if source and not source.startswith("docs/") else None
            if source and there and there not in known:
                found[source] = there
    return found


def source_page(source: str) -> str:
    """Return the page that shows a source file; the search passes over it."""
    path = ROOT / source
    text = path.read_text(encoding="utf-8")
    head = ["---", "search:", "  exclude: true", "---", f"# {markdown.escaped(source)}", ""]
    return "\n".join([*head, *markdown.block(text, _LANGUAGES.get(path.suffix, "text"))])
