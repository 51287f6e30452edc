"""The software of a cluster: per host, the folder to which the link of each artifact leads."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

from pydantic import Field

from clusterctl.model.base import Record
from clusterctl.model.snapshot import Snapshot

Links: TypeAlias = dict[str, str]  # path of a link → the folder to which it leads


class HostSoftware(Record):
    """The links of one host; ``platform`` tells which other hosts can have the same folders."""

    platform: str
    links: Links


class SoftwareSet(Record):
    """The links that a run left on each host."""

    schema_version: Literal[1] = 1
    run_id: str
    verb: str
    left: datetime
    hosts: dict[str, HostSoftware] = Field(default_factory=dict)

    def links_for(self, host: str, platform: str) -> Links | None:
        """Return the links of a host; of a host that the run did not know, those that all of its platform have.

        None says that the run tells nothing about such a host.
        """
        known = self.hosts.get(host)
        if known is not None:
            return known.links
        alike = [other.links for other in self.hosts.values() if other.platform == platform]
        return alike[0] if alike and all(links == alike[0] for links in alike) else None


class Hold(Record):
    """The software that a rollback chose and that ``provision`` leaves as it is.

    ``since`` is when it was chosen. A rollback that died before it was ``finished`` is finished by the next one, which
    takes the snapshots ``before`` it from here: the dead one forgot them, since it was about to change the nodes.
    """

    schema_version: Literal[1] = 1
    software: SoftwareSet
    since: datetime
    finished: bool = False
    before: Snapshot | None = None
