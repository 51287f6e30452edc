from __future__ import annotations

import json
from pathlib import Path

import pytest
from clusterctl.model.run_record import HostSummary, Problem
from clusterctl.report import baseline, figure_words, run_overview
from clusterctl.state import runs
from clusterctl.support.errors import ConfigError
from past_runs import SLOW, check, figure, record, remember, run

pytestmark = pytest.mark.programs


def test_every_run_says_what_it_changed(inventory: Path) -> None:
    nights = [
        (record(1, check("hello"), check("pairs")), ()),
        (record(2, check("hello"), check("pairs", "SKIP")), ()),
        (
            record(3, check("hello"), check("pairs", "FAIL", culprits=(SLOW,))),
            ("pairs PASS → FAIL", "node2 named by pairs"),
        ),
        (record(4, check("hello"), check("pairs", "FAIL", culprits=(SLOW,))), ()),
        (record(5, check("hello", "ERROR"), check("pairs", "ERROR")), ("hello PASS → ERROR", "pairs FAIL → ERROR")),
        (
            record(6, check("hello"), check("pairs"), check("nccl", "FAIL"), versions={"openmpi": "5.0.8"}),
            (
                "hello ERROR → PASS",
                "pairs ERROR → PASS",
                "node2 no longer named by pairs",
                "nccl FAIL",
                "openmpi 5.0.7 → 5.0.8",
            ),
        ),
        (record(7, check("hello"), hosts=("node1", "node3")), ("without node2", "with node3", "openmpi 5.0.8 → 5.0.7")),
    ]
    remember(inventory, *(one for one, _ in nights))
    found = run_overview.overview(inventory)
    assert [(line.run_id, line.changes) for line in found.runs] == [(one.run_id, words) for one, words in nights]
    assert (found.total, found.baseline, found.notes) == (7, None, ())
    assert [line.run_id for line in run_overview.overview(inventory, last=2).runs] == [
        one.run_id for one, _ in nights[-2:]
    ]


def test_one_check_has_its_verdicts_reasons_and_figures(inventory: Path) -> None:
    remember(inventory, *(record(night) for night in range(5)))
    remember(inventory, record(5, check("hello")), record(6, check("pairs", "FAIL", figure(50)), check("hello")))
    found = run_overview.overview(inventory, "pairs")
    assert [line.verdict.value for line in found.runs] == [*["PASS"] * 5, "FAIL"]
    assert found.runs[-1].reason == "pairs is FAIL"
    (trend,) = found.trends
    assert trend.changed_at == found.runs[-1].run_id
    assert figure_words.now_and_before(trend) == ("50 B/s", "100 B/s")


def test_what_is_not_there_is_a_sentence(inventory: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"The history of .*inventory\.ini is empty; 'clusterctl validate"):
        run_overview.overview(inventory)
    with pytest.raises(ConfigError, match="does not exist"):
        run_overview.overview(tmp_path / "nowhere.ini")
    remember(inventory, record(1))
    with pytest.raises(ConfigError, match=r"The check 'pears' is unknown .*inventory\.ini; choose of: pairs"):
        run_overview.overview(inventory, "pears")


def test_history_in_words(nights: Path) -> None:
    done = run("history", nights, "--last", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert "pairs PASS → FAIL; node2 named by pairs" in done.stdout
    assert "pairs: node2: bandwidth, 1 KiB is 50 B/s since 20260307T020000Z-validate-7; before, 100 B/s." in done.stdout
    assert "7 runs are kept" in done.stdout
    one = run("history", nights, "--check", "pairs")
    assert "pairs is FAIL" in one.stdout
    assert "CHANGED WITH" in one.stdout


def test_old_runs_are_forgotten_when_asked(nights: Path) -> None:
    baseline.accept(nights, "20260302")
    done = run("history", nights, "--keep-runs", "2")
    assert "4 older runs forgotten." in done.stdout
    left = [line.run_id[:8] for line in run_overview.overview(nights).runs]
    assert left == ["20260302", "20260306", "20260307"]
    assert run("history", nights, "--keep-days", "0").returncode == 0
    assert [line.accepted for line in run_overview.overview(nights).runs] == [True, False]


def test_history_shows_what_changed_the_cluster(inventory: Path) -> None:
    made = runs.start("provision", inventory, ["clusterctl", "provision"], {})
    hosts = tuple(HostSummary(host=name, outcome="changed", changes=("x",)) for name in ("node1", "node2"))
    made.update(outcome="done", exit_code=0, hosts=hosts, finished=made.record.started)
    made.close()
    alone = run("history", inventory)
    assert (alone.returncode, alone.stderr) == (0, ""), "it was never validated"
    assert f"{made.record.run_id}  provision  done     node[1-2] changed" in alone.stdout
    remember(inventory, record(1))
    data = json.loads(run("history", inventory, "--format", "json").stdout)
    assert [(one["verb"], one["outcome"], one["words"]) for one in data["changes"]] == [
        ("provision", "done", "node[1-2] changed")
    ]
    lines = run("history", inventory).stdout.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == [record(1).run_id, made.record.run_id], "oldest first"
    assert made.record.run_id not in run("history", inventory, "--check", "pairs").stdout


def test_a_run_that_was_refused_shows_why(inventory: Path) -> None:
    made = runs.start("provision", inventory, ["clusterctl", "provision"], {})
    hosts = (HostSummary(host="node1", outcome="failed", failed_stage="preflight"),)
    wrong = Problem(
        host="node1", subject="python_env", problem="uv.lock is not here", cure="name one", kind="configuration"
    )
    made.update(outcome="bad configuration", exit_code=1, hosts=hosts, problems=(wrong,), finished=made.record.started)
    made.close()
    (line,) = run_overview.overview(inventory).changes
    assert line.words == "uv.lock is not here"
