from __future__ import annotations

from clusterctl.report import validation_table
from report_records import CHECKS, HUNG, PAIRS, record


def test_the_terminal_names_culprits_first() -> None:
    lines = validation_table.opening(record((PAIRS, HUNG)))
    assert lines[:3] == (
        "What to do:",
        "  1. every job with node4 hangs",
        "     Check its kernel log and the processes that are left on it, or leave it out with --limit.",
    )
    assert "  2. node2 is slow (since 2026-02-26 02:30)" in lines
    assert lines[-3:] == (
        "Out of bounds:",
        "  bandwidth of node2: 250 MB/s, 90 % below 2.5 GB/s",
        "Search after allreduce: node4 makes allreduce hang (1 launches)",
    )


def test_the_table_says_what_to_do_next() -> None:
    rows = validation_table.rows(record())
    assert [(row.check, row.time) for row in rows] == [
        ("reachable", "0.50 s"),
        ("allreduce", "3.25 s"),
        ("gather", "1.00 s"),
        ("reduce", ""),
    ]
    assert validation_table.closing(record()) == (
        "FAIL: 4 ranks on 2 nodes, Open MPI 5.0.7, 9.5 s.",
        "May still be running: node3: x",
        "What allreduce printed: /state/run/logs/allreduce.log",
        "See it again: clusterctl validate inventory.ini --checks allreduce",
    )
    assert validation_table.closing(record(CHECKS[:1])) == ("PASS: 4 ranks on 2 nodes, Open MPI 5.0.7, 9.5 s.",)
