from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.diagnosis import doctor
from clusterctl.model.facts import JobUser, NodeFacts, Probe, ProbeFailure
from clusterctl.model.findings import Diagnosis, Finding
from clusterctl.model.hosts import Host
from clusterctl.remote import facts
from doctor_view import NODES, diagnosis, record_of

if TYPE_CHECKING:
    import pytest


def test_a_record_comes_back_as_it_was() -> None:
    found = diagnosis(Finding("disk", "error", ("node1",), "full", "empty it"))
    assert Diagnosis.model_validate_json(found.model_dump_json()) == found


def test_the_exit_code_says_what_was_found() -> None:
    error, warning = (Finding("disk", severity, NODES[:3], "full", "empty it") for severity in ("error", "warning"))
    assert [doctor.exit_code(diagnosis(*found)) for found in ((), (warning,), (error, warning))] == [0, 10, 10]
    assert doctor.exit_code(diagnosis(error, unreachable=("node1",))) == 4


def test_a_node_is_looked_at_as_the_user_that_jobs_run_as(monkeypatch: pytest.MonkeyPatch) -> None:
    login, refusal = record_of("node1"), ProbeFailure("node2", "refused", "node2 refuses; add a key.")
    login["user"]["name"] = "ubuntu"
    account = {"name": "mpi", "uid": 51620, "home": "/home/mpi", "shell": "/bin/bash", "sudo": True}
    probe = Probe(
        {
            "node1": NodeFacts.model_validate({**login, "job_user": account}),
            "node2": NodeFacts.model_validate({**login, "job_user": account}),
            "node3": NodeFacts.model_validate({**login, "job_user": {**account, "uid": -1}}),
        }
    )
    asked: list[str | None] = []

    def gather(hosts: Any, **_given: Any) -> Probe:
        asked.extend(host.user for host in hosts)
        login["user"]["name"] = "mpi"
        return Probe({"node1": NodeFacts.model_validate(login)}, {"node2": refusal})

    monkeypatch.setattr(facts, "gather", gather)
    hosts = [Host(name, name, user="ubuntu", variables={"cluster_user": "mpi"}) for name in NODES[:3]]
    seen, closed = doctor.as_jobs_see_it(hosts, probe, Path("/nowhere"))
    assert asked == ["mpi", "mpi"]  # node3 gets the account at the next provision
    assert {name: node.user.name for name, node in seen.facts.items()} == {
        "node1": "mpi",
        "node2": "ubuntu",
        "node3": "ubuntu",
    }
    assert seen.facts["node1"].job_user == JobUser.model_validate(account)
    assert closed == {"node2": refusal}


def test_in_a_large_cluster_each_host_logs_in_to_two_and_two_log_in_to_each() -> None:
    few, many = [f"n{number}" for number in range(32)], [f"n{number}" for number in range(33)]
    assert doctor.login_targets(few, 30) == ("n31", *few[:30])
    chosen = {name: doctor.login_targets(many, at) for at, name in enumerate(many)}
    assert chosen["n0"] == ("n1", "n16")
    targets = Counter(target for name, two in chosen.items() for target in {*two} - {name})
    assert targets == dict.fromkeys(many, 2)
