"""Nodes that only a bastion reaches: a packet filter on each drops what comes from this machine.

Long: a cluster of its own.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clusterctl import sandbox as sandboxes
from clusterctl.sandbox.model import inventory_text
from validated import Cluster, mpi_alone, result

pytestmark = [pytest.mark.cluster, pytest.mark.long]

BASTION = "node1"
MEMBERS = ("node2", "node3")
NOBODY = 250  # the last number of an address that no node has
CLOSED = "2299"
FILTER = """
table inet planted {
    chain input {
        type filter hook input priority 0;
        ip saddr SOURCE drop
    }
}
"""


class Behind:
    """The members behind their bastion, and the ssh configuration that describes it."""

    def __init__(self, box: sandboxes.Sandbox, folder: Path) -> None:
        self.whole, self.folder = Cluster(box), folder
        self.address = box.node(BASTION).address
        self.gateway = f"{self.address.rpartition('.')[0]}.1"
        self.options = {
            "HostName": self.address,
            "User": "cluster",
            "IdentityFile": str(box.private_key),
            "UserKnownHostsFile": str(box.known_hosts),
            "GlobalKnownHostsFile": "none",
            "StrictHostKeyChecking": "yes",
            "IdentitiesOnly": "yes",
        }
        self.describe()
        inventory = folder / "inventory" / "inventory.ini"
        inventory.parent.mkdir()
        members = box.model_copy(update={"nodes": tuple(box.node(name) for name in MEMBERS), "inventory": inventory})
        text = inventory_text(members)
        way = f"ansible_ssh_common_args='-F {self.config} -o ProxyJump=gate "
        assert text.count("ansible_ssh_common_args='") == 1
        inventory.write_text(text.replace("ansible_ssh_common_args='", way), encoding="utf-8")
        mpi_alone(members)
        self.cluster = Cluster(members)

    @property
    def config(self) -> Path:
        return self.folder / "ssh_config"

    def describe(self, **changed: str) -> None:
        lines = [f"  {key} {value}" for key, value in {**self.options, **changed}.items()]
        self.config.write_text("\n".join(["Host gate", *lines, ""]), encoding="utf-8")

    @contextlib.contextmanager
    def dropping(self, node: str, source: str) -> Iterator[None]:
        """Have a node drop every packet of an address."""
        rules = self.folder / f"{node}.nft"
        rules.write_text(FILTER.replace("SOURCE", source), encoding="utf-8")
        self.whole.in_network_of(node, "nft", "-f", str(rules))
        try:
            yield
        finally:
            self.whole.in_network_of(node, "nft", "delete", "table", "inet", "planted")

    @contextlib.contextmanager
    def setting(self, line: str) -> Iterator[None]:
        """Have the bastion's sshd read one more line of configuration."""
        path = "/etc/ssh/sshd_config.d/00-planted.conf"
        with self.whole.with_file(path, f"{line}\n", nodes=(BASTION,)):
            self._read_again()
            yield
        self._read_again()

    def _read_again(self) -> None:
        self.whole.on(BASTION, "sh", "-c", "pkill -HUP -o sshd; sleep 1")

    def doctor(self) -> tuple[int, dict[str, Any]]:
        """Return doctor's exit code, and its finding about hosts that cannot be reached."""
        done, _ = self.cluster.run("doctor", "--format", "json")
        found = [one for one in json.loads(done.stdout)["findings"] if one["check"] in {"reachable", "host_key"}]
        assert len(found) <= 1, found
        return done.returncode, found[0] if found else {}


