"""Whether the libraries of MPI that ranks really map have the content that was installed, the same on all nodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from clusterctl.model.findings import majority
from clusterctl.model.nodeset import folded
from clusterctl.model.results import Culprit
from clusterctl.validation.checks.rank_output import events_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from clusterctl.model.job_outcome import OutputLine
    from clusterctl.validation.checks.base import Site


@dataclass(frozen=True)
class Changed:
    """The nodes whose libraries have another content, and what to do."""

    reason: str
    hosts: tuple[str, ...]
    cure: str

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        """A culprit for each node."""
        return tuple(Culprit(kind="node", nodes=(host,), words=self.reason, cure=self.cure) for host in self.hosts)


@dataclass(frozen=True)
class _Mapped:
    files: Mapping[str, str]  # sha256 by name
    changed: tuple[str, ...]


def changed(site: Site, lines: Iterable[OutputLine]) -> Changed | None:
    """Return the nodes that map another content than was installed, or than other nodes of their platform map.

    The manifest of the installed artifact decides. Where it tells nothing, the majority of the platform does.
    """
    mapped = _read(site, lines)
    wrong = {host: found.changed for host, found in mapped.items() if found.changed}
    if wrong:
        first, paths = next(iter(wrong.items()))
        names = ", ".join(PurePosixPath(path).name for path in paths)
        files = "file" if len(paths) == 1 else "files"
        reason = f"{names} on {folded(wrong)} is not the {files} that was installed: the content has changed"
        return Changed(reason, tuple(wrong), _repair(tuple(wrong), site.libraries.get(first, "")))
    for platform in dict.fromkeys(site.platforms.get(host, "") for host in mapped):
        alike = {host: found for host, found in mapped.items() if site.platforms.get(host, "") == platform}
        for name in dict.fromkeys(name for found in alike.values() for name in found.files):
            odd = majority({host: found.files[name] for host, found in alike.items() if found.files.get(name)})
            if odd.others:
                hosts = tuple(host for host in alike if host in odd.odd)
                usual = "than on most nodes" if odd.usual is not None else "with no majority"
                reason = f"{name} has another content on {folded(hosts)} {usual}"
                return Changed(reason, hosts, _repair(hosts, site.libraries.get(hosts[0], "")))
    return None


def _repair(hosts: tuple[str, ...], folder: str) -> str:
    place = folder or "the folder of Open MPI"
    return (
        f"On {folded(hosts)}, remove {place} and run 'clusterctl provision' again; look for errors of disk and memory."
    )


def _read(site: Site, lines: Iterable[OutputLine]) -> dict[str, _Mapped]:
    found = {}
    for event in events_of(lines, "mapped"):
        host = site.names.get(str(event.get("host", "")), str(event.get("host", "")))
        files, names = event.get("files"), event.get("changed")
        if isinstance(files, dict) and isinstance(names, list):
            digests = {str(name): str(digest) for name, digest in files.items()}
            found[host] = _Mapped(digests, tuple(str(name) for name in names))
    return found
