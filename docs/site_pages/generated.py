"""All generated pages of the site, each under its place below docs/."""

from __future__ import annotations

from site_pages import commands, exit_codes, records, repository, variables


def pages() -> dict[str, str]:
    """Return the Markdown of every generated page by its place."""
    return {
        **commands.pages(),
        "reference/variables.md": variables.page(repository.ROOT / "roles"),
        "reference/record.md": records.page(),
        "reference/exit-codes.md": exit_codes.page(),
    }
