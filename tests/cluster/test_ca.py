"""Certificates instead of keys (``ssh_mesh_trust: ca``): who joins touches nobody else, who is revoked is shut out."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from clusterctl.sandbox import Sandbox
from clusterctl.sandbox.model import ssh_options
from clusterctl.state import paths
from validated import CLUSTERCTL, Cluster

pytestmark = pytest.mark.cluster

ALL = ("node1", "node2", "node3")
OLD = ALL[:2]
PASSPHRASE = "correct horse canary"  # noqa: S105 - the test's own
LISTING = "find /etc /home/cluster /usr/local/etc -type f ! -name ld.so.cache -exec sha256sum {} + | sort -k2"
AUTHORIZED = "/home/cluster/.ssh/authorized_keys"


@dataclass
class Mesh:
    """The sandbox with certificates, and the inventory of its first two nodes or of all three."""

    cluster: Cluster
    folder: Path
    good: Path
    wrong: Path

    @property
    def inventory(self) -> Path:
        return self.cluster.box.inventory

    @property
    def authority(self) -> Path:
        return paths.authority_dir(paths.cluster_id(self.inventory))

    def clusterctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [*CLUSTERCTL, *words, str(self.inventory)]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=600)

    def provision(self, *options: str) -> dict[str, Any]:
        done = self.clusterctl("provision", "--yes", "--no-validate", "--format", "json", *options)
        assert done.returncode == 0, done.stderr + done.stdout
        record: dict[str, Any] = json.loads(done.stdout)
        return record

    def failing(self, *words: str) -> str:
        done = self.clusterctl(*words)
        assert done.returncode == 1, done.stderr + done.stdout
        return done.stdout

    def trust(self, word: str) -> None:
        variables = self.inventory.parent / "group_vars" / "all.yml"
        known = json.loads(variables.read_text(encoding="utf-8"))
        variables.write_text(json.dumps({**known, "ssh_mesh_trust": word}), encoding="utf-8")

    def login(self, origin: str, target: str) -> tuple[int, str]:
        ssh = "ssh -n -o BatchMode=yes -o ConnectTimeout=10"
        said = self.cluster.on(origin, "sh", "-c", f"runuser -u cluster -- {ssh} {target} hostname 2>&1; echo $?")
        text, _, code = said.rpartition("\n")
        return int(code), text

    def files(self, *nodes: str) -> dict[str, str]:
        """Return the digest of each file, by node and path."""
        return {
            f"{node}:{line.split(maxsplit=1)[1]}": line.split()[0]
            for node in nodes
            for line in self.cluster.on(node, "sh", "-c", LISTING).splitlines()
        }

    def block(self, node: str, path: str) -> list[str]:
        lines = self.cluster.on(node, "cat", path).splitlines()
        return lines[lines.index("# BEGIN clusterctl ssh_mesh") + 1 : lines.index("# END clusterctl ssh_mesh")]


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return sorted(path for path in {**before, **after} if before.get(path) != after.get(path))


def digest_of(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def mesh(sandbox: Callable[..., Sandbox], tmp_path_factory: pytest.TempPathFactory) -> Mesh:
    """Two of three nodes, provisioned with certificates."""
    folder = tmp_path_factory.mktemp("ca")
    files = []
    for name, text in (("good", PASSPHRASE), ("wrong", "another passphrase")):
        files.append(folder / name)
        files[-1].write_text(f"{text}\n", encoding="utf-8")
        files[-1].chmod(0o600)
    made = Mesh(Cluster(sandbox("ca", nodes=len(ALL))), folder, *files)
    whole = made.inventory.read_text(encoding="utf-8")
    (folder / "whole.ini").write_text(whole, encoding="utf-8")
    kept = [line for line in whole.splitlines() if not line.startswith("node3 ")]
    assert len(kept) < len(whole.splitlines())
    made.inventory.write_text("\n".join(kept) + "\n", encoding="utf-8")
    made.trust("ca")
    shutil.rmtree(made.authority, ignore_errors=True)  # of an earlier sandbox with this process's number
    missing = made.clusterctl("provision", "--yes", "--no-validate")
    assert missing.returncode == 1, missing.stdout
    assert "The passphrase of the new certificate authority is missing" in " ".join(missing.stderr.split())
    assert not made.authority.exists()
    made.provision("--ca-passphrase-file", str(made.good))
    return made


def test_jobs_run_with_one_line_of_trust_on_each_node(mesh: Mesh) -> None:
    for node in OLD:
        (known,) = mesh.block(node, "/etc/ssh/ssh_known_hosts")
        assert known.startswith("@cert-authority ")
        (authorized,) = mesh.block(node, AUTHORIZED)
        assert authorized.startswith('cert-authority,restrict,pty,principals="clusterctl-')
        assert {mesh.login(node, other) for other in OLD} == {(0, other) for other in OLD}
    done = subprocess.run(
        [*CLUSTERCTL, "run", str(mesh.inventory), "--timeout", "60", "--", "hostname"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert set(done.stdout.split()) == set(OLD), done.stderr
    assert mesh.provision()["outcome"] == "nothing to do"


def test_the_passphrase_is_nowhere_and_the_keys_are_encrypted(mesh: Mesh) -> None:
    needle = PASSPHRASE.encode()
    state = paths.cluster_dir(paths.cluster_id(mesh.inventory))
    assert [path for path in state.rglob("*") if path.is_file() and needle in path.read_bytes()] == []
    for kind in ("user", "host"):
        key = mesh.authority / f"{kind}_ca"
        assert key.stat().st_mode & 0o777 == 0o600
        plain = subprocess.run(["ssh-keygen", "-y", "-P", "", "-f", str(key)], capture_output=True, check=False)
        assert plain.returncode != 0
    for node in OLD:
        assert mesh.cluster.on(node, "sh", "-c", f"grep -rIl '{PASSPHRASE}' /etc /home /tmp /var/log || true") == ""


def test_a_new_node_changes_nothing_on_the_others(mesh: Mesh) -> None:
    before = mesh.files(*OLD)
    mesh.inventory.write_text((mesh.folder / "whole.ini").read_text(encoding="utf-8"), encoding="utf-8")
    mesh.provision("--limit", "node3", "--ca-passphrase-file", str(mesh.good))
    assert changed(before, mesh.files(*OLD)) == []
    address = mesh.cluster.box.node("node3").address
    for node in OLD:
        assert mesh.login("node3", node) == (0, node)
        assert mesh.login(node, address) == (0, "node3")
    mesh.provision()  # needs no passphrase: all certificates are there
    # The proof of the network, and the new name. A DNS and hosts_skip_resolvable spare the last.
    more = ("/etc/clusterctl/fabric.json", "/etc/clusterctl/hostfile", "/etc/hosts")
    assert changed(before, mesh.files(*OLD)) == [f"{node}:{path}" for node in OLD for path in more]
    assert mesh.login("node1", "node3") == (0, "node3")


def test_a_node_with_the_key_of_another_is_refused_by_name(mesh: Mesh) -> None:
    key, own = "/home/cluster/.ssh/id_clusterctl", mesh.cluster.on
    options = ("--tags", "ssh_mesh", "--ca-passphrase-file", str(mesh.good))
    for end in ("", ".pub"):
        text = own("node1", "cat", f"{key}{end}")
        own("node3", "sh", "-c", f"cat > {key}{end} <<'END'\n{text.rstrip()}\nEND")
    done = mesh.clusterctl("provision", "--yes", "--no-validate", "--format", "json", *options)
    assert done.returncode == 2, done.stdout + done.stderr
    (problem,) = json.loads(done.stdout)["problems"]
    assert problem["host"] == "node3"
    assert "node3 shows that of node1" in problem["problem"]
    own("node3", "rm", key, f"{key}.pub")
    mesh.provision(*options)
    assert {mesh.login(node, other) for node in ALL for other in ALL} == {(0, other) for other in ALL}


def test_a_wrong_passphrase_changes_nothing(mesh: Mesh) -> None:
    before, authority = mesh.files("node1"), digest_of(mesh.authority)
    for words in (("ca", "renew"), ("provision", "--yes", "--no-validate")):
        done = subprocess.run(
            [*CLUSTERCTL, *words, str(mesh.inventory), "--ca-passphrase-file", str(mesh.wrong)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert "The passphrase does not open" in " ".join(done.stderr.split())
    variables = mesh.folder / "variables.json"  # as a vault would give it
    variables.write_text(json.dumps({"ssh_mesh_ca_passphrase": "another passphrase"}), encoding="utf-8")
    done = mesh.clusterctl("provision", "--yes", "--no-validate", "--format", "json", "-e", f"@{variables}")
    assert done.returncode == 1, done.stderr
    (problem,) = json.loads(done.stdout)["problems"]
    assert problem["problem"].startswith("The passphrase does not open ")
    assert digest_of(mesh.authority) == authority
    assert mesh.files("node1") == before


def test_bad_input_is_told_in_a_sentence_and_changes_nothing(mesh: Mesh) -> None:
    before, authority = mesh.files("node1"), digest_of(mesh.authority)
    good = ("--ca-passphrase-file", str(mesh.good))

    def told(*words: str) -> str:
        done = mesh.clusterctl(*words)
        assert done.returncode == 1, (words, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return " ".join((done.stderr + done.stdout).split())

    provision = ("provision", "--yes", "--no-validate")
    nonsense = json.loads(mesh.failing(*provision, "--format", "json", "-e", "ssh_mesh_trust=nonsense"))
    said = " ".join(one["problem"] for one in nonsense["problems"])
    assert "ssh_mesh_trust" in said
    assert "keys, ca" in said
    for command in ("revoke", "renew"):
        words = [*CLUSTERCTL, "ca", command, str(mesh.inventory), "node9"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert (done.returncode, "node9 has no certificate" in done.stderr) == (1, True), done.stderr
    assert "passphrase is missing; give it by --ca-passphrase-file" in told("ca", "renew")
    assert digest_of(mesh.authority) == authority

    record = mesh.authority / "authority.json"
    text = record.read_text(encoding="utf-8")
    record.write_text(json.dumps({**json.loads(text), "expires": 1}), encoding="utf-8")
    for words in ((*provision, *good), ("ca", "renew", *good)):
        assert "expired on 1970-01-01; set ssh_mesh_trust to keys, provision, and remove the folder" in told(*words)
    record.write_text(text, encoding="utf-8")

    away = mesh.authority.rename(mesh.folder / "away")
    for words in (provision, (*provision, *good)):
        assert " trust it; restore it from a backup" in told(*words)
    for words in (("ca", "show"), ("ca", "renew"), ("rotate", "keys", "--yes"), ("replace", "node1", "-i")):
        assert f"{mesh.authority} is missing; restore it from a backup" in told(*words)
    assert not mesh.authority.exists()
    away.rename(mesh.authority)
    assert digest_of(mesh.authority) == authority
    assert mesh.files("node1") == before


@pytest.mark.long
def test_from_certificates_to_keys_and_back_no_login_fails(mesh: Mesh) -> None:
    # A second try, because sshd does not listen for an instant while it reads its settings again.
    ssh = "ssh -n -o BatchMode=yes -o ConnectionAttempts=3"
    loop = f"while test -e /tmp/go; do {ssh} {{0}} true || echo failed; echo tried; done"
    running = []
    for node, target in (("node1", "node2"), ("node2", "node1")):
        mesh.cluster.on(node, "touch", "/tmp/go")  # noqa: S108 - on the node
        script = f"runuser -u cluster -- sh -c '{loop.format(target)}' > /root/logins 2>&1"
        mesh.cluster.engine.run("exec", "-d", mesh.cluster.box.node(node).container, "sh", "-c", script)
        running.append(node)
    mesh.trust("keys")
    mesh.provision("--tags", "ssh_mesh")
    keys = [mesh.block(node, AUTHORIZED) for node in ALL]
    left = [mesh.cluster.on(node, "sh", "-c", "ls /etc/ssh /etc/ssh/*.d | grep clusterctl || true") for node in ALL]
    mesh.trust("ca")
    mesh.provision("--tags", "ssh_mesh", "--ca-passphrase-file", str(mesh.good))
    for node in running:
        mesh.cluster.on(node, "rm", "/tmp/go")  # noqa: S108 - as above
    time.sleep(1)
    assert all(len(lines) == len(ALL) and not any("cert-authority" in line for line in lines) for lines in keys)
    assert all("clusterctl.krl" not in names and "host-cert" not in names for names in left)
    for node in running:
        said = mesh.cluster.on(node, "cat", "/root/logins").splitlines()
        assert said.count("tried") > 5
        assert [line for line in said if line != "tried"] == []
    assert len(mesh.block("node1", AUTHORIZED)) == 1


def test_a_revoked_node_is_shut_out_everywhere(mesh: Mesh) -> None:
    lock = '{"run": "x", "host": "node1", "user": "operator", "controller": "desk", "machine": "m", "pid": 1}'
    mesh.cluster.on("node1", "sh", "-c", f"mkdir -p /run/clusterctl && echo '{lock}' > /run/clusterctl/lock")
    held = mesh.clusterctl("ca", "revoke", "node3", "-i")
    assert (held.returncode, "--take-lock" in held.stderr) == (1, True), held.stdout + held.stderr
    done = mesh.clusterctl("ca", "revoke", "node3", "--take-lock", "-i")
    assert done.returncode == 0, done.stdout + done.stderr
    for node in OLD:
        code, said = mesh.login("node3", node)
        assert code == 255, said
        assert "Permission denied" in said
        code, said = mesh.login(node, "node3")
        assert code == 255, said
        assert "revoked" in said
        assert {mesh.login(node, other) for other in OLD} == {(0, other) for other in OLD}
    shown = json.loads(mesh.clusterctl("ca", "show", "--format", "json").stdout)["nodes"]
    assert {one["node"]: one["state"] for one in shown} == {"node1": "valid", "node2": "valid", "node3": "revoked"}
    refused = mesh.clusterctl("provision", "--yes", "--no-validate", "--ca-passphrase-file", str(mesh.good))
    assert refused.returncode == 1
    assert "node3 is revoked; take it out of the inventory" in " ".join(refused.stderr.split())


def test_uninstall_leaves_an_sshd_that_lets_in_who_was_let_in_before(mesh: Mesh) -> None:
    done = mesh.clusterctl("uninstall", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    box = mesh.cluster.box
    for node in ALL:
        left = mesh.cluster.on(node, "sh", "-c", "grep -rIl clusterctl /etc/ssh; ls /etc/ssh /home/cluster/.ssh; true")
        assert "clusterctl" not in left
        ssh = ["ssh", "-n", "-o", "BatchMode=yes", "-i", str(box.private_key), *ssh_options(box), "-l", "cluster"]
        assert (
            subprocess.run([*ssh, box.node(node).address, "hostname"], capture_output=True, check=False).stdout
            == f"{node}\n".encode()
        )
