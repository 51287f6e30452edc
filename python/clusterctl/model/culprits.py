"""Types of blame: the nodes and links that stand out, how finely a check judged, and the search for a bad node."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from clusterctl.model import nodeset
from clusterctl.model.base import Record


class Culprit(Record):
    """Who stands out, by how much, and what shows it.

    Attributes:
        kind: ``node``, ``pair`` (of nodes), ``one_way`` (a pair in one direction only), ``together`` (only when all
            take part at once), or ``boundary`` (what lies between groups of nodes; no node is to blame).
        nodes: one name for a node, two for a pair, sender and receiver for one way, the smallest set that shows it
            otherwise.
        groups: the groups of nodes on the sides of a boundary, empty otherwise.
        quantity: what was measured, empty where a job hung or crashed.
        ratio: measured over expected (0.1: a tenth of its neighbours), None where nothing was measured.
        score: robust modified z-score, None where there is none.
        tested: how many nodes or pairs were compared to find it, None where none were.
        words: one sentence that names it, with the figures.
        cure: what to do where the cause is known, empty where it is not.
        since: the first of the consecutive runs that named it, None where this is the first.
    """

    kind: Literal["node", "pair", "one_way", "together", "boundary"]
    nodes: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...] = ()
    quantity: str = ""
    size_bytes: int | None = None
    ratio: float | None = None
    score: float | None = None
    tested: int | None = None
    words: str
    cure: str = ""
    since: datetime | None = None

    @property
    def blamed(self) -> tuple[str, ...]:
        """The nodes that are at fault; none where it is what lies between groups of them."""
        return () if self.kind == "boundary" else self.nodes

    @property
    def sides(self) -> str:
        """The groups on the sides of a boundary, ``node[1-4] | node[5-8]``; empty for the other kinds."""
        return " | ".join(map(nodeset.folded, self.groups))


class Fineness(Record):
    """The smallest fault that a check could have seen in this run.

    Attributes:
        kind: what was judged: ``node``, ``link``, or ``job`` (all nodes together, by references or the history).
        quantity: what was measured, as in :class:`Figure`.
        fraction: the smallest change that would have been named (0.4: a link 40 % slower than its neighbours).
        why: why it is coarser than usual, empty where it is not.
    """

    kind: Literal["node", "link", "job"]
    quantity: str
    fraction: float
    why: str = ""


class Launch(Record):
    """One launch of a search: who took part, and what came of it; ``launch_node`` may not be one of ``nodes``."""

    nodes: tuple[str, ...]
    ok: bool
    seconds: float
    words: str = ""
    launch_node: str = ""


class Search(Record):
    """The search for the nodes that make a job hang or crash."""

    check: str
    bound: int  # launches it may take for one bad node
    launches: tuple[Launch, ...]
    culprits: tuple[Culprit, ...] = ()
    words: str
