"""The check ``pairs``: who meets whom, verdicts over what nodes print, and who is named when a pair hangs."""

from __future__ import annotations

import itertools
import json
import socket
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import node_programs
import pytest
from clusterctl.analysis import outliers, packet_loss, robust_stats
from clusterctl.model.job_outcome import JobOutcome, OutputLine
from clusterctl.model.results import Verdict
from clusterctl.validation.checks import base
from clusterctl.validation.checks.pairs import Further, Pairs, PairsOptions

ROOT = Path(__file__).parents[4]
MPI = "/usr/local/openmpi-5.0.7-aa"
MIB = 2**20


@pytest.fixture(scope="module")
def program() -> ModuleType:
    return node_programs.load("pair_checks")


# --- who meets whom ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 13, 16, 33, 64])
def test_everybody_meets_everybody_once_in_rounds_of_disjoint_pairs(program: ModuleType, size: int) -> None:
    rounds = program.tournament(size)
    assert len(rounds) == (0 if size == 1 else size - 1 if size % 2 == 0 else size)
    for pairs in rounds:
        assert len(pairs) == size // 2
        assert len({rank for pair in pairs for rank in pair}) == 2 * len(pairs)
        assert all(first < second for first, second in pairs)
    met = [pair for pairs in rounds for pair in pairs]
    assert sorted(met) == list(itertools.combinations(range(size), 2))


@pytest.mark.parametrize("size", [4, 7, 9, 16, 33, 100, 101, 512])
@pytest.mark.parametrize("most", [1, 2, 3, 5, 8])
def test_sampled_rounds_measure_everybody_equally_often(program: ModuleType, size: int, most: int) -> None:
    rounds = program.tournament(size, most)
    met = [pair for pairs in rounds for pair in pairs]
    assert len(set(met)) == len(met)
    assert all(len({rank for pair in pairs for rank in pair}) == 2 * len(pairs) for pairs in rounds)
    often = Counter(rank for pair in met for rank in pair)
    if size % 2 == 0 or most > 2:  # of an odd number, one has to rest in a single round
        assert len(rounds) <= most
        assert len(often) == size
        assert len(set(often.values())) == 1
    assert rounds == program.tournament(size, most)  # the same every night
    if most > 1:
        assert is_connected(size, met)


def is_connected(size: int, pairs: list[tuple[int, int]]) -> bool:
    reached = {0}
    for _ in range(size):
        more = {rank for pair in pairs if set(pair) & reached for rank in pair}
        if more <= reached:
            break
        reached |= more
    return len(reached) == size


def test_nodes_of_one_machine_take_turns(program: ModuleType) -> None:
    pairs = [(0, 5), (1, 4), (2, 3)]
    alone = list(program.waves(pairs, {}, [f"machine{rank}" for rank in range(6)]))
    assert alone == [pairs]
    assert list(program.waves(pairs, {"one": 2}, ["one"] * 6)) == [[pair] for pair in pairs]
    assert list(program.waves(pairs, {"one": 4}, ["one"] * 6)) == [pairs[:2], pairs[2:]]
    assert list(program.waves(pairs, {"one": 1}, ["one"] * 6)) == [[pair] for pair in pairs]  # it has to go on
    mixed = ["one", "one", "one", "two", "three", "four"]
    assert list(program.waves(pairs, {"one": 2}, mixed)) == [[(0, 5), (1, 4)], [(2, 3)]]


# --- the verdict ------------------------------------------------------------------------------------------------------


def names(count: int) -> tuple[str, ...]:
    return tuple(f"node{number}" for number in range(1, count + 1))


def site(count: int) -> base.Site:
    nodes = names(count)
    hosts = {f"box{number}": node for number, node in enumerate(nodes, 1)}
    return base.Site(version="5.0.7", slots=dict.fromkeys(nodes, 8), names=hosts, libraries=dict.fromkeys(nodes, MPI))


def line(event: str, rank: int, **more: Any) -> OutputLine:
    head = {"clusterctl": 1, "event": event, "check": "pairs", "rank": rank, "host": f"box{rank + 1}"}
    return OutputLine("stdout", 1.0, json.dumps({**head, **more}))


