"""The software of a cluster: per host, the folder to which the link of each artifact leads."""

from __future__ import annotations

import posixpath
import re
from datetime import datetime
from typing import Literal, TypeAlias

from pydantic import Field

from clusterctl.model.base import Record
from clusterctl.model.snapshot import Snapshot

Links: TypeAlias = dict[str, str]  # path of a link → the folder to which it leads

_TREE = re.compile(r"[A-Za-z0-9_.+~-]+-[0-9a-f]{16}")  # version and key in the name of an artifact's folder


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

        None says that the run tells nothing about such a host. A node tells its links itself. So another node gets none
        of a node that has a link of another form than an artifact's.
        """
        known = self.hosts.get(host)
        if known is not None:
            return known.links
        alike = [other.links for other in self.hosts.values() if other.platform == platform]
        if not alike or any(links != alike[0] for links in alike):
            return None
        return alike[0] if all(_is_of_artifact(link, tree) for link, tree in alike[0].items()) else None


def _is_of_artifact(link: str, tree: str) -> bool:
    """Whether a link leads to a folder beside it that has the name of the link, a version and a key."""
    folder, name = posixpath.split(link)
    start = f"{folder.rstrip('/')}/{name}-"
    is_plain = folder.startswith("/") and posixpath.normpath(link) == link
    return is_plain and tree.startswith(start) and _TREE.fullmatch(tree, len(start)) is not None


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
