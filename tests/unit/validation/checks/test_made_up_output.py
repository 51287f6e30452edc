"""Output that a node makes up: lines that take long to search, and numbers that no program of ours prints."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from captured_cluster import training_site
from clusterctl.analysis import nccl_diagnostics, rank_deaths, rank_evidence
from clusterctl.diagnosis.rules import parameters
from clusterctl.jobs import watch
from clusterctl.model.job_outcome import JobOutcome, OutputLine
from clusterctl.model.results import RankReport, Verdict, WrongAnswer
from clusterctl.validation import check_runner
from clusterctl.validation.checks import (
    base,
    copies,
    hello,
    judging,
    mpirun_output,
    parsers,
    rank_output,
    registry,
    wrong_data,
)
from clusterctl.validation.checks import nccl_diagnostics as nccl_check
from clusterctl.validation.checks.parsers import UnreadableError
from factory import captured_outcome

LONG_S = 5.0
DIGITS = "9" * 5000
NUMBERS = [DIGITS, "²", "9" * 300]


def site() -> base.Site:
    return base.Site(version="5.0.7", slots={"node1": 2}, names={"node1": "node1"}, libraries={"node1": "/usr"})


def counted(text: str) -> None:
    check_runner._RankCounter("hello", 2, None)(OutputLine("stdout", 0.1, text))  # noqa: SLF001 - of a running check


def diagnosed(text: str) -> None:
    nccl_diagnostics.read([text])


def sized(text: str) -> None:
    judging.found(site(), JobOutcome("exited", 1.0, rc=0, lines=(OutputLine("stdout", 0.1, text),)))


def stalled(text: str) -> None:
    own: Any = SimpleNamespace(_noted=set())
    watch.Watch.heard(own, text.encode())


@pytest.mark.parametrize(
    ("read", "part"),
    [
        (counted, '"event": "started", '),
        (counted, '"event": "result", '),
        (sized, '{"clusterctl": 1, "event": "result", '),
        (diagnosed, "NCCL DIAG [INFO] p2p: _ srcRank=1 dstRank=1 "),
        (stalled, "[a]"),
    ],
)
def test_no_line_takes_long_to_search(read: Any, part: str) -> None:
    began = time.process_time()
    read(part * ((1 << 17) // len(part)))
    assert time.process_time() - began < LONG_S


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_of_ras_is_none_or_passed_over(number: str) -> None:
    silent = f" Process {number} on node n1 managing GPU 0"
    some = f"  {number} ranks have launched up to operation {number}"
    kind = "  Communicator ranks have different AllReduce operation counts"
    assert rank_evidence.behind_by_ras([silent, kind, some], lambda _node, _pid: 1, 4) is None


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_of_an_end_is_none_or_passed_over(number: str) -> None:
    words = f"Root Cause (first observed failure):\n[0]:\n  host : n1\n  rank : {number} (local_rank: 0)\n"
    assert rank_deaths.first_death(f"{words}  exitcode : -{number} (pid: 1)\n") is None
    assert rank_deaths.first_death(f"process rank 1 with PID 1 on node n exited on signal {number}.") is None


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_of_a_rank_is_none_or_passed_over(number: str) -> None:
    facts = {"copies": number, nccl_check.RANK: number, nccl_check.ASKED: "1"}
    wrong = (WrongAnswer(what=f"value from rank {number}", expected="1", got="2"),)
    ranks = [
        RankReport(rank=at, host=f"n{at}", state="answered", ok=False, facts=facts, problems=wrong) for at in (0, 1)
    ]
    assert copies._number(ranks[0], "copies") == 0  # noqa: SLF001 - of the judgement
    assert all(trace.source is None for trace in wrong_data.traces(ranks))
    assert number not in map(str, nccl_check._places(site(), ranks))  # noqa: SLF001 - of the judgement
    text = f"rank {number}: the sum of 1..{number} came out as {number}"
    hello._with_wrong_sums(JobOutcome("exited", 1.0, lines=(OutputLine("stdout", 0.1, text),)))  # noqa: SLF001


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_of_another_program_is_unreadable(number: str) -> None:
    check: Any = SimpleNamespace(regex="", json_path="$.other", scale=1.0)
    with pytest.raises(UnreadableError):
        parsers.own_figure(check, f'{{"value": {number}}}')
    with pytest.raises(UnreadableError):
        parsers.parse_nccl_tests(f'{{"args": [], "out_of_bounds": {{"count": 0}}, "results": [{{"size": {number}}}]}}')


@pytest.mark.parametrize("number", [DIGITS, "²", "-1", ""])
def test_a_port_of_a_setting_is_a_number_or_passed_over(number: str) -> None:
    setting = [
        SimpleNamespace(name=name, value=number, in_session=True, source="/home/ada/.openmpi/mca-params.conf")
        for name in ("btl_tcp_port_min_v4", "btl_tcp_port_range_v4")
    ]
    nodes: Any = {"node1": SimpleNamespace(parameters=setting, rdma=())}
    assert parameters.tcp_ports(nodes) == {"node1": ((1024, 256), (0, 0))}


def test_a_line_of_a_rank_is_still_counted() -> None:
    told: list[Any] = []
    counter = check_runner._RankCounter("hello", 2, told.append)  # noqa: SLF001 - of a running check
    head = {"clusterctl": 1, "event": "started", "check": "a" * 64, "rank": 7}
    counter(OutputLine("stdout", 0.1, json.dumps(head)))
    counter(OutputLine("stdout", 0.1, json.dumps({**head, "event": "result"})))
    counter(OutputLine("stdout", 0.1, '{"rank": 3, "size": 4}'))
    assert [one.text for one in told] == [
        "1 of 2 ranks up, 0 have answered",
        "1 of 2 ranks up, 1 have answered",
        "1 of 2 ranks up, 2 have answered",
    ]


def test_tables_and_documents_without_end_are_refused_in_time() -> None:
    began = time.process_time()
    for begin, read in (
        ("# Benchmarking PingPong\n#bytes #repetitions t[usec] Mbytes/sec\n", parsers.parse_imb),
        ("# OSU MPI Latency Test v7\n# Size  Latency (us)\n", parsers.parse_osu),
        ("# size count type redop root time algbw busbw #wrong\n", parsers.parse_nccl_tests),
    ):
        line = "1 1.0\n" if read is parsers.parse_osu else "1 1 f s 1 1.0 1.0 1.0 0\n"
        with pytest.raises(UnreadableError, match=r"more than 20000 lines|is cut off"):
            read(begin + (line if read is not parsers.parse_imb else "1 1 1.0 1.0\n") * 25_000)
    with pytest.raises(UnreadableError, match="does not hold a table"):
        parsers.parse_imb(f"#{' ' * 300_000}\n")
    check: Any = SimpleNamespace(regex="", json_path="$.a", scale=1.0)
    with pytest.raises(UnreadableError, match="a whole JSON document"):
        parsers.own_figure(check, "[\n" * 900 + "1,1,1,1\n," * 100_000)
    assert time.process_time() - began < 8


@pytest.mark.parametrize("size", ["9" * 18 + "0" * 5, "9" * 200])
def test_a_size_that_no_message_has_is_unreadable(size: str) -> None:
    table = f"# Benchmarking PingPong\n#bytes #repetitions t[usec] Mbytes/sec\n{size} 1 1.0 1.0\n"
    with pytest.raises(UnreadableError, match="none of a message"):
        parsers.parse_imb(f"{table}# All processes entering MPI_Finalize\n")
    with pytest.raises(UnreadableError, match="none of a message"):
        parsers.parse_osu(f"# OSU MPI Latency Test v7\n# Size  Latency (us)\n{size} 1.0\n")
    given = {"rank": 0, "event": "measured", "host": "node1", "quantity": "time", "unit": "s", "better": "lower"}
    line = OutputLine("stdout", 1.0, json.dumps({**given, "samples": [1.0], "bytes": int(size)}))
    assert rank_output.read([line], ["node1"], {}).measured == ()


@pytest.mark.parametrize(("log", "check"), [("torchrun-5.0.7", "torchrun"), ("training-5.0.7", "training")])
def test_ranks_that_leave_their_figures_out_end_no_run(log: str, check: str) -> None:
    found = captured_outcome(log)
    lines = tuple(replace(one, text=re.sub(r'"figures": {[^}]*}', '"figures": {}', one.text)) for one in found.lines)
    judged = judging.of_check(registry.select([check])[0], training_site(), replace(found, lines=lines))
    assert judged.verdict is Verdict.ERROR
    assert "in another form than its program (KeyError: " in judged.reason


@pytest.mark.parametrize("number", ["1.7e308", "-1.7e308"])
def test_what_is_made_of_the_figures_of_ranks_can_be_kept(number: str) -> None:
    told = '{"rank": 0, "event": "measured", "host": "node1", "quantity": "time", "unit": "s", "better": "lower", '
    read = rank_output.read([OutputLine("stdout", 1.0, f'{told}"samples": [{number}, {number}]}}')], ["node1"], {})
    assert read.measured == ()
    read = rank_output.read([OutputLine("stdout", 1.0, f'{{"rank": 0, "figures": {{"x": {number}}}}}')], ["node1"], {})
    assert (read.ranks[0].ok, read.ranks[0].figures) == (False, {})
    check: Any = SimpleNamespace(regex="", json_path="$.a", scale=1.0)
    with pytest.raises(UnreadableError, match="not a number"):
        parsers.own_figure(check, f'{{"a": [{number}, {number}]}}')


def test_of_output_without_end_both_ends_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpirun_output, "_MOST_SEARCHED", 1 << 14)
    told = [f"ssh: connect to host node{number} port 22: Connection refused" for number in (1, 2, 3)]
    lines = [told[0], *["a b " * 1000] * 500, told[1], *["a b " * 1000] * 500, told[2]]
    began = time.process_time()
    found = mpirun_output.read(lines, {f"node{number}": f"node{number}" for number in (1, 2, 3)}, "node1")
    assert time.process_time() - began < 2
    assert {host for cause in found for host in cause.hosts} == {"node1", "node3"}
