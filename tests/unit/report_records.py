"""Records for the tests of the reports: every kind of verdict, culprits, a search, and hostile texts."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import factory
import pytest
from clusterctl.model import results
from clusterctl.model.results import (
    CheckResult,
    Comparison,
    Culprit,
    Figure,
    Launch,
    Measurement,
    RankReport,
    Reference,
    Search,
    ValidationRecord,
    Verdict,
    WrongAnswer,
)

DATA = Path(__file__).resolve().parents[1] / "data" / "records"
BEGAN = datetime(2026, 3, 1, 2, 30, tzinfo=timezone.utc)
# Escape sequences, a bell, a NUL, a lone surrogate and the markup that a careless writer passes through.
NASTY = '\x1b[31mred\x1b[0m \x07 \x00 \ud800 \ufffe <b>&"quoted"</b> ]]> Grüße\ttab'

CHECKS = (
    CheckResult(check="reachable", verdict=Verdict.PASS, reason="4 nodes answer", seconds=0.5),
    CheckResult(
        check="allreduce",
        verdict=Verdict.FAIL,
        reason=f"rank 3 on node2: {NASTY}",
        hosts=("node2",),
        seconds=3.25,
        command=("mpirun", "-np", "8", "a b"),
        repeat="clusterctl validate inventory.ini --checks allreduce",
        ranks=(
            RankReport(rank=2, host="node2", state="waiting", ok=False, step="allreduce sum f8[3]"),
            RankReport(
                rank=3,
                host="node2",
                ok=False,
                problems=(WrongAnswer(what="allreduce sum f8[3]", expected="36.0", got="35.0"),),
                facts={"backend": "MPI"},
            ),
        ),
        left_out={"node5": "no GPU"},
        measurements=(Measurement(name="total", value=3.25, unit="s"),),
        log="logs/allreduce.log",
        evidence=(NASTY,),
    ),
    CheckResult(
        check="gather", verdict=Verdict.ERROR, reason="mpirun was not started", seconds=1.0, left_behind=("node3: x",)
    ),
    CheckResult(check="reduce", verdict=Verdict.SKIP, reason="no node is left that answers"),
)


def record(checks: tuple[CheckResult, ...] = CHECKS) -> ValidationRecord:
    given: dict[str, Any] = {
        "clusterctl_version": "0.2.0",
        "run_id": "20260301T023000Z-validate-1",
        "inventory": "/etc/cluster.ini",
        "started": BEGAN,
        "finished": BEGAN + timedelta(seconds=9.5),
        "versions": {},
    }
    return factory.record(*checks, **given)


SLOW = Figure(
    quantity="bandwidth", backend="mpi", size_bytes=8 << 20, nodes=("node2",), value=2.5e8, unit="B/s", better="higher"
)
NASTY_FIGURE = Figure(
    quantity='own "word"\n', operation="\\", nodes=("node1",), value=3.0, unit="1", samples=(1.0, 3.0)
)
LATENCY = Figure(quantity="latency", size_bytes=1, value=11.5, unit="us", better="lower")
PAIRS = CheckResult(
    check="pairs",
    verdict=Verdict.FAIL,
    reason="node2 stands out",
    repeat="clusterctl validate inventory.ini --checks pairs",
    figures=(SLOW, NASTY_FIGURE, LATENCY),
    comparisons=(
        Comparison(
            figure=SLOW,
            reference=Reference(value=2.5e9, lower=-0.1, unit="B/s", source="history"),
            verdict=Verdict.FAIL,
            words="bandwidth of node2: 250 MB/s, 90 % below 2.5 GB/s",
        ),
    ),
    culprits=(
        Culprit(kind="node", nodes=("node2",), quantity="latency", size_bytes=1, ratio=1.4, words="node2 answers late"),
        Culprit(
            kind="node",
            nodes=("node2",),
            quantity="bandwidth",
            size_bytes=8 << 20,
            ratio=0.1,
            words="node2 is slow",
            since=BEGAN - timedelta(days=3),
        ),
        Culprit(kind="pair", nodes=("node1", "node3"), quantity="bandwidth", ratio=0.5, words="node1 to node3 is slow"),
    ),
    evidence=("node2: 250 MB/s", "node1 to node3: 1.2 GB/s"),
)
HUNG = CheckResult(
    check="allreduce",
    verdict=Verdict.FAIL,
    reason="did not come to its end",
    search=Search(
        check="allreduce",
        bound=8,
        launches=(Launch(nodes=("node1",), ok=True, seconds=1.0),),
        culprits=(Culprit(kind="node", nodes=("node4",), words="every job with node4 hangs"),),
        words="node4 makes allreduce hang",
    ),
)
FULL = record((*CHECKS, PAIRS)).model_copy(update={"fabric": {"node1": "eth0"}, "versions": {"nccl": "2.27.5"}})


def records() -> list[Any]:
    real = [
        pytest.param(results.load(path.read_bytes(), path.name), id=path.stem) for path in sorted(DATA.glob("*.json"))
    ]
    return [*real, pytest.param(FULL, id="full"), pytest.param(record(()), id="empty")]
