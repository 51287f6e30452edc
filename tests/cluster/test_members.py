"""Nodes that leave the cluster, alive or dead: no other node lets them in or knows them any more."""

from __future__ import annotations

import contextlib
import json
import subprocess
from typing import TYPE_CHECKING, Any

import planting
import pytest
from clusterctl.model.results import Verdict
from validated import CLUSTERCTL, NODES, Cluster, result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterctl.sandbox import Sandbox

pytestmark = pytest.mark.cluster

# What a node knows of the others: every file that the roles write, and the users' own.
TRACES = r"grep -rlE '{words}' /etc /home /root /usr/local/etc 2> /dev/null | grep -v '^/etc/ssl/'; true"


@pytest.fixture(scope="module")
def cluster(sandbox: Callable[..., Sandbox]) -> Cluster:
    """Four nodes with MPI alone, whose members this module changes."""
    found = Cluster(sandbox("members", nodes=len(NODES)))
    found.provision()
    return found


def changed(cluster: Cluster, verb: str, *words: str) -> dict[str, Any]:
    """Run a verb that changes members, and return the record of it."""
    argv = [*CLUSTERCTL, verb, str(cluster.box.inventory), *words, "--yes", "--format", "json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    assert record["verb"] == verb
    return {**record, "returncode": done.returncode}


def refused(cluster: Cluster, verb: str, *words: str) -> str:
    """Run a verb with bad input, and return what it says."""
    argv = [*CLUSTERCTL, verb, str(cluster.box.inventory), *words, "--yes"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert len(done.stderr.splitlines()) <= 2, done.stderr  # the phase, and one sentence
    return done.stderr.splitlines()[-1]


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


def logins(cluster: Cluster, origin: str, targets: tuple[str, ...]) -> list[str]:
    """Return the nodes that let a node in by its mesh key, at their addresses."""
    options = "-o BatchMode=yes -o ConnectTimeout=5 -o StrictHostKeyChecking=no -i .ssh/id_clusterctl"
    script = 'cd; for at in "$@"; do ssh -n $OPTIONS $at true && echo $at; done; true'
    places = {cluster.box.node(name).address: name for name in targets}
    command = f"OPTIONS='{options}' sh -c '{script}' sh {' '.join(places)}"
    return [places[at] for at in cluster.on(origin, "su", "-", "cluster", "-c", command).split()]


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
    assert logins(cluster, "node1", rest) == list(rest)
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
