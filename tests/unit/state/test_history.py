"""The history's file: what is kept, by whom it is written at once, and what happens when it is hurt."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from clusterctl.analysis.trend import Noise, changed_at
from clusterctl.model.results import (
    CheckResult,
    Comparison,
    Culprit,
    Figure,
    FigureKey,
    PairMatrix,
    Reference,
    ValidationRecord,
    Verdict,
    keys,
)
from clusterctl.state import history as store
from clusterctl.state.history import schema
from clusterctl.support.errors import ConfigError

CLUSTER = "inventory-0123abcd"
# Two months ago, and the same for the processes that are started here.
BEGAN = datetime.fromisoformat(
    os.environ.setdefault(
        "TEST_STORE_BEGAN", (datetime.now(timezone.utc) - timedelta(days=60)).isoformat(timespec="seconds")
    )
)
SLOW = Culprit(kind="node", nodes=("node2",), quantity="bandwidth", ratio=0.1, words="node2 is slow")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "clusterctl"


def figure(value: float, *nodes: str, **fields: Any) -> Figure:
    given: dict[str, Any] = {
        "quantity": "bandwidth",
        "unit": "B/s",
        "better": "higher",
        "size_bytes": 1 << 20,
        "samples": (value, value),
        **fields,
    }
    return Figure(value=value, nodes=nodes, **given)


def record(night: int, value: float = 100.0, verdict: str = "PASS", **fields: Any) -> ValidationRecord:
    at = BEGAN + timedelta(days=night)
    check = {
        "check": "pairs",
        "verdict": verdict,
        "reason": "as it was",
        "figures": (figure(value), figure(value, "node1"), figure(value, "node2")),
        **fields.pop("check", {}),
    }
    given: dict[str, Any] = {
        "clusterctl_version": "1.0",
        "run_id": f"{at:%Y%m%dT%H%M%SZ}-validate-{night}",
        "inventory": "/srv/inventory.ini",
        "started": at,
        "finished": at + timedelta(minutes=1),
        "launch_node": "node1",
        "hosts": ("node1", "node2"),
        "slots": {"node1": 2, "node2": 2},
        "versions": {"openmpi": "5.0.7"},
        "suite": "nightly",
        "verdict": verdict,
        "checks": (CheckResult.model_validate(check),),
        **fields,
    }
    return ValidationRecord.model_validate(given)


def key(of: ValidationRecord, place: int = 0) -> FigureKey:
    return list(keys(of, of.checks[0]))[place]


def remember(*records: ValidationRecord) -> ValidationRecord:
    """Keep runs one after the other, and return the last one as it came back."""
    for one in records:
        back, warnings = store.remember(CLUSTER, one)
        assert warnings == ()
    return back


def values(of: ValidationRecord, limit: int = 20) -> tuple[float, ...]:
    with store.open() as history:
        return history.reference_values(CLUSTER, key(of), limit)


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_the_file_is_the_users_alone(state: Path) -> None:
    before = os.umask(0)
    try:
        with store.open() as history:
            history.add(CLUSTER, record(1))
            modes = {path.name: path.stat().st_mode & 0o777 for path in state.iterdir()}
    finally:
        os.umask(before)
    assert modes == {f"history.sqlite3{ending}": 0o600 for ending in ("", "-wal", "-shm", ".lock")}
    assert state.stat().st_mode & 0o777 == 0o700


def test_good_runs_are_the_reference_newest_first() -> None:
    remember(record(1, 90), record(2, 50, "FAIL"), record(3, 110), record(4, 120))
    assert values(record(5)) == (120, 110, 90)
    assert values(record(5), limit=2) == (120, 110)


@pytest.mark.parametrize(
    "other",
    [
        record(9, versions={"openmpi": "5.0.8"}),
        record(9, hosts=("node1", "node2", "node3")),
        record(9, check={"figures": (figure(1, size_bytes=2),)}),
        record(9, check={"figures": (figure(1, algorithm="ring"),)}),
        record(9, check={"check": "collectives"}),
    ],
    ids=["version", "nodes", "size", "algorithm", "check"],
)
def test_what_differs_begins_a_new_key(other: ValidationRecord) -> None:
    remember(record(1))
    assert values(record(9)) == (100,)
    assert values(other) == ()


def test_a_run_is_kept_once() -> None:
    remember(record(1, 90), record(1, 95))
    assert values(record(2)) == (95,)


def test_clusters_do_not_mix() -> None:
    remember(record(1))
    with store.open() as history:
        assert history.reference_values("other-1", key(record(2)), 20) == ()
        assert history.clusters() == [CLUSTER]


def test_figures_that_are_no_numbers_are_no_references() -> None:
    remember(record(1, check={"figures": (figure(float("inf")), figure(7, "node1"))}))
    assert values(record(2)) == ()
    with store.open() as history:
        assert history.reference_values(CLUSTER, key(record(2), 1), 20) == (7,)


def test_a_record_comes_back_without_samples_and_giant_matrices() -> None:
    count = 20_001
    giant, small = (
        PairMatrix(
            quantity="latency",
            size_bytes=size,
            unit="us",
            better="lower",
            nodes=("a", "b"),
            first=(0,) * size,
            second=(1,) * size,
            value=(1.0,) * size,
        )
        for size in (count, 1)
    )
    kept = remember(record(1, check={"matrices": (giant, small)}))
    with store.open() as history:
        found = history.record("last", CLUSTER)
    (check,) = found.checks
    assert check.matrices == (small,)
    assert {one.samples for one in check.figures} == {()}
    assert (found.run_id, found.hosts, check.reason) == (kept.run_id, kept.hosts, kept.checks[0].reason)


def test_runs_are_found_by_prefix_and_by_place() -> None:
    first, second = record(1), record(2)
    remember(first, second)
    with store.open() as history:
        assert history.find("last").run_id == second.run_id
        assert history.find("last-1", CLUSTER).run_id == first.run_id
        assert history.find(first.run_id[:9]).run_id == first.run_id
        assert [run.run_id for run in history.runs(CLUSTER)] == [second.run_id, first.run_id]
        assert [run.run_id for run in history.runs(last=1)] == [second.run_id]


@pytest.mark.parametrize(
    ("asked", "cluster", "says"),
    [
        ("1999", CLUSTER, "There is no run '1999' in the history of inventory-0123abcd"),
        ("", CLUSTER, "There is no run ''"),
        ("20", CLUSTER, "Several runs begin with '20'"),
        ("last-7", CLUSTER, "There is no run 'last-7', for the history of inventory-0123abcd has 2"),
        ("last", "nobody-1", "There is no history of nobody-1 yet"),
        ("1999", None, "There is no run '1999' in the history;"),
    ],
)
def test_a_run_that_is_not_there_is_a_sentence(asked: str, cluster: str | None, says: str) -> None:
    remember(record(1), record(2))
    with store.open() as history, pytest.raises(ConfigError, match=r"no run|no history|Several runs") as caught:
        history.find(asked, cluster)
    assert str(caught.value).startswith(says)


# --- the baseline and retention ---------------------------------------------------------------------------------------


def test_history_begins_with_what_was_accepted_and_then_anew() -> None:
    remember(record(1), record(2, 50, "FAIL"), record(3, 52))
    with store.open() as history:
        assert history.baseline(CLUSTER) is None
        accepted = history.accept(CLUSTER, record(2).run_id)
        assert (accepted.accepted, accepted.verdict) == (True, Verdict.FAIL)
        assert history.reference_values(CLUSTER, key(record(4)), 20) == (52, 50)
        assert [run.accepted for run in history.runs(CLUSTER)] == [False, True, False]
        history.reset(CLUSTER)
        assert history.reference_values(CLUSTER, key(record(4)), 20) == ()
        assert len(history.runs(CLUSTER)) == 3
        history.accept(CLUSTER, record(1).run_id)
        assert history.reference_values(CLUSTER, key(record(4)), 20) == (52, 100)


def test_an_accepted_run_that_is_kept_again_stays_accepted() -> None:
    remember(record(1, 50, "FAIL"))
    with store.open() as history:
        history.accept(CLUSTER, "last")
        history.add(CLUSTER, record(1, 51, "FAIL"))
        assert history.reference_values(CLUSTER, key(record(1)), 20) == (51,)


@pytest.mark.parametrize(
    ("how", "left"),
    [({"keep_runs": 2}, [1, 8, 9]), ({"keep_days": 53.5}, [1, 7, 8, 9]), ({}, list(range(1, 10)))],
    ids=["runs", "days", "neither"],
)
def test_old_runs_are_forgotten_but_never_the_baseline(how: dict[str, Any], left: list[int]) -> None:
    remember(*(record(night, versions={"openmpi": f"5.0.{night}"}) for night in range(1, 10)))
    with store.open() as history:
        history.accept(CLUSTER, record(1).run_id)
        gone = history.prune(**how)
        assert [run.run_id for run in reversed(history.runs(CLUSTER))] == [record(night).run_id for night in left]
        assert gone == 9 - len(left)
    with sqlite3.connect(history.path) as raw:
        assert raw.execute("SELECT count(*) FROM results").fetchone() == (len(left),)
        assert raw.execute("SELECT count(*) FROM layouts").fetchone() == (len(left),)


def test_the_newest_run_is_never_forgotten_so_that_folders_do_not_bring_all_back(state: Path) -> None:
    leave_folder(state, record(1))
    leave_folder(state, record(2))
    for _ in range(2):
        with store.open() as history:
            history.runs(CLUSTER)
            history.prune(CLUSTER, keep_days=0)
            assert [run.run_id for run in history.runs(CLUSTER)] == [record(2).run_id]


def test_what_is_older_than_a_year_goes_by_itself() -> None:
    remember(record(-500), record(1))
    with store.open() as history:
        assert [run.run_id for run in history.runs(CLUSTER)] == [record(1).run_id]


# --- what a run means beside the others -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        ([10, 10, 10, 10, 10, 10], None),
        ([10, 10, 10, 10, 5], None),
        ([10, 10, 10, 10, 10, 5], 5),
        ([10, 10, 10, 10, 10, 5, 5, 5], 5),
        ([10, 10, 10, 10, 10, 5, 10, 10, 5, 5], 8),
        ([10, 10, 10, 10, 10, 5, 20], 6),
        ([10, 11, 9, 10, 12, 8, 12.5], None),
        ([10, 10.1, 9.9, 10, 10, 10.4], None),
        ([10, 10.1, 9.9, 10, 10, 20, 20, 20, 20, 20, 20, 20], 5),
        ([0, 0, 0, 0, 0, 0], None),
        ([], None),
    ],
    ids=["steady", "few", "tonight", "since", "again", "astride", "noisy", "floor", "better", "nothing", "empty"],
)
def test_the_night_of_change(series: list[float], expected: int | None) -> None:
    assert changed_at(series, Noise(floor=0.05, mads=4.0, at_least=5)) == expected


def test_trends_show_what_is_worth_showing() -> None:
    remember(*(record(night, 100 + night % 3) for night in range(6)))
    remember(record(6, 10, "FAIL"))
    off = figure(10, "node1").model_copy(update={"samples": ()})
    last = record(
        7,
        10,
        "FAIL",
        check={
            "culprits": (SLOW,),
            "comparisons": (
                Comparison(
                    figure=off,
                    reference=Reference(value=100, lower=-0.1, unit="B/s", source="file"),
                    verdict=Verdict.FAIL,
                    words="low",
                ),
            ),
        },
    )
    trends = remember(last).trends
    assert [one.figure.nodes for one in trends] == [("node2",), ("node1",), ()]
    for one in trends:
        assert [point.value for point in one.points] == [100, 101, 102, 100, 101, 102, 10, 10]
        assert one.changed_at == record(6).run_id
        assert one.points[-1].run_id == last.run_id
        assert one.figure.samples == ()
    assert [one.figure.nodes for one in remember(record(8)).trends] == [()]


def test_a_trend_has_so_many_points_and_begins_with_the_baseline() -> None:
    remember(*(record(night) for night in range(10)))
    with store.open() as history:
        (one,) = history.trends(CLUSTER, record(9), points=4)
        assert [point.run_id for point in one.points] == [record(night).run_id for night in range(6, 10)]
        history.accept(CLUSTER, record(8).run_id)
        (one,) = history.trends(CLUSTER, record(9))
        assert len(one.points) == 2


def test_since_when_a_culprit_stands_out() -> None:
    named = {"culprits": (SLOW,)}
    nights = [
        record(1, verdict="FAIL", check=named),
        record(2),
        record(3, verdict="FAIL", check=named),
        record(4, verdict="SKIP", check={"figures": ()}),
        record(5, hosts=("node1",), slots={"node1": 2}),
        record(6, verdict="FAIL", check={"culprits": (SLOW.model_copy(update={"size_bytes": 8}),)}),
        record(7, verdict="FAIL", check=named),
    ]
    found = [remember(one).checks[0].culprits for one in nights]
    assert [None if not one else one[0].since for one in found] == [
        None,
        None,
        None,
        None,
        None,
        nights[2].started,
        nights[2].started,
    ]
    other = SLOW.model_copy(update={"nodes": ("node1",)})
    again = remember(record(8, verdict="FAIL", check={"culprits": (other, SLOW)}))
    assert [one.since for one in again.checks[0].culprits] == [None, nights[2].started]


# --- folders of runs that are there already ---------------------------------------------------------------------------


def leave_folder(state: Path, run: ValidationRecord, text: str | None = None) -> Path:
    place = state / "clusters" / CLUSTER / "runs" / run.run_id / "validation.json"
    place.parent.mkdir(parents=True)
    place.write_text(run.model_dump_json() if text is None else text, encoding="utf-8")
    return place


def test_a_new_history_learns_from_the_folders_of_runs(state: Path) -> None:
    old = record(1).model_dump_json(exclude={"suite", "versions", "fabric", "trends"})
    leave_folder(state, record(1), old.replace('"schema_version":2', '"schema_version":1'))
    leave_folder(state, record(2))
    (state / "clusters" / CLUSTER / "runs" / "20990101T000000Z-provision-1").mkdir()
    with store.open() as history:
        assert [run.run_id for run in history.runs(CLUSTER)] == [record(2).run_id, record(1).run_id]
        assert history.warnings == []
        assert history.record("last", CLUSTER).checks[0].figures[0].samples == (100, 100)  # the folder has them


def test_a_damaged_folder_is_named_and_the_others_count(state: Path) -> None:
    place = leave_folder(state, record(1), "{half")
    leave_folder(state, record(2))
    with store.open() as history:
        assert [run.run_id for run in history.runs(CLUSTER)] == [record(2).run_id]
        (warning,) = history.warnings
    assert warning.startswith(f"A run is missing in the history: {place} is damaged")


def test_a_run_that_a_full_disk_kept_out_comes_in_later_and_a_forgotten_one_does_not(state: Path) -> None:
    for night in (1, 2, 3):
        leave_folder(state, record(night))
    remember(record(1), record(2))
    with store.open() as history:
        assert len(history.runs(CLUSTER)) == 3
        history.prune(CLUSTER, keep_runs=1)
    with store.open() as history:
        assert [run.run_id for run in history.runs(CLUSTER)] == [record(3).run_id]


# --- migrations -------------------------------------------------------------------------------------------------------


def first_schema(path: Path) -> None:
    """Make the file that the first schema had, with a run in it, by the present statements and without baselines."""
    remember(record(1))
    with sqlite3.connect(path) as raw:
        raw.execute("DROP TABLE baselines")
        raw.execute("PRAGMA user_version = 1")
    raw.close()


def test_a_file_of_the_first_schema_is_brought_to_the_present_one(state: Path) -> None:
    path = state / "history.sqlite3"
    first_schema(path)
    with store.open() as history:
        assert history.reference_values(CLUSTER, key(record(2)), 20) == (100,)
        history.accept(CLUSTER, "last")
        assert history.warnings == []
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)


def test_migrating_is_all_or_nothing(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = state / "history.sqlite3"
    first_schema(path)
    broken = (*schema.MIGRATIONS[:1], "CREATE TABLE baselines (id); CREATE TABLE runs (id)")
    monkeypatch.setattr(schema, "MIGRATIONS", broken)
    with pytest.raises(store.StoreError, match="table runs already exists"):
        store.open()
    monkeypatch.undo()
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA user_version").fetchone() == (1,)
        assert raw.execute("SELECT count(*) FROM sqlite_master WHERE name = 'baselines'").fetchone() == (0,)


def test_a_newer_schema_is_refused_and_nothing_is_touched(state: Path) -> None:
    path = state / "history.sqlite3"
    remember(record(1))
    with sqlite3.connect(path) as raw:
        raw.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    raw.close()
    before = {one.name: one.read_bytes() for one in state.iterdir() if one.is_file()}
    with pytest.raises(ConfigError, match="was written by a newer clusterctl"):
        store.open()
    back, (note,) = store.remember(CLUSTER, record(2))
    assert back == record(2)
    assert "newer clusterctl" in note
    assert "its record is in its folder" in note
    assert {one.name: one.read_bytes() for one in state.iterdir() if one.is_file()} == before


# --- two writers, a kill at any moment --------------------------------------------------------------------------------

_WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
import test_history as t
from clusterctl.state import history as store
for night in range(int(sys.argv[2]), int(sys.argv[3])):
    back, warnings = store.remember(t.CLUSTER, t.record(night))
    assert warnings == (), warnings
    print(night, flush=True)
"""


