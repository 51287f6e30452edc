"""What is told of earlier runs: what changed with which, two beside each other, and what figures are held against."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from clusterctl.model.results import CheckResult, Culprit, Figure, ValidationRecord
from clusterctl.report import history as report_history
from clusterctl.state import history, paths
from clusterctl.support.errors import ConfigError

BEGAN = datetime(2026, 3, 1, 2, tzinfo=timezone.utc)
PROGRAM = str(Path(sys.executable).with_name("clusterctl"))


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("clusterctl.state.history.database.KEEP_DAYS", 100_000)  # these nights are long ago


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    path = tmp_path / "inventory.ini"
    path.write_text("node1\nnode2\n", encoding="utf-8")
    return path


def figure(value: float, *nodes: str, **fields: Any) -> Figure:
    given: dict[str, Any] = {"quantity": "bandwidth", "unit": "B/s", "better": "higher", "size_bytes": 1024}
    return Figure.model_validate({**given, "value": value, "nodes": nodes, **fields})


def check(name: str, verdict: str = "PASS", *figures: Figure, **fields: Any) -> CheckResult:
    return CheckResult.model_validate(
        {"check": name, "verdict": verdict, "reason": f"{name} is {verdict}", "figures": figures, **fields}
    )


def record(night: int, *checks: CheckResult, **fields: Any) -> ValidationRecord:
    at = BEGAN + timedelta(days=night)
    verdict = "FAIL" if any(one.is_bad for one in checks) else "PASS"
    given: dict[str, Any] = {
        "clusterctl_version": "1.0",
        "run_id": f"{at:%Y%m%dT%H%M%SZ}-validate-7",
        "inventory": "/srv/inventory.ini",
        "started": at,
        "finished": at + timedelta(minutes=1),
        "launch_node": "node1",
        "hosts": ("node1", "node2"),
        "slots": {"node1": 2, "node2": 2},
        "versions": {"openmpi": "5.0.7"},
        "verdict": verdict,
        "checks": checks or (check("pairs", "PASS", figure(100), figure(100, "node2")),),
    }
    return ValidationRecord.model_validate({**given, **fields})


def remember(inventory: Path, *records: ValidationRecord) -> None:
    for one in records:
        assert history.remember(paths.cluster_id(inventory), one)[1] == ()


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *map(str, arguments)], capture_output=True, text=True, check=False, env=os.environ.copy()
    )


# --- history ----------------------------------------------------------------------------------------------------------

SLOW = Culprit(kind="node", nodes=("node2",), quantity="bandwidth", words="node2 is slow")


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
    found = report_history.overview(inventory)
    assert [(line.run_id, line.changes) for line in found.runs] == [(one.run_id, words) for one, words in nights]
    assert (found.total, found.baseline, found.notes) == (7, None, ())
    assert [line.run_id for line in report_history.overview(inventory, last=2).runs] == [
        one.run_id for one, _ in nights[-2:]
    ]


def test_one_check_has_its_verdicts_reasons_and_figures(inventory: Path) -> None:
    remember(inventory, *(record(night) for night in range(5)))
    remember(inventory, record(5, check("hello")), record(6, check("pairs", "FAIL", figure(50)), check("hello")))
    found = report_history.overview(inventory, "pairs")
    assert [line.verdict.value for line in found.runs] == [*["PASS"] * 5, "FAIL"]
    assert found.runs[-1].reason == "pairs is FAIL"
    (trend,) = found.trends
    assert trend.changed_at == found.runs[-1].run_id
    assert report_history.before_and_now(trend) == ("50 B/s", "100 B/s")


def test_what_is_not_there_is_a_sentence(inventory: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"There is no history of .*inventory\.ini yet; 'clusterctl validate"):
        report_history.overview(inventory)
    with pytest.raises(ConfigError, match="does not exist"):
        report_history.overview(tmp_path / "nowhere.ini")
    remember(inventory, record(1))
    with pytest.raises(ConfigError, match="has a check 'pears'; their checks are: pairs"):
        report_history.overview(inventory, "pears")
    with pytest.raises(ConfigError, match="There is no run '1999' in the history of"):
        report_history.accept(inventory, "1999")


# --- compare ----------------------------------------------------------------------------------------------------------


def test_figures_stand_side_by_side_across_versions(inventory: Path) -> None:
    first = record(1, check("pairs", "PASS", figure(100), figure(5, size_bytes=1), figure(7, "node1")), check("hello"))
    second = record(
        2,
        check("pairs", "FAIL", figure(80), figure(5, size_bytes=2), figure(7, "node1")),
        versions={"openmpi": "5.0.8", "torch": "2.9"},
    )
    remember(inventory, first, second)
    found = report_history.compare("last-1", "last")
    assert (found.first.run_id, found.second.run_id) == (first.run_id, second.run_id)
    assert found.versions == {"openmpi": ("5.0.7", "5.0.8"), "torch": ("", "2.9")}
    assert found.verdicts == {"pairs": ("PASS", "FAIL"), "hello": ("PASS", "")}
    assert [(one.first, one.second, one.beyond_noise, one.worse) for one in found.figures] == [
        (100, 80, True, True),
        (7, 7, False, False),
    ]
    assert found.figures[0].change == pytest.approx(-0.2)
    assert (found.only_first, found.only_second) == (1, 1)


@pytest.mark.parametrize(
    ("before", "after", "beyond", "worse"),
    [
        (figure(100), figure(98), False, False),
        (figure(100), figure(90), True, True),
        (figure(100), figure(110), True, False),
        (figure(100, better="lower"), figure(110, better="lower"), True, True),
        (figure(100, better="none"), figure(110, better="none"), True, False),
        (figure(100, low=94, high=106), figure(90, low=84, high=96), False, False),
        (figure(0), figure(1), True, False),
        (figure(0), figure(0), False, False),
    ],
    ids=["floor", "less", "more", "lower", "neither", "interval", "from0", "both0"],
)
def test_a_difference_counts_beyond_the_noise(before: Figure, after: Figure, beyond: bool, worse: bool) -> None:
    places = []
    for night, one in enumerate((before, after)):
        places.append(Path(os.environ["XDG_STATE_HOME"]).parent / f"{night}.json")
        places[-1].write_text(record(night, check("pairs", "PASS", one)).model_dump_json(), encoding="utf-8")
    (found,) = report_history.compare(*map(str, places)).figures
    assert (found.beyond_noise, found.worse) == (beyond, worse)


def test_what_good_nights_scatter_is_noise(inventory: Path) -> None:
    remember(inventory, *(record(night, check("pairs", "PASS", figure(100 + 6 * (night % 5)))) for night in range(10)))
    (found,) = report_history.compare("last-4", "last-2").figures
    assert found.change == pytest.approx(0.12)
    assert found.noise == pytest.approx(math.expm1(4.5 * 1.4826 * math.log(112 / 106)))
    assert not found.beyond_noise


def test_runs_are_named_by_id_place_and_path(inventory: Path, tmp_path: Path) -> None:
    first, second = record(1), record(2)
    remember(inventory, first, second)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "validation.json").write_text(record(9).model_dump_json(), encoding="utf-8")
    found = report_history.compare(first.run_id[:8], str(folder))
    assert (found.first.run_id, found.second.run_id) == (first.run_id, record(9).run_id)
    assert report_history.compare("last", first.run_id, inventory).second.run_id == first.run_id


def test_runs_of_different_clusters_are_refused(inventory: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.ini"
    other.write_text("node1\n", encoding="utf-8")
    remember(inventory, record(1))
    remember(other, record(2))
    with pytest.raises(ConfigError, match=r"The runs are of different clusters \(20260302.* of inventory-.* and "):
        report_history.compare(record(1).run_id, record(2).run_id)
    with pytest.raises(ConfigError, match="There is no run '20260303' in the history of inventory-"):
        report_history.compare("20260303", "last", inventory)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{half", "is damaged: it is no JSON"),
        ('{"schema_version": 99}', "has schema 99, which this clusterctl does not know"),
        ("[]", "is no record of a validation"),
        ('{"schema_version": 2, "run_id": 5}', "is damaged: "),
        (None, "cannot be read: No such file"),
    ],
    ids=["half", "newer", "list", "wrong", "missing"],
)
def test_a_record_that_cannot_be_read_is_a_sentence(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "validation.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=".*") as caught:  # noqa: RUF043 - any sentence; it is looked at below
        report_history.compare(str(path), str(path))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_record_of_the_first_schema_can_be_compared(tmp_path: Path) -> None:
    old = json.loads(record(1, check("hello")).model_dump_json(exclude={"suite", "versions", "fabric", "trends"}))
    path = tmp_path / "old.json"
    path.write_text(json.dumps({**old, "schema_version": 1, "openmpi_version": "4.1.6"}), encoding="utf-8")
    new = tmp_path / "new.json"
    new.write_text(record(2, check("hello")).model_dump_json(), encoding="utf-8")
    assert report_history.compare(str(path), str(new)).versions == {"openmpi": ("4.1.6", "5.0.7")}


# --- the baseline -----------------------------------------------------------------------------------------------------


def test_references_say_whether_they_are_in_force(inventory: Path) -> None:
    remember(inventory, *(record(night) for night in range(4)))
    entries = report_history.in_force(inventory).entries
    assert [(one.runs, one.in_force, one.lower) for one in entries] == [(4, False, None)] * 2
    remember(inventory, record(5), record(6, check("pairs", "FAIL", figure(1))))
    found = report_history.in_force(inventory)
    (whole,) = found.entries  # the last run measured no node by itself
    assert (whole.runs, whole.median, whole.mad, whole.in_force, whole.upper) == (5, 100, 0, True, None)
    assert whole.lower == pytest.approx(1 / 1.1 - 1)
    report_history.accept(inventory, "last")
    (whole,) = report_history.in_force(inventory, "pairs").entries
    assert (whole.runs, whole.median, whole.in_force) == (1, 1, False)
    assert report_history.reset(inventory) == 6
    assert report_history.in_force(inventory).entries == ()


# --- the command line -------------------------------------------------------------------------------------------------


def test_the_history_options_of_the_file_beside_the_inventory_hold(inventory: Path) -> None:
    remember(inventory, *(record(night) for night in range(4)))
    inventory.with_name("validation.yml").write_text("extends: smoke\nhistory: {at_least: 4}\n", encoding="utf-8")
    found = json.loads(run("baseline", "show", inventory, "--format", "json").stdout)
    assert (found["at_least"], {one["in_force"] for one in found["entries"]}) == (4, {True})
    inventory.with_name("validation.yml").write_text("extends: smoke\nhistory: {atleast: 4}\n", encoding="utf-8")
    refused = run("baseline", "show", inventory)
    assert (refused.returncode, "did you mean 'at_least'" in refused.stderr) == (1, True)


@pytest.fixture
def nights(inventory: Path) -> Path:
    remember(inventory, *(record(night) for night in range(6)))
    remember(inventory, record(6, check("pairs", "FAIL", figure(50), figure(50, "node2"), culprits=(SLOW,))))
    return inventory


def test_history_in_words(nights: Path) -> None:
    done = run("history", nights, "--last", "2")
    assert (done.returncode, done.stdout) == (0, "")
    assert "pairs PASS → FAIL; node2 named by pairs" in done.stderr
    assert "pairs: node2: bandwidth, 1 KiB is 50 B/s since 20260307T020000Z-validate-7; before, 100 B/s." in done.stderr
    assert "7 runs are kept" in done.stderr
    one = run("history", nights, "--check", "pairs")
    assert "pairs is FAIL" in one.stderr
    assert "CHANGED WITH" in one.stderr


def test_old_runs_are_forgotten_when_asked(nights: Path) -> None:
    report_history.accept(nights, "20260302")
    done = run("history", nights, "--keep-runs", "2")
    assert "4 older runs forgotten." in done.stderr
    left = [line.run_id[:8] for line in report_history.overview(nights).runs]
    assert left == ["20260302", "20260306", "20260307"]
    assert run("history", nights, "--keep-days", "0").returncode == 0
    assert [line.accepted for line in report_history.overview(nights).runs] == [True, False]


@pytest.mark.usefixtures("nights")
def test_compare_in_words() -> None:
    done = run("compare", "last-1", "last")
    assert (done.returncode, done.stdout) == (0, "")
    assert "-50.0 %" in done.stderr
    assert "2 figures in both runs, 2 beyond the noise, 2 worse." in done.stderr


def test_the_baseline_in_words(nights: Path) -> None:
    assert "-9 %" in run("baseline", "show", nights).stderr
    assert "History begins with 20260307T020000Z-validate-7 (FAIL)" in run("baseline", "accept", nights).stderr
    assert "from 5 runs on" in run("baseline", "show", nights, "--all").stderr
    assert "baseline; pairs PASS → FAIL" in run("history", nights).stderr
    assert "7 runs up to now kept" in run("baseline", "reset", nights).stderr
    assert "nothing is in force" in run("baseline", "show", nights).stderr


def test_data_for_programs(nights: Path) -> None:
    answers = {
        name: run(*words, "--format", "json")
        for name, words in {
            "history": ("history", nights),
            "compare": ("compare", "last-1", "last"),
            "show": ("baseline", "show", nights),
            "accept": ("baseline", "accept", nights, "last-1"),
            "reset": ("baseline", "reset", nights),
        }.items()
    }
    assert {done.stderr for done in answers.values()} == {""}
    data = {name: json.loads(done.stdout) for name, done in answers.items()}
    assert len(data["history"]["runs"]) == 7
    assert data["compare"]["figures"][0]["beyond_noise"] is True
    assert data["show"]["entries"][0]["in_force"] is True
    assert data["accept"]["run_id"] == "20260306T020000Z-validate-7"
    assert data["reset"] == {"kept": 7}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("history", "{nowhere}"), 1, "does not exist"),
        (("history", "{inventory}"), 1, "There is no history of"),
        (("history", "{inventory}", "--last", "0"), 2, "--last"),
        (("compare", "last", "last-1"), 1, "There is no run in the history yet"),
        (("compare", "last"), 2, "Missing argument"),
        (("baseline", "show", "{inventory}"), 1, "There is no history of"),
        (("baseline",), 2, "Usage"),
    ],
    ids=["inventory", "empty", "last", "nothing", "one", "show", "alone"],
)
def test_bad_input_is_one_sentence(
    inventory: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    places = {"inventory": str(inventory), "nowhere": str(tmp_path / "nix.ini")}
    done = run(*(word.format(**places) for word in arguments))
    assert done.returncode == code, done.stderr
    assert says in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
