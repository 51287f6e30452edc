"""What is planted on real nodes, and the section of the page that tells who found it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import peer_rules
import planted_verdicts
import pytest
import verdicts
from clusterctl.model.results import CheckResult, Culprit, Verdict

NAMES = ("node1", "node2", "node3", "node4")


def failed(*culprits: Culprit) -> CheckResult:
    return CheckResult(check="pairs", verdict=Verdict.FAIL, reason="", culprits=culprits)


@pytest.mark.parametrize(("fault", "slow"), [("nothing", 0), ("slow node", 3), ("slow link", 1), ("lossy link", 0)])
def test_as_many_links_are_slow_as_the_fault_says(fault: str, slow: int) -> None:
    chosen = planted_verdicts.planted(fault, np.random.default_rng(1))
    assert len(chosen.slow) == slow
    assert (chosen.lossy is not None) == (fault == "lossy link")


def test_the_boundary_slows_the_four_links_between_both_halves() -> None:
    chosen = planted_verdicts.planted("boundary of two halves", np.random.default_rng(1))
    sides = chosen.truth.rack_of
    assert sorted(sides) == [0, 0, 1, 1]
    assert chosen.slow == {(a, b) for a in range(4) for b in range(a + 1, 4) if sides[a] != sides[b]}


@pytest.mark.parametrize("fault", planted_verdicts.FAULTS[1:4])
def test_a_rule_that_names_what_is_planted_is_right(fault: str) -> None:
    truth = planted_verdicts.planted(fault, np.random.default_rng(2)).truth
    lossy = {(int(truth.first[at]), int(truth.second[at])) for at in truth.lossy}
    told = peer_rules.Told(nodes=truth.bad_nodes, links=truth.bad_links | lossy, alarm=True)
    assert verdicts.judged(told, truth) == (True, True, False)
    other = peer_rules.Told(nodes=frozenset({0, 1, 2, 3}), alarm=True)
    assert verdicts.judged(other, truth)[2]


def test_a_record_tells_nodes_by_their_place_in_the_matrix() -> None:
    node = Culprit(kind="node", nodes=("node3",), words="")
    link = Culprit(kind="one_way", nodes=("node4", "node1"), words="")
    told = peer_rules.told(failed(node, link), NAMES)
    assert told == peer_rules.Told(nodes=frozenset({2}), links=frozenset({(0, 3)}), alarm=True)


def test_the_section_replaces_the_earlier_one_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "verdicts.md"
    page.write_text("# Measured\n\n## The table\n\nrows\n", encoding="utf-8")
    planted_verdicts.put(page, f"{verdicts.PLANTED}\n\nfirst\n")
    planted_verdicts.put(page, f"{verdicts.PLANTED}\n\nsecond\n")
    assert page.read_text(encoding="utf-8") == f"# Measured\n\n## The table\n\nrows\n\n{verdicts.PLANTED}\n\nsecond\n"