def writer(begin: int, end: int) -> subprocess.Popen[str]:
    here = str(Path(__file__).parent)
    return subprocess.Popen(
        [sys.executable, "-c", _WRITER, here, str(begin), str(end)], stdout=subprocess.PIPE, text=True
    )


def test_two_processes_write_at_once() -> None:
    both = [writer(0, 15), writer(20, 35)]  # also who makes the file is decided between them
    assert [one.wait(60) for one in both] == [0, 0]
    with store.open() as history:
        assert len(history.runs(CLUSTER)) == 30
        assert len(history.reference_values(CLUSTER, key(record(1)), 99)) == 30


def test_a_kill_at_any_moment_leaves_complete_runs_only() -> None:
    told: set[int] = set()
    for attempt in range(8):
        child = writer(attempt * 100, attempt * 100 + 99)
        assert child.stdout is not None
        told.add(int(child.stdout.readline()))
        time.sleep(0.004 * attempt)  # not always at the same place
        child.send_signal(signal.SIGKILL)
        told |= {int(line) for line in child.stdout.read().split()}
        child.wait()
        with store.open() as history:
            assert history.warnings == []
            runs = history.runs(CLUSTER)
            assert {record(night).run_id for night in told} <= {run.run_id for run in runs}
            for run in runs:
                assert history.record(run.run_id, CLUSTER).run_id == run.run_id
                assert [one.check for one in run.results] == ["pairs"]
            assert len(history.reference_values(CLUSTER, key(record(0)), 10_000)) == len(runs)


