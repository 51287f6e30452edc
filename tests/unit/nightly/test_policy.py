from __future__ import annotations

from datetime import timedelta

import pytest
from clusterctl.model import run_record
from clusterctl.model.results import CheckResult, RankReport, Verdict, WrongAnswer
from clusterctl.nightly import policy
from clusterctl.nightly.records import Drift, HostDrift, Night, Proof
from nights import (
    a_night,
    a_record,
    bad,
    culprit,
    proof,
    provisioned,
    utc,
)


@pytest.mark.parametrize(
    ("found", "drift", "verdict"),
    [
        (proof(), Drift(), Verdict.PASS),
        (proof(), Drift(hosts=(HostDrift(host="n1"),)), Verdict.FAIL),
        (proof(), Drift(problem="held"), Verdict.ERROR),
        (proof(), None, Verdict.ERROR),
        (proof(Verdict.SKIP), Drift(), Verdict.ERROR),
        (proof(Verdict.ERROR), Drift(), Verdict.ERROR),
        (proof(Verdict.ERROR), Drift(hosts=(HostDrift(host="n1"),)), Verdict.FAIL),
        (proof(Verdict.FAIL), None, Verdict.FAIL),
        (None, None, Verdict.ERROR),
    ],
)
def test_the_verdict_of_a_night(found: Proof | None, drift: Drift | None, verdict: Verdict) -> None:
    assert policy.verdict_of(found, drift) is verdict


def test_what_is_news_and_what_is_not() -> None:
    good = policy.state_of(a_night(proof=proof(), drift=Drift()))
    assert policy.change((), good) == ""  # nobody is told of a first good night
    first = policy.state_of(
        a_night(verdict=Verdict.FAIL, proof=proof(Verdict.FAIL, bad("n3"), culprits=(culprit("n3"),)))
    )
    same = policy.state_of(
        a_night(
            verdict=Verdict.FAIL,
            proof=proof(Verdict.FAIL, bad("n3", reason="other figures"), culprits=(culprit("n3", ratio=0.12),)),
        )
    )
    other = policy.state_of(
        a_night(verdict=Verdict.FAIL, proof=proof(Verdict.FAIL, bad("n4"), culprits=(culprit("n4"),)))
    )
    drifted = policy.state_of(a_night(verdict=Verdict.FAIL, proof=proof(), drift=Drift(hosts=(HostDrift(host="n1"),))))
    assert policy.change((), first) == "PASS -> FAIL; new: allreduce FAIL n3, node n3 bandwidth"
    assert policy.change(good, first) == policy.change((), first)
    assert policy.change(first, same) == ""
    assert policy.change(first, other).startswith("still FAIL; new: allreduce FAIL n4, node n4 bandwidth; gone: ")
    assert policy.change(first, good).startswith("FAIL -> PASS; gone: ")
    assert policy.change(good, drifted) == "PASS -> FAIL; new: drift n1"


def test_of_whom_a_check_is_certain() -> None:
    wrong = WrongAnswer(what="sum", expected="1", got="2")
    ranks = (
        RankReport(rank=0, host="n1"),
        RankReport(rank=1, host="n2", ok=False, compared=9, wrong=1, problems=(wrong,)),
    )
    checks = (
        CheckResult(check="reachable", verdict=Verdict.FAIL, reason="n3 is off", hosts=("n3",)),
        CheckResult(check="hello", verdict=Verdict.FAIL, reason="crashed", hosts=("n1", "n2")),
        CheckResult(check="allreduce", verdict=Verdict.FAIL, reason="wrong", hosts=("n2",), ranks=ranks),
        CheckResult(check="reduce", verdict=Verdict.PASS, reason="right"),
    )
    found = policy.proof_of(a_record(Verdict.FAIL, *checks))
    assert [(bad.check, bad.certain) for bad in found.bad] == [
        ("reachable", ("n3",)),
        ("hello", ()),
        ("allreduce", ("n2",)),
    ]


