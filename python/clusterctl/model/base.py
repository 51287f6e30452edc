"""The base of every record that crosses a seam or is written to disk."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Frozen, and strict about keys: a misspelt one is an error, not a silence."""

    model_config = ConfigDict(frozen=True, extra="forbid")
