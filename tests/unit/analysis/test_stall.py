"""The judgement on a silent job: named rightly, or honestly not known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from clusterctl.analysis.rank_evidence import Place
from clusterctl.analysis.stall import FailedWay, RankSight, after_probe, judge, undecided, with_logins

WAITING = Place("all_reduce", "step (train.py:30)")
MOVED = 10 << 20


def ranks(count: int = 8, **more: object) -> list[RankSight]:
    found = [RankSight(rank, f"node{rank // 2 + 1}", now=WAITING, before=WAITING) for rank in range(count)]
    return [replace(one, **more) for one in found]  # type: ignore[arg-type]


def with_one(number: int, **more: object) -> list[RankSight]:
    found = ranks()
    found[number] = replace(found[number], **more)  # type: ignore[arg-type]
    return found


def at(where: str) -> dict[str, Place]:
    return {"now": Place(where=where), "before": Place(where=where)}


@pytest.mark.parametrize(
    ("seen", "cause", "hosts", "sentence"),
    [
        (
            with_one(5, cpu_share=1.0, **at("spin (train.py:3)")),
            "elsewhere",
            ("node3",),
            "node3 rank 5 is in spin (train.py:3), 7 others wait in all_reduce",
        ),
        (
            with_one(5, **at("DataLoader.__next__")),
            "elsewhere",
            ("node3",),
            "node3 rank 5 is in DataLoader.__next__, 7 others wait in all_reduce",
        ),
        (
            with_one(2, state="T", **at("step (train.py:9)")),
            "stopped rank",
            ("node2",),
            "node2 rank 2 is stopped (a signal, such as SIGSTOP), 7 others wait in all_reduce",
        ),
        (
            with_one(4, now=Place(has_ended=True), before=Place(has_ended=True)),
            "ended program",
            ("node3",),
            (
                "node3 rank 4 has ended its program, and its process waits for the other ranks, "
                "7 others wait in all_reduce"
            ),
        ),
        (
            with_one(2, state="D", file="/data/x (fuse.dead)", now=Place(), before=Place()),
            "file",
            ("node2",),
            "node2 rank 2 waits for the file /data/x (fuse.dead), 7 others wait in all_reduce",
        ),
        (
            with_one(7, now=Place("broadcast", "s (t.py:4)"), before=Place("broadcast", "s (t.py:4)")),
            "other call",
            ("node4",),
            "node4 rank 7 waits in broadcast at s (t.py:4), 7 others wait in step (train.py:30)",
        ),
        (
            [replace(one, silent_hosts=("node2",) if one.host != "node2" else ("node1", "node3")) for one in ranks()],
            "network",
            ("node2",),
            (
                "node2 does not get or acknowledge what others send over the network (node1-node2; node2-node3; "
                "node2-node4), 6 others wait in all_reduce"
            ),
        ),
        (with_one(5, cpu_share=1.0, now=Place(), before=Place()), "elsewhere", ("node3",), None),
        (ranks(), "not known", (), None),
        (ranks(now=Place(), before=Place()), "not known", (), None),
    ],
)
def test_who_stops_a_job(seen: list[RankSight], cause: str, hosts: tuple[str, ...], sentence: str | None) -> None:
    found = judge(seen)
    assert found is not None
    assert (found.cause, found.hosts) == (cause, hosts)
    assert sentence in {None, found.sentence}


def test_ranks_without_a_stack_are_told_where_no_other_differs() -> None:
    found = judge([replace(one, now=Place(), before=Place()) if one.rank > 5 else one for one in ranks()])
    assert found is not None
    assert found.sentence.endswith("(2 ranks have no stack, and no other rank differs)")


def test_a_link_with_two_ends_names_neither() -> None:
    seen = [replace(one, silent_hosts=("node2",) if one.host == "node1" else ()) for one in ranks(4)]
    found = judge(seen)
    assert found is not None
    assert (found.cause, found.hosts) == ("network", ())
    assert "which end is the cause is not known" in found.sentence


def test_connections_that_fail_name_the_node_that_all_of_them_have() -> None:
    found = judge(ranks())
    assert found is not None
    failed = [FailedWay(f"node{number}", "node3") for number in (1, 2, 4)]
    named = after_probe(found, failed)
    assert (named.cause, named.hosts) == ("network", ("node3",))
    assert named.sentence.startswith("node3 cannot be connected with node[1-2,4] any more; the cause is not known")
    either = after_probe(found, failed[:1])
    assert (either.cause, either.hosts) == ("network", ()), "either end may be it"
    assert either.sentence.startswith("nodes cannot connect from node1 to node3 any more; the cause is not known")
    assert after_probe(found, [failed[0], FailedWay("node2", "node4")]).hosts == ()
    assert after_probe(found, []) == found


def test_ways_that_lose_large_packets_are_told_with_the_cure() -> None:
    seen = [replace(one, silent_hosts=("node2",) if one.host == "node1" else ()) for one in ranks(6)]
    found = judge(seen)
    assert found is not None
    told = after_probe(found, [FailedWay("node1", "node2", passes_small=True)])
    words = (
        "from node1 to node2 small packets pass and large ones are lost: compare the MTU on the way; data from node1"
    )
    assert told.sentence.startswith(words)
    assert told.hosts == ()
    many = [FailedWay("node1", "node2", passes_small=True), FailedWay("node2", "node3", passes_small=True)]
    named = after_probe(found, many)
    assert named.hosts == ("node2",)
    assert named.sentence.startswith("between node2 and node[1,3] small packets pass and large ones are lost: compare")


def test_a_login_that_exchanges_no_keys_is_told() -> None:
    words = "node3 does not answer, 4 others wait"
    assert with_logins(words, ()) == words
    assert "a new login to node3 stops at the exchange of keys: small packets pass" in with_logins(words, ["node3"])


def test_calls_that_a_library_makes_out_of_one_are_no_other_call() -> None:
    """mpi4py's allreduce of objects: the root receives, the others wait for its broadcast."""
    root = Place("MPI_Recv", "all_reduce (train.py:16)")
    rest = Place("MPI_Bcast", "all_reduce (train.py:16)")
    other = Place("MPI_Bcast", "broadcast (train.py:19)")
    seen = [replace(one, now=rest, before=rest) for one in ranks()]
    seen[0] = replace(seen[0], now=root, before=root)
    found = judge(seen)
    assert found is not None
    assert (found.cause, found.hosts) == ("not known", ())
    seen[5] = replace(seen[5], now=other, before=other)
    found = judge(seen)
    assert found is not None
    assert (found.cause, found.ranks) == ("other call", (5,))


