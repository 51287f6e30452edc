"""``launch --prove`` as the parent of torchrun, in whose place stands a program that reports and stays."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from clusterctl.jobs import in_allocation, launch_proof
from clusterctl.launch.allocation_line import AllocationPlan, LocalMachine
from clusterctl.launch.local_facts import LocalFacts
from clusterctl.launch.scheduler_env import RankPlace
from factory import provisioned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Its arguments: the folder of the proof, the reports, and what it does once there is a verdict.
WORKER = """
import json, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / "reports.new").write_text(sys.argv[2])
(folder / "reports.new").rename(folder / "reports.json")
while not (folder / "verdict.json").exists():
    time.sleep(0.05)
if sys.argv[3] == "stay":
    time.sleep(600)
sys.exit(int(sys.argv[3]))
"""
RIGHT = '[{"rank": 0, "state": "answered", "host": "a"}, {"rank": 1, "state": "answered", "host": "b"}]'
SILENT = '[{"rank": 0, "state": "answered", "host": "a"}, {"rank": 1, "state": "no word"}]'


@pytest.fixture
def proved(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], tuple[int, list[str]]]:
    def run(reports: str, afterwards: str) -> tuple[int, list[str]]:
        def prepare(program: Sequence[str], *_: object, before: Any, **__: object) -> AllocationPlan:
            folder = before(program, sys.executable)[2]
            argv = (sys.executable, "-c", WORKER, folder, reports, afterwards)
            here = LocalMachine(LocalFacts.of(json.loads(provisioned("a").model_dump_json())))
            return AllocationPlan(argv, (), (), (), RankPlace(2, 0, "a", 29500, "MASTER_ADDR"), here)

        monkeypatch.setattr(in_allocation, "prepare", prepare)
        said: list[str] = []
        code = launch_proof.run(("a.out",), in_allocation.LaunchOptions(), said.append, lambda _plan: None)
        return code, said

    return run


def test_after_a_right_proof_the_code_is_the_programs(proved: Any) -> None:
    code, said = proved(RIGHT, "7")
    assert code == 7
    assert said[0].startswith("proof PASS: 2 ranks on 2 nodes have right sums")


def test_torchrun_is_ended_that_waits_for_a_node_without_a_proof(proved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_proof, "_END_S", 0.5)
    code, said = proved(SILENT, "stay")
    assert code == 11
    assert "no word came from rank 1 on an unknown node; start 'clusterctl launch --prove' on every node" in said[0]


def test_a_scheduler_that_ends_the_job_after_a_refusal_does_not_hide_the_verdict(
    proved: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """srun ends the other tasks as soon as one has ended badly; each of them has the verdict by then."""
    told: list[bool] = []
    refused = launch_proof._refused  # noqa: SLF001 - the moment after the verdict is what this is about

    def interrupted(folder: Any) -> bool:
        if refused(folder) and not told:
            told.append(True)
            raise KeyboardInterrupt
        return refused(folder)

    monkeypatch.setattr(launch_proof, "_refused", interrupted)
    code, said = proved(SILENT, "stay")
    assert (code, len(told)) == (11, 1)
    assert "no word came from rank 1" in said[0]


def test_an_interrupt_before_the_verdict_is_one(proved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(launch_proof, "_judge", interrupted)
    with pytest.raises(KeyboardInterrupt):
        proved(RIGHT, "0")
