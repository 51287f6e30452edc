"""Records and failures: what a probe's answer and a failed ssh become."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from clusterctl.model.facts import NodeFacts
from clusterctl.model.hosts import Host
from clusterctl.remote import facts, python, ssh_failure

CAPTURED = json.loads(
    (Path(__file__).resolve().parents[2] / "data" / "node_probe" / "ssh-failures.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("case", CAPTURED, ids=[case["case"] for case in CAPTURED])
def test_a_failed_ssh_is_told_in_one_sentence(case: dict[str, str]) -> None:
    host = Host(
        "node1", "192.0.2.11", port=2222, user="cluster", python="/usr/bin/python9", become=case["kind"] == "no_sudo"
    )
    failure = ssh_failure.classify(host, int(case["returncode"]), case["stderr"])
    assert failure.kind == case["kind"]
    for word in ("node1", "192.0.2.11", "2222"):
        assert word in failure.message
    assert "\n" not in failure.message
    assert failure.message.endswith(".")


def test_anything_else_shows_what_was_said() -> None:
    failure = ssh_failure.classify(Host("n", "192.0.2.1"), 1, "Traceback\nMemoryError\n")
    assert failure.kind == "error"
    assert "MemoryError" in failure.message


def test_a_newer_probes_keys_are_passed_over() -> None:
    record = _record_of_this_machine()
    newer = {**record, "schema_version": 2, "quantum": [], "user": {**record["user"], "shoe_size": 43}}
    assert NodeFacts.model_validate(newer).hostname == record["hostname"]


def test_the_first_driver_branch_of_each_cuda_is_told_by_number() -> None:
    cuda = NodeFacts.model_validate(_record_of_this_machine()).cuda
    assert cuda.first_branches[13] == 580


def test_a_record_survives_being_written_and_read() -> None:
    known = NodeFacts.model_validate(_record_of_this_machine())
    assert NodeFacts.model_validate_json(known.model_dump_json()) == known


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ``ssh`` that runs the remote command here: everything but the network is the real thing."""
    program = tmp_path / "ssh"
    program.write_text(
        '#!/bin/sh\nfor last; do :; done\ncase "$*" in\n'
        "*192.0.2.9*) sleep 30;;\n*192.0.2.8*) echo motd; exit 0;;\n"
        '*) echo "Welcome to the machine"; eval "$last";;\nesac\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return program


@pytest.mark.usefixtures("stand_in")
def test_every_host_is_a_record_or_a_failure(tmp_path: Path) -> None:
    hosts = [Host("a", "192.0.2.1"), Host("b", "192.0.2.2"), Host("mute", "192.0.2.8"), Host("stuck", "192.0.2.9")]
    watch = {"a": [{"path": str(tmp_path), "kind": "dir", "mode": "0000"}]}
    libraries = [{"soname": "libc.so.6"}, {"soname": "libnone.so.1", "also": ["/etc/host*"]}]
    probe = facts.gather(hosts, watch=watch, libraries=libraries, timeout_s=5)
    assert set(probe.facts) == {"a", "b"}
    assert {name: failure.kind for name, failure in probe.failures.items()} == {"mute": "error", "stuck": "timeout"}
    assert [entry["kind"] for entry in probe.facts["a"].watch] == ["dir"]
    assert probe.facts["b"].watch == ()
    libc, none = probe.facts["b"].libraries
    assert libc.path.endswith("/libc.so.6")
    assert (none.soname, none.path, none.others) == ("libnone.so.1", "", ())


@pytest.mark.usefixtures("stand_in")
def test_a_missing_interpreter_is_named() -> None:
    probe = facts.gather([Host("a", "192.0.2.1", python="/usr/bin/python9")])
    assert probe.failures["a"].kind == "no_python"
    assert "/usr/bin/python9" in probe.failures["a"].message


def test_without_an_ssh_client_the_sentence_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no ssh client" in facts.gather([Host("a", "192.0.2.1")]).failures["a"].message


def _record_of_this_machine() -> dict[str, Any]:
    program = python.program(facts.NODE_PROBE)
    reply = python.ask(program.argv(sys.executable), program.data + b"{}", 30, {"schema_version"})
    assert reply.answer is not None, reply.problem
    return reply.answer