def test_halves_in_two_calls_are_both_told_and_none_is_blamed() -> None:
    other = Place("broadcast", "step (train.py:31)")
    found = judge([replace(one, now=other, before=other) if one.rank < 4 else one for one in ranks()])
    assert found is not None
    assert found.hosts == ()
    assert "ranks 0, 1, 2 and 3 in step (train.py:31)" in found.sentence


def test_a_job_that_goes_on_is_left_alone() -> None:
    assert judge(ranks(moved=MOVED)) is None, "data goes between the ranks"
    assert judge(ranks(cpu_share=1.0, **at("compute (train.py:3)"))) is None, "all compute"
    assert judge(ranks(before=Place("all_reduce", "step (train.py:33)"))) is None, "they were elsewhere"
    assert judge([]) is None


def test_ranks_that_compute_on_cores_of_others_are_left_alone() -> None:
    computing = Place(where="compute (train.py:9)")
    seen = ranks(state="R", cpu_share=0.02, now=computing, before=computing)
    assert judge(seen) is None
    resting = judge([replace(one, state="S") for one in seen])
    assert resting is not None
    assert resting.cause == "not known"


def test_a_rank_that_ended_and_a_node_that_does_not_answer_come_first() -> None:
    found = judge(ranks()[1:], missing={0: "node1"})
    assert found is not None
    assert (found.cause, found.hosts, found.ranks) == ("dead rank", ("node1",), (0,))
    assert found.sentence == "node1 rank 0 has ended, 7 others wait in all_reduce"
    found = judge(ranks()[:6], silent=["node4"])
    assert found is not None
    assert found.sentence == "node4 does not answer, 6 others wait in all_reduce"


