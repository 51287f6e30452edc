"""Drift on real nodes: each change is named, ``provision`` repairs it, and what belongs to a user is no drift."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusterctl.state import paths, snapshots
from validated import CLUSTERCTL, Cluster

pytestmark = pytest.mark.cluster

NODE, CORRUPTED = "node2", "node4"
LIMITS = "/etc/security/limits.d/planted.conf"
SSHD = "/etc/ssh/sshd_config.d/zy-planted.conf"
RAISED = (
    "/etc/security/limits.d/zz-clusterctl.conf",
    "/etc/ssh/sshd_config.d/00-clusterctl.conf",
    "/etc/ssh/sshd_config.d/zz-clusterctl.conf",
)
# One byte of the library changes; its size and its time stay.
CORRUPT = """
import os
path = os.path.realpath("/usr/local/openmpi/lib/libmpi.so.40")
status = os.stat(path)
with open(path, "r+b") as file:
    data = file.read()
    at = data.rindex(b"GCC: (") + 8
    file.seek(at)
    file.write(bytes([data[at] ^ 1]))
os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
"""


class Drifting:
    """A cluster, and a state folder of the test's own that knows its snapshot."""

    def __init__(self, cluster: Cluster, state: Path) -> None:
        self.cluster = cluster
        self.inventory = cluster.box.inventory
        self.environment = {**os.environ, "XDG_STATE_HOME": str(state)}

    def run(self, *words: str) -> tuple[int, dict[str, Any]]:
        argv = [*CLUSTERCTL, *words, str(self.inventory), "--format", "json"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=self.environment)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def drift(self, *options: str) -> tuple[int, dict[str, dict[str, str]]]:
        """Return the exit code, and by host the words of each subject."""
        code, report = self.run("drift", *options)
        return code, {host: {one["subject"]: one["words"] for one in found} for host, found in report["hosts"].items()}

    @contextlib.contextmanager
    def planted(self) -> Iterator[str]:
        """Change many things of one node; yields the path of its libmpi, which is another by one byte."""
        on = self.cluster.on
        library = on(NODE, "readlink", "-f", "/usr/local/openmpi/lib/libmpi.so.40")
        name = on(NODE, "hostname")
        files = self.cluster.with_file
        with files(LIMITS, "cluster - nofile 512\n", nodes=(NODE,)), files(SSHD, "MaxStartups 1:99:2\n", nodes=(NODE,)):
            on(NODE, "chmod", "0666", "/etc/hosts")
            on(NODE, "chmod", "0777", f"{library.partition('/lib/')[0]}/bin/mpirun")
            on(NODE, "hostname", "renamed")
            on(CORRUPTED, "python3", "-c", CORRUPT)
            try:
                yield library
            finally:
                on(NODE, "hostname", name)
                on(NODE, "rm", "-f", *RAISED)
        on(NODE, "pkill", "-HUP", "-o", "sshd")


@pytest.fixture
def drifting(mpi_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drifting:
    name = paths.cluster_id(mpi_cluster.box.inventory)
    snapshot = snapshots.read(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    snapshots.write(name, snapshot)
    return Drifting(mpi_cluster, tmp_path / "state")


def test_drift_is_named_and_repaired_and_a_users_own_key_is_none(drifting: Drifting) -> None:
    on = drifting.cluster.on
    keys = "/home/cluster/.ssh/authorized_keys"
    before = on("node3", "cat", keys)
    on("node3", "sh", "-c", f"cp -p {keys} {keys}.kept; echo 'ssh-ed25519 AAAA me@home' >> {keys}")
    try:
        assert drifting.drift("--verify") == (0, {})
    finally:
        on("node3", "mv", f"{keys}.kept", keys)
    assert on("node3", "cat", keys) == before

    with drifting.planted() as library:
        sum_of = ("sha256sum", library)
        code, found = drifting.drift()
        assert (code, list(found)) == (10, [NODE]), "the quick look reads no content"
        tree = library.partition("/lib/")[0]
        words = found[NODE]
        assert words["/etc/hosts"] == "mode 0666, was 0644"
        assert "bin/mpirun" in words[tree] or "bin/prterun" in words[tree], words
        assert "mode 0777, was 0755" in words[tree]
        assert words["host name"] == "renamed, was node2"
        assert words["limit 'cluster - nofile'"] == "512, was the default"
        assert words["limit of open files"].startswith("512, was ")
        assert "1:99:2, was " in words["sshd's MaxStartups"]
        on(NODE, "hostname", NODE)
        code, found = drifting.drift("--verify")
        assert (code, list(found)) == (10, [NODE, CORRUPTED])
        assert "first lib/libmpi.so.40" in found[CORRUPTED][tree]
        assert found[CORRUPTED][tree].endswith("(content)")

        code, record = drifting.run("provision", "--yes", "--no-validate")
        assert code == 0, record
        assert "/etc/hosts differs: mode 0666, was 0644" in record["drifted"][NODE]
        assert "(content)" in record["drifted"][CORRUPTED], "what was found once is repaired without a further option"
        changes = {host["host"]: " ".join(host["changes"]) for host in record["hosts"]}
        assert all("repaired openmpi" in changes[node] for node in (NODE, CORRUPTED)), changes
        assert on(CORRUPTED, *sum_of) == on("node1", *sum_of)
        assert on(NODE, "stat", "-c", "%a", "/etc/hosts") == "644"
        assert "1024" in on(NODE, "cat", RAISED[0])
        assert "maxstartups 10:30:100" in on(NODE, "sshd", "-T")
        assert drifting.drift("--verify") == (0, {})
