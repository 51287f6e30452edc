"""tests/slowest.py against lines as pytest prints them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("slowest", Path(__file__).parents[2] / "slowest.py")
assert SPEC is not None
assert SPEC.loader is not None
slowest = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(slowest)

BEFORE = """
========= slowest durations ==========
1440.20s call     tests/cluster/test_horovod.py::test_ranks[4.1.4]
61.00s setup    tests/cluster/test_stack.py::test_a_second_provision
4.00s call     tests/cluster/test_stack.py::test_a_second_provision
0.50s teardown tests/cluster/test_doctor.py::test_a healthy[one two]
"""
AFTER = """
59.90s call     tests/cluster/test_horovod.py::test_ranks[4.1.4]
90.00s setup    tests/cluster/test_run.py::test_new
"""


def test_a_test_takes_its_fixtures_along_and_each_run_names_its_slowest() -> None:
    assert slowest.durations(BEFORE)["tests/cluster/test_stack.py::test_a_second_provision"] == 65.0
    assert slowest.table(slowest.durations(AFTER), slowest.durations(BEFORE), 2) == [
        "| test | before | after |",
        "|---|---|---|",
        "| `cluster/test_horovod.py::test_ranks[4.1.4]` | 24:00 | 0:59 |",
        "| `cluster/test_stack.py::test_a_second_provision` | 1:05 | not among the listed |",
        "| `cluster/test_run.py::test_new` | not among the listed | 1:30 |",
    ]


def test_one_run_alone_has_one_column() -> None:
    assert slowest.table(slowest.durations(BEFORE), {}, 1)[2:] == [
        "| `cluster/test_horovod.py::test_ranks[4.1.4]` | 24:00 |"
    ]
