from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import kept_runs
import pytest
from clusterctl.model.results import PairMatrix, ValidationRecord, Verdict
from clusterctl.state import history as run_history
from kept_runs import CLUSTER, figure, key, leave_folder, record, remember, values


def test_the_file_is_the_users_alone(state: Path) -> None:
    before = os.umask(0)
    try:
        with run_history.open() as history:
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
    with run_history.open() as history:
        assert history.reference_values("other-1", key(record(2)), 20) == ()
        assert history.clusters() == [CLUSTER]


def test_figures_that_are_no_numbers_are_no_references() -> None:
    remember(record(1, check={"figures": (figure(float("inf")), figure(7, "node1"))}))
    assert values(record(2)) == ()
    with run_history.open() as history:
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
    with run_history.open() as history:
        found = history.record("last", CLUSTER)
    (check,) = found.checks
    assert check.matrices == (small,)
    assert {one.samples for one in check.figures} == {()}
    assert (found.run_id, found.hosts, check.reason) == (kept.run_id, kept.hosts, kept.checks[0].reason)


def test_history_begins_with_what_was_accepted_and_then_anew() -> None:
    remember(record(1), record(2, 50, "FAIL"), record(3, 52))
    with run_history.open() as history:
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
    with run_history.open() as history:
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
    with run_history.open() as history:
        history.accept(CLUSTER, record(1).run_id)
        gone = history.prune(**how)
        assert [run.run_id for run in reversed(history.runs(CLUSTER))] == [record(night).run_id for night in left]
        assert gone == 9 - len(left)
    with sqlite3.connect(history.path) as raw:
        assert raw.execute("SELECT count(*) FROM results").fetchone() == (len(left),)
        assert raw.execute("SELECT count(*) FROM layouts").fetchone() == (len(left),)


def test_the_newest_run_is_never_forgotten_so_that_folders_do_not_bring_all_back() -> None:
    leave_folder(record(1))
    leave_folder(record(2))
    for _ in range(2):
        with run_history.open() as history:
            history.runs(CLUSTER)
            history.prune(CLUSTER, keep_days=0)
            assert [run.run_id for run in history.runs(CLUSTER)] == [record(2).run_id]


def test_what_is_older_than_a_year_goes_by_itself() -> None:
    remember(record(-500), record(1))
    with run_history.open() as history:
        assert [run.run_id for run in history.runs(CLUSTER)] == [record(1).run_id]


def test_a_new_history_learns_from_the_folders_of_runs(state: Path) -> None:
    old = record(1).model_dump_json(exclude={"suite", "versions", "fabric", "trends"})
    leave_folder(record(1), old.replace('"schema_version":2', '"schema_version":1'))
    leave_folder(record(2))
    (state / "clusters" / CLUSTER / "runs" / "20990101T000000Z-provision-1").mkdir()
    with run_history.open() as history:
        assert [run.run_id for run in history.runs(CLUSTER)] == [record(2).run_id, record(1).run_id]
        assert history.warnings == []
        assert history.record("last", CLUSTER).checks[0].figures[0].samples == (100, 100)  # the folder has them


def test_a_damaged_folder_is_named_and_the_others_count() -> None:
    place = leave_folder(record(1), "{half")
    leave_folder(record(2))
    with run_history.open() as history:
        assert [run.run_id for run in history.runs(CLUSTER)] == [record(2).run_id]
        (warning,) = history.warnings
    assert warning.startswith(f"A run is missing in the history: {place} is damaged")


def test_a_run_that_a_full_disk_kept_out_comes_in_later_and_a_forgotten_one_does_not() -> None:
    for night in (1, 2, 3):
        leave_folder(record(night))
    remember(record(1), record(2))
    with run_history.open() as history:
        assert len(history.runs(CLUSTER)) == 3
        history.prune(CLUSTER, keep_runs=1)
    with run_history.open() as history:
        assert [run.run_id for run in history.runs(CLUSTER)] == [record(3).run_id]


_WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
import kept_runs as t
from clusterctl.state import history as run_history
for night in range(int(sys.argv[2]), int(sys.argv[3])):
    back, warnings = run_history.remember(t.CLUSTER, t.record(night))
    assert warnings == (), warnings
    print(night, flush=True)
"""


def writer(begin: int, end: int) -> subprocess.Popen[str]:
    here = str(Path(kept_runs.__file__).parent)
    return subprocess.Popen(
        [sys.executable, "-c", _WRITER, here, str(begin), str(end)], stdout=subprocess.PIPE, text=True
    )


def test_two_processes_write_at_once() -> None:
    both = [writer(0, 15), writer(20, 35)]  # also who makes the file is decided between them
    assert [one.wait(60) for one in both] == [0, 0]
    with run_history.open() as history:
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
        with run_history.open() as history:
            assert history.warnings == []
            runs = history.runs(CLUSTER)
            assert {record(night).run_id for night in told} <= {run.run_id for run in runs}
            for run in runs:
                assert history.record(run.run_id, CLUSTER).run_id == run.run_id
                assert [one.check for one in run.results] == ["pairs"]
            assert len(history.reference_values(CLUSTER, key(record(0)), 10_000)) == len(runs)
