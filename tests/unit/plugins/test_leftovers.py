"""What killed runs leave on a node and in the cache is found, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import brought, leftovers
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import partial_file

if TYPE_CHECKING:
    from pathlib import Path

KEY = "0123456789abcdef"
LITTER = (
    f"local/.openmpi-5.0.7-{KEY}.abcd1234/tree/lib",
    f"work/clusterctl-push-{KEY}-openmpi-5.0.7-{KEY}.tar.zst",
    "work/clusterctl-openmpi-abcd_234/stage",
    "etc/.hosts.clusterctl-abcd1234",
    "state/.origins.abcd1234",
    "state/proofs/.mpi4py.json.clusterctl-abcd1234",
    f"packs/openmpi-5.0.7-{KEY}.tar.partial",
    f"packs/fetched-1-{KEY}.tar.zst",
    f"packs/fetched-1-{KEY}.json",
)
OTHERS = (
    f"local/openmpi-5.0.7-{KEY}/{brought.MARKER}",
    "local/.hidden/file",
    "work/clusterctl-notes.txt",
    "etc/hosts",
    "etc/.hosts.swp",
    f"packs/built-1-{KEY}.tar.zst",
    f"packs/built-1-{KEY}.json",
)


@pytest.mark.skipif(os.geteuid() != 0, reason="folders of builds are root's")
def test_what_killed_runs_left_is_found_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*LITTER, *OTHERS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "local/.openmpi.abcd1234").symlink_to(f"openmpi-5.0.7-{KEY}")
    (tmp_path / "local/openmpi").symlink_to(f"openmpi-5.0.7-{KEY}")
    monkeypatch.setattr(leftovers, "PACKS", str(tmp_path / "packs"))
    monkeypatch.setattr(brought, "TEXTS", (str(tmp_path / "etc/hosts"),))
    for name, value in (("FILES", ()), ("ALWAYS_THERE", ()), ("FOLDERS", ()), ("STATE", str(tmp_path / "state"))):
        monkeypatch.setattr(brought, name, value)
    monkeypatch.setenv("CLUSTERCTL_ORIGINS", str(tmp_path / "origins.json"))

    found = leftovers.of_killed([str(tmp_path / "work")], [f"fetched-1-{KEY}"], str(tmp_path / "local"))
    found = [path for path in found if path.startswith(str(tmp_path))]
    for path in found:
        leftovers.remove(path)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_symlink() or path.is_file()}
    assert left == {*OTHERS, "local/openmpi"}


@pytest.mark.programs
def test_a_program_of_a_killed_run_is_waited_for() -> None:
    run = json.dumps({"run": "20200101T000000Z-provision-1"})
    said: list[str] = []
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "CLUSTERCTL_RUN": run}) as process:
        left = leftovers.still_at_work(["20200101T000000Z-provision-1"], 0.3, said.append)
        assert [(worker.pid, worker.name) for worker in left] == [(process.pid, "sleep")]
        assert leftovers.still_at_work(["another"], 0.3, said.append) == []
        process.kill()
        process.wait()
        assert leftovers.still_at_work(["20200101T000000Z-provision-1"], 5, said.append) == []
    assert said
    assert f"process {process.pid}" in said[0]


def test_a_partial_file_that_nobody_holds_goes(tmp_path: Path) -> None:
    (tmp_path / ".partial-abcd1234").write_text("half")
    (tmp_path / ".partial-efgh1234").mkdir()
    (tmp_path / "openmpi.tar.zst").write_text("whole")
    with partial_file.staged(tmp_path) as file, partial_file.staged_folder(tmp_path) as folder:
        partial_file.forget_abandoned(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted([file, folder, tmp_path / "openmpi.tar.zst"])
    assert list(tmp_path.iterdir()) == [tmp_path / "openmpi.tar.zst"]
