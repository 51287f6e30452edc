"""A node is asked about connections that failed, and what it answers becomes one clause or nothing."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from clusterctl.model import fabric
from clusterctl.model.hosts import Host
from clusterctl.model.probe import ProbeFailure
from clusterctl.remote import network_probe, python

NAMES = ("node1", "node2", "node3")
NETWORK = fabric.Network(
    ("10.0.0.0/24",),
    dict.fromkeys(NAMES, "eth0"),
    {name: f"10.0.0.{number}" for number, name in enumerate(NAMES, 1)},
)
FOUND = fabric.Candidates((NETWORK,), ())


def pair(source: str, target: str, kind: str = "timeout") -> Any:
    return fabric.PairResult(NETWORK.key, source, target, "", kind)


def test_only_what_a_firewall_may_have_stopped_is_asked_of_its_target() -> None:
    pairs = [pair("node1", "node2"), pair("node3", "node2", "refused"), pair("node1", "node3", "wrong_node")]
    pairs += [pair("node2", "node3", "ok"), pair("node1", "node2"), pair("node1", "node2")._replace(network="other")]
    pairs += [pair("node2", "node1", "rejected"), pair("node1", "node4", "error")]
    asked = network_probe.wanted(FOUND, pairs)
    assert list(asked) == ["node2", "node1"]
    assert [source for source, _ in asked["node2"]] == ["node1", "node3"]
    assert asked["node2"][0][1] == {"interface": "eth0", "source": "10.0.0.1", "target": "10.0.0.2"}
    assert network_probe.gather([], FOUND, [pair("node1", "node2", "ok")], timeout_s=1) == {}


RULE = {"manager": "firewalld", "place": "zone public", "rule": "reject", "is_certain": True}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (RULE, "firewalld stops them there: zone public, reject"),
        ({**RULE, "is_certain": False}, "firewalld may stop them there: zone public, reject"),
        (None, ""),
        ("x", ""),
        ({**RULE, "rule": None}, ""),
        ({**RULE, "place": []}, ""),
    ],
)
def test_an_answer_becomes_a_clause(answer: Any, expected: str) -> None:
    assert network_probe.words(answer) == expected


@pytest.mark.parametrize("output", [b"", b"motd\n[]\n", b'{"blocked": 1}', b"NaN"])
def test_an_answer_of_another_form_is_no_rule(output: bytes) -> None:
    host = Host("node1", "10.0.0.1")
    assert isinstance(network_probe._read(host, python.Ending(0, output, "")), ProbeFailure)  # noqa: SLF001


def ruled(*lines: str) -> str:
    return "\n".join(
        ["table inet filter {", "chain input { type filter hook input priority 0; policy accept;", *lines, "}", "}"]
    )


@pytest.mark.programs
def test_a_real_ruleset_is_read_by_the_program_that_travels(tmp_path: Path) -> None:
    """The program runs in a network namespace of its own, with rules of its own."""
    space = ["unshare", "--map-root-user", "--net"]
    if shutil.which("nft", path="/usr/sbin:/sbin") is None or subprocess.run([*space, "true"], check=False).returncode:
        pytest.skip("needs nft and user namespaces")
    rules = tmp_path / "rules.nft"
    rules.write_text(ruled('iifname "eth0" ip saddr 10.0.0.9 tcp dport 1024-65535 drop'), encoding="utf-8")
    program = python.program(network_probe.MODULE)
    packets = [{"interface": "eth0", "source": f"10.0.0.{last}", "target": "10.0.0.2"} for last in (9, 8)]
    argv = shlex.join(program.argv(sys.executable))
    done = subprocess.run(
        [*space, "sh", "-c", f"PATH=$PATH:/usr/sbin nft -f {shlex.quote(str(rules))} && exec {argv}"],
        input=program.data + json.dumps({"packets": packets}).encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["problem"] == ""
    first, second = answer["blocked"]
    assert first == {
        "manager": "nftables",
        "place": "chain inet filter input",
        "rule": "iifname eth0 ip saddr 10.0.0.9 tcp dport 1024-65535 drop",
        "is_certain": True,
    }
    assert second is None
