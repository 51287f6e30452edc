"""Two controllers provision one site: the second, a container with a state and a cache of its own, plays two nodes.

The second controller has its own sshd, and knows the nodes by their keys. It mounts this checkout and its Python.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from clusterctl.sandbox import Sandbox, container_engine
from clusterctl.sandbox.container_engine import Podman

pytestmark = [pytest.mark.cluster, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(Path(sys.executable).with_name("clusterctl"))
NODES = ("node1", "node2", "node3", "node4")
PORT = 20000 + os.getpid() % 10000
CONFIG = f"""
Port {PORT}
ListenAddress 127.0.0.1
HostKey /second/host_key
PidFile /run/sshd.pid
AuthorizedKeysFile /second/key.pub
PasswordAuthentication no
PermitRootLogin yes
StrictModes no
UsePAM no
"""
OF_A_WORKER = "clusterctl.provisioning.worker work"


@dataclass(frozen=True)
class Second:
    """The second controller, and the inventory that names it."""

    podman: Podman
    container: str
    folder: Path
    login: str  # how the inventory of the workers names it

    def on(self, script: str) -> str:
        return self.podman.run("exec", self.container, "sh", "-c", script).decode()

    def workers(self, name: str, variables: str = "") -> str:
        path = self.folder / f"{name}.ini"
        path.write_text(f"[controllers]\n{self.login} {variables}\n", encoding="utf-8")
        return str(path)

    def numbers(self, words: str) -> list[str]:
        """Return the processes whose arguments have these words."""
        return self.on(f"pgrep -f '[{words[0]}]{words[1:]}' || true").split()  # the brackets: not this shell


@dataclass(frozen=True)
class Site:
    """Four bare nodes and the first controller."""

    box: Sandbox
    podman: Podman
    state: Path

    def start(self, *options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [PROGRAM, "provision", str(self.box.inventory), "--yes", "--no-validate", *options],
            env={**os.environ, "XDG_STATE_HOME": str(self.state), "COLUMNS": "400"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def provision(self, *options: str) -> tuple[int, str]:
        with self.start(*options) as process:
            _, said = process.communicate()
        return process.returncode, said

    def record(self) -> dict[str, Any]:
        places = self.state.glob("clusterctl/clusters/*/runs/latest/run.json")
        return dict(json.loads(max(places, key=lambda place: place.stat().st_mtime).read_text(encoding="utf-8")))

    def on(self, node: str, script: str) -> str:
        return self.podman.run("exec", self.box.node(node).container, "sh", "-c", script).decode()


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox], tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(sandbox("two-controllers", nodes=4), container_engine.find(), tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="module")
def second(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Second]:
    folder = tmp_path_factory.mktemp("second")
    for name in ("key", "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "sshd_config").write_text(CONFIG, encoding="utf-8")
    public = (folder / "host_key.pub").read_text(encoding="utf-8")
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{PORT} {public}", encoding="utf-8")
    name = f"clusterctl-second-{os.getpid()}"
    seen = [ROOT, Path(sys.prefix), Path(sys.base_prefix), site.box.inventory.parent]
    volumes = [f"--volume={path}:{path}:ro" for path in dict.fromkeys(map(str, seen))]
    image = site.podman.text("inspect", "--format", "{{.ImageName}}", site.box.node("node1").container)
    start = "mkdir -p /run/sshd; exec /usr/sbin/sshd -D -e -f /second/sshd_config"
    words = ("run", "--detach", "--init", "--name", name, "--network=host", "--uts=private", "--hostname=second")
    site.podman.run(*words, *volumes, f"--volume={folder}:/second", "--entrypoint=/bin/sh", image, "-c", start)
    try:
        login = (
            f"second ansible_host=127.0.0.1 ansible_port={PORT} ansible_user=root "
            f"ansible_ssh_private_key_file={folder}/key "
            f"ansible_ssh_common_args='-o UserKnownHostsFile={folder}/known_hosts'"
        )
        yield Second(site.podman, name, folder, login)
    finally:
        site.podman.run("rm", "--force", "--time", "0", name)


def test_a_worker_that_cannot_do_it_is_refused_before_anything_is_changed(site: Site, second: Second) -> None:
    other = second.folder / "other"
    for name in ("python", "plugins", "playbooks"):
        shutil.copytree(ROOT / name, other / name, symlinks=True)
    shutil.copytree(ROOT / "roles", other / "roles", ignore=shutil.ignore_patterns("molecule"))
    shutil.copy(ROOT / "galaxy.yml", other)
    with (other / "roles" / "hosts" / "defaults" / "main.yml").open("a", encoding="utf-8") as role:
        role.write("# another build\n")
    for name, python in (("newer", sys.executable), ("bare", "/usr/bin/python3")):
        script = second.folder / name
        script.write_text(f'#!/bin/sh\nPYTHONPATH=/second/other/python exec {python} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    for python, words in (
        ("/usr/bin/python3", "has no clusterctl in /usr/bin/python3, or an older one"),
        ("/opt/none", "has no /opt/none; name the Python"),
        ("/second/bare", "The worker second lacks a package"),
        ("/second/newer", "has other roles or plugins in its collection than this controller"),
    ):
        workers = second.workers("refused", f"ansible_python_interpreter={python}")
        code, said = site.provision("--workers", workers)
        assert (code, said.count("clusterctl: The worker second")) == (1, 1), said
        assert words in said
        assert "Traceback" not in said
    code, said = site.provision("--workers", second.workers("nothing", "worker_nodes=rack9"))
    assert code == 1
    assert "worker_nodes of the worker second cannot be used: " in said
    code, said = site.provision("--workers", second.workers("dead", "ansible_port=1"))
    assert code == 4, said
    for node in NODES:
        assert "nothing" in site.on(node, "ls /var/lib/clusterctl /usr/local/openmpi 2>/dev/null || echo nothing")


def test_a_worker_that_is_killed_is_told_and_leaves_nothing_behind(site: Site, second: Second) -> None:
    workers = second.workers("half", "worker_nodes=node3,node4")
    with site.start("--workers", workers) as process:
        until(lambda: second.numbers("ansible-playbook"), 600, process)
        second.on(f"kill -9 {' '.join(second.numbers(OF_A_WORKER))}")
        _, said = process.communicate()
    assert process.returncode == 2, said
    assert "The worker second broke off in the middle of its part" in said
    assert "Traceback" not in said
    outcomes = {host["host"]: host["outcome"] for host in site.record()["hosts"]}
    assert outcomes == {"node1": "changed", "node2": "changed", "node3": "failed", "node4": "failed"}
    assert second.numbers("ansible-playbook") == []
    assert second.numbers(OF_A_WORKER) == []
    assert second.on("ls -A /tmp | grep clusterctl-held || true") == ""
    for node in ("node3", "node4"):  # a link leads to a whole folder, or there is no link
        site.on(node, "for l in /usr/local/*; do test ! -h $l || test -e $l/ || exit 1; done")
        assert "none" in site.on(node, "ls /run/clusterctl/lock 2>/dev/null || echo none")


def test_two_controllers_make_one_cluster_in_one_run(site: Site, second: Second) -> None:
    workers = second.workers("half", "worker_nodes=node3,node4")
    code, said = site.provision("--workers", workers)
    assert code == 0, said
    record = site.record()
    assert record["controllers"] == {"second": ["node3", "node4"]}
    assert {host["host"] for host in record["hosts"]} == set(NODES)
    tasks = Path(record["folder"], "ansible.log").read_text(encoding="utf-8")
    assert re.search(r"^node3 .*failed=0", tasks, re.MULTILINE), "the worker's output stands in the run's log"
    assert second.on("ls -A /tmp | grep clusterctl-held || true") == ""
    packs = second.on("ls /root/.cache/clusterctl/artifacts")
    assert "openmpi-" in packs
    assert second.on("ls /root/.cache/clusterctl/sources 2>/dev/null || echo none").strip() == "none", "it compiled"
    environment = {**os.environ, "XDG_STATE_HOME": str(site.state)}
    job = [PROGRAM, "run", str(site.box.inventory), "--", "hostname"]
    done = subprocess.run(job, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == set(NODES)
    code, said = site.provision("--workers", workers)
    assert code == 0
    assert "Nothing to do" in said


def until(happens: Callable[[], object], seconds: float, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + seconds
    while not happens():
        assert process.poll() is None, "the run ended before"
        assert time.monotonic() < end
        time.sleep(0.3)
