"""Jobs with an account of their own (``cluster_user``): root on one node, and a stolen key, gain nothing elsewhere."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from clusterctl.diagnosis import doctor
from clusterctl.sandbox.model import ssh_options
from clusterctl.validation import run as validation
from validated import CLUSTERCTL, NODES, Cluster

pytestmark = pytest.mark.cluster

USER = "mpi"
LOGIN_KEYS = "/home/cluster/.ssh/authorized_keys"
KEYS = f"/home/{USER}/.ssh/authorized_keys"
MESH = "# BEGIN clusterctl ssh_mesh"


@dataclass
class Jobs:
    """The cluster with ``cluster_user``, and a guest whose key the login user's file held at first."""

    cluster: Cluster
    inventory: Path
    guest: Path
    first: dict[str, Any]

    def provision(self, *options: str) -> tuple[int, dict[str, Any], str]:
        return provision(self.inventory, *options)

    def ssh(self, key: Path, node: str, *argv: str, user: str = USER) -> subprocess.CompletedProcess[str]:
        """Log in from this machine."""
        box = self.cluster.box
        command = ["ssh", "-n", "-o", "BatchMode=yes", "-i", str(key), *ssh_options(box), "-l", user]
        command += ["--", box.node(node).address, *argv]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run a script as a job of one rank on the first node."""
        command = [*CLUSTERCTL, "run", str(self.inventory), "--timeout", "60", "-np", "1", "--", "sh", "-c", script]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def provision(inventory: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    argv = [*CLUSTERCTL, "provision", "--yes", "--no-validate", "--format", "json", *options, str(inventory)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def ways_to_root(lines: Any) -> list[str]:
    return [line for line in lines if line.startswith("Jobs run as ")]


@pytest.fixture(scope="module")
def jobs(fresh_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    box = fresh_cluster.box
    guest = tmp_path_factory.mktemp("guest") / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "guest", "-f", str(guest)], check=True)
    inventory = box.inventory.with_name("job-user.ini")  # beside the variables of the cluster
    inventory.write_text(box.inventory.read_text() + f"cluster_user={USER}\n")
    public = f"no-port-forwarding {guest.with_suffix('.pub').read_text()}"
    for node in NODES:
        fresh_cluster.on(node, "sh", "-c", f'printf %s "$1" >> {LOGIN_KEYS}', "sh", public)
    code, first, said = provision(inventory)
    assert code == 0, said
    return Jobs(fresh_cluster, inventory, guest, first)


def test_the_account_is_made_and_the_mesh_moves_to_it(jobs: Jobs) -> None:
    assert ways_to_root(jobs.first["warnings"]) == []
    entries = {jobs.cluster.on(node, "getent", "passwd", USER) for node in NODES}
    (entry,) = entries  # with one uid
    assert entry.endswith(f":/home/{USER}:/bin/bash")
    for node in NODES:
        on = jobs.cluster.on
        assert on(node, "sh", "-c", f"getent shadow {USER} | cut -d: -f2") == "*"
        assert on(node, "id", "-Gn", USER) == USER
        assert "not allowed to run sudo" in on(node, "sudo", "-n", "-l", "-U", USER)
        login = on(node, "cat", LOGIN_KEYS)
        assert MESH not in login
        assert "clusterctl:" not in login
        people = [line for line in login.splitlines() if line]
        assert len(people) == 2  # the sandbox's own key, and the guest's: nothing of them is lost
        lines = on(node, "cat", KEYS).splitlines()
        assert [line for line in lines if line in people] == people
        mesh = [line for line in lines if " clusterctl:node" in line]
        assert len(mesh) == len(NODES)
        assert all(line.startswith('restrict,pty,from="') for line in mesh)


def test_a_job_runs_and_can_not_become_root_on_any_node(jobs: Jobs) -> None:
    record = validation.validate(jobs.inventory, validation.ValidationOptions(checks=("hello",), remembered=False))
    assert {one.check: one.verdict for one in record.checks}["hello"] == "PASS"
    here = "id -un; echo $HOME; sudo -n id -u || echo refused here"
    done = jobs.run(f"{here}; ssh node2 id -un; ssh node2 sudo -n id -u || echo and there")
    assert done.stdout.split("\n") == [USER, f"/home/{USER}", "refused here", USER, "and there", ""], done.stderr


def test_a_stolen_mesh_key_opens_nothing_from_elsewhere_and_forwards_nothing(jobs: Jobs, tmp_path: Path) -> None:
    stolen = tmp_path / "stolen"
    stolen.write_text(jobs.cluster.on("node1", "cat", f"/home/{USER}/.ssh/id_clusterctl") + "\n")
    stolen.chmod(0o600)
    refused = jobs.ssh(stolen, "node2", "true")
    assert (refused.returncode, "Permission denied" in refused.stderr) == (255, True)
    take = f'umask 77; printf %s "$1" > /home/{USER}/stolen; chown {USER} /home/{USER}/stolen'
    jobs.cluster.on("node3", "sh", "-c", take, "sh", stolen.read_text())
    login = f"ssh -o BatchMode=yes -o IdentitiesOnly=yes -F none -i /home/{USER}/stolen -o StrictHostKeyChecking=yes"
    address = jobs.cluster.box.node("node2").address
    script = f"{login} {address} true 2>&1; rm /home/{USER}/stolen; ssh -o ExitOnForwardFailure=yes -R 0:localhost:22"
    said = jobs.cluster.on("node3", "runuser", "-u", USER, "--", "sh", "-c", f"cd; {script} node2 true 2>&1; true")
    assert "Permission denied" in said  # node1's key, from node3
    assert "remote port forwarding failed" in said


def test_doctor_logs_in_as_that_user_and_tells_of_a_way_to_root_once(jobs: Jobs) -> None:
    found = doctor.examine(jobs.inventory)
    assert (found.findings, ways_to_root(found.notes)) == ((), [])
    assert len(ways_to_root(doctor.examine(jobs.cluster.box.inventory).notes)) == 1


@pytest.mark.long
def test_a_key_that_was_taken_from_the_login_user_goes_at_the_next_provision(jobs: Jobs) -> None:
    assert jobs.ssh(jobs.guest, "node4", "id", "-un").stdout == f"{USER}\n"
    for node in NODES:
        jobs.cluster.on(node, "sed", "-i", "/guest/d", LOGIN_KEYS)
    code, record, said = jobs.provision()
    assert code == 0, said
    assert LOGIN_KEYS in " ".join(record["reasons"].values())
    refused = jobs.ssh(jobs.guest, "node4", "id", "-un")
    assert (refused.returncode, "Permission denied" in refused.stderr) == (255, True)
    assert jobs.ssh(jobs.cluster.box.private_key, "node4", "id", "-un").stdout == f"{USER}\n"


@pytest.mark.parametrize(
    ("user", "code", "says"),
    [
        ("root", 1, "cluster_user is 'root', but jobs are to run without privileges"),
        ("www-data", 2, "user www-data has the shell /usr/sbin/nologin and cannot log in"),
    ],
)
def test_an_account_that_is_not_for_jobs_is_refused(jobs: Jobs, user: str, code: int, says: str) -> None:
    before = jobs.cluster.on("node1", "cat", KEYS)
    ended, record, said = jobs.provision("-e", f"cluster_user={user}")
    assert ended == code
    assert says in " ".join((said + json.dumps(record)).split())
    assert jobs.cluster.on("node1", "cat", KEYS) == before


def test_without_it_the_mesh_moves_back_and_the_way_to_root_is_told(jobs: Jobs) -> None:
    record, _ = jobs.cluster.provision()
    (words,) = ways_to_root(record["warnings"])  # one line for all nodes
    assert words.startswith("Jobs run as user cluster, who may use sudo without a password: ")
    assert "Set cluster_user" in words
    for node in NODES:
        assert MESH not in jobs.cluster.on(node, "cat", KEYS)
        assert MESH in jobs.cluster.on(node, "cat", LOGIN_KEYS)
