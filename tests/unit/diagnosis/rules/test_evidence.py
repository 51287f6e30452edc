from __future__ import annotations

from clusterctl.diagnosis.rules.evidence import Blame, blame


def test_one_that_fails_with_most_is_to_blame_and_a_pair_blames_nobody() -> None:
    everybody = [("node1", "node4"), ("node2", "node4"), ("node3", "node4")]
    assert blame(everybody, 4) == ((Blame("node4", "target", ("node1", "node2", "node3")),), ())
    turned = [(target, source) for source, target in everybody]
    assert blame(turned, 4) == ((Blame("node4", "source", ("node1", "node2", "node3")),), ())
    assert blame([("node1", "node2"), ("node2", "node1")], 4) == ((), (("node1", "node2"), ("node2", "node1")))
    assert blame([*everybody, ("node2", "node3")], 4)[1] == (("node2", "node3"),)
    assert blame([("node1", "node2"), ("node2", "node1")], 2)[0] == ()