def test_a_rank_at_the_line_where_others_wait_is_not_blamed_for_a_stack_without_the_librarys_frames() -> None:
    seen = with_one(5, cpu_share=1.0, **at("spin (train.py:3)"))
    seen[2] = replace(seen[2], **at("step (train.py:30)"))  # type: ignore[arg-type]
    found = judge(seen)
    assert found is not None
    assert found.hosts == ("node3",)
    assert found.sentence == "node3 rank 5 is in spin (train.py:3), 7 others wait in all_reduce"


def test_another_call_is_named_where_one_stack_lacks_the_librarys_frames() -> None:
    seen = with_one(5, now=(other := Place("MPI_Bcast", "broadcast (train.py:27)")), before=other)
    cut = Place(where=WAITING.where)
    for now, before in ((cut, cut), (WAITING, cut)):
        seen[2] = replace(seen[2], now=now, before=before)
        found = judge(seen)
        assert found is not None
        assert (found.cause, found.hosts) == ("other call", ("node3",)), found


BLIND = {"now": Place(), "before": Place()}
SPINS = {**BLIND, "state": "R", "cpu_share": 0.6, "was_idle": False}
SLEEPS = {**BLIND, "state": "S", "cpu_share": 0.0, "was_idle": True, "kernel": "hrtimer_nanosleep"}
TOOLS = "install py-spy, eu-stack or gdb on the nodes"


def blind(**more: object) -> list[RankSight]:
    """Eight ranks without a stack: rank 5 sleeps, the others take processor time."""
    found = ranks(**SPINS)
    found[5] = replace(found[5], **{**SLEEPS, **more})  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(
    ("one", "cause", "sentence"),
    [
        (
            {},
            "idle",
            (
                "node3 rank 5 does nothing (it sleeps in hrtimer_nanosleep of the kernel), 7 others take processor "
                "time; "
                f"{TOOLS} to see where"
            ),
        ),
        (
            {"full": ("/scratch",), "moved": MOVED},
            "idle",
            (
                "node3 rank 5 does nothing (it sleeps in hrtimer_nanosleep of the kernel), 7 others take processor "
                "time; "
                "/scratch on node3, which its ranks use, is full"
            ),
        ),
        (
            {"lock": "/data/.lock (ext4)", "holder": "process 7 of its node (rsync)"},
            "lock",
            (
                "node3 rank 5 waits for the lock of /data/.lock (ext4), which process 7 of its node (rsync) holds, "
                "7 others wait"
            ),
        ),
    ],
)
def test_without_stacks_a_rank_that_sleeps_beside_spinning_ones_is_named(
    one: dict[str, object], cause: str, sentence: str
) -> None:
    found = judge(blind(**one))
    assert found is not None
    assert (found.cause, found.hosts, found.ranks) == (cause, ("node3",), (5,))
    assert found.sentence == sentence


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (
            ranks(**SPINS),
            f"the cause is not known: 8 of 8 ranks take processor time, and no stack could be taken; {TOOLS}",
        ),
        (blind(was_idle=False), "the cause is not known: 7 of 8 ranks take processor time"),
        (blind(was_idle=None), "the cause is not known"),
        (blind(moved=MOVED), "the cause is not known: node3 rank 5 moves data, 7 of 8 ranks take processor time"),
        ([replace(one, full=("/data",)) for one in ranks(**SPINS)], "node4, which its ranks use, is full"),
        (ranks(moved=MOVED), "the job goes on: most of its 8 ranks move data"),
        (
            ranks(cpu_share=1.0, **at("compute (train.py:3)")),
            "the job seems to go on: ranks compute, or wait at changing",
        ),
        ([], "no process of the job is seen on its nodes"),
    ],
)
def test_where_nothing_sets_a_rank_apart_a_clause_says_why(seen: list[RankSight], words: str) -> None:
    assert judge(seen) is None
    assert words in undecided(seen)


