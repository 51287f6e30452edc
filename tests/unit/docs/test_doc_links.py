"""No Markdown file of the repository has a link that leads nowhere."""

from __future__ import annotations

import posixpath
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from site_pages import generated, links, repository


def dead(root: Path, pages: Iterable[str], made: Mapping[str, str]) -> list[str]:
    """Return the dead links of these pages.

    Args:
        root: the repository.
        pages: paths of Markdown files in it.
        made: text of pages that the site's build makes; only pages below docs/ may link them.
    """
    found = []
    for page in pages:
        for link in links.links((root / page).read_text(encoding="utf-8")):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link.path)) if link.path else page
            place = root / target
            words = f"{page}: {link.path}#{link.anchor}".rstrip("#")
            if page.startswith("docs/") and target in made:
                text = made[target]
            elif target.startswith("../") or not place.exists():
                found.append(f"{words} does not exist")
                continue
            else:
                text = place.read_text(encoding="utf-8") if place.suffix == ".md" else ""
            if link.anchor and link.anchor not in links.anchors(text):
                found.append(f"{words} has no such heading")
    return found


def tracked() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, cwd=repository.ROOT, check=True, capture_output=True, text=True).stdout.split()
    return [name for name in listed if not name.startswith("tests/data/") and (repository.ROOT / name).is_file()]


def test_no_link_of_any_page_is_dead() -> None:
    pages = tracked()
    assert {"README.md", "CONTRIBUTING.md", "docs/index.md", "roles/openmpi/README.md"} <= set(pages)
    made = {f"docs/{place}": text for place, text in generated.pages().items()}
    assert dead(repository.ROOT, pages, made) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(
        "# A title\n\n## `--with` code, and more\n\n[a](../README.md#one) [b](missing.md) [c](#with-code)\n"
        "[d](#--with-code-and-more) `[e](nothing.md)` [f](made.md#here) [g](../../outside.md) [h](https://example.org/x)\n"
        "```text\n[i](nothing.md)\n```\n\n[j]: gone.md\n"
    )
    (tmp_path / "README.md").write_text("# One\n\n# One\n\n[k](docs/made.md) [l](#one-1) ![m](picture.png)\n")
    assert dead(tmp_path, ["docs/page.md", "README.md"], {"docs/made.md": "# Here"}) == [
        "docs/page.md: missing.md does not exist",
        "docs/page.md: #with-code has no such heading",
        "docs/page.md: ../../outside.md does not exist",
        "docs/page.md: gone.md does not exist",
        "README.md: docs/made.md does not exist",
        "README.md: picture.png does not exist",
    ]
