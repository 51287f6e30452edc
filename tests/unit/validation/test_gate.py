"""The gate: what a node needs to take part, and what the gate returns."""

from __future__ import annotations

from typing import Any

import factory
import pytest
from clusterctl.model.facts import Scratch
from clusterctl.model.hosts import Host
from clusterctl.model.probe import Probe, ProbeFailure
from clusterctl.model.results import CheckFinished, CheckStarted, Verdict
from clusterctl.remote import facts
from clusterctl.support import content
from clusterctl.support.errors import ExitCode, ValidationCouldNotRunError
from clusterctl.validation import gate, idle_part
from clusterctl.validation.check_results import CheckResults
from factory import READY_WATCH as WANTED
from factory import ready_node as node


def test_a_node_that_has_everything_is_ready() -> None:
    assert gate.not_ready(node(), WANTED) == ""


def test_what_a_node_lacks_is_said() -> None:
    assert gate.not_ready(node(artifacts=[]), WANTED) == "Open MPI: /usr/local/openmpi does not exist"
    assert "the programs in /usr/local/libexec/clusterctl" in gate.not_ready(node(watch=[]), WANTED)
    broken = [*node().model_dump()["artifacts"]]
    broken[2] |= {"ok": False, "problem": "1 of 9 files are missing or changed, first MPI.so"}
    assert gate.not_ready(node(artifacts=broken), WANTED) == (
        "mpi4py: 1 of 9 files are missing or changed, first MPI.so"
    )


def test_the_watched_programs_are_those_that_the_role_brings() -> None:
    files = content.role_files("validation")
    there = {str(path.relative_to(files)) for path in files.rglob("*.py")}
    assert there == set(content.node_programs())
    host = Host(name="node1", address="192.0.2.1", variables={"cluster_prefix": "/opt/cluster"})
    assert {entry["path"] for entry in gate.watch_entries(host)} == {
        f"/opt/cluster/libexec/clusterctl/{name}" for name in there
    }


def test_an_extra_that_is_half_there_is_told_from_one_that_was_never_wanted() -> None:
    never = {"link": "/usr/local/horovod", "target": "", "version": "", "key": "", "ok": False, "name": "horovod"}
    half = {**never, "problem": "1 of 9 files are missing or changed, first mpi_lib_v2.so"}
    there = node().model_dump()["artifacts"]
    never["problem"] = "/usr/local/horovod does not exist"
    assert gate.broken_extras(node(artifacts=[*there, never])) == []
    assert gate.broken_extras(node(artifacts=[*there, half])) == [f"Horovod: {half['problem']}"]


def test_a_host_beyond_plain_ssh_is_a_failure_of_its_own_and_the_probe_stays_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ready = node("node1", watch=factory.programs(content.node_programs()))
    gathered = Probe({"node1": ready}, {})
    monkeypatch.setattr(facts, "gather", lambda *_, **__: gathered)
    there = factory.inventory(["node1", "node2"])
    (local,) = factory.hosts(["node2"], connection="local")
    cluster = type(there)(there.sources, (there.hosts[0], local), there.selected, there.digest)
    heard: list[Any] = []
    results = CheckResults(heard.append)
    passed = gate.Gate(cluster, results, heard.append, compares=True, repeat="again", total=3).judge(None)
    assert list(passed.nodes) == ["node1"]
    assert (passed.is_open, gathered.failures) == (True, {})
    assert isinstance(passed.probe.failures["node2"], ProbeFailure)
    assert [(one.check, one.verdict, one.hosts) for one in results.all] == [
        ("reachable", Verdict.FAIL, ("node2",)),
        ("provisioned", Verdict.PASS, ()),
        ("skew", Verdict.PASS, ()),
    ]
    assert "node2 is not reached by plain ssh with a key" in results["reachable"].reason
    assert "ansible_connection is 'local'" in results["reachable"].reason
    assert [type(event) for event in heard] == [CheckStarted, CheckFinished] * 3


def test_without_a_node_that_answers_nothing_can_run() -> None:
    silent = Probe({}, {"node1": ProbeFailure("node1", "timeout", "node1 did not answer.")})
    results = CheckResults(lambda _event: None)
    cluster = factory.inventory(["node1"])
    passed = gate.Gate(cluster, results, lambda _event: None, compares=True, repeat="again", total=3).judge(silent)
    assert dict(passed.nodes) == {}
    assert [(one.check, one.verdict) for one in results.all] == [
        ("reachable", Verdict.ERROR),
        ("provisioned", Verdict.SKIP),
        ("skew", Verdict.SKIP),
    ]


def test_a_node_that_no_job_can_be_launched_on_is_named_and_left_out() -> None:
    watch = factory.programs(content.node_programs())
    full = Scratch(path="/tmp", exists=True, free_bytes=0, total_bytes=1 << 30)  # noqa: S108 - a folder of the node
    probe = Probe({"node1": node("node1", watch=watch), "node2": node("node2", watch=watch, scratch=(full,))}, {})
    results = CheckResults(lambda _event: None)
    cluster = factory.inventory(["node1", "node2"])
    passed = gate.Gate(cluster, results, lambda _event: None, compares=True, repeat="again", total=3).judge(probe)
    assert list(passed.nodes) == ["node1"]
    found = results["provisioned"]
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node2",)), found.reason
    assert "node2: /tmp is full" in found.reason
    assert found.reason.endswith("free space in /tmp")


