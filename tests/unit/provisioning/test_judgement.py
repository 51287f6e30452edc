"""What a run is told by its events: counts, problems and exit codes; and what is refused before it begins."""

from __future__ import annotations

from pathlib import Path

import pytest
from clusterctl.model.events import HostResult, TaskStartedOnHost
from clusterctl.model.hosts import InventoryOptions
from clusterctl.model.run_record import Problem
from clusterctl.provisioning import run as provisioning
from clusterctl.provisioning.playbook import End
from clusterctl.provisioning.run import ProvisionRequest, Tally
from clusterctl.support.errors import ConfigError


def result(host: str, outcome: str = "ok", **fields: object) -> HostResult:
    return HostResult(at=10.0, host=host, stage="openmpi", task="Install", outcome=outcome, **fields)  # type: ignore[arg-type]


def tally(*results: HostResult) -> Tally:
    found = Tally()
    for one in results:
        found.add(TaskStartedOnHost(at=4.0, host=one.host, stage="openmpi", task="Install"))
        found.add(one)
    return found


def test_summaries() -> None:
    found = tally(
        result("a", "changed", changes=("/etc/hosts", "openmpi 5.0.7")),
        result("a", "changed", changes=("/etc/hosts",)),
        result("a"),
        result("b", "changed"),
        result("b", "failed", message="disk full"),
        result("c", "unreachable", message="gone"),
        result("d", "failed", message="was rescued"),
    )
    end = End("failed", 2, failed=frozenset({"b"}), unreachable=frozenset({"c"}))
    a, b, c, d, e = found.summaries(["a", "b", "c", "d", "e"], end)
    assert (a.outcome, a.changed, a.changes, a.seconds) == ("changed", 2, ("/etc/hosts", "openmpi 5.0.7"), 6.0)
    assert (b.outcome, b.message, b.failed_stage, b.failed_task) == ("failed", "disk full", "openmpi", "Install")
    assert b.changes == ("Install",), "a module that names nothing is named by its task"
    assert (c.outcome, c.message) == ("unreachable", "gone")
    assert (d.outcome, d.message) == ("ok", ""), "a failure that was put right fails nobody"
    assert e.outcome == "not run"


def test_what_roles_tell_of_the_cluster_is_kept_once_and_in_order() -> None:
    found = tally(
        result("a", data={"told": ["Network: eth0."]}), result("b", data={"told": ["Network: eth0.", "More."]})
    )
    assert found.told() == ("Network: eth0.", "More.")


def test_problems_of_preflight_and_of_argument_specs() -> None:
    problem = {"host": "x", "check": "disk", "problem": "/usr/local is full", "cure": "free some space"}
    error = "x is of type <class 'str'>: <class 'a.b'> cannot be converted"
    found = tally(
        result("a", "failed", data={"problems": [problem, {**problem, "check": "variable", "kind": "configuration"}]}),
        result("b", "failed", data={"argument_errors": [error]}),
        result("b", "ok", data={"problems": [problem]}),
    ).problems()
    assert [(one.host, one.subject, one.kind) for one in found] == [
        ("x", "disk", "host"),
        ("x", "variable", "configuration"),
        ("b", "openmpi", "configuration"),
    ]
    assert found[2].problem == "x is of type <class 'str'>"


def test_a_refusal_by_a_role_is_about_what_was_asked_for() -> None:
    refused = result("a", "failed", message="No source of 9.9 is known.", data={"assertion": "sources | length > 0"})
    (problem,) = tally(refused).problems()
    assert (problem.subject, problem.problem, problem.kind) == (
        "openmpi",
        "No source of 9.9 is known.",
        "configuration",
    )


@pytest.mark.parametrize(
    ("kinds", "code"),
    [(["host"], 2), (["host", "configuration"], 1), (["unreachable", "configuration", "host"], 4)],
)
def test_the_exit_code_of_problems(kinds: list[str], code: int) -> None:
    problems = [Problem(host="a", subject="s", problem="p", kind=kind) for kind in kinds]  # type: ignore[arg-type]
    assert provisioning._verdict_of(problems)[1] == code  # noqa: SLF001 - decided apart from the run that carries it


def write(folder: Path, text: str) -> Path:
    path = folder / "inventory.ini"
    path.write_text(text, encoding="utf-8")
    return path


class Nobody:
    """An observer that is told and says nothing."""

    def phase(self, text: str) -> None: ...

    def event(self, event: object) -> None: ...

    def confirm(self, _preview: object) -> bool:
        return True

    def stopping(self, requests: int) -> None: ...


@pytest.mark.parametrize(
    ("options", "fields", "says"),
    [
        ({"private_key": "/nix/key"}, {}, "--private-key names /nix/key, which cannot be read"),
        ({}, {"tags": ("openmp",)}, "No task has the tag 'openmp'; known tags are .*hosts"),
        ({}, {"skip_tags": ("nobody",)}, "No task has the tag 'nobody'"),
        ({"extra_vars": ("@/nix/vars",)}, {}, "/nix/vars"),
    ],
)
def test_refused_before_anything_begins(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, object],
    fields: dict[str, object],
    says: str,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    request = ProvisionRequest(
        write(tmp_path, "[nodes]\nnode1 ansible_host=127.0.0.1\n"), InventoryOptions(**options), **fields
    )  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=says):
        provisioning.provision(request, Nobody())


def test_an_unreadable_key_of_the_inventory_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, f"node1 ansible_ssh_private_key_file={tmp_path}/nix\n")
    with pytest.raises(ConfigError, match=r"ansible_ssh_private_key_file of node1 names .*/nix, which cannot be read"):
        provisioning.provision(ProvisionRequest(path), Nobody())


def test_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Port 1 of loopback answers nobody: exit 4, one problem per host, Ansible is not even started."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = write(tmp_path, "node[1:2] ansible_host=127.0.0.1 ansible_port=1\n")
    record = provisioning.provision(ProvisionRequest(path, argv=("clusterctl", "provision")), Nobody())
    assert (record.exit_code, record.outcome) == (4, "unreachable")
    assert [(problem.host, problem.subject) for problem in record.problems] == [
        ("node1", "unreachable"),
        ("node2", "unreachable"),
    ]
    assert {host.outcome for host in record.hosts} == {"unreachable"}
    assert not (Path(record.folder) / "ansible.log").exists()
