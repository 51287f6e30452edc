# SPDX-License-Identifier: Apache-2.0
"""Give the wheel the addresses that galaxy.yml names, so that a publisher fills in one file. Hatchling runs this."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_REPOSITORY = re.compile(r"^repository: (https://\S+)$", re.MULTILINE)


def addresses(galaxy: str) -> dict[str, str]:
    """Return the addresses by their label; none where the repository is still the placeholder.

    Args:
        galaxy: text of galaxy.yml.
    """
    found = _REPOSITORY.search(galaxy)
    if found is None or ".invalid/" in found[1]:
        return {}
    return {"Repository": found[1], "Changelog": f"{found[1].removesuffix('/')}/blob/main/CHANGELOG.md"}


class CustomMetadataHook(MetadataHookInterface):
    """Adds the addresses to the metadata of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set ``urls``, which pyproject.toml calls dynamic."""
        metadata["urls"] = addresses((Path(self.root) / "galaxy.yml").read_text(encoding="utf-8"))
