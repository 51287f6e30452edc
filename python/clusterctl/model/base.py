"""The bases of every record that crosses a seam or is written to disk, and of every fact of a node."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Text = Annotated[str, Field(max_length=1 << 17, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
"""A bounded text without control characters, as everything that a node said is beyond its gate."""


class Record(BaseModel):
    """Frozen, and strict about keys: a misspelt one is an error, not a silence."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Fact(BaseModel):
    """Frozen; keys that a newer probe adds are passed over, so that an older reader can still read its records."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class NodeFact(Fact):
    """A part of a node's record; its schema is built when it is first used, as a rule within that of the record."""

    model_config = ConfigDict(defer_build=True)
