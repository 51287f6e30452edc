"""A suite as a value: checks with their options, and what their figures are held against."""

from __future__ import annotations

from pydantic import Field, SerializeAsAny

from clusterctl.model.base import Record
from clusterctl.suite.external import ExternalCheck
from clusterctl.suite.options import CheckOptions
from clusterctl.suite.thresholds import HistoryOptions, OutlierOptions, ReferenceEntry


class Suite(Record):
    """Checks with their options, in the order in which they run, and what their figures are held against."""

    name: str
    checks: dict[str, SerializeAsAny[CheckOptions]]
    external: tuple[ExternalCheck, ...] = ()
    references: tuple[ReferenceEntry, ...] = ()
    outliers: OutlierOptions = OutlierOptions()
    history: HistoryOptions = HistoryOptions()
    path: str = Field(default="", description="the file that it was read from")

    @property
    def every_reference(self) -> tuple[ReferenceEntry, ...]:
        """The references of the suite, and those that stand with the user's own checks."""
        own = (
            ReferenceEntry(check=one.name, quantity=one.measures, **one.reference.model_dump())
            for one in self.external
            if one.reference is not None
        )
        return (*self.references, *own)
