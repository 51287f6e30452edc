from __future__ import annotations

import socket
import subprocess
import sys
import threading

import pytest
from clusterctl.analysis import step_times
from clusterctl.jobs.output_lines import Prefixer
from clusterctl.jobs.pace import PaceTaker
from clusterctl.jobs.run import RankPlaces
from clusterctl.support import content


class Heard:
    def __init__(self, pattern: str = "") -> None:
        self.output: dict[str, bytes] = {"stdout": b"", "stderr": b""}
        self.told: list[str] = []
        self.taker = PaceTaker(self.take, self.told.append, step_times.compiled(pattern) if pattern else None)

    def take(self, stream: str, data: bytes) -> None:
        assert data
        self.output[stream] += data

    def finish(self) -> str:
        self.taker.flush()
        self.taker.conclude()
        return self.told[-1]


def report(rank: int, own_s: float, step_s: float = 0.1) -> bytes:
    return f"clusterctl-pace 1 {rank} node{rank + 1} 10 {10 * step_s:.6f} {10 * (step_s - own_s):.6f}\n".encode()


def test_reports_are_taken_out_wherever_the_output_is_cut() -> None:
    text = b"epoch 1\n\r 10%|#" + report(0, 0.02) + b"a clusterctl-pace of mine\n" + report(0, 0.02) + b"clusterctl-pa"
    for size in (1, 2, 7, 64, len(text)):
        heard = Heard()
        for at in range(0, len(text), size):
            heard.taker("stderr", text[at : at + size])
        heard.finish()
        assert heard.output["stderr"] == b"epoch 1\n\r 10%|#a clusterctl-pace of mine\nclusterctl-pa"


def test_a_prefix_goes_with_its_report() -> None:
    heard = Heard()  # the lines of --prefix come whole
    heard.taker("stderr", b"[node1] mine\n[node1] " + report(0, 0.02) + b"[node2] [x] mine\n")
    heard.taker("stderr", b"[node1] " + report(0, 0.02))
    assert heard.output["stderr"] == b"[node1] mine\n[node2] [x] mine\n"


def test_ordinary_output_is_not_held_back() -> None:
    heard = Heard()
    for text in (b"no end of line", b" [0] ", b"x" * 100_000):
        heard.taker("stdout", text)
        assert heard.output["stdout"].endswith(text)
    heard.taker("stdout", b"clusterctl-pace " + b"9" * 1000)
    assert heard.output["stdout"].endswith(b"9" * 1000), "longer than a report"


def test_the_late_rank_is_told_once_while_the_job_runs_and_at_its_end() -> None:
    heard = Heard()
    for turn in range(40):
        for rank in range(4):
            own_s = 0.02 + 0.0001 * (7 * turn * (rank + 1) % 11) + (0.06 if rank == 2 else 0)
            heard.taker("stderr", report(rank, own_s))
    late = "rank 2 on node3 (80.5 ms) is late: its own part of a step takes longer than the 20.5 ms of the other ranks."
    assert len(heard.told) == 1
    assert heard.told[0].startswith("Pace: rank 2 on node3 (80.")
    assert heard.finish() == f"Pace: 4 ranks, 100 ms a step, own part 20.5 ms to 80.5 ms; {late}"
    assert heard.output == {"stdout": b"", "stderr": b""}


@pytest.mark.parametrize(
    ("places", "node"),
    [
        (RankPlaces(("a", "b", "gpu-c", "d"), {}), "gpu-c"),
        (RankPlaces((), {"node3": "gpu-c"}), "gpu-c"),
        (RankPlaces((), {"node1": "gpu-a"}), "node3"),
    ],
)
def test_a_late_rank_is_named_by_the_inventorys_name_of_its_node(places: RankPlaces, node: str) -> None:
    heard = Heard()
    heard.taker.know(places)
    for turn in range(20):
        for rank in range(4):
            heard.taker("stderr", report(rank, 0.02 + 0.0001 * (7 * turn * (rank + 1) % 11) + 0.06 * (rank == 2)))
    assert f"rank 2 on {node} (" in heard.finish()