# --- a damaged file, a full disk, a read-only one ---------------------------------------------------------------------


def spoil_beginning(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.write(b"no database at all")


def spoil_pages(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as stream:
        stream.seek(4096)
        stream.write(b"\xa5" * (size - 4096))


def spoil_length(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def spoil_owner(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE mine (a)")
    raw.close()


@pytest.mark.parametrize("spoil", [spoil_beginning, spoil_pages, spoil_length, spoil_owner])
def test_a_damaged_file_is_set_aside_and_said_so(state: Path, spoil: Any) -> None:
    path = state / "history.sqlite3"
    leave_folder(state, record(1))
    remember(record(0), record(1))
    spoil(path)
    spoilt = path.read_bytes()
    back, (warning,) = store.remember(CLUSTER, record(2))
    assert warning.startswith(f"The history {path} was damaged (")
    (aside,) = state.glob("history.sqlite3.damaged-*Z")
    assert f"set aside as {aside};" in warning
    assert aside.read_bytes()[100:] == spoilt[100:]  # the header counts who opened it
    assert len(back.trends[0].points) == 2  # the folder of night 1 is still there
    with store.open() as history:
        assert history.warnings == []
        assert len(history.runs(CLUSTER)) == 2


_WARNED = """
import sys
sys.path.insert(0, sys.argv[1])
import test_history as t
from clusterctl.state import history as store
for night in range(int(sys.argv[2]), int(sys.argv[3])):
    print(*store.remember(t.CLUSTER, t.record(night))[1], sep="", flush=True)
"""


def test_several_that_find_the_damage_set_it_aside_once(state: Path) -> None:
    remember(record(0))
    spoil_pages(state / "history.sqlite3")
    here = str(Path(__file__).parent)
    children = [
        subprocess.Popen([sys.executable, "-c", _WARNED, here, str(n), str(n + 5)], stdout=subprocess.PIPE, text=True)
        for n in (10, 20, 30)
    ]
    told = [line for child in children for line in child.communicate(timeout=60)[0].splitlines() if line]
    assert len(told) == 1
    assert len([path for path in state.glob("history.sqlite3.damaged-*") if path.name.endswith("Z")]) == 1
    with store.open() as history:
        assert len(history.runs(CLUSTER)) == 15


def test_damage_that_shows_while_it_is_open(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterctl.state.history.file._CHECKED_WHOLE", 0)  # as for a large file
    remember(record(1))
    spoil_pages(state / "history.sqlite3")
    with store.open() as history:
        history.add(CLUSTER, record(2))
        assert [run.run_id for run in history.runs(CLUSTER)] == [record(2).run_id]
        (warning,) = history.warnings
    assert "set aside" in warning


def test_a_flipped_bit_in_figures_is_no_reference(state: Path) -> None:
    remember(record(1), record(2))
    with sqlite3.connect(state / "history.sqlite3") as raw:
        raw.execute("UPDATE results SET figures = zeroblob(length(figures)) WHERE id = 1")
    raw.close()
    with store.open() as history:
        assert history.reference_values(CLUSTER, key(record(3)), 20) == (100,)
        (warning,) = history.warnings
    assert warning.startswith(f"The figures of {record(1).run_id} in ")


def test_a_damaged_record_is_a_sentence(state: Path) -> None:
    remember(record(1))
    with sqlite3.connect(state / "history.sqlite3") as raw:
        raw.execute("UPDATE runs SET record = zeroblob(20)")
    raw.close()
    with store.open() as history, pytest.raises(ConfigError, match=r"is damaged .*; take another run"):
        history.record("last", CLUSTER)


@pytest.mark.parametrize(
    "spoiled",
    [
        "UPDATE results SET verdict = 'P@SS'",
        "UPDATE results SET culprits = '[{'",
        "UPDATE results SET culprits = '[{}]'",
        "UPDATE runs SET hosts = 'n1'",
    ],
)
def test_a_damaged_line_is_a_sentence_and_ends_no_run(state: Path, spoiled: str) -> None:
    remember(record(1))
    with sqlite3.connect(state / "history.sqlite3") as raw:
        raw.execute(spoiled)
    raw.close()
    with store.open() as history, pytest.raises(store.StoreError, match="holds a damaged line") as error:
        history.runs(CLUSTER)
    assert "\n" not in str(error.value)
    culprit = Culprit(kind="node", nodes=("n1",), words="n1 is slow")
    kept, _ = store.remember(CLUSTER, record(2, check={"culprits": (culprit,)}))
    assert kept.run_id == record(2).run_id


def test_a_schema_whose_bytes_are_no_text_is_set_aside(state: Path) -> None:
    remember(record(1))
    path = state / "history.sqlite3"
    data = path.read_bytes()
    assert data.count(b"CREATE TABLE clusters") == 1
    path.write_bytes(data.replace(b"CREATE TABLE clusters", b"CREATE T\xdfBLE clusters"))
    with store.open() as history:
        (warning,) = history.warnings
    assert "was damaged" in warning


def large(night: int) -> ValidationRecord:
    """Return a run that takes more room than there is."""
    return record(night, check={"reason": os.urandom(50_000).hex()})


_ON_A_FULL_DISK = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import test_history as t
from clusterctl.state import history as store
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
with store.open() as history:  # a folder that there is no room for hinders nobody who reads
    assert history.reference_values(t.CLUSTER, t.key(t.record(3)), 20) == (100,)
    assert len(history.warnings) == 1, history.warnings
back, warnings = store.remember(t.CLUSTER, t.large(2))
assert back.run_id == t.record(2).run_id
print(*warnings, sep="\\n")
"""


def test_a_full_disk_costs_the_run_nothing(state: Path) -> None:
    remember(record(1))
    leave_folder(state, large(3))
    program = [sys.executable, "-c", _ON_A_FULL_DISK, str(Path(__file__).parent), "36000"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    folder, note = done.stdout.splitlines()
    assert {words.partition(" (")[0] for words in (folder, note)} == {
        f"The history {state / 'history.sqlite3'} cannot be used"
    }
    assert note.endswith("This run is not in the history; its record is in its folder.")
    assert values(record(4)) == (100, 100)  # there is room again, and the folder is heard


def test_a_state_folder_that_cannot_be_made_is_one_sentence() -> None:
    with pytest.raises(store.StoreError, match=r"cannot be used \(.*\); make it writable, or set XDG_STATE_HOME"):
        store.open(Path("/proc/nowhere/history.sqlite3"))


_READ_ONLY = """
import os, sys
sys.path.insert(0, sys.argv[1])
import test_history as t
from clusterctl.state import history as store
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
from pathlib import Path
path = Path(sys.argv[2])
with store.open(path) as history:
    print(len(history.runs(t.CLUSTER)))
print(*store.remember(t.CLUSTER, t.record(2), path)[1], sep="\\n")
"""


def test_what_cannot_be_written_can_still_be_read() -> None:
    folder = Path(tempfile.mkdtemp())  # not below pytest's own, which is closed to others
    try:
        path = folder / "history.sqlite3"
        store.remember(CLUSTER, record(1), path)
        path.chmod(0o444)
        folder.chmod(0o555)
        program = [sys.executable, "-c", _READ_ONLY, str(Path(__file__).parent), str(path)]
        done = subprocess.run(program, capture_output=True, text=True, check=False)
        count, note = done.stdout.splitlines()
        assert (count, done.stderr) == ("1", "")
        assert note.startswith(f"The history {path} cannot be written;")
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)
