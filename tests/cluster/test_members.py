"""Nodes that leave the cluster, machines that take the place of others, and new keys for all nodes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import planting
import pytest
from clusterctl.model import host_keys
from clusterctl.model.results import Verdict
from clusterctl.sandbox import Sandbox
from validated import CLUSTERCTL, NODES, Cluster, result

pytestmark = pytest.mark.cluster

# What a node knows of the others: every file that the roles write, and the users' own.
TRACES = r"grep -rlE '{words}' /etc /home /root /usr/local/etc 2> /dev/null | grep -v '^/etc/ssl/'; true"


@pytest.fixture(scope="module")
def cluster(fresh_cluster: Cluster) -> Cluster:
    """Four nodes with MPI alone, whose members this module changes."""
    return fresh_cluster


def changed(cluster: Cluster, verb: str, *words: str) -> dict[str, Any]:
    """Run a verb that changes members, and return the record of it."""
    given = [str(cluster.box.inventory), *words] if verb != "rotate" else [*words, str(cluster.box.inventory)]
    argv = [*CLUSTERCTL, verb, *given, *_no_question(verb), "--format", "json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    assert record["verb"] == verb
    return {**record, "returncode": done.returncode}


def _no_question(verb: str) -> list[str]:
    return [] if verb == "replace" else ["--yes"]  # only the user can say that a host key is right


def refused(cluster: Cluster, verb: str, *words: str) -> str:
    """Run a verb with bad input, and return what it says."""
    argv = [*CLUSTERCTL, verb, str(cluster.box.inventory), *words, *_no_question(verb)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    said = [line for line in done.stderr.splitlines() if not line.startswith("[ ")]  # a phase begins with its time
    assert len(said) == 1, done.stderr
    return said[0]


def provisioned(cluster: Cluster, *words: str) -> dict[str, Any]:
    done, _ = cluster.run("provision", "--yes", "--no-validate", "--format", "json", *words)
    assert done.returncode == 0, done.stderr + done.stdout
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def keys(cluster: Cluster, *nodes: str) -> str:
    read = "cat /home/cluster/.ssh/authorized_keys /etc/ssh/ssh_known_hosts /etc/hosts"
    return "\n".join(cluster.on(node, "sh", "-c", read) for node in nodes)


def traces(cluster: Cluster, gone: str, nodes: tuple[str, ...]) -> dict[str, str]:
    """Return by node the files in which it still knows a node by name, address, mesh key or host key."""
    address = cluster.box.node(gone).address.replace(".", r"\.")
    public = cluster.on(gone, "sh", "-c", "cut -d' ' -f2 /home/cluster/.ssh/id_clusterctl.pub; cat /etc/ssh/*.pub")
    own = [word for word in public.split() if len(word) > 60]
    words = "|".join([rf"\b{gone}\b", rf"\b{address}\b", *(key.replace("+", r"\+") for key in own)])
    script = TRACES.format(words=words)
    return {node: found for node in nodes if (found := cluster.on(node, "sh", "-c", script))}


def logins(cluster: Cluster, origin: str, targets: tuple[str, ...], *, strict: bool = False) -> list[str]:
    """Return the nodes that let a node in by its mesh key, at their addresses.

    ``strict`` asks as a job does: by the name, and with a known host key only.
    """
    options = "-o BatchMode=yes -o ConnectTimeout=5"
    if not strict:
        options += " -o StrictHostKeyChecking=no -i .ssh/id_clusterctl"
    places = {name if strict else cluster.box.node(name).address: name for name in targets}
    script = f"cd; for at in {' '.join(places)}; do ssh -n {options} $at true && echo $at; done; true"
    return [places[at] for at in cluster.on(origin, "su", "-", "cluster", "-c", script).split()]


def all_log_in(cluster: Cluster) -> bool:
    """Whether each node soon logs in to each node as a job does; an sshd that is just reloaded gets some seconds."""
    for _ in range(5):
        if all(logins(cluster, node, NODES, strict=True) == list(NODES) for node in NODES):
            return True
        time.sleep(2)
    return False


def own_keys(cluster: Cluster, node: str) -> list[str]:
    """Return the mesh key and the ed25519 host key of a node, in base64."""
    files = "/home/cluster/.ssh/id_clusterctl.pub /etc/ssh/ssh_host_ed25519_key.pub"
    return cluster.on(node, "sh", "-c", f"cut -d' ' -f2 {files} 2> /dev/null; true").split()


def fingerprint(line: str) -> str:
    """Return the fingerprint of the key in a line of known_hosts or of a .pub file."""
    key = host_keys.found_in(line)
    return key.fingerprint


@contextlib.contextmanager
def without_line(cluster: Cluster, *nodes: str) -> Iterator[None]:
    """Delete the lines of nodes from the inventory for a while."""
    text = cluster.box.inventory.read_text(encoding="utf-8")
    kept = [line for line in text.splitlines() if line.split(" ")[0] not in nodes]
    cluster.box.inventory.write_text("\n".join(kept) + "\n", encoding="utf-8")
    try:
        yield
    finally:
        cluster.box.inventory.write_text(text, encoding="utf-8")


def test_what_cannot_be_removed_is_named_and_nothing_changes(cluster: Cluster) -> None:
    before = keys(cluster, *NODES)
    assert "no host 'node9'" in refused(cluster, "remove", "node9")
    assert "at least one" in refused(cluster, "remove", "node[1-4]")
    assert "node1 is the launch node" in refused(cluster, "remove", "node1")
    rank = ["sh", "-c", "OMPI_COMM_WORLD_RANK=0 setsid sleep 61 > /dev/null 2>&1 & echo $!"]
    # of root, because root in a container has no right to trace the processes of others
    pid = cluster.engine.text("exec", cluster.box.node("node3").container, *rank)
    try:
        busy = changed(cluster, "remove", "node3")
    finally:
        cluster.on("node3", "kill", pid)
    assert (busy["returncode"], [one["host"] for one in busy["problems"]]) == (2, ["node3"])
    assert "--while-busy" in busy["problems"][0]["cure"]
    with planting.link_down(cluster, "node2"):
        away = changed(cluster, "remove", "node3")
    assert (away["returncode"], [one["host"] for one in away["problems"]]) == (4, ["node2"])
    assert keys(cluster, *NODES) == before


def test_a_removed_node_is_shut_out_and_the_others_are_a_cluster(cluster: Cluster) -> None:
    rest = ("node1", "node2", "node4")
    assert logins(cluster, "node3", rest) == list(rest)
    removed = changed(cluster, "remove", "node3")
    assert (removed["returncode"], removed["outcome"]) == (0, "done"), removed
    assert {host["host"]: host["outcome"] for host in removed["hosts"]} == dict.fromkeys(rest, "changed")
    assert traces(cluster, "node3", rest) == {}
    assert logins(cluster, "node3", rest) == []
    assert logins(cluster, "node1", rest, strict=True) == list(rest)
    assert any(words.startswith("Delete node3 from ") for words in removed["told"])

    limited = provisioned(cluster, "--limit", "node1")
    assert not any("node3" in words for words in limited["warnings"])
    assert traces(cluster, "node3", rest) == {}, "a run on some hosts does not bring it back"
    again = changed(cluster, "remove", "node3")
    assert {host["outcome"] for host in again["hosts"]} == {"ok"}
    with without_line(cluster, "node3"):
        assert result(cluster.validate("hello"), "hello").verdict is Verdict.PASS


def test_a_dead_node_leaves_and_the_edited_inventory_has_nothing_to_do(cluster: Cluster) -> None:
    provisioned(cluster)  # node3 is in the inventory, so it comes back
    assert logins(cluster, "node3", ("node1", "node4")) == ["node1", "node4"]
    rest = ("node1", "node2", "node3")
    with planting.link_down(cluster, "node4"):
        removed = changed(cluster, "remove", "node4")
        assert (removed["returncode"], removed["outcome"]) == (0, "done"), removed
        assert any("node4 did not answer" in words for words in removed["told"])
        with without_line(cluster, "node4"):
            assert provisioned(cluster)["outcome"] == "nothing to do"
            assert result(cluster.validate("hello"), "hello").verdict is Verdict.PASS
    assert traces(cluster, "node4", rest) == {}
    assert logins(cluster, "node4", rest) == []


@pytest.fixture(scope="module")
def reinstalled(cluster: Cluster, sandbox: Callable[..., Sandbox]) -> tuple[Cluster, list[str]]:
    """A cluster in which node3 is a new machine with new keys, and the old machine's keys."""
    provisioned(cluster)
    old = own_keys(cluster, "node3")
    before = cluster.box.known_hosts.read_text(encoding="utf-8")
    cluster.engine.run("rm", "--force", "--time", "0", cluster.box.node("node3").container)
    sandbox("kept", nodes=len(NODES))
    cluster.box.known_hosts.write_text(before, encoding="utf-8")  # a real machine tells nobody of its new key
    assert not set(own_keys(cluster, "node3")) & set(old)
    return cluster, old