POLLS, LOOPS = (0.3, 0.4), (0.0, 0.02)


def test_without_stacks_a_rank_that_computes_beside_ranks_that_poll_is_named() -> None:
    """On busy cores, each rank gets a twelfth of a core."""
    seen = ranks(**{**SPINS, "cpu_share": 0.08, "wanted_share": 0.99, "system": POLLS})
    assert judge(seen) is None
    seen[5] = replace(seen[5], system=LOOPS)
    found = judge(seen)
    assert found is not None
    assert (found.cause, found.hosts, found.ranks) == ("elsewhere", ("node3",), (5,))
    words = "node3 rank 5 computes, 7 others wait, as their calls of the kernel show"
    assert found.sentence == f"{words}; {TOOLS} to see where"


@pytest.mark.parametrize(
    "others",
    [
        {"system": LOOPS},
        {"system": None},
        {"system": (0.1, 0.4)},
        {"system": (0.3, 0.02)},
        {"wanted_share": 0.01, "cpu_share": 0.0, "system": POLLS},
        {"moved": MOVED, "system": POLLS},
        at("compute (train.py:3)") | {"system": POLLS},
    ],
    ids=[
        "they compute",
        "not known",
        "they computed before",
        "they compute now",
        "they rest",
        "they move data",
        "a stack tells",
    ],
)
def test_a_rank_that_computes_is_not_named_where_others_may_not_wait_for_it(others: dict[str, object]) -> None:
    seen = ranks(**{**SPINS, "wanted_share": 0.99, **others})
    seen[5] = replace(seen[5], **{**SPINS, "system": LOOPS})  # type: ignore[arg-type]
    found = judge(seen)
    assert found is None or found.ranks != (5,)


def test_a_rank_that_wakes_up_now_and_then_on_busy_cores_rests() -> None:
    """The letter of its state is R at times; how long it wanted a core tells."""
    seen = ranks(**{**SPINS, "cpu_share": 0.04, "wanted_share": 0.9})
    seen[5] = replace(seen[5], **{**SLEEPS, "state": "R", "wanted_share": 0.1})  # type: ignore[arg-type]
    found = judge(seen)
    assert found is not None
    assert (found.cause, found.ranks) == ("idle", (5,))


def test_idle_ranks_are_not_named_where_others_may_go_on() -> None:
    """A master that sleeps while workers compute, half of the ranks, and ranks that compute by their stacks."""
    assert judge(blind()[4:6]) is None
    working = [replace(one, **at("compute (train.py:3)")) if one.rank != 5 else one for one in blind()]  # type: ignore[arg-type]
    assert judge(working) is None


def test_a_rank_that_waits_for_the_lock_of_a_rank_that_works_is_not_named() -> None:
    """One rank of a node builds an extension, and the others wait for its lock."""
    seen = blind(lock="/cache/lock (ext4)", holder="rank 4", holder_rank=4, was_idle=False)
    assert judge(seen) is None
    seen[4] = replace(seen[4], now=WAITING, before=WAITING)
    found = judge(seen)
    assert found is not None
    assert (found.cause, found.ranks) == ("lock", (5,)), "the holder waits for all ranks, and gives it never back"


def test_without_stacks_data_that_is_not_acknowledged_is_told() -> None:
    seen = [replace(one, silent_hosts=("node2",) if one.host == "node1" else ()) for one in ranks(4, **SPINS)]
    found = judge(seen)
    assert found is not None
    assert (found.cause, found.hosts) == ("network", ())
    assert found.sentence.startswith("data from node1 to node2 is not acknowledged, 4 others wait; which end is")
    assert "compare the MTU" in after_probe(found, []).sentence
