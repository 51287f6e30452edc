"""How many launches the search needs, as the table of docs/measured/search.md.

    python tests/sim/search_table.py [--clusters N]

Every position of a bad node is tried up to 512 nodes; everything else is drawn, the same way every time.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from search_faults import BadNodes, Fault, Flaky, Found, FromSize, InRole, Together, Way, play, seeded

Truth = frozenset[tuple[str, frozenset[int]]]
Draw = Callable[[int, random.Random], tuple[Truth, Fault]]

SIZES = (2, 3, 4, 8, 16, 64, 128, 512, 1000, 10_000)
EVERY_POSITION = 512


@dataclass
class Row:
    """What came of one kind of fault on clusters of one size."""

    launches: list[int] = field(default_factory=list)
    hung: list[int] = field(default_factory=list)
    named: int = 0
    wrong: int = 0

    def add(self, truth: Truth, found: Found) -> None:
        self.launches.append(found.launches)
        self.hung.append(found.hung)
        self.named += found.culprits == truth
        self.wrong += not found.culprits <= truth

    def text(self, label: str, nodes: int, bound: str) -> str:
        count = len(self.launches)
        cells = (
            label,
            f"{nodes:,}",
            f"{statistics.median(self.launches):g}",
            str(max(self.launches)),
            bound,
            f"{statistics.median(self.hung):g}",
            f"{nodes:,}",
            f"{self.named / count:.1%}",
            f"{self.wrong / count:.1%}",
        )
        return "| " + " | ".join(cells) + " |"


def bad_nodes(many: int) -> Draw:
    def draw(nodes: int, dice: random.Random) -> tuple[Truth, Fault]:
        bad = dice.sample(range(nodes), many)
        truth = frozenset(("node", frozenset({node})) for node in bad)
        return truth, BadNodes(frozenset(bad), alone=dice.random() < 0.5)

    return draw


def bad_pair(nodes: int, dice: random.Random) -> tuple[Truth, Fault]:
    pair = frozenset(dice.sample(range(nodes), 2))
    return frozenset({("pair", pair)}), Together(pair)


def three_together(nodes: int, dice: random.Random) -> tuple[Truth, Fault]:
    three = frozenset(dice.sample(range(nodes), 3))
    return frozenset({("together", three)}), Together(three)


def flaky(probability: float) -> Draw:
    def draw(nodes: int, dice: random.Random) -> tuple[Truth, Fault]:
        bad = frozenset({dice.randrange(nodes)})
        return frozenset({("node", bad)}), Flaky(BadNodes(bad, alone=False), probability, dice)

    return draw


def one_bad_node(nodes: int, dice: random.Random) -> Row:
    """Try every position, or draw many; the bound holds in every single case, or this ends here."""
    row = Row()
    for bad in range(nodes) if nodes <= EVERY_POSITION else dice.sample(range(nodes), 100):
        for alone in (True, False) if nodes > 2 else (True,):
            truth = frozenset({("node", frozenset({bad}))})
            found = play(nodes, BadNodes(frozenset({bad}), alone))
            assert found.culprits == truth, (nodes, bad)
            assert found.launches <= found.search.bound, (nodes, bad)
            row.add(truth, found)
    return row


def in_role(nodes: int, dice: random.Random) -> tuple[Truth, Fault]:
    """Draw a node that is bad only when it does not launch; the first node launched."""
    bad = dice.randrange(1, nodes)
    return frozenset({("node", frozenset({bad}))}), InRole(bad, launching=False)


def launcher_only(_nodes: int, _dice: random.Random) -> tuple[Truth, Fault]:
    return frozenset({("node", frozenset({0}))}), InRole(0, launching=True)


def one_way(nodes: int, dice: random.Random) -> tuple[Truth, Fault]:
    target = dice.randrange(1, nodes)
    return frozenset({("one_way", frozenset({0, target}))}), Way(0, target)


def from_size(nodes: int, dice: random.Random, clusters: int) -> Row:
    row = Row()
    for _ in range(clusters):
        size = dice.randint(2, nodes)
        found = play(nodes, FromSize(size))
        right = {(kind, len(members)) for kind, members in found.culprits} == {("together", size)}
        row.add(found.culprits if right else frozenset(), found)
    return row


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clusters", type=int, default=200, help="drawn for each line")
    clusters = options.parse_args().clusters
    say = sys.stdout.write
    say("| fault | nodes | median | worst | bound | deadlines | each node alone | named | wrongly named |\n")
    say("|---|--:|--:|--:|--:|--:|--:|--:|--:|\n")
    for nodes in SIZES:
        bound = str(2 * (nodes - 1).bit_length() + 4)
        say(one_bad_node(nodes, seeded(nodes)).text("one bad node", nodes, bound) + "\n")
    drawn: tuple[tuple[str, Draw, int], ...] = (
        ("one, when it does not launch", in_role, 1),
        ("one, when it launches", launcher_only, 1),
        ("one cannot launch on another", one_way, 1),
        ("a bad pair", bad_pair, 0),
        ("two bad nodes", bad_nodes(2), 2),
        ("three bad nodes", bad_nodes(3), 3),
        ("three only together", three_together, 0),
        ("one, in 80 % of launches", flaky(0.8), 0),
        ("one, in 50 % of launches", flaky(0.5), 0),
        ("one, in 30 % of launches", flaky(0.3), 0),
    )
    for label, draw, many in drawn:
        for nodes in (8, 128, 1000, 10_000):
            dice, row = seeded(nodes), Row()
            for _ in range(clusters if nodes < 10_000 else clusters // 4):
                truth, fault = draw(nodes, dice)
                row.add(truth, play(nodes, fault))
            rounds = 2 * (nodes - 1).bit_length()
            limit = 3 * (rounds + 4) + 12
            say(
                row.text(label, nodes, f"{rounds + 23}" if draw is bad_pair else f"{many * (rounds + 4) or limit}")
                + "\n"
            )
    for nodes in (8, 128, 1000):
        row = from_size(nodes, seeded(nodes), clusters // 2)
        say(row.text("from so many nodes on", nodes, f"{6 * (nodes - 1).bit_length() + 24}") + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
