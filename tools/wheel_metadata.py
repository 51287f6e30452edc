# SPDX-License-Identifier: Apache-2.0
"""Give the wheel the addresses that galaxy.yml names, so that a publisher fills in one file. Hatchling runs this."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_REPOSITORY = re.compile(
    r"^repository: +(?P<quote>[\"']?)(?P<address>https://[^\s\"'#]+)(?P=quote) *(?: #.*)?$", re.MULTILINE
)


def addresses(galaxy: str) -> dict[str, str]:
    """Return the addresses by their label; none where the repository is the placeholder, or not an https address.

    Args:
        galaxy: text of galaxy.yml.
    """
    found = _REPOSITORY.search(galaxy)
    address = found["address"] if found else ""
    if not address or ".invalid/" in address:
        return {}
    return {"Repository": address, "Changelog": f"{address.removesuffix('/')}/blob/main/CHANGELOG.md"}


class CustomMetadataHook(MetadataHookInterface):
    """Adds the addresses to the metadata of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set ``urls``, which pyproject.toml calls dynamic."""
        metadata["urls"] = addresses((Path(self.root) / "galaxy.yml").read_text(encoding="utf-8"))
