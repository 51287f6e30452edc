"""The one rule of who differs from the others."""

from __future__ import annotations

from clusterctl.model.findings import majority


def test_the_usual_value_is_the_most_frequent_one() -> None:
    found = majority({"node1": "5.0.7", "node2": "5.0.6", "node3": "5.0.7", "node4": "4.1.4"})
    assert found.usual == "5.0.7"
    assert found.others == {"5.0.6": ("node2",), "4.1.4": ("node4",)}
    assert found.odd == ("node2", "node4")


def test_a_plurality_is_enough() -> None:
    assert majority({"a": 1, "b": 1, "c": 2, "d": 3, "e": 4}).usual == 1


def test_without_a_majority_every_member_is_named() -> None:
    found = majority({"node1": "a", "node2": "b"})
    assert found.usual is None
    assert found.others == {"a": ("node1",), "b": ("node2",)}


def test_members_that_agree_leave_nothing_to_say() -> None:
    assert majority({"node1": "a", "node2": "a"}).others == {}
    assert majority({}).others == {}
