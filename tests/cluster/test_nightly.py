"""Nights of a real cluster: a good one, a fault that is told once, a drift that is named, and a host that is held."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from clusterctl.inventory import ansible_inventory
from clusterctl.model import hosts
from clusterctl.nightly import schedule, scheduler, storage
from clusterctl.state import locks, paths
from nightly_runs import Nights
from validated import CLUSTERCTL, Cluster

pytestmark = pytest.mark.cluster

PAIR = ("node2", "node3")
HOOK = """#!{python}
import json, os, sys
night = json.load(sys.stdin)
validation = json.load(open(os.environ["CLUSTERCTL_VALIDATION"]))
with open({calls!r}, "a") as stream:
    stream.write(json.dumps([night["verdict"], night["change"], validation["verdict"], sys.argv[1:]]) + "\\n")
"""


class HookedNights(Nights):
    """Nights of two nodes, which take half the time of four, with a hook that keeps what it is told."""

    def __init__(self, cluster: Cluster, folder: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(cluster, folder, patch)
        self.calls = folder / "calls"
        hook = folder / "tell somebody.py"
        hook.write_text(HOOK.format(python=sys.executable, calls=str(self.calls)))
        hook.chmod(0o755)
        options = hosts.InventoryOptions(limit=",".join(PAIR))
        self.enable(options=options, on_fail=f"'{hook}' --token '$(id)'")

    def told(self) -> list[list[Any]]:
        return [json.loads(line) for line in self.calls.read_text().splitlines()] if self.calls.exists() else []


@pytest.fixture
def nights(mpi_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HookedNights:
    found = HookedNights(mpi_cluster, tmp_path, monkeypatch)
    assert schedule.has_block(found.table, storage.job_name(found.inventory))
    return found


def test_a_week_of_nights(nights: HookedNights) -> None:
    code, good = nights.run()
    assert (code, good["verdict"], good["drift"]["hosts"]) == (0, "PASS", []), good
    assert good["hook"] is None
    assert good["proof"]["checks"] == 4

    # A setting in the user's own file, for which no role answers: MPI cannot start, and nothing has drifted.
    setting = "/home/cluster/.openmpi/mca-params.conf"
    with nights.cluster.with_file(setting, "coll = nonsense\n", owner="cluster", nodes=PAIR):
        code, bad = nights.run()
        assert (code, bad["verdict"], bad["proof"]["bad"][0]["check"]) == (10, "FAIL", "hello"), bad
        assert bad["drift"]["hosts"] == []
        assert bad["hook"]["ok"], bad["hook"]
        code, still = nights.run()
        assert (code, still["verdict"], still["change"], still["hook"]) == (10, "FAIL", "", None), still
    assert nights.told() == [["FAIL", bad["change"], "FAIL", ["--token", "$(id)"]]]
    assert "$(id)" not in nights.command("status", "--format", "json").stdout

    node, path = PAIR[0], "/etc/clusterctl/fabric.json"
    nights.cluster.on(node, "cp", "-p", path, f"{path}.kept")
    try:
        nights.cluster.on(node, "sh", "-c", f"echo ' ' >> {path}")
        code, drifted = nights.run()
    finally:
        nights.cluster.on(node, "mv", f"{path}.kept", path)
    assert (code, drifted["verdict"], drifted["proof"]["verdict"]) == (10, "FAIL", "PASS"), drifted
    assert [(host["host"], host["why"]) for host in drifted["drift"]["hosts"]] == [
        (node, f"{path} differs: content changed")
    ]
    assert path in " ".join(drifted["drift"]["hosts"][0]["changes"])
    assert drifted["hook"]["ok"]
    assert (good["drift"]["slice"], drifted["drift"]["slice"]) == (0, 3), "each night reads the next seventh"
    assert [told[0] for told in nights.told()] == ["FAIL", "FAIL"]
    status = nights.command("status")
    assert status.returncode == 10
    assert f"drift: {node}: {path} differs" in status.stdout


def test_a_host_that_is_held_is_a_missed_night_with_its_reason(nights: HookedNights) -> None:
    held = ansible_inventory.load(nights.inventory).selected_hosts[1:2]
    with locks.HostLock(held, "clusterctl provision elsewhere.ini"):
        code, missed = nights.run()
    assert (code, missed["outcome"], missed["verdict"]) == (10, "missed", None)
    assert "clusterctl provision elsewhere.ini" in missed["message"]
    assert nights.command("status").returncode == 10
    assert str(paths.state_dir().value).startswith(str(nights.folder))


needs_crontab = pytest.mark.skipif(
    shutil.which("crontab") is None or scheduler.no_systemd("system") == "",
    reason="there is no crontab program, or systemd runs here and takes precedence",
)


@needs_crontab
def test_a_real_crontab_keeps_its_other_lines(mpi_cluster: Cluster, tmp_path: Path) -> None:
    def read() -> str:
        done = subprocess.run(["crontab", "-l"], capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else ""

    def clusterctl(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [*CLUSTERCTL, "nightly", *words]
        environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "it's 100% mine")}
        return subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)

    before, path = read(), str(mpi_cluster.box.inventory)
    try:
        assert clusterctl("enable", path, "--at", "02:00").returncode == 0
        done = clusterctl("enable", path, "--at", "03:30", "--format", "json")
        assert done.returncode == 0, done.stderr
        now = read()
        assert now.startswith(before)
        assert [line[:10] for line in now[len(before) :].splitlines() if not line.startswith("#")] == ["30 3 * * *"]
        assert clusterctl("status", path).returncode == 0
        assert clusterctl("disable", path).returncode == 0
        assert read() == before
        assert clusterctl("status", path).returncode == 1
    finally:
        if read() != before:
            argv = ["crontab", "-"] if before else ["crontab", "-r"]
            subprocess.run(argv, input=before, text=True, check=True)
