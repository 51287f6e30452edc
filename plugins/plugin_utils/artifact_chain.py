# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's part of a chain: one worker of Ansible starts it, and the workers of the other hosts wait for it.

The workers meet in the temporary folder of their run, one file for each pack. A host that the chain did not reach gets
its copy from the controller, as without a chain.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.module_utils import disk_files
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import MARKER
from ansible_collections.clusterctl.hpc.plugins.module_utils.plain_text import one_line
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_action import SHARED, pushed_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_cache import CachedArtifact

# Defaults of variables that the role preflight documents. Below them, the logins of a chain cost more than it saves.
MIN_HOSTS = 8
_QUIET_S = 60.0  # a chain takes so long as a rule, and tells itself what it does
MIN_BYTES = 50_000_000
BYTES_PER_S = 0
MOST_HEADS = 3
_SMALLEST_PIECE, _LARGEST_PIECE, _PIECES = 1 << 18, 1 << 22, 512
_LEAST_RATE = 1 << 19  # bytes/s
_LONGEST_START_S = 600.0
_MOST_SAID = 300
_LONGEST_S = 1e6
PROGRESS = "/var/log/clusterctl"  # a folder of root's, in which no other user can set a link or a pipe


@dataclass(frozen=True)
class Settings:
    """When a chain is made, and how fast it may be."""

    min_hosts: int
    min_bytes: int
    bytes_per_s: float

    @classmethod
    def of(cls, variables: Mapping[str, Any], template: Callable[[Any], Any]) -> Settings:
        """Read the variables of a host."""

        def read(name: str, default: float) -> float:
            return float(template(variables.get(name, default)))

        return cls(
            int(read("preflight_chain_min_hosts", MIN_HOSTS)),
            int(read("preflight_chain_min_bytes", MIN_BYTES)),
            read("preflight_chain_bytes_per_s", BYTES_PER_S),
        )

    def longest_s(self, pack: Path) -> float:
        """Return how long a chain may take: more than its first node gives it, and node by node gives up before."""
        least = min(_LEAST_RATE, self.bytes_per_s / 8 or _LEAST_RATE)
        return _LONGEST_START_S + pack.stat().st_size / least

    def suffice(self, pack: Path, hosts: Sequence[str]) -> bool:
        """Whether a chain of so many hosts can be worth it; a missing pack is told of elsewhere."""
        try:
            return len(hosts) >= self.min_hosts and pack.stat().st_size >= self.min_bytes
        except OSError:
            return False


class Meeting:
    """What the workers of one run know of one pack; only one of them at a time holds it."""

    def __init__(self, folder: Path, name: str) -> None:
        """Use a folder of this run alone."""
        self._path = folder / f"clusterctl-chain-{name}.json"

    @contextmanager
    def held(self, note: Callable[[str], None], within_s: float) -> Iterator[dict[str, Any]]:
        """Wait for the turn, and yield what is known: ``brought`` (path by host), ``tried``, ``heads`` and ``pack``.

        Raises:
            TimeoutError: the turn did not come within this time.
        """
        waiting = "waiting for the nodes that pass the pack on"
        with disk_files.held(self._path, waiting, note, quiet_s=_QUIET_S, within_s=within_s) as stream:
            text = stream.read()
            known: dict[str, Any] = json.loads(text) if text else {"brought": {}, "tried": [], "heads": 0, "pack": {}}
            try:
                yield known
            finally:
                stream.seek(0)
                stream.truncate()
                stream.write(json.dumps(known))
                stream.flush()


@dataclass(frozen=True)
class Node:
    """A host to which the chain brings the pack."""

    name: str
    python: str
    file: str

    def path(self, folders: Sequence[str], place: int) -> str:
        """Return the path of its copy; the controller has chosen every part of it."""
        return f"{folders[place]}/{self.file}"


def folders(push_dir: str) -> list[str]:
    """Return the folders that may take a copy."""
    return list(dict.fromkeys([push_dir, SHARED]))


def nodes_of(host: str, variables: Mapping[str, Any], known: Mapping[str, Any], artifact: CachedArtifact) -> list[Node]:
    """Return the hosts of the same platform that take part in the play and have not been tried, in the play's order."""
    members = {str(member["name"]): member for member in variables.get("preflight_members") or ()}
    mine = members.get(host, {}).get("platform")
    passed = {host, *known["brought"], *known["tried"]}
    return [
        Node(name, _python(name, variables), pushed_name(artifact.path))
        for name in map(str, variables.get("ansible_play_hosts") or ())
        if name not in passed and mine and members.get(name, {}).get("platform") == mine
    ]


