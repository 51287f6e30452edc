"""A failed srun becomes one sentence with its cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from clusterctl.model.hosts import Host, SlurmStep
from clusterctl.remote import reach

SHOWN = json.loads((Path(__file__).resolve().parents[2] / "data" / "slurm" / "srun-failures.json").read_text("utf-8"))
HOST = Host("node2", "192.0.2.12", python="/usr/bin/python9", step=SlurmStep(42, "n2"))
SUBMIT = Host("login", "192.0.2.1", port=2222)
THROUGH = Host("node2", "192.0.2.12", step=SlurmStep(42, "n2", SUBMIT))


@pytest.mark.parametrize("case", SHOWN, ids=[case["case"] for case in SHOWN])
def test_a_failed_srun_is_told_in_one_sentence(case: dict[str, Any]) -> None:
    failure = reach.classify(HOST, case["returncode"], case["stderr"])
    assert (failure.host, failure.kind) == ("node2", case["kind"])
    for word in case["words"]:
        assert word in failure.message
    assert "\n" not in failure.message


def test_a_submit_host_that_is_gone_is_named_itself() -> None:
    said = "ssh: connect to host 192.0.2.1 port 2222: Connection refused\n"
    failure = reach.classify(THROUGH, 255, said)
    assert failure.kind == "unreachable"
    assert "login (192.0.2.1 port 2222) does not answer" in failure.message
    assert failure.message.startswith("node2")


def test_a_submit_host_without_srun_is_named() -> None:
    failure = reach.classify(THROUGH, 127, "bash: line 1: srun: command not found\n")
    assert "login (192.0.2.1 port 2222) has no srun" in failure.message


def test_the_exit_code_of_the_program_is_no_failure_of_slurm() -> None:
    failure = reach.classify(HOST, 255, "srun: error: n2: task 0: Exited with exit code 255\n")
    assert "status 255" in failure.message
