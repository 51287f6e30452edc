"""The user's own checks: exit codes, figures, and what is no result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from clusterctl.model.job_outcome import JobOutcome, OutputLine
from clusterctl.model.results import Verdict
from clusterctl.suite import ExternalCheck
from clusterctl.support import content
from clusterctl.validation.checks import base
from clusterctl.validation.checks.external import External

SITE = base.Site("5.0.7", {"node1": 2, "node2": 2})
DATA = Path(__file__).parents[3] / "data"


def check(**fields: Any) -> External:
    return External.of(ExternalCheck.model_validate({"name": "mine", "command": ["prog"], **fields}))


def outcome(*printed: str, code: int = 0, hosts: tuple[str, ...] = ("node1", "node2")) -> JobOutcome:
    events: list[dict[str, Any]] = []
    for rank, host in enumerate(hosts):
        head = {"clusterctl": 1, "rank": rank, "host": host}
        events.append({**head, "event": "started"})
        text = printed[rank] if rank < len(printed) else ""
        events += [{**head, "event": "output", "text": line, "whole": True} for line in text.splitlines()]
        problems = [{"what": "prog", "expected": "exit code 0", "got": f"exit code {code}"}] if code else []
        events.append({**head, "event": "result", "ok": not code, "compared": 1, "problems": problems})
    lines = tuple(OutputLine("stdout", 1.0, json.dumps(event)) for event in events)
    return JobOutcome(ending="exited", seconds=1.0, rc=0, lines=lines)


def test_each_node_has_a_figure_of_its_own() -> None:
    one = check(where="each_node", regex=r"at (\S+) MB/s", unit="MB/s", better="higher")
    judged = one.judge(SITE, outcome("write at 120 MB/s", "write at 60.5 MB/s"))
    assert judged.verdict is Verdict.PASS
    assert [(figure.nodes, figure.value, figure.unit) for figure in judged.figures] == [
        (("node1",), 120e6, "B/s"),
        (("node2",), 60.5e6, "B/s"),
    ]


def test_a_benchmark_s_output_becomes_figures() -> None:
    text = (DATA / "nccl_tests" / "allreduce_16_h100.txt").read_text(encoding="utf-8")
    judged = check(parser="nccl-tests").judge(SITE, outcome(text))
    assert (judged.verdict, len(judged.figures)) == (Verdict.PASS, 21)
    wrong = check(parser="nccl-tests").judge(SITE, outcome(text.replace("9.68      0", "9.68      7")))
    assert (wrong.verdict, wrong.figures) == (Verdict.FAIL, ())
    assert "7 values were wrong at 1 MiB" in wrong.reason


@pytest.mark.parametrize("printed", ["", "at nothing", "at nan MB/s"], ids=["silent", "no match", "no number"])
def test_no_figure_is_an_error_and_never_a_pass(printed: str) -> None:
    judged = check(where="each_node", regex=r"at (\S+) MB/s").judge(SITE, outcome("at 1 MB/s", printed))
    assert (judged.verdict, judged.figures) == (Verdict.ERROR, ())
    assert judged.reason.startswith("node2: ")


def test_an_exit_code_is_an_answer() -> None:
    judged = check(where="each_node", regex="(.*)").judge(SITE, outcome("one\nthe disk is full", code=3))
    assert judged.verdict is Verdict.FAIL
    assert judged.reason == "prog: exit code 3 on node[1-2]: the disk is full"
    assert judged.evidence[:2] == ("one", "the disk is full")


def test_where_it_runs_is_in_its_argv() -> None:
    assert check().program(SITE, 5.0)[-1] == "--first"
    assert check(where="mpi").program(SITE, 5.0)[-1] == "--together"
    assert json.loads(check(where="each_node").program(SITE, 5.0)[-1]) == ["prog"]
    assert base.placed(check(where="mpi", ranks_per_node=3), SITE).slots == {"node1": 3, "node2": 3}
    assert base.placed(check(where="mpi"), SITE).slots == SITE.slots


def run(*argv: str, more: tuple[str, ...] = ()) -> tuple[int, list[dict[str, Any]]]:
    program = content.role_files("validation") / "external_check.py"
    command = [sys.executable, str(program), "--check", "external", "--argv", json.dumps(argv), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_the_node_s_program_passes_on_what_is_printed_whatever_it_is() -> None:
    code, events = run(
        sys.executable, "-c", "import os; os.write(1, b'\\xff' * 700 + b'\\n\"{quoted}\\n'); os.write(2, b'end')"
    )
    printed = "".join(e["text"] + "\n" * e["whole"] for e in events if e["event"] == "output")
    assert printed == "\ufffd" * 700 + '\n"{quoted}\nend'
    assert (code, events[-1]["ok"]) == (0, True)


@pytest.mark.parametrize(
    ("argv", "got"),
    [
        (("sh", "-c", "exit 7"), "exit code 7"),
        (("sh", "-c", "kill -9 $$"), "killed by SIGKILL"),
        (("no-such-program",), "no such program, or none that may be run"),
    ],
    ids=["code", "signal", "missing"],
)
def test_the_node_s_program_says_how_it_ended(argv: tuple[str, ...], got: str) -> None:
    code, events = run(*argv)
    assert (code, events[-1]["ok"], events[-1]["problems"][0]["got"]) == (0, False, got)
    assert run(*argv, more=("--together",))[0] == 1  # so that mpirun ends the other ranks


def test_a_program_that_prints_for_ever_is_cut_and_not_stopped() -> None:
    code, events = run(sys.executable, "-c", "print('y' * (3 << 20))")
    assert (code, events[-1]["ok"]) == (0, True)
    assert sum(len(e["text"]) for e in events if e["event"] == "output") < 1.1 * (1 << 20)
    assert any("the rest is left out" in e.get("text", "") for e in events)
