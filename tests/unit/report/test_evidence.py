"""What shows a finding: the record's figures and answers first, then those words of the launcher that say something."""

from __future__ import annotations

import pytest
from clusterctl.model import results
from clusterctl.model.results import CheckResult, Culprit, Figure, RankReport, Verdict
from clusterctl.report import what_to_do
from clusterctl.report.page import matrices
from report_records import DATA, HUNG, PAIRS, record

LAUNCHER = (
    "prterun detected that one or more processes exited with non-zero status,",
    "thus causing the job to be terminated. The first process to do so was:",
    "Process name: [prterun-node1-2117@1,7]",
    "Exit code:    1",
    "----------",
)
TORCHRUN = (
    "/usr/local/libexec/clusterctl/torch_checks.py FAILED",
    "Failures:",
    "[1]:",
    "host      : node3",
    "exitcode  : 1 (pid: 3484)",
    "error_file: <N/A>",
    "sys.exit(main())",
)


def test_a_wrong_answer_shows_its_value_and_not_what_the_launcher_says_of_every_failure() -> None:
    todo = what_to_do.of(results.load((DATA / "wrong-schema1.json").read_bytes(), "wrong-schema1.json"))
    assert "expected 12, got 16" in todo[0].words
    assert "rank 4 on node3: gather u1[1001] to rank 4, value 3005 (1 of 8008 wrong): expected 12, got 16" in (
        todo[0].evidence
    )
    assert all(line.startswith("rank ") for one in todo for line in one.evidence)


def test_a_real_slow_link_shows_what_was_measured_on_it() -> None:
    (one,) = what_to_do.of(results.load((DATA / "slow-link.json").read_bytes(), "slow-link.json"))
    assert one.evidence == (
        "node2 ↔ node5: 152 MB/s",
        "node4 ↔ node5: 159 MB/s",
        "node5 ↔ node6: 166 MB/s",
        "node1 ↔ node5: 167 MB/s",
        "node3 ↔ node5: 171 MB/s",
    )


def test_silent_ranks_and_launches_of_the_search_are_evidence() -> None:
    wait = tuple(
        RankReport(rank=rank, host=f"node{1 + rank // 2}", state="waiting", step="barrier") for rank in range(4)
    )
    (one,) = what_to_do.of(record((CheckResult(check="hello", verdict=Verdict.FAIL, reason="hung", ranks=wait),)))
    assert one.evidence == ("ranks 0, 1 on node1: waiting in barrier", "ranks 2, 3 on node2: waiting in barrier")
    (found,) = what_to_do.of(record((HUNG,)))
    assert found.evidence == ("launch on node1: ran",)


def test_only_the_lines_of_the_launcher_that_say_something_are_shown() -> None:
    told = "Remote daemon: [prterun-node1-1350@0,3] on node node4"
    check = CheckResult(check="hello", verdict=Verdict.FAIL, reason="no", evidence=(*LAUNCHER, told, *TORCHRUN))
    (one,) = what_to_do.of(record((check,)))
    assert one.evidence == (told, "host      : node3")
    assert one.hosts == ()  # a name in a line marks nobody
    assert check.named == ()


def test_a_line_about_another_node_stands_where_that_node_is_named() -> None:
    check = CheckResult(
        check="reachable",
        verdict=Verdict.FAIL,
        reason="two are gone",
        culprits=tuple(Culprit(kind="node", nodes=(host,), words=f"{host} is gone") for host in ("node1", "node2")),
        evidence=("node1: timed out", "node2: connection refused", "no more was tried"),
    )
    todo = what_to_do.of(record((check,)))
    assert [one.evidence for one in todo] == [
        ("node1: timed out", "no more was tried"),
        ("node2: connection refused", "no more was tried"),
    ]


def test_a_pair_shows_its_own_link_before_the_others_of_its_ends() -> None:
    made = results.load((DATA / "slow-link.json").read_bytes(), "slow-link.json")
    (pairs,) = (check for check in made.checks if check.check == "pairs")
    culprit = Culprit(kind="pair", nodes=("node1", "node2"), quantity="bandwidth", size_bytes=8 << 20, words="slow")
    (one,) = what_to_do.of(made.model_copy(update={"checks": (pairs.model_copy(update={"culprits": (culprit,)}),)}))
    assert one.evidence[0].startswith("node1 ↔ node2: ")
    assert one.evidence[1].startswith("node2 ↔ node5: ")


def test_the_slow_direction_of_a_link_is_told_apart_from_the_other() -> None:
    made = results.load((DATA / "slow-link.json").read_bytes(), "slow-link.json")
    (pairs,) = (check for check in made.checks if check.check == "pairs")
    fast = pairs.matrices[-1]
    forward = [
        value / 10 if link == ("node2", "node4") else value for link, value in zip(fast.links, fast.value, strict=True)
    ]
    matrix = fast.model_copy(update={"forward": tuple(forward), "backward": fast.value})
    culprit = Culprit(kind="one_way", nodes=("node2", "node4"), quantity="bandwidth", size_bytes=8 << 20, words="slow")
    check = pairs.model_copy(update={"culprits": (culprit,), "matrices": (matrix,)})
    (one,) = what_to_do.of(made.model_copy(update={"checks": (check,)}))
    assert one.nodes == "node2 → node4"
    assert [line.partition(": ")[0] for line in one.evidence[:3]] == [
        "node2 → node4",
        "node4 → node2",
        "node2 ↔ node5",
    ]
    (packed,) = matrices.of(made.model_copy(update={"checks": (check,)}))
    ((first, second, there, back),) = packed["ways"]
    assert (packed["nodes"][first], packed["nodes"][second]) == ("node2", "node4")
    assert back == pytest.approx(10 * there)


def test_lost_segments_are_shown_with_their_sender() -> None:
    lost = tuple(
        Figure(quantity="sent_again", nodes=nodes, value=value, unit="1")
        for nodes, value in ((("node1", "node2"), 0.002), (("node2", "node1"), 0.061), (("node3", "node1"), 0.0))
    )
    culprit = Culprit(kind="one_way", nodes=("node2", "node1"), quantity="sent_again", words="lost")
    check = CheckResult(check="pairs", verdict=Verdict.FAIL, reason="lost", figures=lost, culprits=(culprit,))
    (one,) = what_to_do.of(record((check,)))
    assert one.evidence == (
        "node2 → node1: 6.1 % of the TCP segments were sent again",
        "node1 → node2: 0.2 % of the TCP segments were sent again",
    )


def test_the_words_of_the_launcher_stand_behind_the_ranks_of_a_crash() -> None:
    told = "PRTE has lost communication with a remote daemon."
    check = CheckResult(
        check="hello",
        verdict=Verdict.FAIL,
        reason="no",
        culprits=(Culprit(kind="node", nodes=("node4",), words="node4 is gone"),),
        ranks=(RankReport(rank=6, host="node4", state="started"),),
        evidence=(told, *LAUNCHER),
    )
    (one,) = what_to_do.of(record((check,)))
    assert one.evidence == ("rank 6 on node4: started, then silent", told)


def test_figures_of_other_nodes_do_not_show_a_culprit() -> None:
    culprit = Culprit(kind="node", nodes=("node9",), words="node9 is bad")
    (one,) = what_to_do.of(record((PAIRS.model_copy(update={"culprits": (culprit,)}),)))
    assert one.evidence == ("node1 to node3: 1.2 GB/s",)