@pytest.mark.long
def test_a_machine_whose_host_key_is_not_confirmed_is_refused(
    reinstalled: tuple[Cluster, list[str]], tmp_path: Path
) -> None:
    cluster, _ = reinstalled
    before = cluster.box.known_hosts.read_bytes()
    known = fingerprint(before.decode().splitlines()[2])
    shown = fingerprint(cluster.on("node3", "cat", "/etc/ssh/ssh_host_ed25519_key.pub"))
    done, _ = cluster.run("provision", "--yes", "--no-validate")
    assert done.returncode == 4, done.stderr
    assert "no host 'node9'" in refused(cluster, "replace", "node9")
    unconfirmed = refused(cluster, "replace", "node3")
    assert known in unconfirmed
    assert f"--host-key {shown}" in unconfirmed
    wrong = refused(cluster, "replace", "node3", "--host-key", known)
    assert known in wrong
    assert shown in wrong
    console = tmp_path / "console.txt"
    console.write_text("login: ", encoding="utf-8")
    assert "holds no host key" in refused(cluster, "replace", "node3", "--console-output", str(console))
    assert cluster.box.known_hosts.read_bytes() == before


@pytest.mark.long
def test_a_new_machine_takes_its_place_while_the_others_work(
    reinstalled: tuple[Cluster, list[str]], tmp_path: Path
) -> None:
    cluster, old = reinstalled
    console = tmp_path / "console.txt"
    public = cluster.on("node3", "cat", "/etc/ssh/ssh_host_ed25519_key.pub")
    words = ["-----BEGIN SSH HOST KEY KEYS-----", public, "-----END SSH HOST KEY KEYS-----"]
    console.write_text("".join(f"ec2: {word}\r\n" for word in words), encoding="utf-8")
    before = cluster.box.known_hosts.read_text(encoding="utf-8").splitlines()
    rank = ["sh", "-c", "OMPI_COMM_WORLD_RANK=0 setsid sleep 300 > /dev/null 2>&1 & echo $!"]
    pid = cluster.engine.text("exec", cluster.box.node("node2").container, *rank)
    began = time.monotonic()
    replaced = changed(cluster, "replace", "node3", "--console-output", str(console))
    took = time.monotonic() - began
    print(f"replace of one node: {took:.1f} s, first provision of four: {cluster.first_s:.1f} s")  # noqa: T201 - figure
    assert (replaced["returncode"], replaced["outcome"]) == (0, "done"), replaced
    cluster.on("node2", "kill", pid)  # it worked on
    after = cluster.box.known_hosts.read_text(encoding="utf-8").splitlines()
    assert [one == two for one, two in zip(before, after, strict=True)] == [True, True, False, True]
    script = f"grep -rlF {' '.join(f'-e {key}' for key in old)} /etc /home /root 2> /dev/null; true"
    assert {node: cluster.on(node, "sh", "-c", script) for node in NODES} == dict.fromkeys(NODES, "")
    assert all_log_in(cluster)
    assert provisioned(cluster)["outcome"] == "nothing to do"
    assert result(cluster.validate("hello"), "hello").verdict is Verdict.PASS


