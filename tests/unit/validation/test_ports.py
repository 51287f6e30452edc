"""Ports between the nodes of a validation: what is blamed, what is a note, and what is tried twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import factory
import pytest
from clusterctl.diagnosis import training_stack
from clusterctl.diagnosis.rules.evidence import Pair
from clusterctl.model import fabric
from clusterctl.model.facts import NodeFacts
from clusterctl.model.hosts import Host
from clusterctl.model.results import CheckResult, Culprit, Verdict
from clusterctl.remote import network_probe
from clusterctl.validation import ports
from clusterctl.validation.team import ReadyNode, Team

NETWORK = "10.0.0.0/24"
PASSED = CheckResult(check="hello", verdict=Verdict.PASS, reason="8 ranks on 4 nodes")


def ready(number: int) -> ReadyNode:
    name = f"node{number}"
    entry = {"family": 4, "address": f"10.0.0.{number}", "prefix": 24, "scope": "global"}
    eth0 = {"name": "eth0", "kind": "physical", "mtu": 1500, "up": True, "carrier": True, "addresses": [entry]}
    facts = factory.provisioned(name, number, interfaces=[eth0])
    (host,) = factory.hosts([name], 2, become=True)
    return ReadyNode(host, facts, training_stack.of(facts), 2, None)


TEAM = Team({f"node{number}": ready(number) for number in range(1, 5)}, "node1")


class Nodes:
    """Stand in for the nodes: say of each connection how it ends, the first time and later."""

    def __init__(self, *kinds: dict[Pair, fabric.PairKind]) -> None:
        self.kinds = list(kinds)
        self.asked: list[Sequence[Pair]] = []
        self.given: list[network_probe.TrialLimits] = []

    def probe(
        self,
        hosts: Sequence[Host],
        candidates: fabric.Candidates,
        limits: network_probe.TrialLimits,
        only: Collection[Pair] | None = None,
        _before: Sequence[fabric.PairResult] = (),
    ) -> tuple[fabric.PairResult, ...]:
        assert not any(host.become for host in hosts)
        assert [network.key for network in candidates.networks] == [NETWORK]
        plan = tuple(only) if only is not None else fabric.pairs([host.name for host in hosts])
        kinds = self.kinds[min(len(self.asked), len(self.kinds) - 1)]
        self.asked.append(plan)
        self.given.append(limits)
        results = []
        for source, target in plan:
            kind = kinds.get((source, target), "ok")
            problem = "" if kind == "ok" else f"{target}: it gave no result"
            results.append(fabric.PairResult(NETWORK, source, target, problem, kind))
        return tuple(results)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Nodes:
    nodes = Nodes(*request.param)
    monkeypatch.setattr(network_probe, "probe", nodes.probe)
    return nodes


def tried(result: CheckResult = PASSED) -> tuple[CheckResult, tuple[str, ...]]:
    told, found = ports.PortTrial(TEAM, seed=7).explain(result)
    assert set(found.hosts) <= set(told.hosts)
    return told, found.notes


@pytest.mark.parametrize("asked", [[{}]], indirect=True)
def test_where_all_come_through_the_result_stays_and_nothing_is_tried_twice(asked: Nodes) -> None:
    assert tried() == (PASSED, ())
    assert [len(plan) for plan in asked.asked] == [12]
    assert asked.given[0].seed == 7
    assert asked.given[0].control_dir is None  # a job must not hang on the login of this trial


@pytest.mark.parametrize("asked", [[{("node2", "node4"): "timeout"}]], indirect=True)
def test_a_port_that_is_closed_one_way_is_a_fail_with_both_ends_and_the_direction(asked: Nodes) -> None:
    found, notes = tried()
    assert (found.verdict, found.hosts, notes) == (Verdict.FAIL, ("node2", "node4"), ())
    assert [(one.kind, one.nodes) for one in found.culprits] == [("one_way", ("node2", "node4"))]
    assert found.reason.startswith(f"connections from node2 to node4 in {NETWORK} time out; {PASSED.reason}; ")
    assert "firewall" in found.culprits[0].cure
    assert asked.asked[1:] == [(("node2", "node4"), ("node1", "node4"), ("node3", "node4"))]  # with two witnesses
    assert asked.given[1].connect_s > asked.given[0].connect_s


@pytest.mark.parametrize("asked", [[{("node2", "node4"): "timeout", ("node4", "node2"): "refused"}]], indirect=True)
def test_two_directions_that_fail_in_two_ways_name_the_same_pair(asked: Nodes) -> None:
    found, _ = tried()
    assert len(asked.asked) == 2
    assert set(found.hosts) == {"node2", "node4"}
    assert {one.kind for one in found.culprits} == {"pair"}


@pytest.mark.parametrize("asked", [[{("node2", "node4"): "timeout"}, {}]], indirect=True)
def test_a_connection_that_passes_after_the_check_was_slow(asked: Nodes) -> None:
    assert tried() == (PASSED, ())
    assert len(asked.asked) == 2


@pytest.mark.parametrize("asked", [[{(f"node{number}", "node3"): "error" for number in (1, 2, 4)}]], indirect=True)
def test_what_could_not_be_tried_is_a_note_and_blames_nobody(asked: Nodes) -> None:
    found, notes = tried()
    assert found == PASSED
    assert len(asked.asked) == 1
    (note,) = notes
    assert note.startswith("Ports on node3: connections from node[1-2,4] to it")
    assert "could not be tried" in note


@pytest.mark.parametrize("asked", [[{(f"node{number}", "node3"): "timeout" for number in (1, 2, 4)}]], indirect=True)
def test_a_node_that_the_check_names_already_is_told_once(asked: Nodes) -> None:
    silent = PASSED.model_copy(update={"verdict": Verdict.FAIL, "reason": "no answer", "hosts": ("node3",)})
    down = (Culprit(kind="node", nodes=("node3",), words="node3: it is down"),)
    gone = silent.model_copy(update={"culprits": down})
    assert tried(gone)[0] == gone
    assert len(asked.asked) == 1
    other = silent.model_copy(update={"verdict": Verdict.ERROR, "hosts": ("node1",)})
    for result, hosts in ((other, ("node3", "node1")), (silent, ("node3",))):  # it says no cause of its own
        found, _ = tried(result)
        assert (found.verdict, found.hosts) == (Verdict.FAIL, hosts)
        assert [(one.kind, one.nodes) for one in found.culprits] == [("node", ("node3",))]
        assert "firewall" in found.culprits[0].cure


@pytest.mark.parametrize("asked", [[{}]], indirect=True)
def test_a_name_that_leads_to_a_dead_address_is_a_fail(asked: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [{"name": "node4", "addresses": ["10.9.9.9"], "problem": ""}]
    looking = ready(2)
    facts = NodeFacts.model_validate({**looking.facts.model_dump(), "names": wrong})
    team = Team({**TEAM.nodes, "node2": dataclasses.replace(looking, facts=facts)}, "node1")
    told: list[fabric.PairKind] = ["timeout", "timeout", "timeout", "ok"]

    def called(_hosts: object, _found: object, _limits: object, names: object) -> tuple[fabric.PairResult, ...]:
        assert names == [("node2", "node4", "10.9.9.9")]
        return (fabric.PairResult(fabric.NAMES, "node2", "node4", "", told.pop(0)),)

    monkeypatch.setattr(network_probe, "called", called)
    found, seen = ports.PortTrial(team, seed=7).explain(PASSED)
    assert seen.hosts == ()
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node2",))
    assert found.reason.startswith("node2: the name node4 leads it to 10.9.9.9, at which node4 does not answer; ")
    assert ports.PortTrial(team, seed=7).explain(PASSED) == (
        PASSED,
        ports.PortFindings(),
    )  # it answered the second time
    assert [len(plan) for plan in asked.asked] == [12, 12]


def test_an_error_of_the_trial_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(network_probe, "probe", broken)
    with pytest.raises(ValueError, match="broken"):
        ports.PortTrial(TEAM, seed=0).wait()


def test_one_node_has_no_ports_to_try() -> None:
    assert ports.PortTrial(TEAM.only(["node1"]), seed=0).explain(PASSED) == (PASSED, ports.PortFindings())
