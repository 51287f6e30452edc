"""A large artifact goes from node to node: over the real ssh mesh, with a node that dies and a node that is slow."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from artifact_lab import WORK, Lab, Played
from clusterctl.sandbox import Sandbox
from validated import engine

Start = Callable[..., Sandbox]

pytestmark = [pytest.mark.cluster, pytest.mark.long]

NODES = ("node1", "node2", "node3", "node4")
MEGABYTES = 60
CHAIN = {"preflight_chain_min_hosts": 3, "preflight_chain_min_bytes": 1_000_000}
TREES = "/usr/local/demo-1.0-*"


class Chained(Lab):
    """Four nodes with an ssh mesh, and an artifact that does not compress."""

    def book(self, tasks: list[dict[str, Any]], **variables: Any) -> list[dict[str, Any]]:
        roles = [{"ansible.builtin.import_role": {"name": f"clusterctl.hpc.{role}"}} for role in ("preflight",)]
        return [{"hosts": "all", "gather_facts": False, "vars": {**CHAIN, **variables}, "tasks": [*roles, *tasks]}]

    def large(self) -> list[dict[str, Any]]:
        fill = ["dd", "if=/dev/urandom", "of=@TREE@/blob", "bs=1M", f"count={MEGABYTES}", "status=none"]
        steps = [{"name": "folder", "argv": ["mkdir", "-p", "@TREE@"]}, {"name": "fill", "argv": fill}]
        build = self.build(files=[], steps=steps, packages=[], package_options={})
        return [build, self.install()]

    def bring(self, **variables: Any) -> Played:
        return self.run(self.book(self.large(), **variables), "-vvv")

    def run(self, plays: list[dict[str, Any]], *options: str) -> Played:
        return self.ended(self.argv_of(plays, *options), timeout_s=600)

    def one_copy(self, played: Played) -> list[str]:
        """Return the copies that the controller sent."""
        return [line for line in played.text.splitlines() if " PUT " in line and "clusterctl-push-" in line]

    def whole(self, node: str) -> bool:
        sums = {self.said(one, "sh", "-c", f"cat {TREES}/blob | sha256sum") for one in (node, "node1")}
        return len(sums) == 1 and self.said(node, "sh", "-c", f"ls -a {TREES} | grep -c clusterctl.json") == "1"

    def leftovers(self, node: str) -> str:
        return self.said(node, "find", WORK, "-name", "clusterctl-push-*")


@pytest.fixture(scope="module")
def chained(sandbox: Start, tmp_path_factory: pytest.TempPathFactory) -> Chained:
    lab = Chained(sandbox("chain", nodes=len(NODES)), tmp_path_factory.mktemp("chain"))
    roles = [{"ansible.builtin.import_role": {"name": f"clusterctl.hpc.{role}"}} for role in ("hosts", "ssh_mesh")]
    played = lab.run(lab.book(roles))
    assert played.rc == 0, played.text[-3000:]
    return lab


@pytest.fixture
def fresh(chained: Chained) -> Chained:
    chained.forget()
    return chained


def test_the_controller_sends_one_copy_and_every_node_installs(fresh: Chained) -> None:
    played = fresh.bring()
    assert played.rc == 0, played.text[-3000:]
    assert len(fresh.one_copy(played)) == 1, played.text[-3000:]
    assert "3 more nodes got demo 1.0" in played.text
    assert all(fresh.whole(node) for node in NODES)
    assert not any(fresh.leftovers(node) for node in NODES)


def test_below_the_thresholds_the_controller_sends_every_copy(fresh: Chained) -> None:
    played = fresh.bring(preflight_chain_min_hosts=5)
    assert played.rc == 0, played.text[-3000:]
    assert len(fresh.one_copy(played)) == len(NODES)
    assert all(fresh.whole(node) for node in NODES)


def test_without_a_mesh_the_controller_sends_every_copy(fresh: Chained) -> None:
    key = "/home/cluster/.ssh/id_clusterctl"
    for node in NODES:
        fresh.said(node, "mv", key, f"{key}.aside")
    try:
        played = fresh.bring()
    finally:
        for node in NODES:
            fresh.said(node, "mv", f"{key}.aside", key)
    assert played.rc == 0, played.text[-3000:]
    assert "the chain leaves it out" in played.text
    assert len(fresh.one_copy(played)) == len(NODES)
    assert all(fresh.whole(node) for node in NODES)
    assert not any(fresh.leftovers(node) for node in NODES)


def test_a_node_that_dies_in_the_middle_holds_up_no_other_and_installs_no_half(fresh: Chained) -> None:
    tool = engine()
    container = fresh.box.node("node3").container

    def kill() -> None:
        until = time.monotonic() + 200
        while time.monotonic() < until:
            with contextlib.suppress(subprocess.TimeoutExpired):
                seen = fresh.ssh(
                    "node3", "sh", "-c", "cat /var/tmp/clusterctl-push-*demo* 2>/dev/null | head -c 5000000 | wc -c"
                )
                if seen.stdout.strip() == "5000000":
                    tool.run("kill", container)
                    return
            time.sleep(0.1)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        played = fresh.bring(preflight_chain_bytes_per_s=4_000_000)
    finally:
        killer.join()
        tool.run("start", container)
    wait_for(fresh, "node3")
    assert "node3" in played.text
    assert "2 more nodes got demo 1.0" in played.text, played.text[-3000:]
    assert all(fresh.whole(node) for node in ("node1", "node2", "node4"))
    assert fresh.ssh("node3", "sh", "-c", f"ls -d {TREES} /usr/local/demo").returncode != 0
    again = fresh.bring()
    assert again.rc == 0, again.text
    assert fresh.whole("node3")


def wait_for(lab: Lab, node: str) -> None:
    until = time.monotonic() + 60
    while lab.ssh(node, "true").returncode and time.monotonic() < until:
        time.sleep(0.5)


@contextlib.contextmanager
def taking_slowly(lab: Lab, node: str, rate: str) -> Iterator[None]:
    """Slow down what a node receives, at this machine's end of its link."""
    index = lab.said(node, "cat", "/sys/class/net/eth0/iflink")
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout.splitlines()
    link = next(line.split()[1].partition("@")[0] for line in links if line.startswith(f"{index}: "))
    subprocess.run(
        ["tc", "qdisc", "add", "dev", link, "root", "tbf", "rate", rate, "burst", "64kb", "latency", "400ms"],
        check=True,
    )
    try:
        yield
    finally:
        subprocess.run(["tc", "qdisc", "del", "dev", link, "root"], check=True)


@pytest.mark.long
def test_a_node_slower_than_all_others_gets_its_copy_and_holds_up_no_other(fresh: Chained) -> None:
    with taking_slowly(fresh, "node2", "6mbit"):
        played = fresh.bring(preflight_chain_bytes_per_s=6_000_000)
    assert played.rc == 0, played.text[-3000:]
    assert "node2: gets demo 1.0, and the chain goes around it" in played.text, played.text[-3000:]
    assert len(fresh.one_copy(played)) == 1
    assert all(fresh.whole(node) for node in NODES)