def _python(name: str, variables: Mapping[str, Any]) -> str:
    try:
        found = str(variables["hostvars"][name]["ansible_python_interpreter"])
    except KeyError:
        return "python3"
    return found if found.startswith("/") and " " not in found else "python3"  # '/usr/bin/env python3'


def mesh_user(variables: Mapping[str, Any], remote_user: str) -> str:
    """Return the user of the ssh mesh, as the role ssh_mesh chooses it."""
    key = variables.get("__ssh_mesh_key")
    of_role = str(key.get("user") or "") if isinstance(key, dict) else ""
    given = (variables.get(name) for name in ("cluster_user", "ansible_ssh_user", "ansible_user"))
    return of_role or str(next(filter(None, given), None) or remote_user or "")


def request(
    host: str, user: str, artifact: CachedArtifact, settings: Settings, nodes: Sequence[Node], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of M(clusterctl.hpc.artifact_spread).

    Args:
        host: the first host of the chain.
        user: of the ssh mesh.
        artifact: the pack.
        settings: of the chain.
        nodes: the other hosts.
        given: ``root`` and ``tree`` (base name) of the artifact, ``folders``, and ``paths`` on the first host.
    """
    piece, sums = sums_of(artifact)
    return {
        "user": user,
        "name": host,
        "paths": list(given["paths"]),
        "size": artifact.size,
        "piece_bytes": piece,
        "sums": sums,
        "marker": f"{given['root']}/{given['tree']}/{MARKER}",
        "nodes": [
            {"name": node.name, "python": node.python, "file": node.file, "folders": list(given["folders"])}
            for node in nodes
        ],
        "bytes_per_s": settings.bytes_per_s,
        "progress": f"{PROGRESS}/{given['tree']}.chain.progress",
    }


def sums_of(artifact: CachedArtifact) -> tuple[int, str]:
    """Return the size of a piece, and the sha256 of all pieces in a row, in base64."""
    piece = max(_SMALLEST_PIECE, min(_LARGEST_PIECE, artifact.path.stat().st_size // _PIECES))
    sums = bytearray()
    with artifact.path.open("rb") as stream:
        while data := stream.read(piece):
            sums += hashlib.sha256(data).digest()
    return piece, base64.b64encode(bytes(sums)).decode()


@dataclass(frozen=True)
class Told:
    """What the first host of a chain said at its end, as far as it is about hosts of the chain."""

    brought: dict[str, str]  # path by host
    left_out: list[str]
    failed: dict[str, str]  # why, by host
    slow: list[str]
    seconds: float


def told(said: Mapping[str, Any], nodes: Sequence[Node], places: Sequence[str]) -> Told:
    """Read the answer of a host, which may say anything: a path is always one that the controller has chosen."""
    delivered, failed, slow = said.get("delivered"), said.get("reasons"), said.get("slow")
    delivered = delivered if isinstance(delivered, dict) else {}
    failed = failed if isinstance(failed, dict) else {}
    brought = {
        node.name: node.path(places, place)
        for node in nodes
        if type(place := delivered.get(node.name)) is int and 0 <= place < len(places)
    }
    why = {node.name: one_line(str(failed[node.name]), _MOST_SAID) for node in nodes if node.name in failed}
    seconds = said.get("seconds")
    return Told(
        brought,
        [node.name for node in nodes if node.name not in brought],
        {name: text for name, text in why.items() if name not in brought},
        [node.name for node in nodes if isinstance(slow, list) and node.name in slow],
        float(seconds) if isinstance(seconds, (int, float)) and 0 <= seconds < _LONGEST_S else 0.0,
    )


class Copying:
    """The controller's one copy, made in a thread while the chain passes it on."""

    def __init__(self, copy: Callable[[], str]) -> None:
        """Start ``copy``, which returns the path on the host."""
        self._copy, self._path, self._error = copy, "", None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._path = self._copy()
        except Exception as error:  # noqa: BLE001 - raised again by path()
            self._error = error

    _error: Exception | None

    def path(self) -> str:
        """Wait for the end of the copy and return its path.

        Raises:
            Exception: what the copy raised.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._path
