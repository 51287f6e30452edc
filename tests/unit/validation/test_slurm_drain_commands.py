"""What scontrol is asked after a validation, and what the record says of it."""

from __future__ import annotations

from pathlib import Path

import factory
import pytest
from clusterctl.model.hosts import Host
from clusterctl.model.results import Culprit, Verdict
from clusterctl.model.slurm_drain_choice import DrainOptions
from clusterctl.remote.slurm import Slurm
from clusterctl.validation import run
from stand_in_slurm import StandIn

HOSTS = (Host("node1.site", "x"), Host("two", "192.0.2.12"), Host("gpu7", "192.0.2.21"))
SPEED = factory.check("speed", Verdict.FAIL, culprits=(Culprit(kind="node", nodes=("two",), words="two is slow"),))
HELLO = factory.check("hello", Verdict.PASS, command=("mpirun",))
WISH = DrainOptions(failed=True, proved=True)
OWN = """\
main*|node1|192.0.2.11|1|2|1|(null)|drained|clusterctl validate: hello: it hung
main*|node2|192.0.2.12|1|2|1|(null)|drained|fan | left
"""


def test_a_failed_node_is_drained_under_its_name_in_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = StandIn(tmp_path, "granted").use(monkeypatch)
    notes = run.tell(Slurm(), HOSTS, factory.record(SPEED, HELLO), WISH)
    assert slurm.read("log") == [
        "scontrol update nodename=node2 state=drain reason=clusterctl validate: speed: two is slow"
    ]
    assert "two was drained" in notes[0]
    (tmp_path / "denied").touch()
    notes = run.tell(Slurm(), HOSTS, factory.record(SPEED, HELLO), WISH)
    assert "two was not drained" in notes[0]
    assert "permission denied" in notes[0]
    assert "operator of Slurm" in notes[0]
    assert len(slurm.read("log")) == 1


def test_an_own_drain_is_taken_back_after_a_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = StandIn(tmp_path, "granted").use(monkeypatch)
    slurm.say("sinfo", OWN)
    proof = factory.record(HELLO, slots={"node1.site": 2, "two": 2})
    notes = run.tell(Slurm(), HOSTS, proof, WISH)
    assert slurm.read("log") == ["scontrol update nodename=node1 state=resume"]
    assert "node1.site takes jobs again" in notes[0]
    assert "two stays drained" in notes[1]
    assert "fan | left" in notes[1]


def test_slurm_that_does_not_answer_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (note,) = run.tell(Slurm(), HOSTS, factory.record(SPEED, HELLO), WISH)
    assert "not told" in note