def test_healthy_ranks_are_told_with_how_finely_they_were_judged() -> None:
    heard = Heard()
    for turn in range(12):
        for rank in range(4):
            heard.taker("stderr", report(rank, 0.02 + 0.0001 * (7 * turn * (rank + 1) % 11)))
    assert "no rank is late; one that takes " in heard.finish()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "no rank told of its steps; the program has to call clusterctl.pace.step()"),
        (b"clusterctl-pace 1 - node1 10 1.000000 0.500000\n", "no rank told of its steps"),
        (b"clusterctl-pace 1 0 node1 0 1.000000 0.500000\n", "no rank told of its steps"),
        (report(0, 0.02) + report(1, 0.02), "2 ranks are too few"),
    ],
)
def test_what_cannot_be_judged_is_said(text: bytes, words: str) -> None:
    heard = Heard()
    heard.taker("stderr", text)
    assert words in heard.finish()


PRINTED = r"step (?P<step>\d+) took (?P<seconds>[\d.]+) s, waited (?P<waiting>[\d.]+) s"


def printed(step: int, rank: int, *, late: int = -1) -> bytes:
    own_s = 0.02 + 0.0001 * (7 * step * (rank + 1) % 11) + (0.06 if rank == late else 0)
    return f"step {step} took 0.1000 s, waited {0.1 - own_s:.4f} s".encode()


@pytest.mark.parametrize("late", [2, -1])
@pytest.mark.parametrize("tag", [b"[1,%d]<stdout>: ", b"[1,%d]<stdout>:"], ids=["5.0", "4.1"])
def test_the_rank_whose_printed_steps_wait_least_is_named_by_mpiruns_tag(late: int, tag: bytes) -> None:
    heard = Heard(PRINTED)
    nodes = ("node1", "node2", "gpu-c", "node4")
    heard.taker.know(RankPlaces(nodes, {}, heard=True))
    lines = Prefixer(nodes, "none", heard.taker, heard.taker.hear)
    for step in range(120):
        for rank in range(4):
            lines("stdout", tag % rank + printed(step, rank, late=late) + b"\n")
    told = heard.finish()
    assert told.startswith("Pace: 4 ranks, 100 ms a step, own part 20.")
    if late < 0:
        assert "no rank is late" in told
    else:
        assert "; rank 2 on gpu-c (80." in told
        assert told.count(" on ") == 1
    assert heard.output["stdout"].count(b"\n") == 480, "the user sees what the ranks print"
    assert heard.output["stdout"].startswith(b"step 0 took 0.1000 s, ")


@pytest.mark.parametrize("form", ["[{rank}] {line}", "rank {rank}: {line}"], ids=["--prefix rank", "the group rank"])
def test_a_rank_may_be_told_by_the_line_itself(form: str) -> None:
    heard = Heard(r"(?:rank (?P<rank>\d+): )?" + PRINTED)
    for step in range(120):
        for rank in range(4):
            line = form.format(rank=rank, line=printed(step, rank, late=3).decode())
            heard.taker("stdout", f"{line}\n".encode())
    assert "rank 3 on an unknown node (80." in heard.finish()


def test_a_rank_that_is_late_for_a_few_seconds_is_not_named() -> None:
    """On nodes that other work kept busy, a rank was late in the last 60 steps alone, which were four seconds."""
    heard = Heard(PRINTED)
    for step in range(220):
        for rank in range(4):
            heard.taker.hear(rank, printed(step, rank, late=3 if step >= 150 else -1))
    assert "no rank is late" in heard.finish()


def test_whole_step_times_name_nobody() -> None:
    heard = Heard(r"took (?P<seconds>[\d.]+) s")
    for step in range(20):
        for rank in range(4):
            heard.taker.hear(rank, printed(step, rank, late=2))
    assert heard.finish().startswith(
        "Pace: 100 ms a step, by 80 lines of the output; the own part of a rank is not known, so nobody is named: "
    )
    assert len(heard.told) == 1


