"""Drawing of nodes and bad links: the nodes stand on a circle in the order of the inventory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.report import actions, figure_words

if TYPE_CHECKING:
    from clusterctl.model.culprits import Culprit
    from clusterctl.model.results import ValidationRecord

_ALL = 64  # nodes up to which each is drawn; of more, the bad nodes and some others
_ROOM = 40  # nodes at most where not all are drawn; bad nodes are always drawn
_NAMED = 24  # nodes up to which each has its name; of more, the bad nodes and the ends of bad links
_RADIUS = 150.0
_LINKS = 40  # bad links at most


@dataclass(frozen=True)
class DrawnNode:
    """The place of a node; ``state`` is ``good``, ``bad``, ``lost`` or ``end`` (of a bad link)."""

    name: str
    x: float
    y: float
    label_x: float
    label_y: float
    anchor: str
    state: str
    title: str
    network: int


@dataclass(frozen=True)
class DrawnLink:
    """A line between two nodes; ``bad`` for a bad link, else a link of a bad node."""

    x1: float
    y1: float
    x2: float
    y2: float
    bad: bool
    title: str


@dataclass(frozen=True)
class Drawing:
    """The drawing of the page; ``hidden`` counts the nodes that are not drawn."""

    nodes: tuple[DrawnNode, ...]
    links: tuple[DrawnLink, ...]
    networks: tuple[str, ...]
    hidden: int
    named: bool


def drawing(record: ValidationRecord) -> Drawing:
    """Return the places of the visible nodes and links."""
    found = [one for check in record.checks for one in actions.culprits(check)]
    found.sort(key=lambda one: -actions.badness(one))
    lost = {host for check in record.checks if check.check == "reachable" for host in check.hosts}
    bad = {host: one.words for one in reversed(found) if one.kind == "node" for host in one.nodes}
    ends = {host for one in found if one.kind != "node" for host in one.nodes}
    shown = _shown(record.hosts, {*lost, *bad, *ends})
    networks = tuple(dict.fromkeys(record.fabric.get(host, "") for host in shown))
    shown = sorted(shown, key=lambda host: networks.index(record.fabric.get(host, "")))
    nodes = tuple(
        _node(
            host,
            number,
            len(shown),
            state="lost" if host in lost else "bad" if host in bad else "end" if host in ends else "good",
            title=bad.get(host, "does not answer" if host in lost else host),
            network=networks.index(record.fabric.get(host, "")),
        )
        for number, host in enumerate(shown)
    )
    where = {node.name: node for node in nodes}
    links = [_pair(where, one) for one in found if one.kind == "pair" and set(one.nodes) <= set(where)][:_LINKS]
    drawn = {frozenset((link.x1, link.y1, link.x2, link.y2)) for link in links}
    for host in list(bad)[:_LINKS]:
        if host in where:
            faint = [_line(where[host], other, bad=False, title=bad[host]) for other in nodes if other.name != host]
            links += [one for one in faint if frozenset((one.x1, one.y1, one.x2, one.y2)) not in drawn]
    return Drawing(
        nodes=nodes,
        links=tuple(links),
        networks=tuple(word for word in networks if word),
        hidden=len(record.hosts) - len(shown),
        named=len(shown) <= _NAMED,
    )


def _shown(hosts: tuple[str, ...], wanted: set[str]) -> list[str]:
    if len(hosts) <= _ALL:
        return list(hosts)
    first = [host for host in hosts if host in wanted][:_ALL]
    rest = [host for host in hosts if host not in wanted]
    room = max(0, _ROOM - len(first))
    step = max(1, len(rest) // room) if room else 1
    kept = {*first, *rest[::step][:room]}
    return [host for host in hosts if host in kept]


def _node(name: str, number: int, total: int, *, state: str, title: str, network: int) -> DrawnNode:
    angle = 2 * math.pi * number / total - math.pi / 2
    x, y = math.cos(angle), math.sin(angle)
    far = _RADIUS + 12
    return DrawnNode(
        name=name,
        x=round(x * _RADIUS, 1),
        y=round(y * _RADIUS, 1),
        label_x=round(x * far, 1),
        label_y=round(y * (far + 5) + 4, 1),
        anchor="middle" if abs(x) < 0.2 else "start" if x > 0 else "end",  # noqa: PLR2004 - about above and below
        state=state,
        title=title,
        network=network,
    )


def _pair(where: dict[str, DrawnNode], culprit: Culprit) -> DrawnLink:
    one, other = (where[name] for name in culprit.nodes[:2])
    size = figure_words.size(culprit.size_bytes)
    return _line(one, other, bad=True, title=culprit.words or f"{one.name} to {other.name} {size}")


def _line(one: DrawnNode, other: DrawnNode, *, bad: bool, title: str) -> DrawnLink:
    return DrawnLink(one.x, one.y, other.x, other.y, bad, title)
