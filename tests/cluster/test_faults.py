"""A node fails in the middle of a stage of a provision: the run ends and names it, and a plain repetition converges.

Each stage meets each fault. The failing node is in turn the first, where the run does what it does once, and another.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clusterctl import sandbox as sandboxes
from clusterctl.sandbox import container_engine
from disturbed import NODES, Cluster, differences

pytestmark = [pytest.mark.cluster, pytest.mark.long]

DEADLINE_S = 240  # a silent node is given up after a minute; the rest is this machine's load
KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts"
LINKS = "/usr/local/openmpi /usr/local/mpi4py /usr/local/python_env"
# The task in whose middle the fault comes, and what must be on the node by then.
STAGES = {
    "facts": ("Gather the facts of every node", ""),
    "push": ("Install the software beside its other versions", "/var/tmp/clusterctl-push-*"),  # noqa: S108
    "switch": ("Switch the links, and prove the software", ""),
    "mesh": ("Make the node's own key", ""),
}
FOLDERS = ("/usr/local", "/var/tmp", "/etc/ssh", "/home", "/tmp")  # noqa: S108 - of a node
# The cure that the record gives for the node; one of these suffices.
SAID = {
    "killed": ("check that it is up", "start sshd there"),  # an address without its node may refuse
    "frozen": ("check that it is up",),
    "cut": ("check that it is up",),
    "read-only": ("make it writable", "make them writable"),
    "full": ("make room", "free some space"),
}


@pytest.fixture(scope="module")
def cluster(sandbox: Callable[..., sandboxes.Sandbox], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that was provisioned from bare software, undisturbed."""
    with tempfile.TemporaryDirectory(prefix="faults-") as temporary:
        box = sandbox("faults", nodes=len(NODES))
        found = Cluster(box, tmp_path_factory.mktemp("state"), Path(temporary), container_engine.find())
        for _ in range(2):
            bare(found)
            found.run("provision")
        found.left["provision"] = found.look()
        yield found


def bare(cluster: Cluster) -> None:
    """Bring the cluster to where every stage has something to do."""
    cluster.prepare("provision")
    for name in NODES:
        cluster.on(name, f"rm -f {KNOWN_HOSTS}")


def small_disks(cluster: Cluster, node: str) -> None:
    """Give the folders of a node file systems of their own, which can be filled."""
    for folder in FOLDERS:
        copy = f"cp -a {folder} /run/before && mount -t tmpfs -o size=4g,mode=$(stat -c %a {folder}) tmpfs {folder}"
        inside(cluster, node, f"{copy} && cp -a /run/before/. {folder} && rm -r /run/before")


@contextlib.contextmanager
def able(cluster: Cluster, fault: str, node: str) -> Iterator[None]:
    """Prepare a node for a fault; what the preparation changed is taken back."""
    if fault != "full":
        yield
        return
    small_disks(cluster, node)
    try:
        yield
    finally:
        cluster.at = ""
        inside(cluster, node, " && ".join(f"umount -l {folder}" for folder in FOLDERS))


def inside(cluster: Cluster, node: str, script: str, *, network: bool = False) -> None:
    """Run a shell script in a node, or in its network, with rights that nothing in the node has."""
    pid = cluster.podman.text("inspect", "--format", "{{.State.Pid}}", cluster.sandbox.node(node).container)
    spaces = ["--net"] if network else ["--mount", "--pid"]
    subprocess.run([*cluster.podman.prefix, "nsenter", "--target", pid, *spaces, "sh", "-c", script], check=True)