def test_another_mpirun_first_in_path_is_a_fail_and_the_node_takes_part() -> None:
    own = "/usr/local/openmpi/bin/mpirun"
    found = {"name": "mpirun", "own": own, "own_real": own, "own_state": "ok"}
    watch = factory.programs(content.node_programs())
    whole = node("node1", watch=watch, launch=[{**found, "path": own, "real": own}])
    other = node("node2", watch=watch, launch=[{**found, "path": "/opt/mpi/mpirun", "real": "/opt/mpi/mpirun"}])
    results = CheckResults(lambda _event: None)
    cluster = factory.inventory(["node1", "node2"])
    guard = gate.Gate(cluster, results, lambda _event: None, compares=True, repeat="again", total=3)
    passed = guard.judge(Probe({"node1": whole, "node2": other}, {}))
    assert list(passed.nodes) == ["node1", "node2"]
    told = results["provisioned"]
    assert (told.verdict, told.hosts) == (Verdict.FAIL, ("node2",)), told.reason
    assert "mpirun of a session is /opt/mpi/mpirun" in told.reason
    assert "first in PATH" in told.reason
    assert not any("mpirun" in note for note in passed.notes)


@pytest.mark.parametrize(
    ("changed", "words", "takes_part"),
    [
        ({"login": {"shell": "/usr/bin/fish"}}, "the login shell of user user1 is /usr/bin/fish", False),
        ({"login": {"home_refuses": "read-only"}}, "the home /home/user1 is read-only", True),
        ({"clock": {"offset_s": 300.0, "uncertainty_s": 1.0}}, "its clock is 299.9 s ahead of most nodes'", True),
    ],
)
def test_what_a_login_and_a_clock_lack_is_a_fail(changed: dict[str, Any], words: str, takes_part: bool) -> None:
    watch = factory.programs(content.node_programs())
    names = ("node1", "node2", "node3")
    clock = {"clock": {"offset_s": 0.1, "uncertainty_s": 1.0}}
    nodes = {name: node(name, watch=watch, **{**clock, **(changed if name == "node3" else {})}) for name in names}
    results = CheckResults(lambda _event: None)
    guard = gate.Gate(factory.inventory(names), results, lambda _event: None, compares=True, repeat="again", total=3)
    passed = guard.judge(Probe(nodes, {}))
    assert ("node3" in passed.nodes) is takes_part
    told = results["provisioned"]
    assert (told.verdict, told.hosts) == (Verdict.FAIL, ("node3",))
    assert words in told.reason


def test_the_nodes_are_asked_and_the_jobs_are_started_as_the_cluster_user(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def gather(hosts: Any, **_given: Any) -> Probe:
        asked.extend(hosts)
        return Probe({"node1": node("node1", watch=factory.programs(content.node_programs()))}, {})

    monkeypatch.setattr(facts, "gather", gather)
    cluster = factory.inventory(["node1"], user="ubuntu", become=True, variables={"cluster_user": "mpi"})
    results = CheckResults(lambda _event: None)
    passed = gate.Gate(cluster, results, lambda _event: None, compares=True, repeat="again", total=3).judge(None)
    assert [(one.user, one.become) for one in asked] == [("mpi", False)]
    ready = passed.nodes["node1"]
    assert (ready.host.user, ready.host.become, ready.as_user) == ("mpi", False, None)


def test_the_look_after_a_run_serves_where_ranks_log_in_alike() -> None:
    here, other = Host(name="node1", address="192.0.2.1"), Host(name="node2", address="192.0.2.2", become=True)
    assert gate.asked_ahead([here]) == gate.asked([here])
    seen = Probe({"node1": node(), "node9": node("node9")}, {})
    assert gate.of_earlier([here], seen) == Probe({"node1": node()}, {})
    assert gate.asked_ahead([here, other]) == {}, "a job does not see what sudo sees"
    assert gate.of_earlier([here, other], seen) is None
    assert gate.of_earlier([here, Host(name="node3", address="192.0.2.3")], seen) is None


# --- busy nodes are left out of a validation by ssh, by name and with their jobs ---


RANK = {"pid": 7, "user": "alice", "command": "./solve", "rank": True}


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    lost = {"node3": ProbeFailure("node3", "unreachable", "it is silent")}

    def gather(_hosts: Any, **asked: Any) -> Probe:
        assert asked["busy"]
        assert asked["leftovers"]
        return Probe(facts, lost)

    monkeypatch.setattr(idle_part.facts, "gather", gather)
    return facts


def test_idle_and_silent_hosts_stay_and_busy_ones_are_named(found: dict[str, Any]) -> None:
    found.update(node1=factory.node("node1"), node2=factory.node("node2", busy=[RANK]))
    cluster, left_out = idle_part.of(factory.inventory(["node1", "node2", "node3"]))
    assert cluster.selected == ("node1", "node3")
    assert left_out == {"node2": "jobs run there: rank 7 of alice: ./solve"}


def test_a_cluster_without_an_idle_node_cannot_be_proved(found: dict[str, Any]) -> None:
    found.update(node1=factory.node("node1", busy=[RANK]))
    with pytest.raises(ValidationCouldNotRunError, match=r"No node is idle.*node1 \(jobs run there: rank 7") as caught:
        idle_part.of(factory.inventory(["node1"]))
    assert caught.value.exit_code is ExitCode.VALIDATION_ERROR
