from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from clusterctl.diagnosis import doctor
from clusterctl.diagnosis.rules import logins, registry
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model.facts import JobUser, NodeFacts
from clusterctl.model.findings import Diagnosis, Finding
from clusterctl.model.hosts import Host
from clusterctl.model.probe import Probe, ProbeFailure
from clusterctl.remote import facts, login_probe
from clusterctl.state import hardware_looks, paths
from doctor_view import NODES, diagnosis, record_of, seen


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


@pytest.mark.programs
def test_the_errors_of_a_look_are_kept_for_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    inventory = tmp_path / "inventory.ini"
    inventory.write_text("node1 ansible_host=127.0.0.1 ansible_port=1\n")
    found = doctor.examine(str(inventory), doctor.DoctorOptions(quick=True))
    assert found.unreachable == ("node1",)
    kept = hardware_looks.read_errors(paths.cluster_id(str(inventory)))
    assert {host: (errors.checks, errors.at) for host, errors in kept.items()} == {
        "node1": (("reachable",), found.started)
    }


def test_in_a_larger_cluster_each_host_logs_in_to_three_and_three_log_in_to_each() -> None:
    few = [f"n{number}" for number in range(8)]
    assert doctor.login_targets(few, 6) == ("n7", *few[:6])
    for count in range(9, 65):
        names = [f"n{number}" for number in range(count)]
        tried = {(name, target) for at, name in enumerate(names) for target in doctor.login_targets(names, at)}
        assert len(tried) == 3 * count
        assert not tried & {(target, source) for source, target in tried}, (
            "another pair is worth more than the way back"
        )
        assert Counter(target for _, target in tried) == dict.fromkeys(names, 3)


@pytest.mark.parametrize("role", ["target", "source"])
@pytest.mark.parametrize("count", range(9, 65))
def test_the_fault_of_a_single_node_is_found_by_the_logins_that_are_tried(count: int, role: str) -> None:
    names = [f"n{number}" for number in range(count)]
    tried = {name: doctor.login_targets(names, at) for at, name in enumerate(names)}
    for bad in names[:: max(1, count // 9)]:
        reports = {}
        for name, targets in tried.items():
            failed = [target for target in targets if (name if role == "source" else target) == bad]
            failures = tuple(login_probe.LoginFailure(target, "timeout", "timed out") for target in failed)
            reports[name] = login_probe.LoginReport(
                mesh=True, passed=len(targets) - len(failed), failures=failures, targets=targets
            )
        view = View(tuple(Host(name, name) for name in names), {}, logins=reports)
        (found,) = logins.findings(view)
        assert found.hosts == (bad,)
        (note,) = [note for note in registry.notes(view) if note.startswith("Logins between nodes")]
        assert f"each of {count} nodes was asked to try 3 others" in note


def test_unlike_causes_are_not_told_as_one() -> None:
    """Two nodes of one cause are one line, with one of them as the example; a third with another cause has its own."""
    hosts = {
        "node1": "node1 (10.0.0.1 port 22)",
        "node2": "node2 (10.0.0.2 port 22)",
        "node3": "node3 (10.0.0.3 port 22)",
    }
    said = {
        "node1": f"{hosts['node1']} gave no readable record: the login ended; look for 'exit'.",
        "node2": f"{hosts['node2']} gave no readable record: the login ended; look for 'exit'.",
        "node3": f"{hosts['node3']}: PATH of its sessions is '/opt', and lacks /usr/bin; write all folders out.",
    }
    failures = {name: ProbeFailure(name, "error", words) for name, words in said.items()}
    found = [
        one for one in registry.diagnose(dataclasses.replace(seen(), failures=failures)) if one.check == "reachable"
    ]
    assert [one.hosts for one in found] == [("node1", "node2"), ("node3",)]
    assert found[0].cause.startswith("could not be looked at, for example node1 (10.0.0.1 port 22) gave")
    assert found[1].cause.startswith("node3 (10.0.0.3 port 22): PATH")
