"""What doctor finds in the gate's facts: its errors are a FAIL, and its warnings about the network are notes."""

from __future__ import annotations

from typing import Any

import factory
import pytest
from clusterctl.model.facts import NodeFacts
from clusterctl.model.probe import Probe
from clusterctl.model.results import CheckResult, Verdict
from clusterctl.support import content
from clusterctl.validation import check_runner, gate
from clusterctl.validation.check_results import CheckResults

WRONG = {"what": "allreduce sum i4[1], value 0 (1 of 1 wrong)", "expected": "10", "got": "11"}
OWN = "its own name leads to 127.0.1.1, at which no other node finds it"


def node(name: str, own: str, mtu: int = 1500, **changed: Any) -> NodeFacts:
    number = int(name[-1])
    address = {"family": 4, "address": f"10.0.0.{number}", "prefix": 24, "scope": "global"}
    link: dict[str, Any] = {"name": "eth0", "kind": "physical", "mac": f"02:{number}", "up": True, "carrier": True}
    return factory.provisioned(
        name,
        number,
        stack=False,
        shm_bytes=1 << 30,
        interfaces=[{**link, "mtu": mtu, "addresses": [address]}],
        names=[{"name": name, "addresses": [own]}],
        **changed,
    )


def probe(own: str, mtu: int = 1500) -> Probe:
    healthy = {name: node(name, f"10.0.0.{name[-1]}") for name in ("node1", "node2")}
    return Probe({**healthy, "node3": node("node3", own, mtu)})


def test_errors_and_warnings_about_the_network_are_notes_with_node_and_cure() -> None:
    cluster = factory.inventory(["node1", "node2", "node3"])
    assert gate.of(cluster, probe("10.0.0.3")) == ()
    name, mtu = map(gate.note, gate.of(cluster, probe("127.0.1.1", 9000)))
    assert name.startswith(f"Doctor finds on node3: {OWN}; run 'clusterctl provision' again")
    assert "MTU" in mtu
    assert "node3" in mtu


def test_the_loopback_name_of_one_node_alone_is_no_error() -> None:
    assert gate.of(factory.inventory(["node1"]), Probe({"node1": node("node1", "127.0.1.1")})) == ()
    pair = Probe({name: node(name, "127.0.1.1") for name in ("node1", "node2")})
    (found,) = gate.of(factory.inventory(["node1", "node2"]), pair)
    assert OWN in gate.note(found)


def test_an_error_of_doctor_is_a_fail_though_the_node_takes_part() -> None:
    watch = factory.programs(content.node_programs())
    names = [{"name": "node2", "addresses": ["127.0.1.1"]}]
    unknown = [{"name": "node2", "addresses": [], "problem": "not known"}]
    nodes = {
        "node1": factory.ready_node("node1", watch=watch, names=unknown),
        "node2": factory.ready_node("node2", watch=watch, names=names),
    }
    results = CheckResults(lambda _: None)
    guard = gate.Gate(factory.inventory([*nodes]), results, lambda _: None, compares=True, repeat="", total=3)
    passed = guard.judge(Probe(nodes))
    told = results["provisioned"]
    assert (told.verdict, told.hosts) == (Verdict.FAIL, ("node2",)), told.reason
    assert told.reason.startswith(f"node2: {OWN}; run 'clusterctl provision' again")
    assert list(passed.nodes) == ["node1", "node2"]
    assert not any(OWN in note for note in passed.notes)
    assert any("node1: it cannot resolve the name of any other node" in note for note in passed.notes), passed.notes


def test_a_changed_file_is_told_once() -> None:
    watch = factory.programs(content.node_programs())
    problem = "1 of 580 files are missing or changed, first bin/prted (mode 0644, was 0755)"
    openmpi = {**factory.artifact("openmpi", "5.0.7"), "ok": False, "problem": problem}
    damaged = [openmpi, factory.artifact("mpi4py", "4.1.2")]
    nodes = {
        "node1": factory.ready_node("node1", watch=watch),
        "node2": factory.ready_node("node2", watch=watch, artifacts=damaged),
    }
    results = CheckResults(lambda _: None)
    guard = gate.Gate(factory.inventory([*nodes]), results, lambda _: None, compares=True, repeat="", total=3)
    passed = guard.judge(Probe(nodes))
    assert problem in results["provisioned"].reason
    assert not [note for note in passed.notes if problem in note]


@pytest.mark.parametrize(
    ("changed", "nodes"),
    [
        ({}, ("node2",)),  # nobody was known
        ({"verdict": "FAIL", "hosts": ("node2", "node3")}, ("node2",)),  # ranks were not in their places
        ({"hosts": ("node3",)}, ()),  # another node
        ({"verdict": "PASS"}, ()),
        ({"next_step": "Give these nodes fewer slots"}, ()),
        ({"ranks": [{"rank": 0, "host": "node1", "ok": False, "problems": [WRONG]}]}, ()),
    ],
)
def test_what_a_note_knows_the_verdict_uses(changed: dict[str, Any], nodes: tuple[str, ...]) -> None:
    """Two nodes call themselves the same; the verdict was "not known", beside a note that named them."""
    both = {name: node(name, f"10.0.0.{name[-1]}", hostname="node1") for name in ("node1", "node2")}
    seen = Probe({**both, "node3": node("node3", "10.0.0.3")}, {})
    known = gate.of(factory.inventory([*seen.facts]), seen)
    ranks = [{"rank": at, "host": name, "state": "absent"} for at, name in enumerate(seen.facts)]
    given = {"check": "hello", "verdict": "ERROR", "reason": "no rank came up within 60 s", "ranks": ranks}
    result = CheckResult.model_validate({**given, **changed})
    found = check_runner.explained_by_known(result, known)
    if not nodes:
        assert found == result
        return
    (culprit,) = found.culprits
    assert (culprit.nodes, culprit.cure) == (nodes, "give each its own name with 'hostnamectl set-hostname'")
    assert found.reason.startswith(
        "node2: it calls itself node1 as node1 does, and mpirun takes them for one node; no rank "
    )
    assert found.hosts == nodes


@pytest.mark.parametrize(
    ("seconds", "slow"),
    [
        ((0.2, 0.3, 5.2), ["node3"]),
        ((1.9, 2.5, 5.2), []),
        ((0.1, 0.1, 2.0), []),
        ((0.0, 0.0, 5.2), []),
        ((6, 5, 6), []),
    ],
)
def test_a_login_that_waits_on_one_node_is_a_note(seconds: tuple[float, ...], slow: list[str]) -> None:
    names = ("node1", "node2", "node3")
    facts = {
        name: node(name, f"10.0.0.{name[-1]}", session_start_s=taken)
        for name, taken in zip(names, seconds, strict=True)
    }
    notes = [*map(gate.note, gate.of(factory.inventory(names), Probe(facts, {})))]
    assert len(notes) == len(slow)
    for name, note in zip(slow, notes, strict=True):
        assert note.startswith(f"Doctor finds on {name}: a session takes 5.2 s until its command runs, and 0.2 s on ")
        assert ".bashrc" in note


def test_a_login_that_waits_on_one_of_two_nodes_is_a_note() -> None:
    """The other's session takes so little that its measurement is the least there is."""
    facts = {name: node(name, f"10.0.0.{name[-1]}", session_start_s=s) for name, s in (("node1", 0.01), ("node2", 8.0))}
    (note,) = map(gate.note, gate.of(factory.inventory(tuple(facts)), Probe(facts, {})))
    assert note.startswith("Doctor finds on node2: a session takes 8.0 s until its command runs")
