"""What unfinished runs leave on a node and in the cache is found, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import brought, command, origins, packages_installed
from ansible_collections.clusterctl.hpc.plugins.modules import leftovers, package_install
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import partial_file

KEY = "0123456789abcdef"
LITTER = (
    f"local/.openmpi-5.0.7-{KEY}.abcd1234/tree/lib",
    f"work/clusterctl-push-{KEY}-openmpi-5.0.7-{KEY}.tar.zst",
    "work/clusterctl-openmpi-abcd_234/stage",
    "etc/.hosts.clusterctl-abcd1234",
    "state/.origins.abcd1234",
    "state/.cluster.json.abcd1234",
    "state/proofs/.mpi4py.json.clusterctl-abcd1234",
    f"packs/openmpi-5.0.7-{KEY}.tar.partial",
    f"packs/fetched-1-{KEY}.tar.zst",
    f"packs/fetched-1-{KEY}.json",
)
PRESENT = "ansible_clusterctl.hpc.leftovers_payload_abcd1234"  # of a module that runs now
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
    monkeypatch.setattr(brought, "_TEXTS", (str(tmp_path / "etc/hosts"),))
    for name, value in (("FILES", ()), ("ALWAYS_THERE", ()), ("_FOLDERS", ()), ("STATE", str(tmp_path / "state"))):
        monkeypatch.setattr(brought, name, value)
    monkeypatch.setenv("CLUSTERCTL_ORIGINS", str(tmp_path / "origins.json"))

    for name, age_s in (("ansible_clusterctl.hpc.file_set_payload_abcd1234", 9e5), (PRESENT, 0)):
        (tmp_path / "tmp" / name).mkdir(parents=True)
        os.utime(tmp_path / "tmp" / name, (time.time() - age_s,) * 2)
    found = leftovers.of_unfinished(
        [str(tmp_path / "work")], [f"fetched-1-{KEY}"], str(tmp_path / "local"), str(tmp_path / "tmp")
    )
    for path in found:
        leftovers.remove(path)
    assert [path.name for path in (tmp_path / "tmp").iterdir()] == [PRESENT]
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_symlink() or path.is_file()}
    assert left == {*OTHERS, "local/openmpi"}


@pytest.mark.programs
def test_a_program_of_an_unfinished_run_is_waited_for() -> None:
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


HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print(flush=True)
time.sleep(60)
"""


@pytest.mark.programs
def test_the_holder_of_a_package_lock_is_named(tmp_path: Path) -> None:
    free, lock = tmp_path / "free", tmp_path / "lock"
    free.touch()
    assert packages_installed.lock_holder([str(tmp_path / "missing"), str(free)]) == ""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert packages_installed.lock_holder([str(free), str(lock)]).endswith(f"(process {process.pid})")
        process.kill()


def test_what_dpkg_was_cut_off_from_is_named_and_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "installed base-files\nunpacked libgfortran5\nhalf-configured gcc-12\ndeinstall old\n"
    asked: list[list[str]] = []

    def run(argv: list[str], _timeout_s: float = 0) -> command.Done:
        asked.append(argv)
        return command.Done(0, said, "") if argv[0] == "dpkg-query" else command.Done(1, "", "dpkg: error: no room\n")

    monkeypatch.setattr(packages_installed, "_has", lambda name: name == "dpkg-query")
    monkeypatch.setattr(packages_installed, "_run", run)
    assert packages_installed.unfinished() == ["gcc-12", "libgfortran5"]
    with pytest.raises(packages_installed.PackageError, match="could not finish it: dpkg: error: no room; repair"):
        packages_installed.finish()
    assert asked[-1][0] == "dpkg"
    assert "--configure" in asked[-1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root keeps the record of origins")
def test_packages_of_an_installation_that_a_kill_cut_off_are_recorded_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTERCTL_ORIGINS", str(tmp_path / "origins.json"))
    monkeypatch.setattr(packages_installed, "lock_holder", lambda: "")
    monkeypatch.setattr(packages_installed, "unfinished", list)
    monkeypatch.setattr(packages_installed, "installed", lambda: ["base"])
    assert package_install.before(["gcc"], really=True)["installed"] == ["base"]
    monkeypatch.setattr(packages_installed, "installed", lambda: ["base", "cpp"])  # a kill cuts off gcc itself
    package_install.before(["gcc"], really=True)
    assert origins.load()["packages"] == ["cpp"]
