"""Homes as sites have them: shared, on a server that squashes root, automounted, of users that a directory knows.

libnss-extrausers stands in for LDAP: its users are not in /etc/passwd. A FUSE server stands in for NFS: root is nobody.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from clusterctl.diagnosis import doctor
from clusterctl.support.errors import ExitCode
from clusterctl.validation import run as validation
from validated import CLUSTERCTL, Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Start

pytestmark = [pytest.mark.cluster, pytest.mark.long]

NODES = ("node1", "node2")
SERVER = Path(__file__).with_name("programs") / "squashing_home.py"
UIDS = {"ada": 52001, "grace": 52002}
HOMES = {"ada": "/nfs/ada", "grace": "/auto/grace"}
PACKAGES = ("libnss-extrausers", "python3-fusepy", "libfuse2", "fuse", "autofs")
INSTALL = """
test -e /dev/fuse || mknod -m 666 /dev/fuse c 10 229
test -e /dev/autofs || mknod /dev/autofs c 10 235
apt-get -qq update
DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends "$@" >/dev/null
sed -i -E 's/^(passwd|group|shadow):.*/& extrausers/' /etc/nsswitch.conf
mkdir -p /nfs /auto
echo '/auto /etc/auto.homes --timeout=2' >/etc/auto.master
echo '* -fstype=bind :/nfs/&' >/etc/auto.homes
"""
# Its arguments: name, uid, home.
ACCOUNT = """
cd /var/lib/extrausers
echo "$1:x:$2:$2::$3:/bin/bash" >>passwd
echo "$1:x:$2:" >>group
echo "$1:*:19000:0:99999:7:::" >>shadow
chgrp shadow shadow && chmod 640 shadow
"""


class Homes:
    """Two nodes, and one server of homes for both."""

    def __init__(self, cluster: Cluster, export: Path) -> None:
        self.cluster, self.export = cluster, export
        self.servers: dict[str, subprocess.Popen[bytes]] = {}

    def serve(self, node: str) -> None:
        """Mount the homes on a node; the server runs outside its control groups and sees its files."""
        inside = ["--target", self.cluster.first_process(node), "--mount"]
        folder = os.open(self.export, os.O_RDONLY | os.O_DIRECTORY)
        program = ["/usr/bin/python3", "/root/server.py", "/nfs", str(folder)]
        argv = [*self.cluster.engine.prefix, "nsenter", *inside, "--", *program]
        try:
            self.servers[node] = subprocess.Popen(argv, pass_fds=(folder,))
        finally:
            os.close(folder)
        until = time.monotonic() + 20
        while "/nfs fuse" not in self.cluster.on(node, "cat", "/proc/1/mounts"):
            assert time.monotonic() < until
            time.sleep(0.2)

    @contextlib.contextmanager
    def silent(self, node: str) -> Iterator[None]:
        """Have the server of a node's homes stand still: whoever looks at a home there waits."""
        self.servers[node].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.servers[node].send_signal(signal.SIGCONT)

    def expired(self) -> None:
        """Wait until the automounter has taken every home away again, which it does with one that is not in use."""
        until = time.monotonic() + 90  # a login of the user keeps it in use
        while left := [node for node in NODES if "/auto/grace" in self.cluster.on(node, "cat", "/proc/1/mounts")]:
            assert time.monotonic() < until, left
            time.sleep(0.5)

    def inventory(self, name: str, **variables: str) -> Path:
        """Write one more inventory of the same nodes; ``ansible_user`` replaces the login."""
        path = self.cluster.box.inventory.with_name(f"{name}.ini")
        text = self.cluster.box.inventory.read_text()
        for key, value in variables.items():
            lines = [line for line in text.splitlines() if not line.startswith(f"{key}=")]
            text = "\n".join([*lines, f"{key}={value}", ""])
        path.write_text(text)
        return path


@pytest.fixture(scope="module")
def homes(sandbox: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Homes]:
    found = Homes(Cluster(sandbox("homes", nodes=len(NODES))), tmp_path_factory.mktemp("export"))
    found.export.chmod(0o755)
    for user in ("ada", "grace"):
        (found.export / user).mkdir(mode=0o700)
        os.chown(found.export / user, UIDS[user], UIDS[user])
    program = SERVER.read_text(encoding="utf-8")
    try:
        for node in NODES:
            on = found.cluster.on
            on(node, "sh", "-ec", INSTALL, "sh", *PACKAGES)
            on(node, "sh", "-c", 'printf %s "$1" >/root/server.py', "sh", program)
            for user, uid in UIDS.items():
                on(node, "sh", "-ec", ACCOUNT, "sh", user, str(uid), HOMES[user])
            found.serve(node)
            on(node, "setsid", "--wait", "automount", "--pid-file", "/run/autofs.pid")  # as its own group of processes
        yield found
    finally:
        for node in NODES:
            with contextlib.suppress(Exception):
                found.cluster.on(node, "sh", "-c", "kill $(cat /run/autofs.pid); umount -l /auto /nfs")
        for server in found.servers.values():
            server.send_signal(signal.SIGCONT)
            server.kill()
            server.wait()


