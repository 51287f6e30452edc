"""Provisioning real nodes: interrupted, locked out, with a node dying, repeated with nothing to do."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import installed
import pexpect
import pytest
from clusterctl import sandbox as sandboxes
from clusterctl.sandbox import container_engine
from clusterctl.sandbox.container_engine import Podman
from clusterctl.state import paths, runs

pytestmark = pytest.mark.cluster

PASSWORD = "correct horse battery"  # noqa: S105 - of a user in a container that lives for this test


@dataclass(frozen=True)
class Cluster:
    """Two nodes, and a state folder of this test's own (the cache of artifacts is the user's)."""

    sandbox: sandboxes.Sandbox
    state: Path
    podman: Podman
    program: str

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "XDG_STATE_HOME": str(self.state)}

    def command(self, *options: str, inventory: Path | None = None) -> list[str]:
        return [self.program, "provision", str(inventory or self.sandbox.inventory), "--no-validate", *options]

    def start(self, *options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*options),
            env=self.environment,
            start_new_session=True,  # so that the whole group can be killed
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *options: str, inventory: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = self.command(*options, inventory=inventory)
        wide = {**self.environment, "COLUMNS": "400"}  # words of a table stay in one line
        return subprocess.run(
            command, env=wide, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )

    def record(self) -> dict[str, object]:
        (latest,) = self.state.glob("clusterctl/clusters/inventory-*/runs/latest/run.json")
        return dict(json.loads(latest.read_text(encoding="utf-8")))

    def stages(self) -> dict[str, dict[str, Any]]:
        """Return what the last run says of each of its stages."""
        timing = self.record()["timing"]
        return {stage["stage"]: stage for stage in timing["stages"]}  # type: ignore[index]

    def outcomes(self) -> dict[str, str]:
        return {host["host"]: host["outcome"] for host in self.record()["hosts"]}  # type: ignore[attr-defined]

    def on(self, node: str, *argv: str, stdin: str = "") -> str:
        return self.podman.run("exec", "-i", self.sandbox.node(node).container, *argv, stdin=stdin.encode()).decode()


@pytest.fixture(scope="module")
def cluster(sandbox: Callable[..., sandboxes.Sandbox], tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Two nodes, and clusterctl from its wheel in an empty environment, as users have it."""
    folder = tmp_path_factory.mktemp("controller")
    controller = installed.from_the_lock(folder / "environment", installed.build_wheel(folder))
    (program,) = controller.argv("clusterctl")
    return Cluster(sandbox("provision", nodes=2), tmp_path_factory.mktemp("state"), container_engine.find(), program)


def wait_for(process: subprocess.Popen[str], words: str) -> None:
    """Read what the run says until it says these words."""
    assert process.stderr is not None
    heard = []
    for line in process.stderr:
        heard.append(line)
        if words in line:
            return
    pytest.fail(f"the run ended without '{words}':\n{''.join(heard)}")