def answer(rank: int, **more: Any) -> OutputLine:
    good = {"ok": True, "compared": 9, "wrong": 0, "library_path": f"{MPI}/lib/libmpi.so.40"}
    return line("result", rank, **{**good, **more})


def measured(count: int, slow: dict[tuple[int, int], float] | None = None) -> list[OutputLine]:
    """Return what all pairs print: 10 us and 1 GB/s, but for ``slow`` links a part of the latter."""
    found = []
    for first, second in itertools.combinations(range(count), 2):
        wobble = [0.99, 1.0, 1.01, 1.0, 1.0, 1.02, 0.98]
        about = {"backend": "mpi", "peer": f"box{second + 1}"}
        latency = {"quantity": "latency", "unit": "us", "better": "lower", "bytes": 1, **about}
        bandwidth = {"quantity": "bandwidth", "unit": "B/s", "better": "higher", "bytes": MIB, **about}
        part = (slow or {}).get((first, second), 1.0) * (1 + 0.002 * ((first + second) % 5))
        found.append(line("measured", first, samples=[10 * one for one in wobble], **latency))
        found.append(line("measured", first, samples=[1e9 * part * one for one in wobble], **bandwidth))
    return found


def judged(count: int, lines: list[OutputLine], **outcome: Any) -> base.Judgement:
    ended = {"ending": "exited", "seconds": 9.0, "rc": 0, **outcome}
    return Pairs().judge(site(count), JobOutcome(lines=tuple(lines), **ended))


def test_all_pairs_become_matrices_and_figures_of_nodes() -> None:
    lines = measured(5, {(1, 3): 0.25}) + [answer(rank, figures={"measuring_s": 1.5}) for rank in range(5)]
    found = judged(5, lines)
    assert found.verdict is Verdict.PASS  # who stands out is for the verdict to say
    assert "all pairs: median latency 10 us of 1 B, median bandwidth 1 GB/s of 1 MiB; " in found.reason
    assert found.reason.endswith("252 MB/s on the worst link, node2-node4")
    latency, bandwidth = found.matrices
    assert (latency.quantity, latency.size_bytes, latency.unit, latency.better) == ("latency", 1, "us", "lower")
    assert latency.nodes == names(5)
    assert list(zip(latency.first, latency.second, strict=True)) == list(itertools.combinations(range(5), 2))
    assert latency.complete
    assert set(latency.value) == {10.0}
    assert bandwidth.spread[0] == pytest.approx(1e7, rel=0.01)
    by_nodes = {figure.nodes: figure for figure in found.figures if figure.quantity == "bandwidth"}
    assert set(by_nodes) == {(), *((name,) for name in names(5))}
    assert by_nodes[()].value == pytest.approx(1e9, rel=0.01)
    assert (by_nodes["node1",].size_bytes, by_nodes["node1",].backend) == (MIB, "mpi")
    assert next(one.value for one in found.measurements if one.name == "measuring") == 1.5
    assert [one.nodes for one in outliers.among_links(bandwidth, robust_stats.OutlierPolicy())] == [("node2", "node4")]


def test_each_matrix_knows_the_switches_of_its_nodes() -> None:
    lines = measured(4) + [answer(rank) for rank in range(4)]
    known = {"node1": ("leaf1",), "node4": ("leaf2",), "node9": ("leaf2",)}
    ended = JobOutcome(lines=tuple(lines), ending="exited", seconds=9.0, rc=0)
    found = Pairs().judge(replace(site(4), switches=known), ended)
    assert [matrix.switches for matrix in found.matrices] == [{"node1": ("leaf1",), "node4": ("leaf2",)}] * 2


