"""``dcgm``: documented answers of ``dcgmi diag``, and the node's program with a ``dcgmi`` that really runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from clusterctl.diagnosis.training_stack import NodeStack
from clusterctl.model.job_outcome import JobOutcome, OutputLine
from clusterctl.model.results import Verdict
from clusterctl.validation.checks import base, registry
from clusterctl.validation.checks.dcgm import Dcgm, DcgmOptions
from node_programs import load

pytestmark = pytest.mark.programs

ROOT = Path(__file__).parents[4]
DATA = ROOT / "tests" / "data" / "dcgm"
PROGRAM = ROOT / "roles" / "validation" / "files" / "dcgm_checks.py"


def answer(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "counts", "version"),
    [
        ("v3-pass.json", "10 tests passed, 1 did not run", "3.3.8"),
        ("v4-pass.json", "2 tests passed, 2 did not run", "4.2.3"),
        ("v4-warn.json", "1 tests passed, 1 with a warning, 2 did not run", "4.2.3"),
    ],
)
def test_both_forms_of_a_healthy_answer_are_read(name: str, counts: str, version: str) -> None:
    report = load("dcgm_checks").read(answer(name))
    assert (report.failed, report.counts, report.version) == ((), counts, version)


@pytest.mark.parametrize(
    ("name", "test", "place", "words"),
    [
        ("v3-fail.json", "GPU Memory", "GPU 1", "row remapping failed. Run a field diagnostic"),
        ("v4-setting.json", "software", "GPU 1", "(DCGM: a setting, not the hardware)"),
        ("v4-summary.json", "software", "", "Error using CUDA API cuInit (DCGM: triage it)"),
    ],
)
def test_a_failed_test_is_named_with_its_gpu_and_dcgm_s_words(name: str, test: str, place: str, words: str) -> None:
    (failed,) = load("dcgm_checks").read(answer(name)).failed
    assert (failed.test, failed.place) == (test, place)
    assert words in failed.told


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (answer("v4-error.json"), "The NVVS binary was not found in the expected location"),
        (answer("no-engine.txt"), "Error: unable to establish a connection to the specified host: localhost"),
        ("", "it printed nothing"),
        ("{", "not JSON: {"),
        ('{"status": 7}', 'no test in it: {"status": 7}'),
        ("[" * 100_000 + "{", "not JSON"),
        ('{"a":' * 100_000, "not JSON"),
        ("\0\xff\n\n", "\0"),
    ],
)
def test_what_is_no_diagnosis_says_why(output: str, words: str) -> None:
    with pytest.raises(ValueError, match=rf"\A{re.escape(words)}"):
        load("dcgm_checks").read(output)


# --- the node's program -----------------------------------------------------------------------------------------------


def ran(folder: Path, script: str, deadline: float = 60.0, rank: int = 0) -> tuple[dict[str, Any], float]:
    """Run the program of a node with a ``dcgmi`` of this script ('' for none), and return its result and seconds."""
    folder.mkdir(exist_ok=True)
    if script:
        tool = folder / "dcgmi"
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:/bin:/usr/bin", "OMPI_COMM_WORLD_RANK": str(rank)}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--check", "dcgm", "--deadline", f"{deadline:g}", "--level", "1"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[0]["event"] == "started"
    return events[-1], time.monotonic() - began


def cat(name: str) -> str:
    return f"test \"$*\" = 'diag -r 1 -j' || exit 64; cat '{DATA / name}'; exit 226"


def judged(results: Mapping[str, dict[str, Any]], code: int = 0) -> base.Judgement:
    site = base.Site(version="5.0.7", slots=dict.fromkeys(results, 4), names={name: name for name in results})
    lines = [
        OutputLine("stdout", 1.0, json.dumps({**event, "host": host, "rank": rank}))
        for rank, (host, event) in enumerate(results.items())
    ]
    return Dcgm().judge(site, JobOutcome("exited", 9.0, 9.0, rc=code, lines=tuple(lines)))


def test_dcgmi_is_run_on_each_node_and_its_findings_name_node_and_gpu(tmp_path: Path) -> None:
    healthy, _ = ran(tmp_path / "healthy", cat("v4-pass.json"))
    assert healthy["facts"]["dcgm"] == "ran"
    broken, _ = ran(tmp_path / "broken", cat("v3-fail.json"))
    absent, _ = ran(tmp_path / "absent", "")
    found = judged({"node1": healthy, "node2": healthy})
    assert (found.verdict, found.reason.partition(": ")[0]) == (Verdict.PASS, "level 1 of DCGM 4.2.3 on node[1-2]")
    found = judged({"node1": healthy, "node2": broken, "node3": absent})
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node2",))
    assert found.reason.startswith("node2: DCGM's test GPU Memory on GPU 1 failed: GPU 1 had uncorrectable memory")
    assert found.culprits[0].nodes == ("node2",)
    assert judged({"node1": broken, "node2": broken}).hosts == ("node1", "node2"), "nodes are judged one by one"
    found = judged({"node1": healthy, "node2": absent})
    assert (found.verdict, found.reason.endswith("; DCGM is not installed on node2")) == (Verdict.PASS, True)
    found = judged({"node1": absent, "node2": absent})
    assert (found.verdict, found.reason) == (Verdict.SKIP, "DCGM is not installed on node[1-2]")
    warned, _ = ran(tmp_path / "warned", cat("v4-warn.json"))
    assert judged({"node1": warned}).reason.endswith("; DCGM warns on node1: software GPU 1: GPU 1 ran hot")


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("sleep 60", "it did not end within 1 s, or"),
        ("trap '' TERM; sleep 60 & wait; sleep 60", "it did not end within "),
        ("echo '{\"DCGM Diagnostic\": '", 'not JSON: {"DCGM Diagnostic":'),
        (f"cat '{DATA / 'no-engine.txt'}'; exit 237", "Error: unable to establish a connection to the specified host"),
        ("exit 3", "it printed nothing (code 3)"),
        ("yes x", "it did not end within "),
    ],
)
def test_a_dcgmi_that_hangs_or_talks_nonsense_is_an_error_that_names_the_node(
    tmp_path: Path, script: str, why: str
) -> None:
    result, seconds = ran(tmp_path / "bin", script, deadline=1.0)
    assert seconds < 30
    assert result["facts"]["dcgm"] == "no_answer"
    found = judged({"node1": result})
    assert (found.verdict, found.hosts) == (Verdict.ERROR, ("node1",))
    assert found.reason.startswith("dcgmi gave no answer on node1: ")
    assert result["facts"]["dcgm_why"].startswith(why)


def test_the_suite_full_runs_level_1_where_jobs_have_a_gpu() -> None:
    assert [name for name in ("smoke", "nightly", "full") if "dcgm" in registry.builtin(name).checks] == ["full"]
    assert registry.builtin("full").checks["dcgm"] == DcgmOptions(level=1)
    own = registry.parse("extends: smoke\nchecks: {dcgm: {level: 2}}\n", "validation.yml")
    (check,) = registry.select(["dcgm"], own)
    site = base.Site(version="5.0.7", slots={"node1": 8})
    argv = check.program(site, 90.0)
    assert argv[argv.index("--level") + 1] == "2"
    assert base.deadline_s(check, site) > base.deadline_s(Dcgm(), site) > 120
    assert check.absent(NodeStack()) == "no GPU"
    assert check.absent(NodeStack(idle_gpus="8 GPUs: NVIDIA's driver is missing")).startswith("jobs cannot use 8 GPUs")
    assert check.absent(NodeStack(gpus=8)) == ""
