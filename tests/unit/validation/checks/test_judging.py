"""Judging captured outcomes; the first line of each log in tests/data/validation says where it came from."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from captured_cluster import LIBRARIES, SLOTS, judge, site
from clusterctl.model.job_outcome import JobOutcome, OutputLine, Sweep
from clusterctl.model.results import Verdict
from clusterctl.validation.checks import judging, registry
from factory import captured_outcome

DATA = Path(__file__).parents[3] / "data"


def test_a_healthy_run_passes_with_its_figures() -> None:
    judgement = judge("healthy-5.0.7", "allreduce")
    assert (judgement.verdict, judgement.evidence) == (Verdict.PASS, ())
    assert judgement.reason == "8 ranks on 4 nodes, 4,273,464 values right"
    figures = {figure.name: figure.value for figure in judgement.measurements}
    assert (figures["ranks_answered"], figures["nodes_answered"], figures["total"]) == (8, 4, 22.195)
    assert 0 < figures["slowest_rank"] < figures["total"]


@pytest.mark.parametrize(
    ("name", "check", "hosts", "words"),
    [
        ("stopped-5.0.7", "allreduce", ("node3",), r"from rank [45] on node3 within 20 s; 7 others wait"),
        ("asleep-5.0.7", "reduce", ("node2",), r"from ranks 2 and 3 on node2 within 20 s; 6 others wait, in MPI_Init"),
        ("asleep-4.1.8", "reduce", ("node3",), r"from ranks 4 and 5 on node3 within 15 s; 6 others wait, in MPI_Init"),
        ("paused-5.0.7", "broadcast", ("node4",), r"from ranks 6 and 7 on node4 .*; node4 no longer answers ssh"),
        ("paused-4.1.8", "broadcast", ("node3",), r"from ranks 4 and 5 on node3 .*; node3 no longer answers ssh"),
        ("killed-5.0.7", "scatter", ("node3",), r"^node3: rank [45] exited on signal 11 \(Segmentation fault\)"),
        (  # captured before mpirun told each end: rank 5 may have died, or one that was up and has not answered
            "killed-early-5.0.7",
            "scatter",
            (),
            r"^no answer from any of the 8 ranks; .* 139 \(SIGSEGV\), and it is not known which rank ended first",
        ),
        ("exited-starting-5.0.7", "scatter", ("node3",), r"^node3: rank 4 ended with code 7 before it was up; "),
        ("wrong-gather-5.0.7", "gather", ("node2",), r"^rank 3 on node2 sends wrong values to .*: expected 12, got 16"),
        ("wrong-5.0.7", "allreduce", (), r"rank 0 on node1: allreduce sum i4\[3\].*: expected 108, got 112"),
        ("wrong-4.1.8", "allreduce", (), r"rank 0 on node1: allreduce sum i4\[3\].*: expected 108, got 112"),
        ("raised-4.1.8", "scatter", ("node4",), r"rank 6 on node4: MPI_Init: .* ModuleNotFoundError: import of numpy"),
        ("skew-5.0.7", "hello", ("node3",), r"different library files of MPI: node3: .*-other/lib/libmpi.so"),
        ("skew-4.1.8", "hello", ("node3",), r"different library files of MPI: node3: .*-other/lib/libmpi.so"),
    ],
)
def test_a_fault_fails_and_names_who(name: str, check: str, hosts: tuple[str, ...], words: str) -> None:
    judgement = judge(name, check)
    assert judgement.verdict is Verdict.FAIL
    assert judgement.hosts == hosts
    assert re.search(words, judgement.reason), judgement.reason


def test_a_rank_that_dies_while_no_rank_is_up_is_named_by_what_mpirun_tells_of_its_end() -> None:
    judgement = judge("died-starting-5.0.7", "scatter")
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node3",))
    assert judgement.reason.startswith("node3: rank 5 was ended by SIGSEGV before it was up; ")
    (culprit,) = judgement.culprits
    assert culprit.nodes == ("node3",)
    assert "journalctl -k" in culprit.cure
    assert any("ABORTED BY SIGNAL" in line for line in judgement.evidence)
    assert not any("COMMUNICATION FAILURE" in line for line in judgement.evidence)


TOLD = "[node1:01247] [prterun-node1-1247@0,0] errmgr:dvm: for proc [prterun-node1-1247@{}] state {}"


@pytest.mark.parametrize(
    ("told", "hosts"),
    [
        ([("1,5", "ABORTED BY SIGNAL")], ("node3",)),
        ([("1,1", "ABORTED BY SIGNAL")], ("node1",)),  # it was up; rank 5, which was not, is innocent
        ([("1,7", "KILLED BY INTERNAL COMMAND"), ("1,5", "ABORTED BY SIGNAL")], ("node3",)),
        ([("1,5", "ABORTED BY SIGNAL"), ("1,1", "ABORTED BY SIGNAL")], ("node3",)),
        ([("0,2", "COMMUNICATION FAILURE"), ("1,5", "ABORTED BY SIGNAL")], ()),  # it lost a daemon before
        ([("1,1", "EXITED WITH NON-ZERO STATUS")], ()),  # it was up, and may have lost another rank
        ([("1,99", "ABORTED BY SIGNAL")], ()),
        ([], ()),
    ],
)
def test_a_rank_that_was_not_up_yet_is_blamed_only_if_its_own_end_was_the_first(
    told: list[tuple[str, str]], hosts: tuple[str, ...]
) -> None:
    whole = captured_outcome("killed-early-5.0.7")
    lines = tuple(OutputLine("stderr", 1.0, TOLD.format(*one)) for one in told)
    early = dataclasses.replace(whole, lines=(*whole.lines, *lines))
    judgement = judging.judge(site("killed-early-5.0.7"), early)
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, hosts), judgement.reason


REFUSED = (
    "[node1][[11356,1],1][btl_tcp_endpoint.c:803:complete_connect] connect() to node2 failed: Connection refused (111)"
)
RETRIED = "[node1:19546:0:19546] ib_mlx5_log.c:139  Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81)"


@pytest.mark.parametrize(
    ("said", "hosts", "words"),
    [
        ((REFUSED, TOLD.format("1,5", "ABORTED BY SIGNAL")), ("node3",), "rank 5 was ended by SIGSEGV"),
        ((REFUSED,), ("node1", "node2"), "node[1-2]: a rank at node2 takes no connections"),
        ((RETRIED,), (), "packets of node1 over its RDMA port mlx5_0:1/IB got no answer"),
    ],
)
def test_who_only_saw_the_end_of_a_connection_is_not_blamed(
    said: tuple[str, ...], hosts: tuple[str, ...], words: str
) -> None:
    whole = captured_outcome("killed-early-5.0.7")
    lines = tuple(OutputLine("stderr", 1.0, text) for text in said)
    judgement = judging.judge(site("killed-early-5.0.7"), dataclasses.replace(whole, lines=(*whole.lines, *lines)))
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, hosts), judgement.reason
    assert words in judgement.reason
    assert [one.kind for one in judgement.culprits] == {0: [], 1: ["node"], 2: ["pair"]}[len(hosts)]


def test_a_signal_that_mpirun_told_before_the_deadline_is_named() -> None:
    """mpirun did not end the others, or the machine was too busy for that."""
    whole = captured_outcome("died-starting-5.0.7")
    told = max(line.at_s for line in whole.lines if "ABORTED BY SIGNAL" in line.text)
    late = dataclasses.replace(whole, ending="deadline", rc=None, ending_s=told + 1)
    judgement = judging.judge(site("died-starting-5.0.7"), late)
    assert judgement.hosts == ("node3",)
    assert "rank 5 was ended by a signal before it was up" in judgement.reason


@pytest.mark.parametrize(
    ("silent", "got", "hosts"),
    [
        ({2}, "RuntimeError: Connection closed by peer [198.51.100.2]:40001", ("node2",)),
        ({2, 3}, "RuntimeError: Connection reset by peer", ("node2",)),
        ({2, 4}, "RuntimeError: Connection reset by peer", ()),
        ({2}, "ModuleNotFoundError: No module named 'x'", ("node3", "node4")),  # its own fault
    ],
)
def test_the_silent_node_is_blamed_and_not_those_who_lost_it(
    silent: set[int], got: str, hosts: tuple[str, ...]
) -> None:
    whole = captured_outcome("healthy-5.0.7")
    lines = []
    for line in whole.lines:
        said = json.loads(line.text) if line.text.startswith("{") else {}
        if said.get("rank") in silent and said.get("event") == "result":
            continue
        if said.get("rank", 0) > 3 and said.get("event") == "result":
            problem = {"what": "allreduce", "expected": "an answer", "got": got}
            said |= {"ok": False, "problems": [problem]}
            line = dataclasses.replace(line, text=json.dumps(said))  # noqa: PLW2901
        lines.append(line)
    judgement = judging.judge(site("healthy-5.0.7"), dataclasses.replace(whole, lines=tuple(lines), rc=1))
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, hosts), judgement.reason


def test_a_rank_that_an_error_ended_is_named_before_those_that_mpi_ended() -> None:
    """As captured on six nodes, one of which lets a process use 146 MiB of addresses."""
    whole = captured_outcome("healthy-5.0.7")
    lines = []
    for line in whole.lines:
        said = json.loads(line.text) if line.text.startswith("{") else {}
        if said.get("event") == "result":
            memory = "MemoryError: Unable to allocate 3.66 MiB for an array with shape (240054,)"
            got = memory if said["rank"] == 0 else "ended with code 14"
            problem = {"what": "scatter c16[40009] from rank 0", "expected": "an answer", "got": got}
            line = dataclasses.replace(line, text=json.dumps(said | {"ok": False, "problems": [problem]}))  # noqa: PLW2901
        lines.append(line)
    judgement = judging.judge(site("healthy-5.0.7"), dataclasses.replace(whole, lines=tuple(lines), rc=14))
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node1",)), judgement.reason
    assert judgement.reason.startswith(
        "rank 0 on node1: scatter c16[40009] from rank 0: expected an answer, got Memory"
    )


def test_of_one_process_per_node_the_node_is_named() -> None:
    judgement = judging.judge(site("none-5.0.7"), captured_outcome("died-starting-5.0.7"), per_node=True)
    assert judgement.hosts == ()  # there is no sixth node
    outcome = captured_outcome("died-starting-5.0.7")
    lines = tuple(dataclasses.replace(line, text=line.text.replace("@1,5]", "@1,3]")) for line in outcome.lines)
    judgement = judging.judge(site("none-5.0.7"), dataclasses.replace(outcome, lines=lines), per_node=True)
    assert judgement.hosts == ("node4",)
    assert "the process that mpirun started was ended by SIGSEGV" in judgement.reason


def test_no_rank_at_all_is_an_error_with_the_cause_that_the_launcher_gives() -> None:
    judgement = judge("unresolved-4.1.8", "hello")
    assert judgement.verdict is Verdict.ERROR
    assert judgement.reason.startswith("from node1 to node3: the launch node does not know the name ")
    assert judgement.reason.endswith("; run 'clusterctl provision' (role hosts)")
    assert judgement.hosts == ("node1", "node3")
    assert [(one.kind, one.nodes) for one in judgement.culprits] == [("one_way", ("node1", "node3"))]


@pytest.mark.parametrize("ending", ["exited", "deadline", "lost", "not_started", "stopped"])
def test_no_output_is_never_a_pass(ending: str) -> None:
    outcome = JobOutcome(ending, 1.0, 1.0, rc=0, problem="why")  # type: ignore[arg-type]
    for check in registry.select(None):
        judgement = check.judge(site("none-5.0.7"), outcome)
        assert judgement.verdict is Verdict.ERROR
        assert all(rank.state == "absent" for rank in judgement.ranks)


@pytest.mark.parametrize("problem", ["", "did not answer within 15 s"])
def test_a_lost_launch_node_that_answers_logins_is_busy(problem: str) -> None:
    sweeps = (Sweep("node1", problem=problem), Sweep("node2"))
    outcome = JobOutcome("lost", 180.0, problem="it did not answer within 180 s", sweeps=sweeps)
    judgement = judging.judge(site("healthy-5.0.7"), outcome)
    assert judgement.verdict is Verdict.ERROR
    assert judgement.hosts == (("node1",) if problem else ())
    assert ("all nodes answer logins, so look at the load and memory" in judgement.reason) != bool(problem)


def test_answers_from_all_but_one_rank_fail_even_with_exit_code_0() -> None:
    whole = captured_outcome("healthy-5.0.7")
    cut = dataclasses.replace(whole, lines=tuple(line for line in whole.lines if '"rank": 5,' not in line.text))
    judgement = judging.judge(site("healthy-5.0.7"), cut)
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node3",))


def test_right_answers_and_a_job_that_does_not_end_fail() -> None:
    whole = captured_outcome("healthy-5.0.7")
    late = dataclasses.replace(whole, ending="deadline", rc=None)
    assert "but the job did not end" in judging.judge(site("healthy-5.0.7"), late).reason
    failed = dataclasses.replace(whole, rc=3)
    judgement = judging.judge(site("healthy-5.0.7"), failed)
    assert (judgement.verdict, judgement.reason.partition(", but ")[2]) == (Verdict.FAIL, "mpirun ended with code 3")


def test_a_rank_that_stops_after_its_answer_is_named() -> None:
    def beat(rank: int) -> OutputLine:
        words = {
            "clusterctl": 1,
            "event": "waiting",
            "rank": rank,
            "host": f"node{rank // 2 + 1}",
            "step": "the barrier",
        }
        return OutputLine("stdout", 44.0, json.dumps(words))

    whole = captured_outcome("healthy-5.0.7")
    beats = tuple(beat(rank) for rank in range(8) if rank != 5)
    late = dataclasses.replace(whole, ending="deadline", rc=None, ending_s=45.0, lines=(*whole.lines, *beats))
    judgement = judging.judge(site("healthy-5.0.7"), late)
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node3",))
    assert judgement.reason.endswith("did not end within 45 s: rank 5 on node3 fell silent before the end")


def test_a_node_that_is_gone_is_named_though_mpirun_ended_with_code_0() -> None:
    started = tuple(
        OutputLine("stdout", 1.0, json.dumps({"clusterctl": 1, "event": "started", "rank": rank, "host": node}))
        for rank, node in enumerate(node for node in SLOTS for _ in range(2))
    )
    gone = (Sweep("node1"), Sweep("node4", problem="did not answer within 15 s"))
    outcome = JobOutcome("exited", 3.0, rc=0, lines=started, sweeps=gone)
    judgement = judging.judge(site("healthy-5.0.7"), outcome)
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node4",))
    assert judgement.reason.startswith("node4 no longer answers ssh; no answer from any of the 8 ranks")


def test_what_ranks_say_while_they_are_ended_is_not_held_against_them() -> None:
    died = {"clusterctl": 1, "event": "result", "rank": 3, "host": "node2", "ok": False, "compared": 0, "wrong": 1}
    words = {**died, "problems": [{"what": "allreduce", "expected": "an answer", "got": "ended with code 14"}]}
    whole = captured_outcome("healthy-5.0.7")
    others = tuple(line for line in whole.lines if '"rank": 3' not in line.text)
    lines = (*others, OutputLine("stdout", 46.0, json.dumps(words)))
    late = dataclasses.replace(whole, ending="deadline", rc=None, ending_s=45.0, lines=lines)
    judgement = judging.judge(site("healthy-5.0.7"), late)
    assert judgement.verdict is Verdict.FAIL
    assert "no sign of life from rank 3 on node2" in judgement.reason


def test_a_sign_of_life_counts_from_when_it_was_given() -> None:
    """The launch node passed nothing on from the 16th second to the 23rd, the deadline was the 20th."""

    def said(at_s: float, rank: int, event: str, **more: object) -> OutputLine:
        words = {"clusterctl": 1, "event": event, "rank": rank, "host": f"node{rank // 2 + 1}", **more}
        return OutputLine("stdout", at_s, json.dumps(words))

    lines = [said(1.0, rank, "started") for rank in range(8) if rank not in {2, 3}]
    for rank in (0, 1, 4, 5, 6, 7):
        lines += [said(at_s + 1, rank, "waiting", s=at_s, step="MPI_Init") for at_s in (2.0, 8.5, 14.5)]
        lines += [said(22.7, rank, "waiting", s=at_s, step="MPI_Init") for at_s in (16.5, 18.5, 20.5)]
    outcome = JobOutcome("deadline", 27.0, 20.0, rc=1, lines=tuple(lines))
    judgement = judging.judge(site("healthy-5.0.7"), outcome)
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node2",)), judgement.reason
    assert [report.seen_s for report in judgement.ranks] == [19.5, 19.5, 0.0, 0.0, 19.5, 19.5, 19.5, 19.5]


def test_a_library_from_elsewhere_fails_every_check() -> None:
    elsewhere = dataclasses.replace(
        site("healthy-5.0.7"), libraries={**dict.fromkeys(SLOTS, LIBRARIES["5.0.7"]), "node2": "/opt/openmpi"}
    )
    judgement = judging.judge(elsewhere, captured_outcome("healthy-5.0.7"))
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node2",))
    assert "ranks 2 and 3 on node2 have not mapped the installed libmpi" in judgement.reason


def test_a_good_end_with_a_fault_that_the_launcher_names_is_no_pass() -> None:
    whole = captured_outcome("healthy-5.0.7")
    said = (DATA / "launcher" / "5.0" / "shm-full.txt").read_text(encoding="utf-8").splitlines()[1:]
    warned = dataclasses.replace(whole, lines=(*whole.lines, *(OutputLine("stderr", 1.0, line) for line in said)))
    judgement = judging.judge(site("healthy-5.0.7"), warned)
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node3",))
    assert judgement.reason.startswith("node3: no space is left for shared memory")
    assert "8 ranks on 4 nodes" in judgement.reason


def test_a_dead_node_comes_before_the_ranks_that_lost_a_peer_by_it() -> None:
    whole = captured_outcome("healthy-5.0.7")
    wrong = {"ok": False, "problems": [{"what": "allreduce", "expected": "an answer", "got": "Socket closed"}]}
    lines = tuple(
        dataclasses.replace(line, text=json.dumps({**json.loads(line.text), **wrong}))
        if '"rank": 2,' in line.text and '"result"' in line.text
        else line
        for line in whole.lines
    )
    gone = (Sweep("node1"), Sweep("node4", problem="did not answer within 15 s"))
    judgement = judging.judge(site("healthy-5.0.7"), dataclasses.replace(whole, lines=lines, rc=1, sweeps=gone))
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node4",)), judgement.reason
    assert "Socket closed" in judgement.reason


# --- ``hello`` over captured output: one MPI library on all nodes, and ranks in their places ---


def test_hello_names_the_release_that_all_have() -> None:
    judgement = judge("hello-5.0.7", "hello")
    assert judgement.reason == "8 ranks on 4 nodes, all Open MPI v5.0.7"
    assert {rank.library_path for rank in judgement.ranks} == {f"{LIBRARIES['5.0.7']}/lib/libmpi.so.40.40.7"}


def test_a_wrong_sum_is_said_with_its_rank_and_both_figures() -> None:
    judgement = judge("hello-wrong-5.0.7", "hello")
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node3",))
    assert judgement.reason == "rank 5 on node3: allreduce sum of the numbers 1 to 8: expected 36, got 37"


def test_builds_may_differ_between_platforms_and_releases_may_not() -> None:
    mixed = dataclasses.replace(
        site("skew-5.0.7"), platforms={**dict.fromkeys(SLOTS, "debian-12-x86_64"), "node3": "debian-13-x86_64"}
    )
    hello = registry.select(["hello"])[0]
    assert hello.judge(mixed, captured_outcome("skew-5.0.7")).verdict is Verdict.PASS
    whole = captured_outcome("skew-5.0.7")
    other = tuple(
        dataclasses.replace(line, text=line.text.replace("v5.0.7", "v5.0.11")) if "-other/" in line.text else line
        for line in whole.lines
    )
    judgement = hello.judge(mixed, dataclasses.replace(whole, lines=other))
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node3",))
    assert "different releases of MPI: node3: Open MPI v5.0.11" in judgement.reason


def test_a_rank_that_died_before_it_named_its_library_has_no_other_release() -> None:
    whole = captured_outcome("hello-5.0.7")
    died = {
        "clusterctl": 1,
        "event": "result",
        "check": "hello",
        "rank": 4,
        "host": "node3",
        "ok": False,
        "compared": 0,
        "wrong": 1,
        "problems": [{"what": "MPI_Init", "expected": "an answer", "got": "ended with code 14"}],
    }
    lines = tuple(
        dataclasses.replace(line, text=json.dumps(died)) if '{"rank": 4,' in line.text else line for line in whole.lines
    )
    outcome = dataclasses.replace(whole, lines=lines, rc=14)
    judgement = registry.select(["hello"])[0].judge(site("hello-5.0.7"), outcome)
    assert judgement.verdict is Verdict.FAIL
    assert "different releases" not in judgement.reason
    assert "ended with code 14" in judgement.reason


@pytest.mark.parametrize(
    ("folder", "file"),
    [
        (LIBRARIES["5.0.7"], "lib/libmpi.so.40.40.7"),
        ("/usr/local/mpi4py-4.1.2-9b424f587360b5a6", "site-packages/mpi4py/__init__.py"),
    ],
)
def test_a_file_that_is_not_as_installed_names_its_node_before_all_else(folder: str, file: str) -> None:
    whole = captured_outcome("hello-5.0.7")
    changed = {"node2": [], "node3": [f"{folder}/{file}"]}
    mapped = [
        {"clusterctl": 1, "event": "mapped", "rank": 4, "host": host, "files": {}, "changed": paths}
        for host, paths in changed.items()
    ]
    lines = (*whole.lines, *(OutputLine("stdout", 1.0, json.dumps(event)) for event in mapped))
    judgement = registry.select(["hello"])[0].judge(site("hello-5.0.7"), dataclasses.replace(whole, lines=lines))
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node3",))
    (culprit,) = judgement.culprits
    assert (culprit.kind, culprit.nodes) == ("node", ("node3",))
    assert culprit.words == (
        f"{file.rpartition('/')[2]} on node3 is not the file that was installed: the content has changed"
    )
    assert f"On node3, remove {folder} and run 'clusterctl provision' again" in culprit.cure
    assert culprit.words in judgement.reason


def test_ranks_on_the_wrong_node_are_found() -> None:
    whole = captured_outcome("hello-5.0.7")
    moved = tuple(
        dataclasses.replace(line, text=line.text.replace('"host": "node4"', '"host": "node3"')) for line in whole.lines
    )
    judgement = registry.select(["hello"])[0].judge(site("hello-5.0.7"), dataclasses.replace(whole, lines=moved))
    assert judgement.verdict is Verdict.FAIL
    assert judgement.reason == "ranks are not where the hostfile puts them: node3 has 4 of 2, node4 has 0 of 2"