def said(*words: str, inventory: Path) -> tuple[int, dict[str, Any], str]:
    """Run a verb; its exit code, its record and its words."""
    argv = [*CLUSTERCTL, words[0], "--format", "json", *words[1:], str(inventory)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=900)
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def provision(inventory: Path) -> dict[str, Any]:
    code, record, words = said("provision", "--yes", "--no-validate", inventory=inventory)
    assert code == 0, words + json.dumps(record)
    return record


def proves(homes: Homes, inventory: Path, user: str) -> None:
    """Hold that jobs of a user run on all nodes, that nothing is left to change, and that doctor finds nothing."""
    works(homes, inventory, user)
    record = validation.validate(
        inventory, validation.ValidationOptions(checks=("hello", "allreduce"), remembered=False)
    )
    assert record.verdict == "PASS", [check.reason for check in record.checks if check.is_bad]
    found = doctor.examine(inventory)
    assert [one for one in found.findings if one.severity == "error"] == []


def works(homes: Homes, inventory: Path, user: str) -> None:
    """Hold that nothing is left to change, and that a job of a user has its home on both nodes."""
    assert provision(inventory)["outcome"] == "nothing to do"
    words = "id -un; echo $HOME; touch $HOME/mine; ssh node2 stat -c %U $HOME/mine; rm $HOME/mine"
    argv = [*CLUSTERCTL, "run", str(inventory), "--timeout", "60", "-np", "1", "--", "sh", "-c", words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.split() == [user, HOMES[user], user], done.stderr
    owners = {path.stat().st_uid for path in (homes.export / user).rglob("*")}
    assert owners == {UIDS[user]}


def test_the_homes_are_what_they_stand_for(homes: Homes) -> None:
    on = homes.cluster.on
    for node in NODES:
        assert on(node, "sh", "-c", "grep -c ada /etc/passwd || true") == "0"
        assert on(node, "getent", "passwd", "ada") == f"ada:x:{UIDS['ada']}:{UIDS['ada']}::/nfs/ada:/bin/bash"
        assert "Permission denied" in on(node, "sh", "-c", "ls /nfs/ada 2>&1 || true")
        assert "Permission denied" in on(node, "sh", "-c", "touch /nfs/x 2>&1 || true")
        assert "/auto/grace" not in on(node, "cat", "/proc/1/mounts")
    on("node1", "runuser", "-u", "ada", "--", "sh", "-c", "echo hi >/nfs/ada/hi; chmod 600 /nfs/ada/hi")
    assert on("node2", "runuser", "-u", "ada", "--", "cat", "/nfs/ada/hi") == "hi"
    on("node2", "runuser", "-u", "ada", "--", "rm", "/nfs/ada/hi")
    assert on("node1", "runuser", "-u", "grace", "--", "sh", "-c", "cd /auto/grace && pwd") == "/auto/grace"


def test_jobs_of_a_user_of_a_directory_run_from_a_shared_home_that_squashes_root(homes: Homes) -> None:
    inventory = homes.inventory("ada", cluster_user="ada")
    provision(inventory)
    proves(homes, inventory, "ada")


def test_jobs_run_from_a_home_that_is_mounted_when_somebody_looks(homes: Homes) -> None:
    inventory = homes.inventory("grace", cluster_user="grace")
    homes.expired()
    provision(inventory)
    homes.expired()
    proves(homes, inventory, "grace")


@pytest.mark.parametrize("user", ["ada", "grace"])
def test_a_home_whose_server_does_not_answer_is_named_and_nothing_changes(homes: Homes, user: str) -> None:
    inventory = homes.inventory(user, cluster_user=user)
    provision(inventory)
    before = homes.cluster.state()
    homes.expired()  # so that the automounter has to mount what does not answer
    with homes.silent("node2"):
        code, record, words = said("provision", "--yes", "--no-validate", inventory=inventory)
        looked, examined, _ = said("doctor", inventory=inventory)
    problem = f"the home {HOMES[user]} of user {user} is on a file system that does not answer"
    cure = "mend its file server, which /proc/mounts names, or mount it anew"
    assert code == ExitCode.HOST_FAILED, words
    assert [(one["host"], one["problem"], one["cure"]) for one in record["problems"]] == [("node2", problem, cure)]
    assert record["outcome"] == "failed"
    assert looked == ExitCode.VALIDATION_FAILED
    errors = [one for one in examined["findings"] if one["severity"] == "error" and one["check"] == "job_user"]
    assert [(one["hosts"], one["cause"], one["cure"]) for one in errors] == [(["node2"], problem, cure)]
    assert homes.cluster.state() == before
    again = provision(inventory)  # all roles, since the run before it failed
    assert [host["changed"] for host in again["hosts"]] == [0] * len(NODES)
    works(homes, inventory, user)