def wait_until(happened: Callable[[], bool], what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(0.3)


def strangers_on(cluster: Cluster, node: str) -> list[str]:
    """Return the commands on a node that a bare node does not run."""
    lines = cluster.on(node, "ps", "-eo", "stat=,args=").splitlines()
    usual = ("podman-init", "catatonit", "sshd: /usr/sbin/sshd -D", "ps -eo")
    return [line for line in lines if not line.startswith("Z") and not any(word in line for word in usual)]


def left_on_controller(mark: str) -> list[str]:
    """Return the commands whose environment or arguments carry the mark of a run."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        try:
            if mark.encode() in (process / "environ").read_bytes() + (process / "cmdline").read_bytes():
                found.append((process / "cmdline").read_text(encoding="utf-8").replace("\0", " "))
        except OSError:
            continue
    return found


def test_one_dead_host_stops_all_before_anything_is_changed(cluster: Cluster, tmp_path: Path) -> None:
    text = cluster.sandbox.inventory.read_text(encoding="utf-8")
    broken = tmp_path / "broken.ini"
    broken.write_text(
        text.replace("[nodes]\n", "[nodes]\ndead ansible_host=127.0.0.1 ansible_port=1\n"), encoding="utf-8"
    )
    before = cluster.on("node1", "cat", "/etc/hosts")
    done = cluster.run("--timing", "-e", "hosts_domain=[1]", inventory=broken)
    assert done.returncode == 4, done.stderr
    assert "dead (127.0.0.1 port 1) refuses connections" in done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("total ")], "a run that fails is measured too"
    assert "hosts_domain" in done.stderr, "what preflight finds stands in the same table"
    assert "Stopped before anything was changed" in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "--skip-unreachable" in line]
    assert "--max-fail N|P%" in line
    assert cluster.on("node1", "cat", "/etc/hosts") == before


def test_check_changes_nothing_and_the_second_run_hears_who_holds_the_lock(cluster: Cluster) -> None:
    before = cluster.on("node1", "sh", "-c", "cat /etc/hosts; ls /usr/local /etc/ssh")
    with cluster.start("--check", "--diff") as first:
        wait_for(first, "] hosts")
        second = cluster.run()
        assert second.returncode == 1
        assert f"(process {first.pid}, since " in second.stderr
        assert "node1 is held by" in second.stderr
        _, rest = first.communicate()
    assert first.returncode == 0, rest
    assert rest.count("\n") < 600, "fresh nodes: small files and names, not the text of every program"
    assert set(cluster.outcomes().values()) == {"changed"}
    assert cluster.on("node1", "sh", "-c", "cat /etc/hosts; ls /usr/local /etc/ssh") == before


def test_sudos_password_is_asked_once_and_kept_nowhere(cluster: Cluster) -> None:
    cluster.on("node1", "chpasswd", stdin=f"cluster:{PASSWORD}\n")
    cluster.on("node2", "chpasswd", stdin=f"cluster:{PASSWORD}\n")
    rule = "cluster ALL=(ALL) ALL\n"
    files = cluster.on("node1", "sh", "-c", "grep -l cluster /etc/sudoers /etc/sudoers.d/*").split()
    assert len(files) == 1
    before = cluster.on("node1", "cat", files[0])
    try:
        for node in ("node1", "node2"):
            cluster.on(node, "tee", files[0], stdin=rule)
        refused = cluster.run("--tags", "hosts")
        assert refused.returncode == 2, refused.stderr
        assert "cannot use sudo without a password" in refused.stderr
        assert "-K" in refused.stderr
        command = cluster.command("-K", "--yes", "--tags", "hosts")
        terminal = pexpect.spawn(
            command[0], command[1:], env=cluster.environment, encoding="utf-8", timeout=120, dimensions=(40, 160)
        )
        terminal.expect("password on the hosts:")
        terminal.sendline(PASSWORD)
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert terminal.exitstatus == 0, terminal.before
        assert PASSWORD not in str(terminal.before)
    finally:
        for node in ("node1", "node2"):
            cluster.on(node, "tee", files[0], stdin=before)
    kept = b"".join(path.read_bytes() for path in cluster.state.rglob("*") if path.is_file())
    assert PASSWORD.encode() not in kept


@pytest.fixture
def empty_cache(tmp_path: Path) -> Iterator[Path]:
    """Yield a cache with sources and no artifact, so that a run has to compile."""
    sources = paths.cache_dir().value / "sources"
    cache = tmp_path / "cache"
    cache.mkdir()
    if sources.is_dir():
        shutil.copytree(sources, cache / "sources")
    yield cache
    shutil.rmtree(cache)


def test_ctrl_c_leaves_nothing_anywhere(cluster: Cluster, empty_cache: Path) -> None:
    with cluster.start("-e", f"preflight_cache_dir={empty_cache}") as process:
        wait_for(process, ": configure")
        assert strangers_on(cluster, "node1"), "a compile is going on"
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert time.monotonic() - began < 30
    assert left_on_controller(str(cluster.state)) == []
    for node in ("node1", "node2"):
        wait_until(lambda node=node: not strangers_on(cluster, node), f"{node} still works for a run that ended")  # type: ignore[misc]
    assert cluster.on("node1", "ls", "/var/tmp") == "", "the build's folder went with the build"  # noqa: S108
    record = cluster.record()
    assert (record["outcome"], record["exit_code"]) == ("interrupted", 130)


def test_a_killed_run_is_recorded_as_killed(cluster: Cluster) -> None:
    with cluster.start() as process:
        wait_for(process, "] hosts")
        folder = Path(str(cluster.record()["folder"]))
        assert runs.settled(folder).outcome == "running"
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    found = runs.settled(folder)
    assert (found.outcome, found.exit_code, found.hosts) == ("killed", None, ())
    assert abs(time.time() - found.finished.timestamp()) < 30
    assert cluster.record()["outcome"] == "killed", "it is written down"
    wait_until(lambda: left_on_controller(str(cluster.state)) == [], "Ansible outlives the command that started it")


@pytest.fixture(scope="module")
def sudo_word(cluster: Cluster) -> str:
    """Put sudo's password into the inventory, as users do: a variable that names one of a vault."""
    variables = cluster.sandbox.inventory.parent / "group_vars" / "all.yml"
    known = json.loads(variables.read_text(encoding="utf-8"))
    more = {"ansible_become_password": "{{ vault_sudo }}", "vault_sudo": PASSWORD}
    variables.write_text(json.dumps({**known, **more}), encoding="utf-8")
    return PASSWORD


@pytest.mark.usefixtures("sudo_word")  # while sudo asks for none
def test_the_next_run_goes_on_to_the_end(cluster: Cluster) -> None:
    done = cluster.run("--timing")
    assert done.returncode == 0, done.stderr
    stages = cluster.stages()
    assert stages["software"]["run"] > 0
    assert stages["ssh_mesh"]["wall_s"] > 0
    assert [line for line in done.stderr.splitlines() if line.startswith("total ")]
    assert cluster.on("node2", "/usr/local/openmpi/bin/mpirun", "--version").startswith("mpirun (Open MPI)")


def test_a_run_with_nothing_to_do_does_not_start_ansible(cluster: Cluster) -> None:
    done = cluster.run("--timing")
    assert done.returncode == 0, done.stderr
    assert set(cluster.stages()) == {"reading the inventory", "looking at 2 hosts"}
    record = cluster.record()
    assert record["outcome"] == "nothing to do"
    assert all(host["changed"] == 0 for host in record["hosts"])  # type: ignore[attr-defined]
    assert not (Path(str(record["folder"])) / "ansible.log").exists()


def test_a_changed_variable_plays_the_roles_that_read_it_alone(cluster: Cluster) -> None:
    inventory = cluster.sandbox.inventory
    before = inventory.read_text(encoding="utf-8")
    line = "\n[all:vars]\nenvironment_variables={'SCALE': '3'}\n"
    for text, told in ((before + line, 'SCALE="3"'), (before, "")):
        inventory.write_text(text, encoding="utf-8")
        done = cluster.run("--timing")
        assert done.returncode == 0, done.stderr
        assert cluster.record()["reasons"] == dict.fromkeys(("node1", "node2"), "variables of environment changed")
        assert "environment" in cluster.stages()
        assert not {"hosts", "validation"} & set(cluster.stages())
        assert told in cluster.on("node2", "cat", "/etc/environment")
        assert ("SCALE" in cluster.on("node2", "cat", "/etc/environment")) is bool(told)
        assert cluster.run().returncode == 0
        assert cluster.record()["outcome"] == "nothing to do"
    cluster.on("node2", "rm", "/usr/local/openmpi")  # what the roles that were left out told is watched on
    assert cluster.run().returncode == 0
    assert "/usr/local/openmpi differs: missing" in str(cluster.record()["reasons"])


@pytest.mark.long
def test_full_plays_all_roles_where_nothing_differs_and_changes_nothing(cluster: Cluster) -> None:
    done = cluster.run("--full")
    assert done.returncode == 0, done.stderr
    record = cluster.record()
    assert record["reasons"] == dict.fromkeys(("node1", "node2"), "asked for by an option")
    assert all(host["changed"] == 0 for host in record["hosts"])  # type: ignore[attr-defined]
    assert "ok: [node2]" in (Path(str(record["folder"])) / "ansible.log").read_text(encoding="utf-8")


def test_check_announces_a_copy_where_the_node_has_what_the_cache_lacks(cluster: Cluster, tmp_path: Path) -> None:
    done = cluster.run("--check", "--tags", "openmpi", "-e", f"preflight_cache_dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "would copy openmpi" in done.stderr
    assert "would build" not in done.stderr


def test_a_sudo_password_of_the_inventory_serves_the_quick_run_and_keeps_no_host_out(
    cluster: Cluster, sudo_word: str
) -> None:
    variables = cluster.sandbox.inventory.parent / "group_vars" / "all.yml"
    file = cluster.on("node1", "sh", "-c", "grep -l cluster /etc/sudoers /etc/sudoers.d/*").strip()
    before = cluster.on("node1", "cat", file)
    try:
        for node in ("node1", "node2"):
            cluster.on(node, "chpasswd", stdin=f"cluster:{sudo_word}\n")
            cluster.on(node, "tee", file, stdin="cluster ALL=(ALL) ALL\n")
        done = cluster.run()
        assert done.returncode == 0, done.stderr
        assert cluster.record()["outcome"] == "nothing to do"
        job = [cluster.program, "run", str(cluster.sandbox.inventory), "-np", "2", "--", "id", "-un"]
        ran = subprocess.run(job, env=cluster.environment, capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stdout) == (0, "cluster\ncluster\n"), ran.stderr
        right = variables.read_text(encoding="utf-8")
        variables.write_text(right.replace(sudo_word, "wrong"), encoding="utf-8")
        refused = cluster.run()
        variables.write_text(right, encoding="utf-8")
        assert refused.returncode == 2, refused.stderr
        assert "correct ansible_become_password" in refused.stderr
    finally:
        for node in ("node1", "node2"):
            cluster.on(node, "tee", file, stdin=before)
    kept = b"".join(path.read_bytes() for path in cluster.state.rglob("*") if path.is_file())
    assert sudo_word.encode() not in kept


def test_drift_is_named_and_repaired_and_the_repair_is_audited(cluster: Cluster) -> None:
    assert cluster.run().returncode == 0
    assert cluster.record()["outcome"] == "nothing to do"
    cluster.on("node2", "chmod", "0600", "/etc/ssh/ssh_known_hosts")
    done = cluster.run("--tags", "ssh_mesh")
    assert done.returncode == 0, done.stderr
    assert cluster.record()["reasons"] == {"node2": "/etc/ssh/ssh_known_hosts differs: mode 0600, was 0644"}
    assert cluster.outcomes() == {"node1": "ok", "node2": "changed"}
    assert cluster.on("node2", "stat", "-c", "%a", "/etc/ssh/ssh_known_hosts").strip() == "644"
    audited = [json.loads(line) for line in cluster.on("node2", "cat", "/var/log/clusterctl/audit.jsonl").splitlines()]
    of_run = [entry for entry in audited if entry["run"] == cluster.record()["run_id"]]
    assert [entry["action"] for entry in of_run] == ["clusterctl.hpc.file_set"]
    assert any("/etc/ssh/ssh_known_hosts" in change for change in of_run[0]["changes"])
    assert of_run[0]["user"] == cluster.record()["user"]
    assert cluster.on("node2", "stat", "-c", "%a %U", "/var/log/clusterctl/audit.jsonl") == "640 root\n"
    assert cluster.record()["run_id"] not in cluster.on("node1", "cat", "/var/log/clusterctl/audit.jsonl")


class Watch(threading.Thread):
    """Looks through the arguments and environments of all processes of this machine, containers included."""

    def __init__(self, words: dict[str, bytes]) -> None:
        super().__init__(daemon=True)
        self.words, self.found, self.looks, self.ended = words, set[str](), 0, threading.Event()
        self.typed = b"none"  # how the arguments end that the user typed; a child has them until it starts its program

    def run(self) -> None:
        while not self.ended.wait(0.05):
            self.looks += 1
            for process in Path("/proc").iterdir():
                if not process.name.isdigit() or int(process.name) == os.getpid():
                    continue
                for what in ("environ", "cmdline"):
                    with contextlib.suppress(OSError):
                        data = (process / what).read_bytes()
                        if what == "environ" or not data.endswith(self.typed):
                            self.found |= {f"{name} in {what}: {data[:300]!r}" for name in self.in_bytes(data)}

    def in_bytes(self, data: bytes) -> list[str]:
        return [name for name, word in self.words.items() if word in data]

    def in_files(self, folder: Path, since: float = 0) -> list[str]:
        found = []
        for place, _, names in os.walk(folder):
            for path in (Path(place, name) for name in names):
                with contextlib.suppress(OSError):
                    status = path.lstat()
                    if stat.S_ISREG(status.st_mode) and status.st_mtime >= since and status.st_size < 1 << 26:
                        found += [f"{name} in {path}" for name in self.in_bytes(path.read_bytes())]
        return found


def test_no_secret_of_a_run_is_left_anywhere(
    cluster: Cluster, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Canaries as sudo's password in a vault, as extra variables and as a key; then every place is looked through."""
    words = {name: f"canary-{name}-{secrets.token_hex(8)}" for name in ("sudo", "vault", "extra", "json", "comment")}
    key, vault = tmp_path / "key", tmp_path / "vault-password"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", words["comment"], "-f", key], check=True)
    public = " ".join(key.with_suffix(".pub").read_text(encoding="utf-8").split()[:2])
    vault.write_text(words["vault"], encoding="utf-8")
    program = str(Path(sys.executable).with_name("ansible-vault"))
    encrypt = [program, "encrypt_string", "--vault-password-file", str(vault), "--name", "vault_sudo", words["sudo"]]
    vaulted = subprocess.run(encrypt, capture_output=True, text=True, check=True).stdout
    variables = cluster.sandbox.inventory.parent / "group_vars" / "all.yml"
    plain = json.loads(variables.read_text(encoding="utf-8"))
    kept = {name: value for name, value in plain.items() if name not in {"ansible_become_password", "vault_sudo"}}
    file = cluster.on("node1", "sh", "-c", "grep -l cluster /etc/sudoers /etc/sudoers.d/*").strip()
    before = cluster.on("node1", "cat", file)
    private = key.read_bytes().splitlines()[3]  # a line of the private half
    watch = Watch({**{name: word.encode() for name, word in words.items()}, "key": private})
    began = time.time() - 1
    try:
        lines = [json.dumps({name: value})[1:-1] + "\n" for name, value in kept.items()]
        lines.append('ansible_become_password: "{{ vault_sudo }}"\n')
        variables.write_text("".join(lines) + vaulted, encoding="utf-8")
        for node in ("node1", "node2"):
            cluster.on(node, "chpasswd", stdin=f"cluster:{words['sudo']}\n")
            cluster.on(node, "tee", file, stdin="cluster ALL=(ALL) ALL\n")
            cluster.on(node, "tee", "-a", "/home/cluster/.ssh/authorized_keys", stdin=f"{public}\n")
        options = ["-bedb_password=" + words["extra"], "-be", json.dumps({"api": words["json"]}), "-v"]
        options += ["--vault-password-file", str(vault), "--private-key", str(key)]
        watch.typed = "".join(f"{word}\0" for word in options).encode()
        watch.start()
        with cluster.start(*options) as run:
            _, said = run.communicate()
        watch.ended.set()
        watch.join()
        assert run.returncode == 0, said
    finally:
        watch.ended.set()
        variables.write_text(json.dumps(plain), encoding="utf-8")
        for node in ("node1", "node2"):
            cluster.on(node, "tee", file, stdin=before)
            cluster.on(node, "sed", "-i", f"\\#{public}#d", "/home/cluster/.ssh/authorized_keys")
    assert watch.looks > 20
    assert watch.found == set()
    assert watch.in_bytes(said.encode()) == []
    assert watch.in_files(cluster.state) == []
    ours = (str(tmp_path), str(tmp_path_factory.getbasetemp() / "group_vars"))
    left = watch.in_files(Path(tempfile.gettempdir()), began)
    assert [line for line in left if not line.partition(" in ")[2].startswith(ours)] == []
    for node in ("node1", "node2"):
        patterns = "\n".join([*words.values(), private.decode()])
        search = "grep -rlsF -D skip --exclude-dir=proc --exclude-dir=sys -f - / || true"
        assert cluster.on(node, "sh", "-c", search, stdin=patterns) == ""


@pytest.mark.long
def test_a_node_that_dies_is_repaired_by_the_next_run(cluster: Cluster) -> None:
    cluster.on("node1", "rm", "/usr/local/openmpi")
    with cluster.start() as process:
        wait_for(process, "] hosts")
        cluster.podman.run("kill", cluster.sandbox.node("node2").container)
        _, said = process.communicate()
    assert process.returncode == 4, said
    assert cluster.outcomes() == {"node1": "changed", "node2": "unreachable"}
    assert cluster.on("node1", "readlink", "/usr/local/openmpi").startswith("openmpi-"), "the others finish"
    sandboxes.up(
        sandboxes.SandboxSpec(
            name=cluster.sandbox.name, nodes=len(cluster.sandbox.nodes), images=cluster.sandbox.images
        )
    )
    done = cluster.run()
    assert done.returncode == 0, done.stderr
    assert cluster.run().returncode == 0
    assert cluster.record()["outcome"] == "nothing to do"
