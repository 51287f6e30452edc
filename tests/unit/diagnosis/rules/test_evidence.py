from __future__ import annotations

from clusterctl.diagnosis.rules.evidence import Blame, blame
from clusterctl.model import fabric


def test_one_that_fails_with_most_is_to_blame_and_a_pair_blames_nobody() -> None:
    everybody = [("node1", "node4"), ("node2", "node4"), ("node3", "node4")]
    assert blame(everybody, 4) == ((Blame("node4", "target", ("node1", "node2", "node3")),), ())
    turned = [(target, source) for source, target in everybody]
    assert blame(turned, 4) == ((Blame("node4", "source", ("node1", "node2", "node3")),), ())
    assert blame([("node1", "node2"), ("node2", "node1")], 4) == ((), (("node1", "node2"), ("node2", "node1")))
    assert blame([*everybody, ("node2", "node3")], 4)[1] == (("node2", "node3"),)
    assert blame([("node1", "node2"), ("node2", "node1")], 2)[0] == ()


def test_of_a_sample_the_node_is_named_at_which_most_of_what_was_tried_fails() -> None:
    names = [f"node{number}" for number in range(1, 501)]
    sample = fabric.pairs(names, seed=3)
    closed = [pair for pair in sample if pair[1] == "node7"]
    assert 1 < len(closed) < 30
    (found,), rest = blame(closed, len(names), sample)
    assert (found.host, found.role, len(found.others), rest) == ("node7", "target", len(closed), ())
    assert blame([pair for pair in sample if pair[0] == "node7"], len(names), sample)[0][0].role == "source"
    assert blame(closed[:1], len(names), sample) == ((), tuple(closed[:1]))