def test_what_was_lost_is_a_figure_of_the_sender_and_the_receiver() -> None:
    about = {"unit": "1", "better": "none", "backend": "tcp"}

    def to_all(rank: int, sent: int, lost: int) -> OutputLine:
        return line("measured", rank, quantity="segments_to_all", samples=[sent, lost, 3], **about)

    def to_one(rank: int, peer: str, sent: int, lost: int) -> OutputLine:
        return line("measured", rank, quantity="segments", samples=[sent, lost], peer=peer, **about)

    lines = [*measured(4), *(to_all(rank, 30_000, 0) for rank in (0, 2)), to_all(1, 24_000, 200), to_all(3, 30_000, 9)]
    lines += [to_one(1, "box4", 4000, 200), to_one(3, "box2", 10_000, 9), *(answer(rank) for rank in range(4))]
    (figure,) = (one for one in judged(4, lines).figures if one.quantity == packet_loss.SENT_AGAIN)
    assert (figure.nodes, figure.value, figure.unit, figure.better) == (("node2", "node4"), 0.05, "1", "none")


@pytest.mark.parametrize(("receiver", "found"), [(3, [0.008]), (2, []), (None, [])])
def test_what_the_receivers_kernel_counted_stands_for_a_loss_below_one_per_cent(
    receiver: int | None, found: list[float]
) -> None:
    about = {"unit": "1", "better": "none", "backend": "tcp"}
    lines = [*measured(4), *(answer(rank) for rank in range(4))]
    lines += [line("measured", rank, quantity="segments_to_all", samples=[75_000, 0, 3], **about) for rank in (0, 2, 3)]
    lines.append(line("measured", 1, quantity="segments_to_all", samples=[75_000, 200, 3], **about))
    lines.append(line("measured", 1, quantity="segments", samples=[25_000, 200], peer="box4", **about))
    if receiver is not None:
        lines.append(line("measured", receiver, quantity="segments_early", samples=[400], peer="box2", **about))
    assert [one.value for one in judged(4, lines).figures if one.quantity == packet_loss.SENT_AGAIN] == found


def test_both_directions_stand_in_the_matrix_whoever_measured_them() -> None:
    def measured_by(rank: int, peer: int) -> OutputLine:
        about = {"quantity": "bandwidth", "unit": "B/s", "better": "higher", "bytes": MIB, "backend": "mpi"}
        return line("measured", rank, peer=f"box{peer + 1}", samples=[1e9] * 7, ways=[1e9 + rank, 1e9 + peer], **about)

    lines = [measured_by(2, 0), measured_by(0, 1), measured_by(2, 1), *(answer(rank) for rank in range(3))]
    (matrix,) = judged(3, lines).matrices
    assert matrix.forward == (1e9 + 0, 1e9 + 0, 1e9 + 1)
    assert matrix.backward == (1e9 + 1, 1e9 + 2, 1e9 + 2)
    (averaged,) = judged(3, [*lines[:2], *measured(3)[-1:], *lines[3:]]).matrices[-1:]
    assert (averaged.forward, averaged.backward) == ((), ())  # a direction of every link, or of none


def test_the_kernel_has_counted_segments(program: ModuleType) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0] as other,
    ):
        one.sendall(b"word")
        assert other.recv(4) == b"word"
        known = list(program.connections())
        assert ("127.0.0.1", "127.0.0.1", 1, 0, 0, 0) in known  # a segment with data there
        assert ("127.0.0.1", "127.0.0.1", 0, 0, 1, 0) in known  # and none back
        one.sendall(b"still open")
        assert other.recv(10) == b"still open"


def test_what_was_not_measured_is_said() -> None:
    lines = measured(4)
    answers = [answer(rank) for rank in range(4)]
    some = judged(4, lines[:-2] + answers)  # without the last pair
    assert some.verdict is Verdict.PASS
    assert "5 of 6 pairs" in some.reason
    assert not some.matrices[0].complete
    none = judged(4, answers)
    assert (none.verdict, none.reason) == (Verdict.ERROR, "the time was too short to measure any pair")
    without = [one for one in lines if "box4" not in one.text]
    assert judged(4, without + answers).verdict is Verdict.ERROR
    assert judged(4, without + answers).reason == "the time was too short to measure the links of node4"
    assert judged(1, [answer(0)]).verdict is Verdict.SKIP


def hung(count: int, busy: dict[int, str]) -> base.Judgement:
    """Return the judgement over nodes that all wait, those of ``busy`` in a pair."""
    lines = measured(count)[:6]
    for rank in range(count):
        step = busy.get(rank, "the end of round 2 of 5")
        for at_s in (20.0, 58.0):
            lines.append(OutputLine("stdout", at_s, line("waiting", rank, step=step).text))
    return judged(count, lines, ending="deadline", rc=None, ending_s=60.0, seconds=61.0)