@pytest.fixture(scope="module")
def behind(sandbox: Callable[..., sandboxes.Sandbox], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    made = Behind(sandbox("bastion", nodes=1 + len(MEMBERS)), tmp_path_factory.mktemp("bastion"))
    with contextlib.ExitStack() as stack:
        for node in MEMBERS:
            stack.enter_context(made.dropping(node, made.gateway))
        yield made


@contextlib.contextmanager
def described(behind: Behind, **changed: str) -> Iterator[None]:
    behind.describe(**changed)
    try:
        yield
    finally:
        behind.describe()


FAULTS: dict[str, tuple[Callable[[Behind], contextlib.AbstractContextManager[None]], str]] = {
    "its port is closed": (
        lambda behind: described(behind, Port=CLOSED),
        "goes through the bastion gate, which does not answer",
    ),
    "nobody is at its address": (
        lambda behind: described(behind, HostName=f"{behind.address.rpartition('.')[0]}.{NOBODY}"),
        "goes through the bastion gate, which does not answer",
    ),
    "its name is unknown": (
        lambda behind: described(behind, HostName="no-such-gate.invalid"),
        "goes through the bastion gate, which does not answer",
    ),
    "its host key is unknown": (
        lambda behind: described(behind, UserKnownHostsFile="none"),
        "goes through the bastion gate, whose host key is unknown or has changed",
    ),
    "it refuses the login": (
        lambda behind: described(behind, User="stranger"),
        "goes through the bastion gate, which refuses the login",
    ),
    "it forwards nothing": (
        lambda behind: behind.setting("AllowTcpForwarding no"),
        "goes through the bastion gate, which forwards no connection",
    ),
    "it drops all packets": (
        lambda behind: behind.dropping(BASTION, behind.gateway),
        "did not answer through the bastion gate",
    ),
}


def test_there_is_no_other_way(behind: Behind) -> None:
    for node in MEMBERS:
        with pytest.raises(OSError, match="timed out"):
            socket.create_connection((behind.whole.box.node(node).address, 22), 3)
    code, unreached = behind.doctor()
    assert (code, unreached) != (4, {})
    assert unreached == {}, "and through the bastion all answer"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bastion_that_fails_is_named_in_one_sentence(behind: Behind, fault: str) -> None:
    plant, words = FAULTS[fault]
    with plant(behind):
        code, found = behind.doctor()
    assert code == 4
    assert tuple(found["hosts"]) == MEMBERS
    assert words in found["cause"], found
    assert found["cure"]
    assert behind.doctor()[1] == {}


def test_a_node_that_does_not_answer_the_bastion_is_named_with_it(behind: Behind) -> None:
    node = behind.whole.box.node(MEMBERS[1])
    reject = f"table inet closed {{ chain input {{ type filter hook input priority -1; ip saddr {behind.address} "
    behind.whole.in_network_of(node.name, "nft", f"{reject} tcp dport 22 reject with tcp reset; }}; }}")
    try:
        code, found = behind.doctor()
    finally:
        behind.whole.in_network_of(node.name, "nft", "delete", "table", "inet", "closed")
    assert code == 4
    assert tuple(found["hosts"]) == (node.name,)
    assert "does not answer the bastion gate" in found["cause"]


@pytest.mark.parametrize("verb", [("provision", "--yes"), ("validate",), ("uninstall", "--yes")], ids=lambda v: v[0])
def test_every_verb_says_it_with_the_exit_code_of_a_host_out_of_reach(behind: Behind, verb: tuple[str, ...]) -> None:
    with described(behind, Port=CLOSED):
        done, _ = behind.cluster.run(*verb)
    assert done.returncode in {4, 11}, done.stderr
    assert "the bastion gate, which does not answer" in " ".join(done.stderr.split())


def test_nodes_behind_a_bastion_become_a_proven_cluster(behind: Behind) -> None:
    behind.cluster.provision()
    code, unreached = behind.doctor()
    assert (code, unreached) == (0, {})
    record = behind.cluster.validate("hello", "allreduce", "network")
    assert record.verdict == "PASS", record
    assert result(record, "hello").reason.startswith(f"{2 * len(MEMBERS)} ranks on {len(MEMBERS)} nodes")
    again, _ = behind.cluster.provision()
    assert [host["changed"] for host in again["hosts"]] == [0] * len(MEMBERS)
