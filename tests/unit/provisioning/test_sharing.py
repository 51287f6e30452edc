"""The order of a run on several controllers, and where it ends early."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.provisioning.controllers import OWN, SharedRun, share
from clusterctl.provisioning.playbook import End

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.provisioning.controllers import Shares

FOUND = {OWN: ("node1", "node2"), "ops2": ("node3", "node4")}
GOOD = End("successful", 0)


def run(meet: End, *parts: End) -> tuple[SharedRun, list[Shares]]:
    played: list[Shares] = []
    ends = iter(parts)

    def play(found: Shares) -> Sequence[End]:
        played.append(found)
        return [next(ends)]

    return share(FOUND, {"node3"}, lambda: meet, play), played


def test_the_builder_goes_ahead_here_and_the_others_follow_everywhere() -> None:
    done, played = run(GOOD, GOOD, GOOD)
    assert played == [{OWN: ("node3",)}, {OWN: ("node1", "node2"), "ops2": ("node4",)}]
    assert (done.end.status, done.shares, done.message) == ("successful", played[1], "")


def test_a_host_that_failed_at_the_meeting_is_left_out() -> None:
    done, played = run(End("failed", 2, failed=frozenset({"node4"})), GOOD, GOOD)
    assert played[1] == {OWN: ("node1", "node2"), "ops2": ()}
    assert done.end.failed == {"node4"}


def test_no_worker_begins_where_the_meeting_was_refused() -> None:
    done, played = run(End("failed", 1))
    assert played == []
    assert done.end.rc == 1


def test_no_worker_begins_where_the_builder_failed() -> None:
    done, played = run(GOOD, End("failed", 2, failed=frozenset({"node3"})))
    assert len(played) == 1
    assert done.message == "The workers did not begin, because node3 failed, which goes ahead of the others."


def test_a_stopped_run_starts_nothing_more() -> None:
    assert len(run(GOOD, End("canceled", 254))[1]) == 1