def test_a_pair_that_hangs_is_named_with_both_ends_and_the_size() -> None:
    found = hung(6, {2: "pair box3-box6, 1 MiB", 5: "pair box3-box6, 1 MiB"})
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node3", "node6"))
    assert found.reason == "stuck: pair node3-node6, 1 MiB; 4 others wait for the end of the round"
    assert found.matrices  # of what was measured before


def test_a_node_that_fell_silent_in_a_pair_is_to_blame_alone() -> None:
    lines = [line("started", rank) for rank in range(4)]
    for rank, step in ((0, "pair box1-box4, 64 B"), (1, "the end of round 1 of 3"), (2, "the end of round 1 of 3")):
        lines.append(OutputLine("stdout", 58.0, line("waiting", rank, step=step).text))
    found = judged(4, lines, ending="deadline", rc=None, ending_s=60.0, seconds=61.0)
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node4",))


def test_a_wrong_byte_goes_before_everything_else() -> None:
    wrong = {"what": "1 MiB from rank 2, value 77 (1 of 1048575 wrong)", "expected": "9", "got": "8"}
    answers = [answer(rank) for rank in (0, 2, 3)] + [answer(1, ok=False, wrong=1, problems=[wrong])]
    found = judged(4, measured(4) + answers, rc=1)
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node3", "node2"))  # which end, other values tell
    assert "1 MiB from rank 2" in found.reason


def test_the_deadline_grows_with_the_rounds_unless_the_user_has_set_one() -> None:
    options = PairsOptions(budget_s=0.2, latency_bytes=(1,), bandwidth_bytes=(MIB,))
    check = Pairs(options)
    few, many = (base.deadline_s(check, site(count)) for count in (4, 64))
    assert many - few == pytest.approx(3 * 60 * 2 * 0.2 + 60 * (8 * 0.05 + 0.1))
    sampled = Pairs(options.model_copy(update={"max_rounds": 4}))
    assert base.deadline_s(sampled, site(64)) < base.deadline_s(check, site(64))
    own = Pairs(options.model_copy(update={"deadline_s": 60.0}))
    assert base.deadline_s(own, site(64)) + own.measuring_s(site(64)) == base.deadline_s(check, site(64))


def test_the_user_s_options_reach_the_program(program: ModuleType) -> None:
    options = PairsOptions(latency_bytes=(1, 64), bandwidth_bytes=(65536,), max_rounds=3, budget_s=0.25)
    argv = Pairs(options).program(site(4), 60)
    assert argv[1].endswith("/pair_checks.py")
    words = dict(zip(argv[2::2], argv[3::2], strict=True))
    assert program.sizes(words["--latency"]) == [1, 64]
    assert (words["--bandwidth"], words["--max-rounds"], words["--budget"]) == ("65536", "3", "0.25")
    assert program.size_words(65536) == "64 KiB"


# --- pairs that are asked for ----------------------------------------------------------------------------------------


def test_the_program_reads_the_rounds_that_the_controller_asks_for(program: ModuleType) -> None:
    rounds = (((0, 1), (2, 3)), ((0, 2), (1, 3)))
    text = Further("bandwidth", MIB, rounds, 3).words
    assert program.asked_for(text, 4) == [list(pairs) for pairs in rounds]
    with pytest.raises(ValueError, match="asks for a round that 3 ranks cannot play: 0-1,2-3"):
        program.asked_for(text, 3)
    with pytest.raises(ValueError, match="cannot play: 0-1,1-2"):
        program.asked_for(Further("bandwidth", MIB, (((0, 1), (1, 2)),), 3).words, 4)


def test_all_pairs_of_600_nodes_fit_into_one_argument_of_a_program(program: ModuleType) -> None:
    rounds = tuple(tuple(pairs) for pairs in program.tournament(600))
    assert len(Further("bandwidth", MIB, rounds, 1).words) < 1 << 20
    some = Further("bandwidth", MIB, rounds[:64], 1).words
    assert len(some) < 1 << 17  # the longest argument that Linux takes
