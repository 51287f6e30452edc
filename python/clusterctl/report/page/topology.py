"""Drawing of the named nodes and links among the others: nodes on a circle, lines coloured by what was measured.

There is a drawing only of a small cluster, where a check names something and links show it: measured ones, or a named
pair. In a large cluster lines hide each other; there the heat map shows the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.report import figure_words, what_to_do

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.model.results import CheckResult, Culprit, PairMatrix, ValidationRecord

_MOST_NODES = 24  # of a drawing
_EVERY_LINK = 12  # nodes up to which each measured link is drawn; of more, those of the named nodes
_RADIUS = 150.0
_REACH = 11.0  # from the middle of a node to the tip of an arrow
_LINKS = 40  # named links at most
_PACES = (0.3, 0.6, 0.8, 0.95)  # shares of the median at which a line gets another colour


@dataclass(frozen=True)
class DrawnNode:
    """The place of a node; ``state`` is ``good``, ``bad``, ``lost`` or ``end`` (of a named link)."""

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
    """A line between two nodes.

    Attributes:
        pace: 0 for the slowest (or a link that carries nothing) to 4 for the pace of the median.
        bad: whether a check names the link or one of its ends.
        one_way: whether it fails from the first end to the second alone.
    """

    x1: float
    y1: float
    x2: float
    y2: float
    pace: int
    bad: bool
    one_way: bool
    title: str


@dataclass(frozen=True)
class Drawing:
    """The drawing of the page; ``about`` is what colours its lines."""

    nodes: tuple[DrawnNode, ...]
    links: tuple[DrawnLink, ...]
    networks: tuple[str, ...]
    about: str


def drawing(record: ValidationRecord) -> Drawing | None:
    """Return the places of the nodes and links, None where lines would show nothing."""
    blamed = [(check, one) for check in record.checks for one in what_to_do.culprits(check)]
    blamed.sort(key=lambda found: -what_to_do.badness(found[1]))
    found = [one for _, one in blamed]
    pairs = [one for one in found if one.kind in {"pair", "one_way"}]
    matrix = _matrix(blamed)
    if len(record.hosts) > _MOST_NODES or (not pairs and matrix is None):
        return None
    lost = {host for check in record.checks if check.check == "reachable" for host in check.named}
    bad = {host: one.words for one in reversed(found) if one.kind == "node" for host in one.nodes}
    ends = {host for one in found if one.kind != "node" for host in one.nodes}
    networks = tuple(dict.fromkeys(record.fabric.get(host, "") for host in record.hosts))
    shown = sorted(record.hosts, key=lambda host: networks.index(record.fabric.get(host, "")))
    nodes = tuple(
        _node(
            host,
            number,
            len(shown),
            state="lost" if host in lost else "bad" if host in bad else "end" if host in ends else "good",
            title=bad.get(host, f"{host}: stopped answering" if host in lost else host),
            network=networks.index(record.fabric.get(host, "")),
        )
        for number, host in enumerate(shown)
    )
    where = {node.name: node for node in nodes}
    return Drawing(
        nodes=nodes,
        links=tuple(_links(where, pairs, set(bad), matrix)),
        networks=tuple(word for word in networks if word),
        about=f"{figure_words.quantity(matrix.quantity)} {figure_words.size(matrix.size_bytes)}" if matrix else "",
    )


def _matrix(blamed: list[tuple[CheckResult, Culprit]]) -> PairMatrix | None:
    """Return the matrix that shows the worst culprit."""
    for check, one in blamed:
        for matrix in check.matrices:
            if (matrix.quantity, matrix.size_bytes) == (one.quantity, one.size_bytes):
                return matrix
    return next((check.matrices[-1] for check, _ in blamed if check.matrices), None)


def _links(
    where: dict[str, DrawnNode], pairs: list[Culprit], bad: set[str], matrix: PairMatrix | None
) -> Iterator[DrawnLink]:
    """Yield the measured links, the slow and the named ones last, so that they lie on top."""
    drawable = [one for one in pairs if len(one.nodes) > 1 and set(one.nodes) <= where.keys()]
    worst = {one.nodes: one for one in reversed(drawable)}  # of the checks and sizes that name it
    named = list(worst.values())[-_LINKS:]
    ends = {frozenset(one.nodes) for one in named}
    measured: list[tuple[float, DrawnLink]] = []
    if matrix is not None:
        median = (sorted(matrix.value)[len(matrix.value) // 2] if matrix.value else 0.0) or 1.0
        for (one, other), value in zip(matrix.links, matrix.value, strict=True):
            is_bad = one in bad or other in bad
            if one not in where or other not in where or not value > 0:
                continue
            if (len(where) > _EVERY_LINK and not is_bad) or frozenset((one, other)) in ends:
                continue
            share = value / median if matrix.better == "higher" else median / value
            title = f"{one} ↔ {other}: {figure_words.figure(value, matrix.unit)}, {share:.2f} of the median's pace"
            measured.append((share, _line(where[one], where[other], share, bad=is_bad, title=title)))
    measured.sort(key=lambda each: (each[1].bad, -each[0]))
    yield from (link for _, link in measured)
    for culprit in named:
        begin, end = (where[name] for name in culprit.nodes[:2])
        one_way = culprit.kind == "one_way"
        yield _line(begin, end, 1 / what_to_do.badness(culprit), bad=True, one_way=one_way, title=culprit.words)


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


def _line(one: DrawnNode, other: DrawnNode, share: float, *, bad: bool, one_way: bool = False, title: str) -> DrawnLink:
    """Return the line; ``share`` is the share of the median's pace, 0 where nothing came through."""
    pace = sum(share >= edge for edge in _PACES)
    back = _REACH / (math.dist((one.x, one.y), (other.x, other.y)) or 1.0) if one_way else 0.0
    x2, y2 = other.x + (one.x - other.x) * back, other.y + (one.y - other.y) * back
    return DrawnLink(one.x, one.y, round(x2, 1), round(y2, 1), pace, bad, one_way, title)
