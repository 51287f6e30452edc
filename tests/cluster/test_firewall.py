"""Real firewalls on nodes, ufw and firewalld from their packages: what they stop, who is named, and what opens them.

Neither needs systemd: ``ufw enable`` loads its rules, and firewalld runs beside a dbus-daemon of the node. Long:
packages are fetched, and a job waits for its deadline.
"""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clusterctl import sandbox as sandboxes
from clusterctl.sandbox import lifecycle
from validated import CLUSTERCTL, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.long]

UFW, FIREWALLD = NODES = ("node1", "node2")
JOB_S = 60
HELLO = "/usr/local/openmpi/libexec/clusterctl-hello"
INSTALL = "apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends "
# ufw and firewall-cmd write rules only where the login's root has the capability, as on a machine of its own.
MACHINE = (*lifecycle._MACHINE_LIKE, "--cap-add=NET_ADMIN")  # noqa: SLF001 - the one place where nodes get their rights
START = {
    UFW: f"{INSTALL} ufw nftables && ufw allow 22/tcp && ufw --force enable",
    FIREWALLD: f"{INSTALL} firewalld dbus netbase nftables && mkdir -p /run/dbus && "
    "{ pgrep dbus-daemon || dbus-daemon --system --fork; } && firewalld && "
    "for try in $(seq 100); do firewall-cmd --state && break; sleep 0.2; done; firewall-cmd --state",
}
RULES = {
    UFW: "ufw show added",
    FIREWALLD: "firewall-cmd --list-all-zones; firewall-cmd --permanent --list-all-zones",
}


@pytest.fixture(scope="module")
def cluster(sandbox: Callable[..., sandboxes.Sandbox]) -> Cluster:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifecycle, "_MACHINE_LIKE", MACHINE)
        made = Cluster(sandbox("firewall", nodes=len(NODES)))
    made.provision()
    return made


@pytest.fixture(scope="module")
def rules(cluster: Cluster) -> dict[str, str]:
    """Start the firewalls, and return the rules that their administrator has made."""
    for node, script in START.items():
        cluster.engine.run("exec", cluster.box.node(node).container, "sh", "-c", f"({script}) > /dev/null 2>&1")
    return held(cluster)


def held(cluster: Cluster) -> dict[str, str]:
    engine, box = cluster.engine, cluster.box
    return {node: engine.text("exec", box.node(node).container, "sh", "-c", ask) for node, ask in RULES.items()}


def works(cluster: Cluster) -> bool:
    """Tell whether a job of all nodes comes through."""
    hosts = ",".join(f"{node}:2" for node in NODES)
    argv = ("mpirun", "-np", "4", "--host", hosts, HELLO)
    command = sandboxes.ssh_command(cluster.box, cluster.box.node(UFW), argv)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=JOB_S
        )
    except subprocess.TimeoutExpired:  # what mpirun has started holds the session open
        for node in NODES:
            cluster.on(node, "sh", "-c", "pkill -KILL -u cluster 'mpirun|prterun|prted' || :")
        return False
    return done.returncode == 0 and done.stdout.count("library_version") == len(NODES) * 2


def doctor(cluster: Cluster) -> tuple[int, list[dict[str, Any]]]:
    done, _ = cluster.run("doctor", "--format", "json")
    return done.returncode, json.loads(done.stdout)["findings"]


def fabric(cluster: Cluster, **variables: Any) -> tuple[int, dict[str, Any], str]:
    options = ("--yes", "--no-validate", "--format", "json", "--tags", "fabric", "-e", json.dumps(variables))
    done, _ = cluster.run("provision", *options)
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def lets_in_this_machine(cluster: Cluster, node: str) -> bool:
    """Tell whether a machine that is no member reaches a program that listens on the node."""
    port = 45678
    listen = f"import socket,time; s=socket.create_server(('', {port})); print(1, flush=True); time.sleep(30)"
    argv = [*cluster.engine.prefix, "podman", "exec", cluster.box.node(node).container, "python3", "-c", listen]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        assert process.stdout.readline()
        try:
            socket.create_connection((cluster.box.node(node).address, port), 3).close()
        except OSError:
            return False
        else:
            return True
        finally:
            cluster.on(node, "pkill", "-f", f"{port}")
            process.kill()


def test_without_a_firewall_a_job_runs_and_a_stranger_is_let_in(cluster: Cluster) -> None:
    assert works(cluster), "nothing would be proved"
    assert lets_in_this_machine(cluster, FIREWALLD), "nothing would be proved"


def test_closed_nodes_stop_a_job_and_doctor_names_the_rule_of_each(cluster: Cluster, rules: dict[str, str]) -> None:
    assert "22" in rules[UFW]
    assert not works(cluster)
    code, found = doctor(cluster)
    assert code != 0
    told = [one for one in found if (one["check"], one["severity"]) == ("ports", "error")]
    causes = " ".join(one["cause"] for one in told)
    assert f"on {UFW} ufw stops them there: chain ip filter INPUT, policy drop" in causes, found
    assert f"on {FIREWALLD} firewalld stops them there: zone public, reject" in causes, found
    assert all("fabric_open_firewall" in one["cure"] for one in told)


def test_the_role_refuses_a_closed_network_and_names_what_opens_it(cluster: Cluster, rules: dict[str, str]) -> None:
    for node in NODES:
        cluster.on(node, "rm", "/etc/clusterctl/fabric.json")  # what all have on record is not proven again
    code, failed, said = fabric(cluster)
    assert code == 2, said
    assert any("fabric_open_firewall: true" in str(one) for one in failed["problems"]), failed["problems"]
    assert held(cluster) == rules


def test_the_opened_network_lets_in_the_members_alone(cluster: Cluster, rules: dict[str, str]) -> None:
    code, first, said = fabric(cluster, fabric_open_firewall=True)
    assert code == 0, said
    assert [host["changed"] > 0 for host in first["hosts"]] == [True] * len(NODES)
    assert works(cluster)
    code, again, said = fabric(cluster, fabric_open_firewall=True)
    assert (code, [host["changed"] for host in again["hosts"]]) == (0, [0] * len(NODES)), said
    assert [one for one in doctor(cluster)[1] if one["check"] in {"ports", "network"}] == []
    assert not any(lets_in_this_machine(cluster, node) for node in NODES)
    now = held(cluster)
    subnet = cluster.box.subnet
    assert set(now[UFW].splitlines()) - set(rules[UFW].splitlines()) == {
        f"ufw allow from {cluster.box.node(FIREWALLD).address} to {subnet} comment 'clusterctl'"
    }
    added = set(now[FIREWALLD].splitlines()) - set(rules[FIREWALLD].splitlines())
    (rule,) = {line.strip() for line in added}
    member = cluster.box.node(UFW).address
    assert rule == f'rule family="ipv4" source address="{member}" destination address="{subnet}" accept'


def test_uninstall_closes_what_was_opened_and_nothing_else(
    cluster: Cluster, rules: dict[str, str], tmp_path: Path
) -> None:
    by_hand = "ufw allow from 192.0.2.7 && ufw allow 8080/tcp"
    cluster.engine.run("exec", cluster.box.node(UFW).container, "sh", "-c", by_hand)
    argv = [*CLUSTERCTL, "uninstall", "--yes", str(cluster.box.inventory)]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    now = held(cluster)
    assert now[FIREWALLD] == rules[FIREWALLD]
    left = [line for line in now[UFW].splitlines() if "192.0.2.7" not in line and "8080" not in line]
    assert left == rules[UFW].splitlines()
    assert len(now[UFW].splitlines()) == len(left) + 2