@pytest.mark.long
def test_rotated_keys_shut_nobody_out_and_a_killed_rotation_goes_on(cluster: Cluster) -> None:
    old = {node: own_keys(cluster, node) for node in NODES}
    for what, killed_in in (("keys", "Switch to the new key"), ("host-keys", "Let sshd show the new host key")):
        argv = [*CLUSTERCTL, "rotate", what, str(cluster.box.inventory), "--yes", "--format", "jsonl"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
            assert process.stdout is not None
            next(line for line in process.stdout if killed_in in line)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert all_log_in(cluster)
        rotated = changed(cluster, "rotate", what)
        assert (rotated["returncode"], rotated["outcome"]) == (0, "done"), rotated
    words = " ".join(f"-e {key}" for keys in old.values() for key in keys)
    script = f"grep -rlF {words} /etc /home /root 2> /dev/null; ls -a /etc/ssh /home/cluster/.ssh | grep next; true"
    assert {node: cluster.on(node, "sh", "-c", script) for node in NODES} == dict.fromkeys(NODES, "")
    shown = [cluster.on(node, "cut", "-d ", "-f1,2", "/etc/ssh/ssh_host_ed25519_key.pub") for node in NODES]
    known = cluster.box.known_hosts.read_text(encoding="utf-8").splitlines()
    assert [line.split(" ", 1)[1] for line in known] == shown
    assert all_log_in(cluster)
    again = provisioned(cluster)  # it visits all nodes, because a killed run leaves no snapshot
    assert {host["host"]: host["outcome"] for host in again["hosts"]} == dict.fromkeys(NODES, "ok"), again


@pytest.mark.long
def test_a_removed_node_is_cleaned_and_a_dead_one_by_the_next_run(cluster: Cluster) -> None:
    rest = ("node1", "node2")
    with planting.link_down(cluster, "node4"):
        one = changed(cluster, "remove", "node3", "node4", "--clean")
    assert (one["returncode"], one["left_out"]) == (4, ["node4"]), one
    assert "node4, which was not cleaned" in one["message"]
    outcomes = {host["host"]: host["outcome"] for host in one["hosts"]}
    assert outcomes == {**dict.fromkeys((*rest, "node3"), "changed"), "node4": "unreachable"}
    assert cluster.on("node4", "readlink", "/usr/local/openmpi").startswith("openmpi-")
    again = changed(cluster, "remove", "node4", "--clean")
    assert (again["returncode"], again["outcome"]) == (0, "done"), again
    places = "/usr/local/openmpi* /var/lib/clusterctl /etc/clusterctl /home/cluster/.ssh/id_clusterctl"
    for node in ("node3", "node4"):
        assert cluster.on(node, "sh", "-c", f"ls -d {places} 2> /dev/null; true") == ""
        assert "node1" not in cluster.on(node, "cat", "/etc/hosts")
        assert traces(cluster, node, rest) == {}
    assert logins(cluster, "node1", rest, strict=True) == list(rest)
