from __future__ import annotations

import pytest
from clusterctl.state import history as run_history
from clusterctl.state.history import rows
from clusterctl.support.errors import ConfigError
from kept_runs import CLUSTER, record, remember


def test_runs_are_found_by_prefix_and_by_place() -> None:
    first, second = record(1), record(2)
    remember(first, second)
    with run_history.open() as history:
        assert history.find("last").run_id == second.run_id
        assert history.find("last-1", CLUSTER).run_id == first.run_id
        assert history.find(first.run_id[:9]).run_id == first.run_id
        assert [run.run_id for run in history.runs(CLUSTER)] == [second.run_id, first.run_id]
        assert [run.run_id for run in history.runs(last=1)] == [second.run_id]


@pytest.mark.parametrize(
    ("asked", "cluster", "says"),
    [
        ("1999", CLUSTER, ("'1999' is not in the history of inventory-0123abcd", "'clusterctl history INVENTORY'")),
        ("", CLUSTER, ("'' is not in the history",)),
        ("20", CLUSTER, ("'20' is the beginning of 2 runs", "give more of the id")),
        ("last-7", CLUSTER, ("'last-7'", "history of inventory-0123abcd (runs: 2)", "choose a newer one")),
        ("last", "nobody-1", ("The history of nobody-1 is empty", "'clusterctl validate' begins it")),
        ("1999", None, ("'1999' is not in the history;",)),
    ],
)
def test_an_unknown_run_is_named_with_the_way_to_known_ones(
    asked: str, cluster: str | None, says: tuple[str, ...]
) -> None:
    remember(record(1), record(2))
    with run_history.open() as history, pytest.raises(ConfigError) as caught:
        history.find(asked, cluster)
    for words in says:
        assert words in str(caught.value)


def test_an_empty_history_says_how_it_begins() -> None:
    with run_history.open() as history, pytest.raises(ConfigError, match=r"^The history is empty; 'clusterctl valid"):
        history.find("last")


@pytest.mark.parametrize(("name", "last"), [("last", True), ("last-3", True), ("lasting", False), ("2026", False)])
def test_a_name_that_counts_back_is_told_from_an_id(name: str, last: bool) -> None:
    assert run_history.is_last(name) is last


def test_an_id_is_preferred_to_a_longer_one_that_begins_with_it() -> None:
    assert rows.choose("a-1", ["a-12", "a-1"], "the history") == 1
