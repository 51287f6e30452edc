from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from clusterctl.model import run_record
from clusterctl.model.events import Note
from clusterctl.model.hosts import Host
from clusterctl.model.snapshot import HostSnapshot, Snapshot
from clusterctl.state import files, locks, paths, runs, snapshots
from clusterctl.support.errors import ConfigError, LockedError


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "clusterctl"


def start(inventory: str = "/srv/inventory.ini") -> runs.Run:
    return runs.start("provision", Path(inventory), ["clusterctl", "provision"], {"clusterctl": "1"})


def test_everything_is_the_users_alone(state: Path) -> None:
    before = os.umask(0o000)
    try:
        run = start()
        run.event(Note(at=1.0, host="node1", text="make"))
        run.facts({"node1": {"cores": 2}})
        run.update(outcome="done", exit_code=0)
        run.close()
        snapshots.write(run.record.cluster_id, Snapshot())
        with locks.HostLock([Host("node1", "192.0.2.1")], "x"):
            pass
    finally:
        os.umask(before)
    for path in [state, *state.rglob("*")]:
        if not path.is_symlink() and "locks" not in path.parts[-2:]:
            assert path.stat().st_mode & 0o077 == 0, path


def test_a_record_can_be_read_again() -> None:
    run = start()
    run.update(outcome="done", exit_code=0, hosts=[run_record.HostSummary(host="node1", outcome="ok")])
    run.close()
    (found,) = runs.read_runs(Path("/srv/inventory.ini"))
    assert found == run.record
    assert (run.folder.parent / "latest").resolve() == run.folder
    assert json.loads((run.folder / "run.json").read_text(encoding="utf-8"))["schema_version"] == 1


def test_the_oldest_runs_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "KEPT_RUNS", 3)
    run = start()
    run.close()
    for number in range(5):
        (run.folder.parent / f"20200101T00000{number}Z-provision-1").mkdir()
    again = start("/srv/inventory.ini")
    again.close()
    kept = sorted(path.name for path in run.folder.parent.iterdir() if path.name != "latest")
    assert len(kept) == 3
    assert run.folder.name in kept


def test_what_a_killed_run_left_is_tidied_up() -> None:
    run = start()
    run.close()
    dead = run.folder.parent / "20200101T000000Z-provision-99999999" / runs.PRIVATE
    alive = run.folder / runs.PRIVATE
    for folder in (dead, alive):
        folder.mkdir(parents=True)
    start("/srv/inventory.ini").close()
    assert (dead.exists(), alive.exists()) == (False, True)


def test_two_inventories_of_one_name_are_two_clusters() -> None:
    assert paths.cluster_id(Path("/a/inventory.ini")) != paths.cluster_id(Path("/b/inventory.ini"))


def test_an_atomic_write_leaves_no_crumbs(tmp_path: Path) -> None:
    target = tmp_path / "x"
    target.write_text("old", encoding="utf-8")
    with pytest.raises(TypeError):
        files.write_atomically(target, 7)  # type: ignore[arg-type]
    assert [path.read_text(encoding="utf-8") for path in tmp_path.iterdir()] == ["old"]


def test_a_broken_seal_is_none(state: Path) -> None:
    seal = HostSnapshot(
        run_id="r", inputs={"a": "b"}, members="m", platform="p", host_keys=(), user="u", watch=({"path": "/x"},)
    )
    snapshots.write("c", Snapshot(hosts={"node1": seal, "node2": seal}))
    assert set(snapshots.read("c").hosts) == {"node1", "node2"}
    snapshots.forget_hosts("c", ["node1"])
    assert set(snapshots.read("c").hosts) == {"node2"}
    (state / "clusters" / "c" / "seal.json").write_text("{", encoding="utf-8")
    assert snapshots.read("c") == Snapshot()


def test_an_unwritable_state_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"cannot be written.*comes from \$XDG_STATE_HOME"):
        start()


HOLDER = """
import sys
from clusterctl.state import locks
from clusterctl.model.hosts import Host
with locks.HostLock([Host("other-name", "192.0.2.1"), Host("b", "192.0.2.2")], "clusterctl provision a.ini"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_second_run_hears_who_holds_the_lock() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        hosts = [Host("free", "192.0.2.9"), Host("mine", "192.0.2.1")]
        with pytest.raises(LockedError, match=r"mine is held by .*'clusterctl provision a\.ini'") as caught:
            locks.HostLock(hosts, "y").__enter__()
        assert str(holder.pid) in str(caught.value)
        with locks.HostLock([Host("free", "192.0.2.9"), Host("port", "192.0.2.1", port=2222)], "z"):
            pass  # another machine, or another sshd; and what the failed attempt took was let go
        holder.kill()
        holder.wait()
    with locks.HostLock(hosts, "y"):
        pass  # a killed holder leaves no lock behind


MANY = """
import resource
from clusterctl.state import locks
from clusterctl.model.hosts import Host
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
with locks.HostLock([Host(f"n{number}", f"192.0.2.{number}") for number in range(100)], "x"):
    print("held")
"""


def test_more_machines_than_a_process_may_usually_open_files() -> None:
    assert subprocess.run([sys.executable, "-c", MANY], capture_output=True, text=True, check=True).stdout == "held\n"
