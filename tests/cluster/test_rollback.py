"""Going back to the software of an earlier run: all links on all nodes in seconds, held until it is released."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import planting
import pytest
from clusterctl.model.results import Verdict
from clusterctl.model.snapshot import HostSoftware, SoftwareSet
from clusterctl.state import paths
from clusterctl.state import snapshots as kept
from validated import CLUSTERCTL, NODES, Cluster, result

pytestmark = pytest.mark.cluster

OTHER = ("-e", "openmpi_version=4.1.4")  # with an mpi4py of its own
NAMES = ("openmpi", "mpi4py", "python_env")


def rolled(cluster: Cluster, *words: str) -> dict[str, Any]:
    """Roll back to the run that is named, or to the one before, and return the record of it."""
    began = time.monotonic()
    argv = [*CLUSTERCTL, "rollback", "--yes", "--format", "json", str(cluster.box.inventory), *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return {**record, "returncode": done.returncode, "seconds": time.monotonic() - began}


def provisioned(cluster: Cluster, *options: str) -> dict[str, Any]:
    done, _ = cluster.run("provision", "--yes", "--no-validate", "--format", "json", *options)
    assert done.returncode == 0, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def links(cluster: Cluster) -> dict[str, set[str]]:
    """Return the target of each link on all nodes; all nodes agree where each set has one member."""
    found: dict[str, set[str]] = {}
    for node in NODES:
        for name in NAMES:
            found.setdefault(name, set()).add(cluster.on(node, "readlink", f"/usr/local/{name}"))
    return found


@pytest.fixture(scope="module")
def upgraded(fresh_cluster: Cluster) -> tuple[Cluster, str, dict[str, set[str]], dict[str, set[str]]]:
    """A cluster that was upgraded: the run before, the links before, and the links now."""
    cluster = fresh_cluster
    place = paths.cluster_dir(paths.cluster_id(cluster.box.inventory))
    (before_run,) = {path.resolve().parent.name for path in place.glob("runs/*/software.json")}
    before = links(cluster)
    provisioned(cluster, *OTHER)
    now = links(cluster)
    assert {name for name in NAMES if before[name] != now[name]} == {"openmpi", "mpi4py"}
    return cluster, before_run, before, now


def test_what_stands_in_the_way_is_named_and_nothing_is_switched(
    upgraded: tuple[Cluster, str, dict[str, set[str]], dict[str, set[str]]],
) -> None:
    cluster, _, before, now = upgraded
    (tree,) = before["mpi4py"]
    with planting.away(cluster, "node3", f"/usr/local/{tree}"):
        gone = rolled(cluster)
    assert (gone["returncode"], gone["outcome"]) == (2, "failed")
    (problem,) = gone["problems"]
    assert problem["host"] == "node3"
    assert f"/usr/local/{tree} is gone" in problem["problem"]
    assert "mpi4py" in problem["cure"]
    library = cluster.on("node2", "sh", "-c", f"ls -d /usr/local/{tree}/site-packages/mpi4py/__init__.py")
    with planting.away(cluster, "node2", library):
        damaged = rolled(cluster)
    assert [(one["host"], "is damaged" in one["problem"]) for one in damaged["problems"]] == [("node2", True)]
    rank = ["sh", "-c", "OMPI_COMM_WORLD_RANK=0 setsid sleep 61 > /dev/null 2>&1 & echo $!"]
    # of root, because root in a container has no right to trace the processes of others
    pid = cluster.engine.text("exec", cluster.box.node("node4").container, *rank)
    try:
        busy = rolled(cluster)
    finally:
        cluster.on("node4", "kill", pid)
    assert (busy["returncode"], [one["host"] for one in busy["problems"]]) == (2, ["node4"])
    assert "sleep 61" in busy["problems"][0]["problem"]
    assert "--while-busy" in busy["problems"][0]["cure"]
    with planting.link_down(cluster, "node1"):
        away = rolled(cluster)
    assert (away["returncode"], [one["host"] for one in away["problems"]]) == (4, ["node1"])
    assert links(cluster) == now
    assert not paths.hold_file(paths.cluster_id(cluster.box.inventory)).exists()


def test_it_takes_seconds_and_provision_respects_it_until_it_is_released(
    upgraded: tuple[Cluster, str, dict[str, set[str]], dict[str, set[str]]],
) -> None:
    cluster, run_id, before, now = upgraded
    back = rolled(cluster)
    print(f"rollback of {len(NODES)} nodes: {back['seconds']:.1f} s")  # noqa: T201 - the figure of this test
    assert (back["returncode"], back["outcome"]) == (0, "done"), back
    assert links(cluster) == before
    assert any(run_id in sentence for sentence in back["told"])
    assert {host["outcome"] for host in back["hosts"]} == {"changed"}
    assert f"/usr/local/mpi4py -> {next(iter(before['mpi4py']))}" in back["hosts"][0]["changes"]
    assert result(cluster.validate("hello"), "hello").verdict is Verdict.PASS
    assert rolled(cluster, run_id)["outcome"] == "nothing to do"

    held = provisioned(cluster, *OTHER)
    assert held["outcome"] == "nothing to do"
    assert held["told"][0].startswith(f"Held at {run_id} by a rollback of ")
    tagged, _ = cluster.run("provision", "--yes", "--tags", "openmpi")
    assert (tagged.returncode, "--release" in tagged.stderr) == (1, True)
    with planting.changed(cluster, "node2", f"ln -sfn {next(iter(now['openmpi']))} /usr/local/openmpi", "true"):
        mended = provisioned(cluster, *OTHER)
    assert links(cluster) == before, "what a hold keeps is mended as anything else"
    assert [host["outcome"] for host in mended["hosts"]] == ["ok", "changed", "ok", "ok"]
    assert provisioned(cluster, *OTHER)["outcome"] == "nothing to do"

    released, _ = cluster.run("rollback", "--release")
    assert "Released" in released.stderr
    assert provisioned(cluster, *OTHER)["outcome"] == "done"
    assert links(cluster) == now


def test_a_rollback_that_is_killed_is_finished_by_the_next(
    upgraded: tuple[Cluster, str, dict[str, set[str]], dict[str, set[str]]],
) -> None:
    cluster, run_id, before, _ = upgraded
    hold = paths.hold_file(paths.cluster_id(cluster.box.inventory))
    argv = [*CLUSTERCTL, "rollback", "--yes", str(cluster.box.inventory), run_id]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "Switch the links" in line)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert hold.exists()
    again = rolled(cluster)
    assert again["returncode"] == 0, again
    assert links(cluster) == before
    assert json.loads(hold.read_text(encoding="utf-8"))["finished"] is True
    for node in NODES:
        assert cluster.on(node, "sh", "-c", "ls -d /usr/local/.[a-z]* 2>/dev/null; true") == ""


# An artifact that no set of the newest two names, whole, with one file that a process can use.
OLD = "openmpi-4.0.0-0123456789abcdef"
PLANT = f"""
import hashlib, json, os, pathlib
tree = pathlib.Path("/usr/local/{OLD}")
tree.mkdir()
(tree / "file").write_bytes(b"x" * 5000)
digest = hashlib.sha256(b"x" * 5000).hexdigest()
manifest = json.dumps({{"schema": 1, "files": [["file", "f", 5000, digest, "0644"]]}}).encode()
(tree / ".clusterctl.files.json").write_bytes(manifest)
marker = {{"schema": 1, "name": "openmpi", "version": "4.0.0", "key": "0123456789abcdef", "inputs": {{}}}}
marker["manifest_sha256"] = hashlib.sha256(manifest).hexdigest()
(tree / ".clusterctl.json").write_text(json.dumps(marker))
"""
USER = f"import mmap, time; f = open('/usr/local/{OLD}/file'); m = mmap.mmap(f.fileno(), 0, access=1); time.sleep(600)"


@pytest.mark.long
def test_gc_takes_what_nothing_needs_and_a_rollback_to_it_says_so(
    fresh_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a cache of its own: that of the machine is shared."""
    cluster = fresh_cluster
    provisioned(cluster)
    before = links(cluster)
    name = paths.cluster_id(cluster.box.inventory)
    run_id = "20260101T000000Z-provision-1"
    folder = paths.private_folder(paths.runs_dir(name) / run_id)
    hosts = {node: HostSoftware(platform="p", links={"/usr/local/openmpi": f"/usr/local/{OLD}"}) for node in NODES}
    when = datetime(2026, 1, 1, tzinfo=timezone.utc)
    kept.write_set(folder, SoftwareSet(run_id=run_id, verb="provision", left=when, hosts=hosts))
    between = paths.private_folder(paths.runs_dir(name) / "20260102T000000Z-provision-1")
    kept.write_set(between, SoftwareSet(run_id=between.name, verb="provision", left=when, hosts={}))
    packs = tmp_path / "cache/clusterctl/artifacts"
    packs.mkdir(parents=True)
    for suffix in ("json", "tar.zst"):
        (packs / f"{OLD}.{suffix}").write_text("{}")
        os.utime(packs / f"{OLD}.{suffix}", (0, 0))

    def gc(*words: str) -> dict[str, Any]:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        argv = [*CLUSTERCTL, "gc", "--format", "json", *words, str(cluster.box.inventory)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        monkeypatch.undo()
        assert done.returncode == 0, done.stderr
        record: dict[str, Any] = json.loads(done.stdout)
        return record

    for node in NODES:
        cluster.on(node, "python3", "-c", PLANT)
    pid = cluster.engine.text(
        "exec",
        cluster.box.node("node2").container,
        "sh",
        "-c",
        f'setsid python3 -c "{USER}" > /dev/null 2>&1 & echo $!',
    )
    try:
        ahead = gc("--check")
        assert cluster.on("node1", "ls", "-d", f"/usr/local/{OLD}") == f"/usr/local/{OLD}"
        done = gc("--yes")
    finally:
        cluster.on("node2", "kill", pid)
    assert ahead["told"] == done["told"]
    assert done["told"][0].startswith("node[1,3-4]: 4.88 KiB on each: openmpi-4.0.0-")
    assert done["told"][1].startswith("cache: ")
    left = [node for node in NODES if cluster.on(node, "sh", "-c", f"ls -d /usr/local/{OLD} 2>/dev/null; true")]
    assert (left, list(packs.glob("[!.]*"))) == (["node2"], [])
    assert links(cluster) == before
    assert gc("--yes")["told"][0].startswith("node2: 4.88 KiB: ")
    assert gc("--yes")["outcome"] == "nothing to do"

    gone = rolled(cluster, run_id)
    assert (gone["returncode"], len(gone["problems"])) == (2, len(NODES))
    assert f"/usr/local/{OLD} was collected by 'clusterctl gc' on 20" in gone["problems"][0]["problem"]
    assert "'clusterctl provision' with openmpi 4.0.0 installs it" in gone["problems"][0]["cure"]