def test_printed_waiting_times_of_unknown_ranks_name_nobody() -> None:
    heard = Heard(PRINTED)
    for step in range(20):
        heard.taker("stdout", printed(step, 0) + b"\n")
    assert "these do not tell which rank printed them, so nobody is named; add the group 'rank'" in heard.finish()


def test_a_pattern_that_finds_nothing_is_said() -> None:
    heard = Heard(PRINTED)
    heard.taker("stdout", b"step 3 took long\n")
    assert heard.finish() == "Pace: no rank told of its steps: no line of the output matches --pace-pattern."


def test_reports_of_the_module_go_before_printed_lines() -> None:
    heard = Heard()
    for turn in range(12):
        for rank in range(4):
            heard.taker("stderr", b"9.9s/it\n" + report(rank, 0.02 + 0.0001 * (7 * turn * (rank + 1) % 11)))
    assert heard.finish().startswith("Pace: 4 ranks, 100 ms a step")


def test_a_progress_bar_is_read_wherever_it_is_cut() -> None:
    bar = b"\r 10%|#   | 10/100 [00:05<00:45,  2.00it/s]\r 11%|#   | 11/100 [00:05<00:45,  2.00it/s]\n"
    for size in (1, 7, len(bar)):
        heard = Heard()
        for at in range(0, len(bar), size):
            heard.taker("stderr", bar[at : at + size])
        assert heard.finish().startswith("Pace: 500 ms a step, by 2 lines of the output; the own part")
        assert heard.output["stderr"] == bar


# A rank that loads its batch and then waits at a barrier, until that closes; the slow one loads for longer.
RANK = """
import os, socket, sys, time
from clusterctl import pace
slow, port = int(sys.argv[1]), int(sys.argv[2])
with socket.create_connection(("127.0.0.1", port)) as barrier:
    while True:
        pace.step()
        time.sleep(0.12 if int(os.environ["RANK"]) == slow else 0.02)
        with pace.waiting():
            try:
                barrier.sendall(b"x")
                if not barrier.recv(1):
                    break
            except OSError:
                break
"""


ENOUGH = 10  # reports of each rank, one a second


def stepping_together(slow: int, ranks: int = 4) -> Heard:
    """Run processes in lock-step, and hear what they write to their standard error, until each has reported enough."""
    heard, lock = Heard(), threading.Lock()
    reports = dict.fromkeys(range(ranks), 0)
    environment = {"PYTHONPATH": str(content.role_files("validation") / "pace"), "CLUSTERCTL_PACE": "1"}
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = [sys.executable, "-S", "-c", RANK, str(slow), str(server.getsockname()[1])]
        started = [
            subprocess.Popen(words, env=environment | {"RANK": str(rank)}, stderr=subprocess.PIPE)
            for rank in range(ranks)
        ]
        connections = [server.accept()[0] for _ in started]

    def listen(rank: int, process: subprocess.Popen[bytes]) -> None:
        for line in process.stderr or ():
            with lock:
                heard.taker("stderr", line)
                reports[rank] += 1

    listeners = [threading.Thread(target=listen, args=each) for each in enumerate(started)]
    for listener in listeners:
        listener.start()
    while min(reports.values()) < ENOUGH:
        assert all(connection.recv(1) for connection in connections)
        for connection in connections:
            connection.sendall(b"x")
    for connection in connections:
        connection.close()
    for listener, process in zip(listeners, started, strict=True):
        listener.join()
        process.communicate()
    return heard


@pytest.mark.programs
@pytest.mark.parametrize("slow", [2, -1])
def test_of_real_processes_the_one_that_loads_slowly_is_named(slow: int) -> None:
    heard = stepping_together(slow)
    words = heard.finish()
    if slow < 0:
        assert "no rank is late" in words
    else:
        assert words.count("rank 2 on ") == 1
        assert "rank 2 on " in words.partition(" is late: ")[0]
        assert words.count(" on ") == 1, "nobody else"
    assert heard.output["stderr"] == b""
