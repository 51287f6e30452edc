"""The part of the search for faults that come now and then: how often to launch again, and how a flaky node is found.

A launch that passes proves little of such a fault; one that fails proves that the node was in it. So the suspects are
the nodes of all launches that failed, and their halves are launched side by side until one fails. How often that is
tried follows from two numbers alone: how seldom the fault may come, and how often it may be missed.
"""

from __future__ import annotations

import math
from itertools import cycle
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.analysis.group_trials import Attempt, Blamed, Group, GroupTrials, Steps

RATE = 0.3  # the bounds hold for faults that come in so many launches or more
MISSED = 0.05  # how often such a fault may stay without a name
_COMES = 0.2  # of that, the share for the question whether it comes again at all; as much for the last question
_LEAST_SIDE, _CROSSED = 2, 3  # nodes on each side of a boundary, and pairs across it that have to fail
_AGAIN_CERTAIN = 2  # failures that the last node has to show, so that nobody is named for one launch


def repeats(missed: float, rate: float = RATE) -> int:
    """Return how many launches miss a fault with at most this probability, where it comes in a share of them.

    Raises:
        ValueError: there is no such number.
    """
    if not 0 < missed < 1 or not 0 < rate < 1:
        raise ValueError(f"no number of launches misses {missed:g} of the faults that come in {rate:g} of them")
    return math.ceil(math.log(missed) / math.log1p(-rate))


COMES_AGAIN = repeats(_COMES * MISSED)


def for_halves(suspects: int) -> int:
    """Return how often the halves of a group are launched at most, so that all halvings together miss their share."""
    halvings = max(1, (suspects - 1).bit_length())
    return repeats((1 - 2 * _COMES) * MISSED / halvings)


def most_launches(nodes: int) -> int:
    """Return how many launches the search for a flaky node may take: twice what it takes by expectation, and the ends.

    All halvings together rarely need more: each ends with the first launch that fails.
    """
    halvings = max(1, (nodes - 1).bit_length())
    expected = 2 * halvings / RATE
    return math.ceil(2 * expected) + 4 * COMES_AGAIN + halvings + 4 + _CROSSED


def boundary(nodes: Group, blamed: Blamed, attempt: Attempt, shortest: Callable[..., Steps[int]]) -> Steps[bool]:
    """Find out whether only what lies between two neighbouring groups is bad; return whether it is blamed.

    Nodes that fail with some partners and pass with others look like a flaky node. The longest beginning of the list
    that passes is one group, if the rest passes too, and if each of two or three pairs of both fails. No single node is
    in all of these pairs.
    """
    if len(nodes) < 2 * _LEAST_SIDE:
        return False
    size = yield from shortest((), nodes, 1, len(nodes))
    one, other = nodes[: size - 1], nodes[size - 1 :]
    if min(len(one), len(other)) < _LEAST_SIDE or any((yield from attempt(one, other))):
        return False
    crossed = list(zip(reversed(one), other, strict=False))[:_CROSSED]
    if not all((yield from attempt(*crossed))) or any((yield from attempt(one, other))):
        return False
    blamed.add_boundary(one, other)
    return True


def search(nodes: Group, trials: GroupTrials, blamed: Blamed, attempt: Attempt) -> Steps[str]:
    """Find one node whose fault comes now and then: only what fails proves something; return the words of the end."""
    most = for_halves(len(nodes))
    while len(suspects := trials.in_every_failure(nodes)) > 1:
        others = [node for node in nodes if node not in suspects]
        half, lent = (len(suspects) + 1) // 2, len(others) // 2
        halves = (*suspects[:half], *others[:lent]), (*suspects[half:], *others[lent:])
        for _ in range(most):
            if any((yield from attempt(*halves))):
                break
        else:
            return f"it came now and then and then stayed away; who was always there: {blamed.named(suspects)}"
    if not suspects:
        return "it comes now and then, and no node was in all launches that failed"
    partners = cycle([node for node in reversed(nodes) if node not in suspects] or [suspects[0]])
    failures = 0
    for _ in range(COMES_AGAIN * _AGAIN_CERTAIN):
        failures += (yield from attempt(tuple(dict.fromkeys((suspects[0], next(partners))))))[0]
        if failures == _AGAIN_CERTAIN:
            blamed.add("node", suspects)
            return ""
    return f"{blamed.named(suspects)} was in all launches that failed, but then it did not come again"
