"""What Slurm is told after a validation: which nodes are drained, and which own drains are taken back."""

from __future__ import annotations

from typing import Any

import factory
import pytest
from clusterctl.model import slurm_drain_choice
from clusterctl.model.results import CheckResult, Culprit, ValidationRecord, Verdict
from clusterctl.model.slurm_drain_choice import OF_CHECK_NODE, OF_VALIDATE, DrainOptions, SlurmState

NODES = ("node1", "node2", "node3", "node4")
IDLE = {name: SlurmState("idle") for name in NODES}
FAILED, PROVED = DrainOptions(failed=True), DrainOptions(proved=True)


def record(*checks: CheckResult, **fields: Any) -> ValidationRecord:
    given = {"hosts": NODES, "slots": dict.fromkeys(NODES, 2), **fields}
    return factory.record(*checks).model_copy(update=given)


def passed(name: str = "hello") -> CheckResult:
    return factory.check(name, Verdict.PASS, command=("mpirun",))


def failed(*culprits: Culprit, name: str = "node_speed", **fields: Any) -> CheckResult:
    return factory.check(name, Verdict.FAIL, command=("mpirun",), culprits=culprits, **fields)


def culprit(*nodes: str, kind: Any = "node", words: str = "it is slow") -> Culprit:
    return Culprit(kind=kind, nodes=nodes, words=words)


def test_a_node_that_failed_is_drained_with_the_finding_as_its_reason() -> None:
    found = failed(culprit("node3", words='node3 reaches 40 % of\nits "peers"'))
    decided = slurm_drain_choice.decide(record(passed(), found), IDLE, FAILED)
    assert dict(decided.drain) == {"node3": f"{OF_VALIDATE} node_speed: node3 reaches 40 % of its 'peers'"}
    assert decided.resume == ()
    assert slurm_drain_choice.decide(record(found), IDLE, PROVED).drain == {}


def test_a_reason_holds_nothing_that_a_terminal_obeys() -> None:
    found = failed(culprit("node3", words="node3 \x1b]0;owned\x07\u202e is slow"))
    (reason,) = slurm_drain_choice.decide(record(passed(), found), IDLE, FAILED).drain.values()
    assert reason.isprintable()
    assert "owned" in reason


def test_a_host_of_the_gate_is_drained_with_its_own_line() -> None:
    gate = factory.check(
        "provisioned", Verdict.FAIL, hosts=("node2",), reason="a long one", evidence=("node2: /tmp is full",)
    )
    assert slurm_drain_choice.decide(record(gate, passed()), IDLE, FAILED).drain == {
        "node2": f"{OF_VALIDATE} provisioned: /tmp is full"
    }


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(failed(culprit("node1", "node2", kind="pair")), id="either end of a link may be to blame"),
        pytest.param(factory.check("hello", Verdict.ERROR, hosts=("node1",)), id="an error says nothing about nodes"),
        pytest.param(failed(next_step="look at the log"), id="nobody is named"),
    ],
)
def test_nobody_is_drained_on_a_suspicion(check: CheckResult) -> None:
    assert slurm_drain_choice.decide(record(check), IDLE, FAILED).drain == {}


def test_a_check_that_blames_most_nodes_drains_none_and_says_why() -> None:
    decided = slurm_drain_choice.decide(record(failed(*(culprit(name) for name in NODES[:3]))), IDLE, FAILED)
    assert decided.drain == {}
    assert "3 of 4 nodes" in decided.notes[0]


def test_a_node_that_somebody_drained_keeps_that_reason() -> None:
    states = {**IDLE, "node3": SlurmState("drained", "fan")}
    decided = slurm_drain_choice.decide(record(failed(culprit("node3"))), states, FAILED)
    assert decided.drain == {}
    assert "fan" in decided.notes[0]
    decided = slurm_drain_choice.decide(record(failed(culprit("node3"))), {"node1": IDLE["node1"]}, FAILED)
    assert "Slurm does not know it" in decided.notes[0]


@pytest.mark.parametrize(
    ("state", "resumed"),
    [
        (SlurmState("drained", f"{OF_VALIDATE} node_speed: slow"), True),
        (SlurmState("draining", f"{OF_CHECK_NODE} /tmp is full"), True),
        (SlurmState("drained", "fan"), False),
        (SlurmState("drained", "not by clusterctl validate:"), False),
        (SlurmState("drained", f"{OF_VALIDATE} nccl_allreduce: slow"), False),  # a check that this run did not pass
        (SlurmState("down", f"{OF_VALIDATE} node_speed: slow"), False),
        (SlurmState("idle", f"{OF_VALIDATE} node_speed: slow"), False),
    ],
)
def test_only_an_own_drain_is_taken_back(state: SlurmState, resumed: bool) -> None:
    good = record(passed(), passed("node_speed"))
    decided = slurm_drain_choice.decide(good, {"node3": state}, PROVED)
    assert decided.resume == (("node3",) if resumed else ())
    assert slurm_drain_choice.decide(good, {"node3": state}, FAILED).resume == ()


@pytest.mark.parametrize(
    "proof",
    [
        pytest.param(record(passed(), failed(culprit("node1"))), id="something failed"),
        pytest.param(record(factory.check("reachable", Verdict.PASS)), id="nothing was launched"),
        pytest.param(record(passed(), slots={"node1": 2}), id="the node took no part"),
    ],
)
def test_nothing_is_taken_back_without_a_passed_proof(proof: ValidationRecord) -> None:
    own = SlurmState("drained", f"{OF_CHECK_NODE} /tmp is full")
    assert slurm_drain_choice.decide(proof, {"node3": own}, PROVED).resume == ()


def test_a_foreign_drain_is_named() -> None:
    decided = slurm_drain_choice.decide(record(passed()), {"node3": SlurmState("drained", "fan")}, PROVED)
    assert decided.notes == ("node3 stays drained: its reason is not of clusterctl (fan).",)


def test_a_long_reason_is_cut() -> None:
    decided = slurm_drain_choice.decide(record(failed(culprit("node3", words="x" * 900))), IDLE, FAILED)
    assert len(decided.drain["node3"]) == 400