def test_the_part_that_a_night_is_about() -> None:
    record = a_record(Verdict.PASS).model_copy(update={"hosts": ("n1", "n2")})
    assert policy.part_of(policy.proof_of(record)) == ""
    busy = record.model_copy(update={"left_out": {"n3": "allocated", "n4": "drained: fan, 2 rpm"}})
    told = "2 of 4 nodes, n[1-2]; left out: n3 (allocated); n4 (drained: fan, 2 rpm)"
    assert policy.part_of(policy.proof_of(busy)) == told


def test_what_has_drifted() -> None:
    hosts = (
        run_record.HostSummary(host="n1", outcome="changed", changes=("/etc/nccl.conf",)),
        run_record.HostSummary(host="n2", outcome="ok"),
        run_record.HostSummary(host="n3", outcome="ok"),
    )
    found = policy.drift_of(
        provisioned(hosts=hosts, reasons={"n2": "the inventory changed"}, drifted={"n3": "/etc/x differs"})
    )
    assert [(host.host, host.why, host.changes) for host in found.hosts] == [
        ("n1", "", ("/etc/nccl.conf",)),
        ("n3", "/etc/x differs", ()),
    ]
    assert policy.words_of(found) == "n1: provision would change /etc/nccl.conf; n3: /etc/x differs"
    assert policy.drift_of(provisioned(outcome="nothing to do")) == Drift(run_id="r")


def test_drift_that_nobody_could_look_for_is_no_peace() -> None:
    lost = provisioned(
        outcome="unreachable",
        exit_code=4,
        problems=(run_record.Problem(host="n2", subject="timeout", problem="n2 did not answer", kind="unreachable"),),
    )
    found = policy.drift_of(lost)
    assert found.problem == "n2: n2 did not answer"
    assert policy.verdict_of(proof(), found) is Verdict.ERROR


def test_old_nights_go_and_the_newest_stays() -> None:
    now = utc("2026-05-31T12:00")
    nights = [(f"n{days}", now - timedelta(days=days)) for days in (40, 31.5, 30.5, 1)]
    assert policy.to_prune(nights, now, 30) == ("n40", "n31.5")
    assert policy.to_prune([("only", utc("2020-01-01T00:00"))], now, 30) == ()
    assert policy.to_prune([], now, 30) == ()


def of_slices(*newest_first: int | None) -> list[Night]:
    return [a_night(drift=None if each is None else Drift(slice=each)) for each in newest_first]


def test_seven_nights_read_every_slice_and_a_skipped_one_is_caught_up() -> None:
    nights: list[Night] = []
    for _ in range(9):
        nights = [*of_slices(policy.next_slice(nights)), *nights]
    assert [night.drift.slice for night in reversed(nights) if night.drift] == [0, 1, 2, 3, 4, 5, 6, 0, 1]
    assert policy.next_slice(of_slices(None, 3, 2, 1, 0, 6, 5, 4)) == 4, "a night that did not look takes no slice"
    assert policy.next_slice(of_slices(5, 3, 2, 1, 0, 6)) == 4, "the oldest comes first"
    kept = of_slices(3, 2, 1, 0)
    for wanted in (4, 5, 6, 0):
        assert policy.next_slice(kept) == wanted, "also where only four nights are kept"
        kept = [*of_slices(wanted), *kept][:4]


def test_the_slice_of_a_night_is_recorded_and_told() -> None:
    found = policy.drift_of(provisioned(outcome="nothing to do", slices=(2,)))
    assert found.slice == 2
    assert "slice 3 of 7" in policy.words_of(found)


def test_a_node_that_a_night_left_out_is_not_mended() -> None:
    before = ("FAIL", "drift node9", "node node3 copy", "pairs FAIL")
    assert policy.carried(before, ("PASS",), ("node3",)) == ("FAIL", "node node3 copy")
    assert policy.carried(before, ("PASS",), ("node4",)) == ("PASS",)  # node3 was proved, and is news
    worse = policy.carried(before, ("ERROR", "could not run"), ("node3",))
    assert worse == ("ERROR", "could not run", "node node3 copy")
    assert policy.carried((), ("PASS",), ("node3",)) == ("PASS",)
