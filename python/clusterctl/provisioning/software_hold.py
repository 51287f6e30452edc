"""The hold of a cluster during a provision: which software stays, and which hosts cannot have it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from clusterctl.model.run_record import Problem
from clusterctl.provisioning import software
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.hosts import InventorySources
    from clusterctl.model.snapshot import Snapshot
    from clusterctl.model.software import Hold, Links
    from clusterctl.provisioning.preview import Preview


class SoftwareHold:
    """What a hold means for a provision; without a hold (``hold`` is None) it changes nothing."""

    def __init__(self, hold: Hold | None, inventory: InventorySources) -> None:
        """Take the hold of the inventory's cluster."""
        self._hold = hold
        self._release = f"'clusterctl rollback --release {inventory.shown}'"

    def __bool__(self) -> bool:
        """Whether there is a hold."""
        return self._hold is not None

    @property
    def run_id(self) -> str:
        """The run whose software is held; '' without a hold."""
        return self._hold.software.run_id if self._hold else ""

    @property
    def messages(self) -> tuple[str, ...]:
        """The sentence about the hold, for the record."""
        if self._hold is None:
            return ()
        since = f"{self._hold.since.astimezone():%Y-%m-%d %H:%M}"
        return (f"Held at {self.run_id} by a rollback of {since}: software stays as it is; {self._release} ends it.",)

    @property
    def skip_tags(self) -> tuple[str, ...]:
        """The tags of the roles that are left out."""
        return (software.TAG,) if self._hold else ()

    def refuse(self, tags: Iterable[str]) -> None:
        """Refuse tags of software that is held.

        Raises:
            ConfigError: one of the tags is a role that the hold leaves out.
        """
        asked = [tag for tag in tags if tag in software.ROLE_TAGS]
        if self._hold and asked:
            raise ConfigError(
                f"--tags {','.join(asked)} asks for software that is held at {self.run_id}; "
                f"{self._release} ends the hold."
            )

    def problems(self, selected: Sequence[str], facts: Mapping[str, NodeFacts], before: Snapshot) -> list[Problem]:
        """Return the hosts that cannot have the held software; ``before`` knows of damaged contents."""
        if self._hold is None:
            return []
        new = software.bare(selected, facts)
        bare = [self._bare(name) for name in new]
        selected = [name for name in selected if name not in new]
        wanted = software.wanted_links(self._hold.software, selected, software.present(facts))
        cure = f"end the hold with {self._release}, then provision; {{tree}} is installed if the inventory asks for it"
        known = {name: host.damaged for name, host in before.hosts.items() if name in selected}
        damaged = [
            Problem(
                host=name,
                subject="software",
                problem=str(each),
                cure=f"end the hold with {self._release}, then provision",
            )
            for name, found in known.items()
            for each in found
        ]
        return bare + software.missing(self._hold.software, wanted, facts, cure) + damaged

    def _bare(self, name: str) -> Problem:
        problem = f"a new machine has none of the software that is held at {self.run_id}, and a hold installs none"
        cure = (
            f"end the hold with {self._release}, repeat this command, then provision: all nodes get the versions that "
            "the inventory asks for"
        )
        return Problem(host=name, subject="software", problem=problem, cure=cure)

    def jobs(self, selected: Sequence[str], facts: Mapping[str, NodeFacts]) -> list[Problem]:
        """Return the jobs in the way of hosts whose links do not lead where they are held."""
        return software.at_work(software.differing(self.links(selected, facts), software.present(facts)), facts)

    def links(self, selected: Sequence[str], facts: Mapping[str, NodeFacts]) -> dict[str, Links]:
        """Return by host the folder of each link; {} without a hold."""
        if self._hold is None:
            return {}
        wanted = software.wanted_links(self._hold.software, selected, software.present(facts))
        return {name: links for name, links in wanted.items() if links is not None}

    def preview(self, ahead: Preview) -> Preview:
        """Return a preview in which no software is built or installed."""
        return dataclasses.replace(ahead, builds={}, installs={}) if self._hold else ahead

    def watch(
        self, said: Mapping[str, tuple[dict[str, Any], ...]], before: Snapshot, links: Mapping[str, Mapping[str, str]]
    ) -> Mapping[str, tuple[dict[str, Any], ...]]:
        """Return what holds on each host after the run; of the roles that were left out, what held before it."""
        if self._hold is None:
            return said
        return {
            name: software.watch_after(before.hosts[name].watch if name in before.hosts else (), entries, links[name])
            for name, entries in said.items()
            if name in links
        }
