"""Type of the files in the controller's cache that can be made or fetched again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class CacheFile:
    """Files that belong together: a pack of an artifact with its record, a source archive or a wheel.

    ``mark`` is how records and locks name it, and ``name`` how a person does: of a pack, the artifact's folder.
    """

    kind: Literal["pack", "source", "wheel"]
    name: str
    mark: str
    paths: tuple[Path, ...]
    size: int  # bytes
    written: float  # seconds since 1970
