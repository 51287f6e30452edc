"""Snapshot of a cluster: the state in which a successful run left each host.

A later run compares it with the present state to decide whether there is work.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias

from pydantic import Field, field_validator

from clusterctl.model.base import Record, Text
from clusterctl.support import content

# --- Drift: how the hosts of a cluster differ from what their last run left -------------------------------------------

_DIFFERS = " differs: "
SLICES = 7
"""In so many nights each byte of the artifacts is read once; the node's probe cuts them by path."""


class HostDifference(Record):
    """One thing that is no longer as it was left: ``subject`` is a path or a property of the node."""

    subject: Text
    words: Text

    def __str__(self) -> str:
        """Return a sentence without a full stop."""
        return f"{self.subject}{_DIFFERS}{self.words}"

    @classmethod
    def of(cls, sentence: str) -> HostDifference:
        """Return the difference that a sentence of an older snapshot tells."""
        subject, _, words = sentence.partition(_DIFFERS)
        return cls(subject=subject, words=words)


class DriftReport(Record):
    """What ``clusterctl drift`` found.

    Attributes:
        hosts: by host, its differences; a host without one is left out.
        unknown: by host, why it could not be compared.
        unreachable: the hosts among ``unknown`` that did not answer.
        failed: the hosts among ``unknown`` that answered and could not be looked at.
        compared: the hosts that were compared.
        verified: whether the content of each file was compared.
        notes: what makes the answer doubtful, such as a run that changes the hosts meanwhile.
    """

    schema_version: Literal[1] = 1
    inventory: str
    notes: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    verified: bool = False
    hosts: dict[str, tuple[HostDifference, ...]] = Field(default_factory=dict)
    unknown: dict[str, str] = Field(default_factory=dict)
    unreachable: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeState:
    """What of a node's facts decides.

    ``watch`` is the present state of the paths that its snapshot names; ``gpus`` counts those that NVIDIA's driver has
    taken, with the driver's version, since they decide which builds a node gets. ``lost_address`` is the address that
    Open MPI and NCCL are told to use there, where the node no longer has it. ``addresses`` are all that it has, and
    ``traits`` its settings, and ``offers`` what builds can rely on (see
    :class:`clusterctl.model.snapshot.HostSnapshot`).
    """

    platform: str
    host_keys: tuple[str, ...]
    user: str
    watch: tuple[Mapping[str, Any], ...] = ()
    gpus: str = ""
    lost_address: str = ""
    addresses: frozenset[str] = frozenset()
    traits: Mapping[str, str] = field(default_factory=dict)
    offers: str = ""


class HostSnapshot(Record):
    """The snapshot of one host.

    ``watch`` holds the path states of the seam between the roles' modules and the node's probe: each has a ``path``, a
    ``kind``, the ``role`` that told it and the values that must stay equal. ``inputs`` and ``members`` are digests, so
    that no variable's value is kept.

    Later releases added the fields with a default. They are compared by what a snapshot holds, so an older snapshot
    stays valid: its host gets them with the next run.
    """

    run_id: Text
    inputs: dict[Text, Text]
    members: Text
    platform: Text
    host_keys: tuple[Text, ...]
    user: Text
    watch: tuple[dict[Text, Text | bool | int | float | None], ...]
    gpus: Text = ""
    # settings of the node that no file of the roles holds, by the words that name them, such as its host name, the
    # limits of a session and the settings of sshd
    traits: dict[Text, Text] = Field(default_factory=dict)
    address: Text = ""  # the address by which the other nodes know it, where that is one of its own
    offers: Text = ""  # what of the node builds can rely on: libraries, CUDA and GPUs
    all_offers: Text = ""  # the digest of what the nodes of the cluster offered when the host's builds were chosen
    # the digests of the parts of the inventory, see :class:`clusterctl.model.hosts.Inventory`
    parts: dict[str, Text] = Field(default_factory=dict)
    # the artifacts in which a comparison of contents found a difference. The next run repairs them, although sizes and
    # modes are as they were.
    damaged: tuple[HostDifference, ...] = ()

    @field_validator("watch")
    @classmethod
    def _of_their_form(cls, given: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        """Refuse what no module of ours says: an earlier release kept what nodes said as it was."""
        for entry in given:
            words = (entry.get(name, "") for name in ("kind", "target", "marker"))
            if not str(entry.get("path")).startswith("/") or not all(isinstance(word, str) for word in words):
                raise ValueError("an entry of watch has no absolute path, or its kind, target or marker is not a text")
        return given

    @field_validator("damaged", mode="before")
    @classmethod
    def _of_older_snapshots(cls, given: Any) -> Any:
        """Take the sentences that earlier releases kept."""
        if not isinstance(given, (list, tuple)):
            return given
        return tuple(HostDifference.of(one) if isinstance(one, str) else one for one in given)


class Snapshot(Record):
    """The snapshots of a cluster's hosts, and what a run with ``--limit`` tells its hosts about the others."""

    schema_version: Literal[1] = 1
    members: tuple[dict[str, Any], ...] = ()
    # the hosts that ``remove`` took out of the cluster while the inventory named them. The next run that provisions
    # such a host takes it in again.
    removed: tuple[str, ...] = ()
    hosts: dict[str, HostSnapshot] = Field(default_factory=dict)

    @field_validator("members")
    @classmethod
    def _of_their_form(cls, given: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        """Refuse what no gate would have let pass: an earlier release kept what nodes said as it was."""
        gate = content.module_util("node_record_gate")
        return tuple(gate.member(entry) for entry in given)


# --- The software of a cluster: per host, the folder to which the link of each artifact leads -------------------------

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