def plant(cluster: Cluster, fault: str, node: str) -> None:
    if fault == "cut":
        chains = "\n".join(
            f"chain {hook} {{\n type filter hook {hook} priority 0; policy drop;\n}}" for hook in ("input", "output")
        )
        inside(cluster, node, f"nft 'table inet planted {{\n{chains}\n}}'", network=True)
    elif fault == "read-only":
        # the kernel refuses while a program has a file open for writing
        tried = "for i in $(seq 2000); do mount -o remount,bind,ro / 2>/dev/null && exit; sleep 0.005; done; exit 1"
        inside(cluster, node, tried)
    elif fault == "full":
        used = "df -k --output={0} {1} | tail -1 | tr -d ' '"
        # a size of 0 is no limit, and cannot become one again
        options = f"remount,size=$(($({used.format('used', '{0}')}) + 4))k,nr_inodes=$({used.format('iused', '{0}')})"
        # a module may take more in between, which the kernel refuses to cut off
        tried = "for i in $(seq 100); do mount -o {1} {0} 2>/dev/null && break; done"
        inside(cluster, node, "; ".join(tried.format(folder, options.format(folder)) for folder in FOLDERS))
    else:
        cluster.plant(f"{fault} node", node)


def heal(cluster: Cluster, fault: str, node: str) -> None:
    if fault == "cut":
        inside(cluster, node, "nft delete table inet planted", network=True)
    elif fault == "read-only":
        inside(cluster, node, "mount -o remount,bind,rw /")
    elif fault == "full":
        inside(cluster, node, " && ".join(f"mount -o remount,size=4g,nr_inodes=1m {folder}" for folder in FOLDERS))
    else:
        cluster.heal(f"{fault} node", node)


def run_into(cluster: Cluster, stage: str, fault: str, node: str) -> tuple[int, str, float]:
    """Provision, and plant a fault in the middle of a stage; returns the exit code, what was said and the time."""
    task, there = STAGES[stage]
    with tempfile.TemporaryFile() as heard:
        process, events = cluster.start("provision", heard.fileno())
        try:
            while process.poll() is None and not begun(events(), task, node):
                time.sleep(0.01)
            if there:
                cluster.on(node, f"for i in $(seq 500); do ls {there} >/dev/null 2>&1 && break; sleep 0.01; done")
            assert process.poll() is None, f"the run ended before {task}"
            plant(cluster, fault, node)
            began = time.monotonic()
            try:
                process.wait(timeout=DEADLINE_S)
            finally:
                heal(cluster, fault, node)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        heard.seek(0)
        return process.returncode, heard.read().decode(errors="replace"), time.monotonic() - began


def begun(events: bytes, task: str, node: str) -> bool:
    for line in events.splitlines():
        if b"TaskStartedOnHost" in line and task.encode() in line:
            event = json.loads(line)
            if event["task"] == task and event["host"] == node:
                return True
    return False


def words_of(record: dict[str, Any], node: str) -> str:
    """Return what a record says against a node, with the cures."""
    told = [host["message"] for host in record["hosts"] if host["host"] == node]
    found = [f"{each['problem']} {each['cure']}" for each in record["problems"] if each["host"] == node]
    return " ".join([*told, *found]).strip()


TABLE = [(stage, fault) for stage in STAGES for fault in SAID]


@pytest.mark.parametrize(("stage", "fault"), TABLE, ids=[" ".join(row) for row in TABLE])
def test_a_fault_in_a_stage_is_named_and_mended_by_a_plain_run(cluster: Cluster, stage: str, fault: str) -> None:
    node = NODES[TABLE.index((stage, fault)) % len(NODES)]
    other = next(name for name in NODES if name != node)
    bare(cluster)
    with able(cluster, fault, node):
        code, said, seconds = run_into(cluster, stage, fault, node)
        print(stage, fault, node, code, f"{seconds:.0f} s\n{said}", flush=True)  # noqa: T201 - of the failure's message
        record = json.loads((cluster.folder / "runs" / "latest" / "run.json").read_text(encoding="utf-8"))
        assert code in {2, 4}, said
        words = words_of(record, node)
        assert any(cure in words for cure in SAID[fault]), f"{words}\n{said}"
        assert words_of(record, other) == "" or node in words_of(record, other), said
        broken = cluster.on(other, f"for link in {LINKS}; do test ! -L $link || test -e $link || echo $link; done")
        assert broken == "", "a link of the other node leads nowhere"
        cluster.run("provision")
        assert [*differences(cluster.look(), cluster.left["provision"]), *cluster.litter()] == []
