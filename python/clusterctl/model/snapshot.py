"""Snapshot of a cluster: the state in which a successful run left each host.

A later run compares it with the present state to decide whether there is work.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from clusterctl.model.base import Record, Text
from clusterctl.model.drift import HostDifference
from clusterctl.support import content


class HostSnapshot(Record):
    """The snapshot of one host.

    ``watch`` holds the path states of the seam between the roles' modules and the node's probe: each has a ``path``, a
    ``kind`` and the values that must stay equal. ``inputs`` and ``members`` are digests, so that no variable's value is
    kept.

    Later releases added the fields with a default. They are compared by what a snapshot holds, so an older snapshot
    stays valid: its host gets them with the next run.

    Attributes:
        traits: settings of the node that no file of the roles holds, by the words that name them, such as its host
            name, the limits of a session and the settings of sshd.
        address: the address by which the other nodes know it, where that is one of its own.
        damaged: the artifacts in which a comparison of contents found a difference. The next run repairs them,
            although sizes and modes are as they were.
        offers: what of the node builds can rely on: libraries, CUDA and GPUs.
        all_offers: the digest of what the nodes of the cluster offered when the host's builds were chosen.
    """

    run_id: Text
    inputs: dict[Text, Text]
    members: Text
    platform: Text
    host_keys: tuple[Text, ...]
    user: Text
    watch: tuple[dict[Text, Text | bool | int | float | None], ...]
    gpus: Text = ""
    traits: dict[Text, Text] = Field(default_factory=dict)
    address: Text = ""
    offers: Text = ""
    all_offers: Text = ""
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
    """The snapshots of a cluster's hosts, and what a run with ``--limit`` tells its hosts about the others.

    Attributes:
        removed: the hosts that ``remove`` took out of the cluster while the inventory named them. The next run that
            provisions such a host takes it in again.
    """

    schema_version: Literal[1] = 1
    members: tuple[dict[str, Any], ...] = ()
    removed: tuple[str, ...] = ()
    hosts: dict[str, HostSnapshot] = Field(default_factory=dict)

    @field_validator("members")
    @classmethod
    def _of_their_form(cls, given: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        """Refuse what no gate would have let pass: an earlier release kept what nodes said as it was."""
        gate = content.module_util("node_record_gate")
        return tuple(gate.member(entry) for entry in given)
