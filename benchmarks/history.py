"""What the history costs with a year of nights of 1,000 nodes x 100 checks, against plain SQLite in the same run.

    python benchmarks/history.py [--nodes 1000] [--checks 100] [--nights 365] [--plain-nights 20]

Ours: keep one more night; ask for the references of all its figures (20 good runs each); its trends; its history.
Plain: a table of key, run and value with an index, one INSERT a figure and one SELECT a reference, with fewer nights in
it, which favours it. Both on the same disk. Ratios are of processor
seconds, which other work changes less. The year is one night's rows, written again under other names.
"""

from __future__ import annotations

import argparse
import os
import resource
import sqlite3
import tempfile
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.model.results import CheckResult, Figure, FigureKey, ValidationRecord, Verdict, keys
from clusterctl.state import history as run_history

if TYPE_CHECKING:
    from collections.abc import Callable

CLUSTER = "benchmark-0"
DAY_S = 86_400.0
RUNS = 20


def night(nodes: int, checks: int) -> ValidationRecord:
    names = tuple(f"node{number}" for number in range(nodes))
    at = datetime.now(timezone.utc)

    def figures(check: int) -> tuple[Figure, ...]:
        given = {"quantity": "bandwidth", "unit": "B/s", "better": "higher", "size_bytes": 1 << 20, "confidence": 0.95}
        whole = Figure.model_validate({**given, "value": 1e9 + check})
        return whole, *(
            Figure.model_validate({**given, "value": 1e9 + 7 * place, "nodes": (name,), "low": 9e8, "high": 1.1e9})
            for place, name in enumerate(names)
        )

    results = tuple(
        CheckResult(check=f"check{check}", verdict=Verdict.PASS, reason="as it was", figures=figures(check))
        for check in range(checks)
    )
    return ValidationRecord(
        clusterctl_version="benchmark",
        run_id=f"{at:%Y%m%dT%H%M%SZ}-validate-1",
        inventory="/srv/inventory.ini",
        started=at,
        finished=at,
        launch_node=names[0],
        hosts=names,
        slots=dict.fromkeys(names, 8),
        versions={"openmpi": "5.0.7", "mpi4py": "4.1.2", "nccl": "2.29.7", "torch": "2.9.1"},
        verdict=Verdict.PASS,
        checks=results,
    )


def timed(words: str, action: Callable[[], object]) -> float:
    before, worked = time.perf_counter(), time.process_time()
    action()
    seconds, work = time.perf_counter() - before, time.process_time() - worked
    print(f"  {words:52} {seconds:7.2f} s, of the processor {work:6.2f} s", flush=True)
    return work


def repeat_nights(path: Path, count: int) -> None:
    with sqlite3.connect(path) as raw:
        for back in range(1, count):
            raw.execute(
                "INSERT INTO runs (cluster, run_id, started, verdict, suite, hosts, versions, record) "
                "SELECT cluster, 'night-' || ?, started - ?, verdict, suite, hosts, versions, record FROM runs "
                "WHERE id = 1",
                (back, back * DAY_S),
            )
            raw.execute(
                "INSERT INTO results (run, name, verdict, layout, reason, culprits, figures) "
                "SELECT last_insert_rowid(), name, verdict, layout, reason, culprits, figures FROM results "
                "WHERE run = 1"
            )
    raw.close()


def ours(record: ValidationRecord, path: Path, nights: int) -> dict[str, float]:
    wanted: list[FigureKey] = [key for check in record.checks for key in keys(record, check)]
    later = record.model_copy(
        update={"run_id": "later", "started": record.started + timedelta(days=1), "finished": record.finished}
    )
    with run_history.open(path) as history:
        timed("the first night, with its keys", lambda: history.add(CLUSTER, record))
    repeat_nights(path, nights)
    print(f"  {nights} nights are {path.stat().st_size / 2**20:.0f} MiB")
    found = {}
    with run_history.open(path) as history:
        found["insert"] = timed("one more night", lambda: history.add(CLUSTER, later))
        count = [0]

        def references() -> None:
            count[0] = sum(len(history.reference_values(CLUSTER, key, RUNS)) for key in wanted)

        found["select"] = timed(f"{len(wanted)} references of {RUNS} runs", references)
        if count[0] != len(wanted) * min(RUNS, nights + 1):
            raise SystemExit(f"{count[0]} values came back")
        timed("trends", lambda: history.trends(CLUSTER, later))
        timed("the last 30 runs, as 'clusterctl history' asks", lambda: history.runs(CLUSTER, 30))
        timed("forget all but 300 runs", lambda: history.prune(CLUSTER, keep_runs=300))
    return found


def plain(record: ValidationRecord, path: Path, nights: int) -> dict[str, float]:
    values = [(number, figure.value) for number, figure in enumerate(f for c in record.checks for f in c.figures)]
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE figures (key INTEGER, run INTEGER, value REAL)")
    db.execute("CREATE INDEX figures_by_key ON figures (key, run)")

    def insert(run: int) -> None:
        with db:
            db.executemany("INSERT INTO figures VALUES (?, ?, ?)", ((key, run, value) for key, value in values))

    def select() -> None:
        for key, _ in values:
            db.execute("SELECT value FROM figures WHERE key = ? ORDER BY run DESC LIMIT ?", (key, RUNS)).fetchall()

    for run in range(nights):
        insert(run)
    found = {
        "insert": timed("one more night", lambda: insert(nights)),
        "select": timed(f"{len(values)} references of {RUNS} runs", select),
    }
    db.close()
    print(f"  {nights + 1} nights are {path.stat().st_size / 2**20:.0f} MiB")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--checks", type=int, default=100)
    parser.add_argument("--nights", type=int, default=365)
    parser.add_argument("--plain-nights", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        record = night(arguments.nodes, arguments.checks)
        print("clusterctl")
        mine = ours(record, Path(folder) / "clusterctl" / "history.sqlite3", arguments.nights)
        print("plain SQLite")
        bare = plain(record, Path(folder) / "plain.sqlite3", arguments.plain_nights)
    ratios = ", ".join(f"{name} {mine[name] / bare[name]:.1f}" for name in mine)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"ratio {ratios}; peak memory {peak:.0f} MiB; load of the machine {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
