from __future__ import annotations

from kept_runs import SLOW, record, remember


def test_since_when_a_culprit_stands_out() -> None:
    named = {"culprits": (SLOW,)}
    nights = [
        record(1, verdict="FAIL", check=named),
        record(2),
        record(3, verdict="FAIL", check=named),
        record(4, verdict="SKIP", check={"figures": ()}),
        record(5, hosts=("node1",), slots={"node1": 2}),
        record(6, verdict="FAIL", check={"culprits": (SLOW.model_copy(update={"size_bytes": 8}),)}),
        record(7, verdict="FAIL", check=named),
    ]
    found = [remember(one).checks[0].culprits for one in nights]
    assert [None if not one else one[0].since for one in found] == [
        None,
        None,
        None,
        None,
        None,
        nights[2].started,
        nights[2].started,
    ]
    other = SLOW.model_copy(update={"nodes": ("node1",)})
    again = remember(record(8, verdict="FAIL", check={"culprits": (other, SLOW)}))
    assert [one.since for one in again.checks[0].culprits] == [None, nights[2].started]
